"""Reasons against the rows of the choice that are not the answer: one sentence for each row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.site.choice.decision import LOCAL, SERVERS, USABLE, decide, servers_to_run
from lab.site.choice.questions import Answers
from lab.site.choice.rows import ChoiceRow


@dataclass(frozen=True)
class Case:
    """A row that was not chosen, the row that was chosen, and the answers."""

    row: ChoiceRow
    chosen: ChoiceRow
    answers: Answers

    @property
    def lacks_server(self) -> bool:
        """Whether the row needs a server that the reader does not run."""
        return self.row.slug in USABLE and servers_to_run(self.answers) not in USABLE[self.row.slug]

    @property
    def hot(self) -> bool:
        """Whether more than a few clients want the same row of the database."""
        return self.answers.heat != "few"


@dataclass(frozen=True)
class Rule:
    """A reason against a row of the choice.

    Attributes:
        text: the sentence. `{server}` stands for the server that the row needs, `{chosen}` for the chosen row.
        applies: returns whether the reason is true in a case.
        rows: slugs of the rows that it is about. Empty for all rows.
    """

    text: str
    applies: Callable[[Case], bool] = lambda case: True
    rows: Collection[str] = ()


JAVA = ("redisson", "curator")
GUARDED = ("guarded-update", "optimistic", "lua", "queue", "group-commit")
HOT_ONLY = gettext_noop("It gains only where many wait for the same row.")
RULES = (
    Rule(gettext_noop("It needs {server}, which you do not run."), lambda case: case.lacks_server),
    Rule(
        gettext_noop("It only takes stock, and your work is more than that."),
        lambda case: case.answers.work == "steps",
        GUARDED,
    ),
    Rule(
        gettext_noop("Other processes do not see it."),
        lambda case: case.answers.where != "process" and not case.row.capabilities.across_processes,
        ("thread-lock",),
    ),
    Rule(
        gettext_noop("Other machines do not see it."),
        lambda case: case.answers.where == "machines" and not case.row.capabilities.across_machines,
        LOCAL,
    ),
    Rule(
        gettext_noop("All threads are in one process, where a lock in memory needs no file."),
        lambda case: case.chosen.slug == "thread-lock",
        ("file-lock",),
    ),
    Rule(
        gettext_noop("It asks a server each time, and “{chosen}” needs none."), lambda case: case.chosen.slug in LOCAL
    ),
    Rule(
        gettext_noop("“{chosen}” checks the stock where it is taken, so no lock has to be held around that."),
        rows=LOCAL,
    ),
    Rule(
        gettext_noop("It has no fence: nothing refuses the write of a holder that was paused for too long."),
        lambda case: case.answers.mistake == "money" and not case.row.guarded and not case.row.fenced,
    ),
    Rule(
        gettext_noop("It is a library for Java, and gives no fence if a mistake should ever cost more than time."),
        rows=JAVA,
    ),
    Rule(HOT_ONLY, lambda case: not case.hot, ("group-commit", "segmented")),
    Rule(
        gettext_noop("It divides what it protects. That fits a stock, and not a row that must change as a whole."),
        lambda case: case.chosen.slug == "redis-lock",
        ("segmented",),
    ),
    Rule(
        gettext_noop("It holds a lock of Redis around each order, which “{chosen}” does without."), rows=("segmented",)
    ),
    Rule(
        gettext_noop("Its first answer is “queued”, and yours must be final."),
        lambda case: case.answers.work == "statement",
        ("queue",),
    ),
    Rule(HOT_ONLY, rows=("queue",)),
    Rule(gettext_noop("It gains only where most must be refused."), lambda case: case.answers.heat != "rush", ("lua",)),
    Rule(
        gettext_noop("It answers only after the commit in Postgres, and your answer may come later."),
        lambda case: case.chosen.slug == "queue",
        ("lua", "group-commit"),
    ),
    Rule(
        gettext_noop("With it, those who come too late still reach the hot row while the last units are sold."),
        rows=("group-commit",),
    ),
    Rule(gettext_noop("On one hot row most of its attempts fail."), lambda case: case.hot, ("optimistic",)),
    Rule(gettext_noop("Those who want one hot row wait for each commit in turn."), rows=("guarded-update",)),
    Rule(
        gettext_noop("It reads first and may have to try again, where “{chosen}” is one statement."),
        rows=("optimistic",),
    ),
    Rule(
        gettext_noop("It has to be taken, held and freed around the work, which “{chosen}” does without."),
        lambda case: case.chosen.guarded,
    ),
    Rule(
        gettext_noop("It needs a table with a row for each name, and a transaction that stays open."),
        lambda case: case.chosen.slug == "advisory",
        ("database-row",),
    ),
    Rule(
        gettext_noop("The grant of a dead holder lasts until its TTL is over."),
        lambda case: case.chosen.slug in ("advisory", "database-row"),
        ("unique-insert",),
    ),
    Rule(
        gettext_noop("Each grant opens a connection to Postgres, which “{chosen}” does without."),
        rows=("database-row", "unique-insert", "advisory"),
    ),
    Rule(
        gettext_noop("It runs on one server, and is lost with it; you run several."),
        lambda case: case.chosen.slug == "redlock",
        ("redis-lock",),
    ),
    Rule(
        gettext_noop("With one lock, each order of a stock waits for the one before it."),
        lambda case: case.chosen.slug == "segmented",
        ("redis-lock",),
    ),
)
"""The reasons against rows. The page shows the first one that applies to a row.

A test ensures that each row gets a reason, and that each of these rules is used.
"""


def why_not(row: ChoiceRow, answers: Answers) -> str:
    """Return why a row is not the answer, as one sentence in the reader's language."""
    rule, case = rule_against(row, answers)
    return _(rule.text).format(server=_(SERVERS[row.slug]) if row.slug in SERVERS else "", chosen=_(case.chosen.title))


def rule_against(row: ChoiceRow, answers: Answers) -> tuple[Rule, Case]:
    """Return the first rule that applies to a row, and the case to which it applies."""
    case = Case(row, decide(answers), answers)
    return next(rule for rule in RULES if (not rule.rows or row.slug in rule.rows) and rule.applies(case)), case
