"""Accounts of staff and customers, and the groups that give staff their permissions."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import admin as auth
from django.contrib.auth.models import Group, User
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister([User, Group])


@admin.register(User)
class UserAdmin(auth.UserAdmin, ModelAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Put labels above the fields, because two lists of permissions need the width. Newer versions ignore this.
    compressed_fields = False


@admin.register(Group)
class GroupAdmin(auth.GroupAdmin, ModelAdmin):
    compressed_fields = False
