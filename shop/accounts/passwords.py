"""The rule for the length of new passwords."""

from __future__ import annotations

from django.contrib.auth.password_validation import MinimumLengthValidator
from django.utils.translation import gettext as _


class LongEnough(MinimumLengthValidator):
    """Django's minimum length with a message of the shop, because Django's message has no Chinese translation."""

    def get_error_message(self) -> str:
        return _("This password is too short. Use at least %(characters)d characters.") % {
            "characters": self.min_length
        }
