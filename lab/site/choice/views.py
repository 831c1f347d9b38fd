"""The page of the choice, which asks five questions."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from lab.claims import comparisons
from lab.claims.comparisons import TABLES
from lab.site.choice.decision import because, decide
from lab.site.choice.questions import QUESTIONS, address, complete, parse
from lab.site.choice.reasons import why_not
from lab.site.choice.rows import ROWS
from lab.site.choice.table import choice_line
from lab.site.page import read_only_lab_page


@read_only_lab_page
def choice(request: HttpRequest) -> HttpResponse:
    """Ask the first question that has no answer yet. If all have answers, show the row to which the answers lead."""
    given = parse(request.GET.dict())
    left = [question for question in QUESTIONS if question.name not in given]
    context = {
        "given": [
            (_(question.text), _(question.answers[given[question.name]]), address(_without(given, question.name)))
            for question in QUESTIONS
            if question.name in given
        ],
        "number": len(QUESTIONS) - len(left) + 1,
        "count": len(QUESTIONS),
    }
    answers = complete(given)
    if answers is None:
        asked = left[0]
        context["question"] = _(asked.text)
        context["answers"] = [(_(text), address({**given, asked.name: name})) for name, text in asked.answers.items()]
    else:
        row = decide(answers)
        context["line"] = choice_line(row, {part: comparisons.load(part) for part in TABLES})
        context["because"] = because(answers)
        context["others"] = [(other.slug, _(other.title), why_not(other, answers)) for other in ROWS if other != row]
    return render(request, "lab/choice.html", context)


def _without(given: dict[str, str], name: str) -> dict[str, str]:
    return {other: answer for other, answer in given.items() if other != name}
