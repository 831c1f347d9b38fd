"""Accounts of staff and customers, and the groups that give staff their permissions.

Only a superuser may give permissions and change accounts of staff. Otherwise a staff member with the permission to
change users could make themselves a superuser, or set a superuser's password and log in as them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth import admin as auth
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from shop.accounts.guests import IS_GUEST, guest_of
from shop.accounts.tokens import sign_out_everywhere
from shop.admin.bulk import BatchResult, run_in_batches
from shop.admin.checked import CheckedAdmin

POWERS = ("is_staff", "is_superuser", "groups", "user_permissions")

admin.site.unregister([User, Group])


def change_own_password(request: HttpRequest) -> HttpResponse:
    """Change the password of the operator. A wrong old password counts as a guess, as at the log-in.

    Raises:
        TooManyGuesses, TriesUnderWay, HashingBusy: nothing was changed.
    """
    if request.method == "POST":
        old = request.POST.get("old_password", "")
        authenticate(request, username=request.user.get_username(), password=old)
    return admin.site.password_change(request)


def may_change_powers(request: HttpRequest) -> bool:
    return request.user.is_active and request.user.is_superuser


class GuestFilter(admin.SimpleListFilter):
    """A list filter for guests and for users who are not guests."""

    title = "guest"
    parameter_name = "guest"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Yes"), ("no", "No")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        match self.value():
            case "yes":
                return queryset.filter(IS_GUEST)
            case "no":
                return queryset.filter(~IS_GUEST)
        return queryset


@admin.register(User)
class UserAdmin(auth.UserAdmin, CheckedAdmin):
    none_yet = "No users yet. Customers appear here when they sign up; add operators yourself."
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Put labels above the fields, because two lists of permissions need the width. Newer unfold versions ignore this.
    compressed_fields = False
    actions = ("sign_out",)
    list_filter = (*auth.UserAdmin.list_filter, GuestFilter)
    search_fields = (*auth.UserAdmin.search_fields, "guest__email")
    fieldsets = (*(auth.UserAdmin.fieldsets or ()), ("Guest", {"fields": ("guest_address",)}))

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        return ("guest_address", *(() if may_change_powers(request) else POWERS))

    @display(description="Address of a guest")
    def guest_address(self, user: User) -> str | None:
        guest = guest_of(user.pk) if user.pk else None
        return f"{guest.email}, not confirmed" if guest else None

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_change_permission(request, obj) and _within_reach(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _within_reach(request, obj)

    @admin.action(permissions=["change"], description="Sign out everywhere: end all sessions and tokens")
    def sign_out(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        def act(users: Sequence[User], ends: float) -> BatchResult:
            result = BatchResult()
            for user in users:
                if self.has_change_permission(request, user):
                    result.changed.append(user)
                else:
                    result.refused.append(f"{user} was not signed out: only a superuser changes accounts of staff.")
            sign_out_everywhere([user.pk for user in result.changed])
            return result

        run_in_batches(self, request, queryset, act, done="signed out everywhere", all_pages=True)


@admin.register(Group)
class GroupAdmin(auth.GroupAdmin, CheckedAdmin):
    """The admin page of groups. Only superusers may change a group, because it gives permissions to its members."""

    none_yet = "No groups yet. Add one to give the same permissions to several operators."
    compressed_fields = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may_change_powers(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_change_powers(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_change_powers(request)


def _within_reach(request: HttpRequest, user: User | None) -> bool:
    return may_change_powers(request) or user is None or not (user.is_staff or user.is_superuser)
