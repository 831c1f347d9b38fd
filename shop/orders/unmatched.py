"""Reports of the payment provider that the shop could not book. An operator has to settle them."""

from __future__ import annotations

import hashlib
import logging

from django.db.models import QuerySet
from django.db.models.functions import Now

from shop.models import UnmatchedReport

logger = logging.getLogger(__name__)


def record(report: str, reason: str) -> UnmatchedReport:
    """Record a report once, even if the provider repeats it. Call this outside the transaction that refused the report.

    Args:
        report: the signed body of the report.
        reason: why the report was not booked. It replaces the reason of an earlier delivery.

    Returns:
        The record.
    """
    row = UnmatchedReport(digest=_digest(report), report=report.replace("\x00", "\ufffd"), reason=reason[:200])
    UnmatchedReport.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["digest"], update_fields=["reason"]
    )
    logger.warning("A report of the payment provider was not booked: %s The admin lists it.", reason)
    return UnmatchedReport.objects.get(digest=row.digest)


def close(report: str) -> UnmatchedReport | None:
    """Close the record of a report in the open transaction that books the report.

    For example, the order was still queued when the report first arrived, and is saved when the provider repeats it.

    Returns:
        The record if an operator has already settled it; else None. If it was settled, the caller must not keep the
        money of the report.
    """
    row = UnmatchedReport.objects.select_for_update().filter(digest=_digest(report)).first()
    if row is None or row.settled_by_id is not None:
        return row
    UnmatchedReport.objects.filter(pk=row.pk, settled_at=None).update(settled_at=Now())
    return None


def open_reports(reports: QuerySet[UnmatchedReport]) -> QuerySet[UnmatchedReport]:
    """Return the reports that are not settled."""
    return reports.filter(settled_at=None)


def settle(report: int, *, by: int) -> bool:
    """Record that an operator has settled a report: the money was sent back, or booked by other means.

    Args:
        by: id of the operator.

    Returns:
        False if the report was settled before.
    """
    unsettled = open_reports(UnmatchedReport.objects.filter(pk=report))
    return bool(unsettled.update(settled_at=Now(), settled_by=by))


def _digest(report: str) -> str:
    return hashlib.sha256(report.encode()).hexdigest()
