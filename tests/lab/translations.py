"""What has to be translated, read from the code and the templates; and what a .po file says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from django.utils.translation.template import templatize

from lab.explorer.terms import FAULT_TEXTS, Fault, Invariant
from lab.ladder.catalogue import LADDER, ROOT

LAB = ROOT / "lab"
SAYS = ("_", "gettext", "gettext_noop", "gettext_lazy")
Texts = tuple[str, ...]


def needed() -> set[Texts]:
    """Every text of the lab's pages: a singular alone, or with its plural."""
    from_rungs = {text for entry in LADDER.values() for text in (entry.title, entry.flaw) if text}
    from_code = {*get_args(Fault), *get_args(Invariant), *FAULT_TEXTS.values(), *from_rungs}
    found = {(text,) for text in from_code}
    for folder in ("comparison", "pages", "race", "templatetags"):
        for file in sorted((LAB / folder).rglob("*.py")):
            found.update(_called(ast.parse(file.read_text(encoding="utf-8"))))
    for file in sorted((LAB / "templates").rglob("*.html")):
        found.update(_in_template(file))
    return found


def _called(tree: ast.AST) -> Iterator[Texts]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYS:
            text = node.args[0]
            if isinstance(text, ast.Constant):
                yield (text.value,)


def _in_template(file: Path) -> Iterator[Texts]:
    # What Django makes of a template for xgettext: calls among text that is no Python.
    for plural, call in re.findall(
        r" (n?)gettext\((.*?)(?:, *count)?\) ", templatize(file.read_text(encoding="utf-8"))
    ):
        texts = ast.literal_eval(f"({call},)")
        assert len(texts) == 1 + bool(plural)
        yield texts


def read(file: Path) -> dict[Texts, Texts]:
    """The entries of a .po file: what stands for what. The header is the entry of the empty text."""
    entries: dict[Texts, Texts] = {}
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        parts: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith(("#", "~")) or not line.strip():
                continue
            if not line.startswith('"'):
                name, line = line.split(" ", 1)
            parts[name] = parts.get(name, "") + ast.literal_eval(line)
        if parts:
            key = (parts["msgid"], *([parts["msgid_plural"]] if "msgid_plural" in parts else []))
            entries[key] = tuple(text for name, text in parts.items() if name.startswith("msgstr"))
    return entries
