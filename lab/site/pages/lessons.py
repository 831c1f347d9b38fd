"""Lessons and essays: Markdown files in the reader's language, rendered as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext_noop
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lab.ladder.catalogue import LADDER

FOLDER = Path(__file__).resolve().parent.parent / "lessons"
ESSAYS = {
    "choosing-a-ttl": gettext_noop("How to choose a TTL"),
    "efficiency-or-correctness": gettext_noop("Locks for efficiency, locks for correctness"),
    "available-or-consistent": gettext_noop("Available or consistent"),
}
"""Titles of the essays by the name in their address."""


def lesson(slug: str) -> SafeString | None:
    """Return the lesson of a rung as HTML, its headings one level below the page's sections; None: there is none."""
    return _render(get_language() or "en", slug, deeper=1)


def essay(name: str) -> SafeString | None:
    """Return an essay as HTML."""
    return _render(get_language() or "en", f"essays/{name}", deeper=0)


@cache
def _render(language: str, name: str, *, deeper: int) -> SafeString | None:
    folder = FOLDER / language if (FOLDER / language).is_dir() else FOLDER / "en"
    file = folder / f"{name}.md"
    if not file.is_file():
        return None
    markdown = MarkdownIt("commonmark", {"html": False})
    markdown.add_render_rule("code_inline", _render_code)
    tokens = markdown.parse(file.read_text(encoding="utf-8"))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + deeper}"
    return mark_safe(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S308 - our own prose, escaped


def _render_code(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render inline code. The slug of a rung becomes a link to its page."""
    text = tokens[index].content
    code = f"<code>{escape(text)}</code>"
    return f'<a href="{reverse("lab-rung", args=[text])}">{code}</a>' if text in LADDER else code
