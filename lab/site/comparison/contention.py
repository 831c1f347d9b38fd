"""The section on contention: failed updates of optimistic orders, compared with the wait of pessimistic orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from lab.claims.comparisons import Measured
from lab.claims.curves import ContentionRow
from lab.site.comparison.chart import Chart, Series, line_chart
from lab.site.comparison.curves import NEAR, Cell, CurveSection, sentence


def contention_section(measured: Measured | None) -> CurveSection:
    """Return the section for a stored measurement. Without a measurement, it has no figures."""
    title = _("Optimistic: how many updates fail?")
    claim = sentence(
        _(
            "Article 002 says that many updates of an optimistic lock fail when many clients come at once. Here all "
            "clients order one product. {optimistic} reads the row, writes it only if its version is unchanged, and "
            "else tries again. {row_lock} is pessimistic: it locks the row first, so its orders wait and none fails."
        )
    )
    if measured is None:
        return CurveSection("contention", title, claim)
    rows: Sequence[ContentionRow] = measured.rows
    return CurveSection(
        "contention",
        title,
        claim,
        measured,
        charts=_charts(rows),
        conclusions=[] if measured.stale else [*_claim(rows), _crossover(rows), *_cost(measured)],
        notes=sentence(
            _(
                "Each figure is the median of {rounds} × {seconds} s. Each client has a connection to Postgres, and no "
                "HTTP is between. Wait: median time until an order is placed; p95: one order in twenty waits longer."
            ),
            **measured.sizes,
        ),
        headings=[
            _("Clients"),
            _("Failed updates per order"),
            _("Orders: optimistic"),
            _("Orders: row-lock"),
            _("Wait: optimistic"),
            _("Wait: row-lock"),
        ],
        rows=[
            [
                Cell(f"{row.clients:,}"),
                Cell(f"{row.optimistic.failed_per_order:.1f}"),
                *(Cell(f"{each.per_s:,.0f}/s") for each in (row.optimistic, row.pessimistic)),
                *(
                    Cell(f"{each.p50_ms:,.0f} ms", f"p95 {each.p95_ms:,.0f} ms")
                    for each in (row.optimistic, row.pessimistic)
                ),
            ]
            for row in rows
        ],
    )


def _charts(rows: Sequence[ContentionRow]) -> list[Chart]:
    clients = _("clients")

    def series(figure: Callable[[ContentionRow], tuple[float, float]]) -> list[Series]:
        points = [(row.clients, *figure(row)) for row in rows]
        return [
            Series("optimistic", "first", [(x, y) for x, y, _other in points]),
            Series("row-lock", "second", [(x, y) for x, _other, y in points]),
        ]

    failed = [Series("optimistic", "first", [(row.clients, row.optimistic.failed_per_order) for row in rows])]
    per_s = series(lambda row: (row.optimistic.per_s, row.pessimistic.per_s))
    waits = series(lambda row: (row.optimistic.p50_ms, row.pessimistic.p50_ms))
    return [
        line_chart(_("Failed updates per order"), clients, failed, logarithmic=False),
        line_chart(_("Orders per second"), clients, per_s, logarithmic=False),
        line_chart(_("Median wait for an order, in ms"), clients, waits, logarithmic=True),
    ]


def _claim(rows: Sequence[ContentionRow]) -> Iterator[str]:
    chosen = {row.clients: row for row in (rows[0], rows[len(rows) // 2], rows[-1])}
    figures = [
        sentence(
            ngettext("{failed} with {clients} client", "{failed} with {clients} clients", row.clients),
            failed=f"{row.optimistic.failed_per_order:.1f}",
            clients=row.clients,
        )
        for row in chosen.values()
    ]
    yield sentence(_("Failed updates for each order placed: {figures}."), figures=_(", ").join(figures))
    many = _first_of_all(rows, lambda row: row.optimistic.failed_per_order > 1)
    if many is None:
        yield sentence(
            _("The claim does not hold here: most updates succeeded, even with {clients} clients."),
            clients=rows[-1].clients,
        )
    else:
        yield sentence(
            _("The claim holds: from {clients} clients on, more updates failed than succeeded."), clients=many.clients
        )


def _crossover(rows: Sequence[ContentionRow]) -> str:
    behind = _first_of_all(rows, lambda row: row.optimistic.per_s < NEAR * row.pessimistic.per_s)
    if behind is None:
        return sentence(
            _(
                "The curves stay close: with {clients} clients, {optimistic} still sold at least nine orders for "
                "every ten of {row_lock}."
            ),
            clients=rows[-1].clients,
        )
    if behind is rows[0]:
        return sentence(
            _("{optimistic} sold less than nine orders for every ten of {row_lock} with every number of clients.")
        )
    before = rows[rows.index(behind) - 1].clients
    return sentence(
        ngettext(
            "The curves part: with {before} client, {optimistic} sold at least nine orders for every ten of "
            "{row_lock}; from {behind} clients on, it sold less.",
            "The curves part: with {before} clients, {optimistic} sold at least nine orders for every ten of "
            "{row_lock}; from {behind} clients on, it sold less.",
            before,
        ),
        before=before,
        behind=behind.clients,
    )


def _cost(measured: Measured) -> Iterator[str]:
    last: ContentionRow = measured.rows[-1]
    ours, theirs = last.optimistic, last.pessimistic
    yield sentence(
        _(
            "With {clients} clients, half of the orders waited longer than {ours} ms with {optimistic} and {theirs} ms "
            "with {row_lock}; one in twenty longer than {ours_p95} ms and {theirs_p95} ms."
        ),
        clients=last.clients,
        ours=f"{ours.p50_ms:,.0f}",
        theirs=f"{theirs.p50_ms:,.0f}",
        ours_p95=f"{ours.p95_ms:,.0f}",
        theirs_p95=f"{theirs.p95_ms:,.0f}",
    )
    if ours.try_again:
        yield sentence(
            _("There, {share} of the answers of {optimistic} were “try again”: all {attempts} attempts had failed."),
            share=f"{ours.try_again:.1%}",
            attempts=measured.sizes["attempts"],
        )
    yield sentence(
        _(
            "For stock alone, neither is needed: {guarded_update} tests and subtracts in one statement, so no update "
            "fails while there are units."
        )
    )


def _first_of_all(rows: Sequence[ContentionRow], holds: Callable[[ContentionRow], bool]) -> ContentionRow | None:
    """Return the first row from which on a condition is true for every row. None if it is false for the last row."""
    found = None
    for row in reversed(rows):
        if not holds(row):
            break
        found = row
    return found
