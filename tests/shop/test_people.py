"""Accounts in the admin: nobody can give permissions that they do not have."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from redis import Redis

from shop.models import SignOut
from tests.factories import new_customer
from tests.shop.conftest import logged_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]

USERS = "/admin/auth/user/"
GROUPS = "/admin/auth/group/"
NEW = {"password1": "a new one 2026", "password2": "a new one 2026", "usable_password": "true"}


@pytest.fixture
def clerk(db: None, redis: Redis) -> User:
    """A staff account with all permissions for users and groups, and no others."""
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="auth"))
    return user


@pytest.fixture
def root(db: None, redis: Redis) -> User:
    return User.objects.create_superuser("root")


def form_of(user: User, **changed: Any) -> dict[str, Any]:
    moment = {"date_joined_0": "2026-11-26", "date_joined_1": "12:00:00"}
    return {"username": user.username, "is_active": "on", **moment, **changed}


def powers(user: User) -> tuple[bool, bool, int, int]:
    user = User.objects.get(pk=user.pk)
    return user.is_staff, user.is_superuser, user.groups.count(), user.user_permissions.count()


@pytest.mark.parametrize("whose", ["own", "customer"])
def test_a_clerk_gives_nobody_more_powers(clerk: User, root: User, whose: str) -> None:
    """A clerk gives nobody more permissions. Negative control: a superuser does so with the same form."""
    user = clerk if whose == "own" else User.objects.get(pk=new_customer("ada"))
    group = Group.objects.create(name="all")
    form = form_of(user, is_staff="on", is_superuser="on", groups=[group.pk], user_permissions=["1", "2"])
    before = powers(user)
    logged_in(clerk.pk).post(f"{USERS}{user.pk}/change/", form)
    assert powers(user) == before
    assert logged_in(root.pk).post(f"{USERS}{user.pk}/change/", form).status_code == 302
    assert powers(user) == (True, True, 1, 2)


def test_a_clerk_changes_the_account_of_a_customer(clerk: User) -> None:
    user = User.objects.get(pk=new_customer("ada"))
    client = logged_in(clerk.pk)
    assert client.get(f"{USERS}{user.pk}/change/").status_code == 200
    assert client.post(f"{USERS}{user.pk}/change/", form_of(user, first_name="Ada")).status_code == 302
    assert client.post(f"{USERS}{user.pk}/password/", NEW).status_code == 302
    user.refresh_from_db()
    assert (user.first_name, user.check_password(NEW["password1"])) == ("Ada", True)


@pytest.mark.parametrize("whose", ["superuser", "staff", "own"])
def test_a_clerk_takes_over_no_account_of_staff(clerk: User, root: User, whose: str) -> None:
    other = User.objects.create_user("other", is_staff=True)
    user = {"superuser": root, "staff": other, "own": clerk}[whose]
    client, before = logged_in(clerk.pk), User.objects.values().get(pk=user.pk)
    assert client.post(f"{USERS}{user.pk}/password/", NEW).status_code == 403
    assert client.post(f"{USERS}{user.pk}/change/", form_of(user, username="mine")).status_code == 403
    assert client.post(f"{USERS}{user.pk}/delete/", {"post": "yes"}).status_code == 403
    for action in ("delete_selected", "sign_out"):
        client.post(USERS, {"action": action, "_selected_action": user.pk, "index": "0", "post": "yes"})
    assert User.objects.values().get(pk=user.pk) == before
    assert not SignOut.objects.exists()


def test_a_clerk_changes_no_group(clerk: User) -> None:
    group = Group.objects.create(name="all")
    clerk.groups.add(group)
    client = logged_in(clerk.pk)
    assert client.get(GROUPS).status_code == 200
    permissions = [str(pk) for pk in Permission.objects.values_list("pk", flat=True)]
    for path in (f"{group.pk}/change/", "add/", f"{group.pk}/delete/"):
        form = {"name": "all", "permissions": permissions, "post": "yes"}
        assert client.post(f"{GROUPS}{path}", form).status_code == 403
    assert list(Group.objects.values_list("name", "permissions")) == [("all", None)]


def test_a_new_account_has_no_powers(clerk: User) -> None:
    form = {"username": "new", **NEW, "is_staff": "on", "is_superuser": "on", "groups": [], "user_permissions": ["1"]}
    assert logged_in(clerk.pk).post(f"{USERS}add/", form).status_code == 302
    assert powers(User.objects.get(username="new")) == (False, False, 0, 0)
