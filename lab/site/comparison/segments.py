"""The section on segments: what splitting a stock gains, and whether five segments are five times as fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from lab.claims.comparisons import Measured
from lab.claims.curves import SegmentsRow
from lab.site.comparison.chart import Chart, Series, line_chart
from lab.site.comparison.curves import NEAR, Cell, CurveSection, listed, ratio, sentence

CLAIMED = 5
"""Number of segments in the claim that five segments are five times as fast."""
STYLES = ("first", "second", "third", "fourth")
BUSY = 0.85
"""If at least this share of the processors is busy, from 0 to 1, the page names the processors as the limit."""


def segments_section(measured: Measured | None) -> CurveSection:
    """Return the section for a stored measurement. Without a measurement, it has no figures."""
    title = _("Segments: five times as fast?")
    claim = sentence(
        _(
            "Article 002 advises to split the stock of a hot product, such as 100 units, into five segments with a "
            "lock each, and says that this makes the lock five times as fast. Here many clients order one product with "
            "{segmented_lock}, in which each segment also has its own row in Postgres. Each order takes the lock of "
            "one segment, pauses as long as a call to another service may take, commits, and releases the lock."
        )
    )
    if measured is None:
        return CurveSection("segments", title, claim)
    rows: Sequence[SegmentsRow] = measured.rows
    works = [_work(sale.work_ms) for sale in rows[0].sales]
    orders = _small_orders(measured)
    return CurveSection(
        "segments",
        title,
        claim,
        measured,
        charts=[_chart(rows, works)],
        conclusions=[] if measured.stale else [*_claim(rows), _enough(rows), *_limits(rows), _leftovers(measured)],
        notes=sentence(
            _(
                "Each figure is the median of {rounds} × {seconds} s with {clients} clients, without HTTP. ×: multiple "
                "of the first line. CPU: share of all processors that was busy. All locks: orders that had to hold the "
                "locks of all segments when {stock} units were sold in orders of {quantity}."
            ),
            **measured.sizes,
        ),
        headings=[_("Segments"), *(sentence(_("{work} of work"), work=work) for work in works), _("All locks")],
        rows=[
            [
                Cell(str(row.segments)),
                *(
                    Cell(
                        f"{sale.per_s:,.0f}/s",
                        sentence(_("{times} ×, CPU {cpu}"), times=ratio(gain), cpu=f"{sale.cpu:.0%}"),
                    )
                    for sale, gain in zip(row.sales, _gains(rows, row), strict=True)
                ),
                Cell(f"{row.held_all:g}/{orders}"),
            ]
            for row in rows
        ],
    )


def _chart(rows: Sequence[SegmentsRow], works: Sequence[str]) -> Chart:
    counts = [row.segments for row in rows]
    gains = [_gains(rows, row) for row in rows]
    claimed = Series(_("as claimed"), "reference", [(count, count / counts[0]) for count in counts])
    lines = [
        Series(work, style, [(count, gain[index]) for count, gain in zip(counts, gains, strict=True)])
        for index, (work, style) in enumerate(zip(works, STYLES, strict=False))
    ]
    title = _("Orders per second, as a multiple of those with one lock, by the work under the lock")
    return line_chart(title, _("segments"), [claimed, *lines], logarithmic=True, unit="×")


def _gains(rows: Sequence[SegmentsRow], row: SegmentsRow) -> list[float]:
    """Return a row's orders per second as multiples of the first row's, for each duration of work."""
    return [sale.per_s / first.per_s for sale, first in zip(row.sales, rows[0].sales, strict=True)]


def _claim(rows: Sequence[SegmentsRow]) -> Iterator[str]:
    for row in rows:
        if row.segments == CLAIMED:
            gains = {_work(sale.work_ms): gain for sale, gain in zip(row.sales, _gains(rows, row), strict=True)}
            figures = [sentence(_("{times} with {work}"), times=ratio(gain), work=work) for work, gain in gains.items()]
            yield sentence(
                _("Five segments sold this many times the orders of one lock: {figures}."),
                figures=_(", ").join(figures),
            )
            near = [work for work, gain in gains.items() if gain >= NEAR * CLAIMED]
            far = [work for work in gains if work not in near]
            if not far:
                verdict = _("The claim holds, to within a tenth, with every measured amount of work.")
            elif near:
                verdict = _("The claim holds, to within a tenth, with {near} of work; it does not with {far}.")
            else:
                verdict = _("The claim does not hold, even to within a tenth, with any measured amount of work.")
            yield sentence(verdict, near=listed(near), far=listed(far))


def _enough(rows: Sequence[SegmentsRow]) -> str:
    last = [_last_that_pays(rows, index) for index in range(len(rows[0].sales))]
    most = rows[-1].segments
    if min(last) == most:
        return sentence(
            _("Each step to more segments brought at least a tenth more orders, up to the {most} that were measured."),
            most=most,
        )
    reached = [
        sentence(
            ngettext("{segments} segment with {work}", "{segments} segments with {work}", segments),
            segments=segments,
            work=_work(sale.work_ms),
        )
        for segments, sale in zip(last, rows[0].sales, strict=True)
    ]
    return sentence(
        _(
            "Each step to more segments brought at least a tenth more orders up to {reached}. No more than {most} "
            "segments were measured."
        ),
        reached=_(", ").join(reached),
        most=most,
    )


def _last_that_pays(rows: Sequence[SegmentsRow], index: int) -> int:
    """Return the number of segments after which more segments gain little, for one duration of work.

    More segments gain little if `NEAR` times their orders per second is less than the orders per second of the row
    before.
    """
    for row, following in pairwise(rows):
        if NEAR * following.sales[index].per_s < row.sales[index].per_s:
            return row.segments
    return rows[-1].segments


def _limits(rows: Sequence[SegmentsRow]) -> Iterator[str]:
    """Yield a sentence that says how busy the processors were where more segments gained little."""
    busy = []
    for index in range(len(rows[0].sales)):
        last = _last_that_pays(rows, index)
        busy += [row.sales[index].cpu for row in rows if row.segments > last][:1]
    if busy and min(busy) >= BUSY:
        yield sentence(
            _(
                "Where a step gained less, the processors were at least {least} busy. Segments remove waiting and add "
                "no processor, so this is where they stop paying."
            ),
            least=f"{min(busy):.0%}",
        )
    elif busy:
        yield sentence(
            _(
                "Where a step gained less, the processors were {least} to {most} busy. Where they had time left, "
                "orders waited for something else that they share, such as the disk to which each commit is written."
            ),
            least=f"{min(busy):.0%}",
            most=f"{max(busy):.0%}",
        )


def _leftovers(measured: Measured) -> str:
    held = [
        sentence(_("{held} with {segments} segments"), held=f"{row.held_all:g}", segments=row.segments)
        for row in measured.rows
        if row.segments > 1
    ]
    return sentence(
        _(
            "Split stock has a second cost: units that remain in several segments. When {stock} units were sold in "
            "{orders} orders of {quantity}, this many orders found no segment with enough units and had to hold all "
            "locks at once, while all others waited: {held}. The article does not mention such units."
        ),
        stock=measured.sizes["stock"],
        quantity=measured.sizes["quantity"],
        orders=_small_orders(measured),
        held=_(", ").join(held),
    )


def _small_orders(measured: Measured) -> int:
    return int(measured.sizes["stock"]) // int(measured.sizes["quantity"])


def _work(milliseconds: float) -> str:
    return f"{milliseconds:g} ms"
