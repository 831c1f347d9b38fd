"""The rules for new passwords, in the words of the shop."""

from __future__ import annotations

from django.contrib.auth.password_validation import CommonPasswordValidator, MinimumLengthValidator
from django.utils.translation import gettext as _


class LongEnough(MinimumLengthValidator):
    """Django's check of the minimum length, with the shop's own texts.

    Django's message has no Chinese translation, and its hints in Chinese address customers less politely.
    """

    def get_error_message(self) -> str:
        return _("This password is too short. Use at least %(characters)d characters.") % {
            "characters": self.min_length
        }

    def get_help_text(self) -> str:
        return _("Use at least %(characters)d characters.") % {"characters": self.min_length}


class NotCommon(CommonPasswordValidator):
    """Django's check against a list of common passwords, with the shop's own help text."""

    def get_help_text(self) -> str:
        return _("Use no password that is common.")
