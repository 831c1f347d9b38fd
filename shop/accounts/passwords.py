"""What a new password must be like."""

from __future__ import annotations

from django.contrib.auth.password_validation import MinimumLengthValidator
from django.utils.translation import gettext as _


class LongEnough(MinimumLengthValidator):
    """Django's minimum length, with a message that is translated: Django's own is not, in Chinese."""

    def get_error_message(self) -> str:
        return _("This password is too short. Use at least %(characters)d characters.") % {
            "characters": self.min_length
        }
