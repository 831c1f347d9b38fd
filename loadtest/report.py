"""Show verdicts and the progress of a burst in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.rush import OnProgress, Rush
from loadtest.verdict import Verdict, holds, summarize

FIGURES = (
    ("sold", "units sold, counted from the tables"),
    ("oversold", "units sold that were never in stock"),
    ("missing", "confirmed orders that are not in the tables"),
    ("refused", "buyers that were refused as sold out"),
    ("rejected", "buyers whose queued order was rejected"),
    ("unserved", "of these refused or rejected while enough units were left"),
    ("errors", "buyers without a final answer"),
    ("busy", "answers that asked a buyer to retry"),
    ("orders_per_s", "orders per second"),
    ("refusals_per_s", "refusals per second"),
    ("p50_ms", "ms until a buyer's final answer, median"),
    ("p99_ms", "ms until a buyer's final answer, 99th percentile"),
)


def print_verdict(verdict: Verdict) -> None:
    """Print one verdict, with one figure per line."""
    sheet = Table(show_header=False, box=None)
    sheet.add_column(justify="right", style="bold")
    for name, meaning in FIGURES:
        sheet.add_row(f"{verdict[name]:,}", meaning)
    colour = "green" if holds(verdict) else "red"
    Console().print(sheet, f"[bold {colour}]{verdict['strategy']}: {summarize(verdict)}[/]", sep="\n")


def comparison_table(verdicts: Sequence[Verdict], running: tuple[str, dict[str, Any]] | None = None) -> Table:
    """Return a table with a row for each verdict, narrow enough for a small terminal.

    Args:
        running: name and counts of the burst in progress, for the last row.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("sold", "refused", "oversold", "on hand", "orders/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in verdicts:
        figures = ("sold", "refused", "oversold", "on_hand", "orders_per_s")
        word = "[green]conserved[/]" if holds(verdict) else "[bold red]BROKEN[/]"
        table.add_row(verdict["strategy"], *(f"{verdict[name]:,.0f}" for name in figures), word)
    if running:
        name, counts = running
        table.add_row(
            name, *(str(counts.get(key, "")) for key in ("answered", "refused")), *[""] * 3, "[dim]running …[/]"
        )
    return table


@contextmanager
def progress_bar(rush: Rush, console: Console) -> Iterator[OnProgress]:
    """Show a progress bar inside the block; yield the callback for `Rush.run`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[counts]}"), console=console, transient=True) as bar:
        task = bar.add_task(rush.name, total=rush.wanted, counts="")

        def show(message: dict[str, Any]) -> None:
            if "answered" in message:
                counts = f"{message['answered']} sold, {message['refused']} refused, {message['busy']} asked to retry"
                bar.update(task, completed=message["answered"] + message["refused"], counts=counts)

        yield show
