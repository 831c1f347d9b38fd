"""The storefront in simplified Chinese: every text is translated, and the .mo file matches the .po file."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings

from shop.api.problems import PROBLEMS
from tests.translation import assert_compiled, assert_complete, texts_of, written

SHOP = Path(settings.BASE_DIR) / "shop"
FOLDER = SHOP / "locale" / "zh_Hans" / "LC_MESSAGES"


def test_every_text_is_translated_and_nothing_else() -> None:
    of_problems = {(text,) for problem in PROBLEMS.values() for text in (problem.title, problem.advice)}
    assert_complete(FOLDER, of_problems | texts_of(SHOP.rglob("*.py"), (SHOP / "templates").rglob("*.*")))


def test_the_compiled_file_matches_the_written_one() -> None:
    assert_compiled(FOLDER)


@pytest.mark.parametrize(("changed", "what"), [("a new text", "add to"), ("", "remove from")])
def test_a_text_that_is_missing_or_unused_is_named(changed: str, what: str) -> None:
    """Negative control: a missing or unused text is named."""
    (text, *_), *others = sorted(written(FOLDER))
    with pytest.raises(AssertionError, match=what) as refused:
        assert_complete(FOLDER, {*others, (changed,)} if changed else set(others))
    assert (changed or text) in str(refused.value)
