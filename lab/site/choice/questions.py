"""The five questions of the choice. Each set of answers has its own address, which can be linked and shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_noop


@dataclass(frozen=True)
class Question:
    """A question of the choice. The address uses its `name`, and the keys of `answers` as values."""

    name: str
    text: str
    answers: Mapping[str, str]


QUESTIONS = (
    Question(
        "where",
        gettext_noop("Where do the programs run that must not enter at the same time?"),
        {
            "process": gettext_noop("In one process, as threads"),
            "machine": gettext_noop("On one machine, as processes"),
            "machines": gettext_noop("On several machines"),
        },
    ),
    Question(
        "work",
        gettext_noop("What has to be done while the others wait?"),
        {
            "statement": gettext_noop("One statement on rows of Postgres, and its answer is final"),
            "queued": gettext_noop("The same, but “queued” is good enough as a first answer"),
            "steps": gettext_noop("More: several steps, or something outside Postgres"),
        },
    ),
    Question(
        "mistake",
        gettext_noop("What is lost if two of them get in all the same?"),
        {
            "time": gettext_noop("Only time: work is done twice"),
            "money": gettext_noop("Money: a unit is sold twice, or data is damaged"),
        },
    ),
    Question(
        "servers",
        gettext_noop("Which servers do you run? Take the first answer that is true."),
        {
            "redis": gettext_noop("Postgres and Redis (or Valkey)"),
            "postgres": gettext_noop("Postgres"),
            "zookeeper": gettext_noop("ZooKeeper"),
            "etcd": gettext_noop("etcd"),
            "several-redis": gettext_noop("Several Redis servers that are independent of each other"),
            "only-redis": gettext_noop("One Redis"),
            "none": gettext_noop("None of these"),
        },
    ),
    Question(
        "heat",
        gettext_noop("How hot is one row?"),
        {
            "few": gettext_noop("Few want the same row at the same time"),
            "many": gettext_noop("Many wait for the same row"),
            "rush": gettext_noop("Far more want it than can get it: most are refused"),
        },
    ),
)


@dataclass(frozen=True)
class Answers:
    """A reader's answers. There is a field for each question, with the `name` of the question."""

    where: Literal["process", "machine", "machines"]
    work: Literal["statement", "queued", "steps"]
    mistake: Literal["time", "money"]
    servers: Literal["redis", "postgres", "zookeeper", "etcd", "several-redis", "only-redis", "none"]
    heat: Literal["few", "many", "rush"]


def parse(query: Mapping[str, str]) -> dict[str, str]:
    """Return the answers in a query. Skip values that are no answer, so that their questions are asked again."""
    return {
        question.name: query[question.name] for question in QUESTIONS if query.get(question.name) in question.answers
    }


def complete(given: Mapping[str, str]) -> Answers | None:
    """Return the answers if every question has an answer, otherwise None."""
    return Answers(**given) if len(given) == len(fields(Answers)) else None  # type: ignore[arg-type]


def address(given: Mapping[str, str]) -> str:
    """Return the address of the choice page with these answers."""
    query = urlencode({question.name: given[question.name] for question in QUESTIONS if question.name in given})
    return reverse("lab-choice") + (f"?{query}" if query else "")
