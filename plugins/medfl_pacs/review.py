"""Apply a person's decisions about images in quarantine."""

from __future__ import annotations

from dataclasses import dataclass

from medfl_pacs.image_store import IMAGES, ImageStore
from medfl_pacs.store_tables import REVIEW_TABLE, read_decisions, review_instances, write_tables


@dataclass(frozen=True)
class ReviewCounts:
    """Result of a review.

    Attributes:
        kept: Number of instances that are kept.
        deleted: Number of instances that were deleted.
        undecided: Number of instances without a decision.
        released: Number of series that moved to ``images``.
    """

    kept: int
    deleted: int
    undecided: int
    released: int


def apply_review(store: ImageStore) -> ReviewCounts:
    """Delete the instances with the decision ``delete``, and move completely decided series to ``images``.

    Undecided series that `--keep-burned-in` put into ``images`` stay there.

    Args:
        store: The opened store; its ``review.csv`` contains the decisions.

    Raises:
        DataError: If ``review.csv`` can't be read.
        StoreError: If a file can't be deleted or written.
    """
    entered = read_decisions(store.folder / REVIEW_TABLE)
    kept = deleted = undecided = 0
    before = {name for name, record in store.journal.series.items() if record.place == IMAGES}
    for series in list(store.journal.series.values()):
        for record in list(review_instances(store, series)):
            decision = entered.get((record.instance, record.findings_text))
            if decision == "keep":
                store.keep(record)
                kept += 1
            elif decision == "delete":
                store.delete(record)
                deleted += 1
            else:
                undecided += 1
        store.settle(series.study, series.series, keep_suspected=series.place == IMAGES)
    write_tables(store)
    after = {name for name, record in store.journal.series.items() if record.place == IMAGES and record.images}
    return ReviewCounts(kept=kept, deleted=deleted, undecided=undecided, released=len(after - before))
