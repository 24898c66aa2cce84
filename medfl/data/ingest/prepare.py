"""The one way in which a data set is prepared: the folder, the licence, the files, the images, the data list."""

from __future__ import annotations

from pathlib import Path

from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError
from medfl.ingest.array_file import keep_rows
from medfl.ingest.checkpoint import ARRAY
from medfl.ingest.choice import as_outcome
from medfl.ingest.pipeline import QUARANTINE, ingest, work_folder, write_quarantine
from medfl.ingest.spec import DatasetSpec, ImageSpec, WholeSpec
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
    """Turn a release into a pooled data set.

    If it is interrupted, the same call goes on where it stopped.

    Args:
        spec: Which data set, with its options.
        out: The folder to write; it is written whole or not at all.
        force: Whether a data set that is there may be replaced.
        workers: Processes that read, >= 1; None means one for each core.
        require_complete: Whether an image that is missing or can't be read stops the work; None is what the data set
            does without being told (`DatasetSpec.unreadable`).
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is wrong, no image of a class is left, or `out` may not be written.
        SettingsError: If the options are impossible.
    """
    if require_complete is None:
        require_complete = spec.unreadable == "option skip_unreadable"
    check_free(out, force, spec.inputs())
    if isinstance(spec, WholeSpec):
        return spec.make(out, force=force, workers=workers, require_complete=require_complete, say=say)
    assert isinstance(spec, ImageSpec)  # the only other kind
    return _read_images(spec.named_after(out), out, force, workers, require_complete, say)


def _read_images(
    spec: ImageSpec, out: Path, force: bool, workers: int | None, require_complete: bool, say: Say
) -> Datalist:
    for line in spec.credits():
        say(line)
    choice = spec.choose(spec.find(), say)
    to_mend = spec.unreadable == "option skip_unreadable"
    if choice.missing and require_complete and not to_mend:  # what is to be mended is told at once, after all is read
        raise DataError(
            "unreadable_image", spec.incomplete(as_outcome(choice)), count=len(choice.missing), total=choice.count()
        )
    with written_whole(out, force) as folder:
        done = ingest(
            choice.items,
            choice.load,
            choice.files,
            folder / ARRAY,
            choice.shape,
            choice.dtype,
            work=work_folder(out),
            recipe=choice.recipe,
            workers=workers,
            what=spec.counted(),
            say=say,
        )
        outcome = as_outcome(choice, done)
        if not outcome.kept:
            raise DataError(
                "no_readable_image", spec.none_read(outcome), count=len(outcome.reasons), total=choice.count()
            )
        if outcome.reasons and require_complete:
            raise DataError(
                "unreadable_image", spec.incomplete(outcome), count=len(outcome.reasons), total=choice.count()
            )
        listed = sorted(place for place, reason in outcome.reasons.items() if reason not in choice.unlisted)
        rows = [(*choice.cells(place), outcome.reasons[place]) for place in listed]
        if rows:
            for line in spec.left_out(outcome, len(rows)):
                say(line)
            write_quarantine(folder / QUARANTINE, (*choice.columns, "reason"), rows)
        dropped = spec.drop(outcome, say)
        if dropped:
            keep_rows(folder / ARRAY, [row for row in range(len(outcome.kept)) if row not in dropped])
            outcome = outcome.without(dropped)
        datalist = spec.datalist(outcome, say)
        spec.finish(folder, outcome, datalist)
        write_datalist(folder, datalist)
    return datalist
