"""Access tokens for simulated customers, made without a log-in."""

from rest_framework_simplejwt.tokens import AccessToken


def access_token(customer: int, *, staff: bool = False) -> str:
    """Return an access token for a user id, signed with the shop's key."""
    token = AccessToken()
    token["user_id"] = str(customer)
    if staff:
        token["is_staff"] = True
    return str(token)
