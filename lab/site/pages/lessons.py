"""Lessons and essays: Markdown files in the reader's language, rendered as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from django.urls import reverse
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext_noop
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lab.ladder.catalogue import LADDER, LadderEntry
from lab.site.pages.texts import ARTICLES
from lab.site.wording import translated

FOLDER = Path(__file__).resolve().parent.parent / "lessons"
ESSAYS = {
    "choosing-a-ttl": gettext_noop("How to choose a TTL"),
    "efficiency-or-correctness": gettext_noop("Locks for efficiency, locks for correctness"),
    "available-or-consistent": gettext_noop("Available or consistent"),
}
"""Titles of the essays, by the name in their address."""
SENTENCES = 3
"""Maximum number of sentences of a rung's summary."""
SENTENCE_END = re.compile(r"(?<=[。？！])(?![”’」）])|(?<=[.?!])\s+(?=[A-Z“\"`])")
ARTICLE = re.compile(rf" ?(?<![\d.,])({'|'.join(ARTICLES)})(?![\d]) ?")
"""Matches the number of an article in a text."""


def lesson(slug: str) -> SafeString | None:
    """Return the lesson of a rung as HTML, with headings one level below the page's sections. None without a lesson."""
    return _render(get_language() or "en", slug, deeper=1)


def essay(name: str) -> SafeString | None:
    """Return an essay as HTML; None if there is no such essay."""
    return _render(get_language() or "en", f"essays/{name}", deeper=0)


def story(entry: LadderEntry) -> list[SafeString]:
    """Return a summary of a rung as HTML, in at most three sentences: its flaw, and the reason from its lesson."""
    flaw = [conditional_escape(translated(entry.flaw))] if entry.flaw else []
    text = _read(get_language() or "en", entry.slug) or ""
    sections = re.split(r"^## .*$", text, flags=re.MULTILINE)
    # A lesson's first section describes the run, and the second section gives the reason.
    paragraph = sections[2].strip().partition("\n\n")[0] if len(sections) > 2 else ""
    sentences = [sentence for sentence in SENTENCE_END.split(paragraph) if sentence]
    return [*flaw, *(_inline(sentence) for sentence in sentences[: SENTENCES - len(flaw)])]


def _inline(sentence: str) -> SafeString:
    return mark_safe(_markdown().renderInline(sentence))  # noqa: S308 - our own prose, escaped


@cache
def _render(language: str, name: str, *, deeper: int) -> SafeString | None:
    text = _read(language, name)
    if text is None:
        return None
    markdown = _markdown()
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + deeper}"
    return mark_safe(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S308 - our own prose, escaped


@cache
def _read(language: str, name: str) -> str | None:
    folder = FOLDER / language if (FOLDER / language).is_dir() else FOLDER / "en"
    file = folder / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else None


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False})
    markdown.add_render_rule("code_inline", _render_code)
    markdown.add_render_rule("text", _render_text)
    return markdown


def _render_code(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render inline code. Link the slug of a rung to its page."""
    text = tokens[index].content
    code = f"<code>{escape(text)}</code>"
    return f'<a href="{reverse("lab-rung", args=[text])}">{code}</a>' if text in LADDER else code


def _render_text(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render text. Replace the number of an article by its title."""
    return escape(ARTICLE.sub(_title_of, tokens[index].content), quote=False)


def _title_of(found: re.Match[str]) -> str:
    title = _(ARTICLES[found[1]])
    # Chinese titles have brackets of their own, so they need no spaces around them.
    return title if title.startswith("《") else found[0].replace(found[1], title)
