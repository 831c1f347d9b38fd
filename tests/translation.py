"""Compare the texts of an app's pages with the translations in its locale folder."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from babel.messages.pofile import read_po
from django.utils.translation.template import templatize

TEXTS_OF_A_CALL = {"_": 1, "gettext": 1, "gettext_noop": 1, "gettext_lazy": 1, "ngettext": 2}
Texts = tuple[str, ...]
"""A single text, or a pair of singular and plural."""


def texts_of(modules: Iterable[Path], templates: Iterable[Path]) -> set[Texts]:
    """Return every text that the given modules and templates mark for translation."""
    found: set[Texts] = set()
    for file in modules:
        found.update(_in_code(ast.parse(file.read_text(encoding="utf-8"))))
    for file in templates:
        found.update(_in_template(file))
    return found


def _in_code(tree: ast.AST) -> Iterator[Texts]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TEXTS_OF_A_CALL:
            texts = node.args[: TEXTS_OF_A_CALL[node.func.id]]
            if texts and isinstance(texts[0], ast.Constant):
                yield tuple(ast.literal_eval(text) for text in texts)


def _in_template(file: Path) -> Iterator[Texts]:
    # Turn the template into gettext calls, as Django's makemessages does before it runs xgettext.
    code = templatize(file.read_text(encoding="utf-8"))
    for name, call in re.findall(r" (_|n?gettext)\((.*?)(?:, *count)?\) ", code):
        texts = ast.literal_eval(f"({call},)")
        assert len(texts) == 1 + (name == "ngettext")
        yield texts


def written(folder: Path) -> dict[Texts, Texts]:
    """Return the texts of the .po file in a folder and their translations."""
    with (folder / "django.po").open("rb") as file:
        messages = [message for message in read_po(file, locale="zh_Hans") if message.id]
    as_tuple = lambda texts: tuple(texts) if isinstance(texts, list | tuple) else (texts,)  # noqa: E731
    return {as_tuple(message.id): as_tuple(message.string) for message in messages}


def assert_complete(folder: Path, needed: set[Texts]) -> None:
    """Check that the .po file translates every needed text, and no other text."""
    entries = written(folder)
    missing = {texts for texts in needed if not all(entries.get(texts, ("",)))}
    unused = set(entries) - needed
    assert not missing, f"add to {folder}/django.po: {sorted(missing)}"
    assert not unused, f"remove from {folder}/django.po: {sorted(unused)}"


def assert_compiled(folder: Path) -> None:
    """Check that the .mo file was compiled from the current .po file."""
    with (folder / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (singular, *plural), (text,) in written(folder).items():
        found = compiled.ngettext(singular, plural[0], 2) if plural else compiled.gettext(singular)
        assert found == text, f"compile {folder}/django.po: msgfmt --check -o django.mo django.po"
