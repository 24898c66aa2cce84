"""Prepare a data set: the steps that all data sets share, from the release's files to the data list.

A spec contains the options of one data set and the methods that read it.
"""

from __future__ import annotations

from pathlib import Path

from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.ingest.array_file import keep_rows
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.pipeline import QUARANTINE, ingest, work_folder, write_quarantine
from medfl.data.ingest.read_plan import make_outcome
from medfl.data.ingest.spec import DatasetSpec, ImageSpec, WholeSpec
from medfl.errors import DataError
from medfl.utils.text import Say


def prepare(
    spec: DatasetSpec,
    out: Path,
    *,
    force: bool = False,
    workers: int | None = None,
    require_complete: bool | None = None,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn a release into a pooled data set. If interrupted, the same call resumes.

    A release is the set of files that a data set's publisher distributes. A pooled data set is a folder with one image
    array and one data list, before ``medfl partition`` splits it into sites.

    Args:
        spec: Spec of the data set, with its options.
        out: Folder to write; it is written completely or not at all.
        force: Whether an existing data set in `out` may be replaced.
        workers: Number of processes that read, >= 1; None starts one for each core.
        require_complete: Whether an image that is missing or can't be read stops the preparation; None uses the data
            set's default (`DatasetSpec.unreadable`).
        say: Receives licence, citation, warnings and progress, one line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is wrong, no image of a class is left, or `out` may not be written.
        SettingsError: If the options are impossible.
    """
    if require_complete is None:
        require_complete = spec.unreadable == "option skip_unreadable"
    check_output_folder(out, force, spec.inputs())
    if isinstance(spec, WholeSpec):
        return spec.make(out, force=force, workers=workers, require_complete=require_complete, say=say)
    assert isinstance(spec, ImageSpec)  # the only other kind
    return _read_images(spec.named_after(out), out, force, workers, require_complete, say)


def _read_images(
    spec: ImageSpec, out: Path, force: bool, workers: int | None, require_complete: bool, say: Say
) -> Datalist:
    for line in spec.credits():
        say(line)
    plan = spec.plan_reading(spec.find(), say)
    # with skip_unreadable, all unreadable images are reported together after reading
    is_reported_later = spec.unreadable == "option skip_unreadable"
    if plan.missing and require_complete and not is_reported_later:
        raise DataError(
            "unreadable_image", spec.incomplete_message(make_outcome(plan)), count=len(plan.missing), total=plan.count()
        )
    with atomic_folder(out, force) as folder:
        done = ingest(
            items=plan.items,
            load=plan.load,
            files=plan.files,
            target=folder / ARRAY_FILE,
            shape=plan.shape,
            dtype=plan.dtype,
            work=work_folder(out),
            recipe=plan.recipe,
            workers=workers,
            what=spec.item_plural(),
            say=say,
        )
        outcome = make_outcome(plan, done)
        if not outcome.kept:
            raise DataError(
                "no_readable_image", spec.none_read_message(outcome), count=len(outcome.reasons), total=plan.count()
            )
        if outcome.reasons and require_complete:
            raise DataError(
                "unreadable_image", spec.incomplete_message(outcome), count=len(outcome.reasons), total=plan.count()
            )
        listed = sorted(place for place, reason in outcome.reasons.items() if reason not in plan.unlisted)
        rows = [(*plan.cells(place), outcome.reasons[place]) for place in listed]
        if rows:
            for line in spec.exclusion_warnings(outcome, len(rows)):
                say(line)
            write_quarantine(folder / QUARANTINE, (*plan.columns, "reason"), rows)
        dropped = spec.rows_to_drop(outcome, say)
        if dropped:
            keep_rows(folder / ARRAY_FILE, [row for row in range(len(outcome.kept)) if row not in dropped])
            outcome = outcome.without(dropped)
        datalist = spec.datalist(outcome, say)
        spec.finish(folder, outcome, datalist)
        write_datalist(folder, datalist)
    return datalist
