"""Conformance checks of a data set, on its synthetic release; see `check_dataset`.

A release is a data set as its publisher distributes it; a synthetic release has the same layout and synthetic images.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist
from medfl.data.ingest import checkpoint
from medfl.data.ingest.pipeline import QUARANTINE, work_folder
from medfl.data.ingest.prepare import prepare
from medfl.data.ingest.read_plan import ReadPlan
from medfl.data.ingest.spec import DatasetSpec, ImageSpec, WholeSpec, path_fields
from medfl.data.ingest.workers import LoadedItem
from medfl.errors import DataError
from medfl.plugins import load_plugins
from medfl.settings import read_settings
from medfl.utils.text import Say

MIN_SEARCHED_LENGTH = 6
"""Minimum length of a file name that is searched in outputs; shorter names occur by chance."""


def check_dataset(name: str, folder: Path, plugins: Iterable[Path] = (), **options: Any) -> None:
    """Check the rules for data sets on the data set's synthetic release.

    - The same release gives the same bytes, with one process and with two, and no temporary file remains.
    - If the process is killed with ``kill -9``, no data set is written; the next call continues and ends with the same
      bytes.
    - No name of an image file is stored or printed: not in the data list, nor in the files for a restart, nor in
      messages.
    - An unreadable file is left out and listed, and all other images are unchanged. If all images are required, it
      stops the preparation, and nothing is written.

    A `WholeSpec` does not read one file per image: after ``kill -9`` it starts again, and it may refuse a damaged
    release.

    Args:
        name: Name of the data set.
        folder: An empty folder for the checks.
        plugins: Plugin files to load.
        options: Options of the data set; they override the options of its record (`DatasetRecord.synthetic_options`).

    Raises:
        AssertionError: If a rule is violated; the message says which one.
        PluginError: If there is no such data set, or it has no synthetic release.
    """
    registry = load_plugins(plugins)
    write_release, kind = registry.synthetic(name), registry.dataset(name)
    release = folder / "release" / name
    write_release(release)
    write_release(folder / "same" / name)
    _check_same(folder / "same" / name, release, "written again, a synthetic release has")
    options = {**registry.datasets[name].synthetic_options, **options}
    spec = _spec(name, kind, release, options)
    damaged = Path(shutil.copytree(release, folder / "damaged" / name))
    if isinstance(spec, WholeSpec):
        _check_whole(spec, folder)
        _damage(max(_files(damaged), key=lambda path: path.stat().st_size))
        _check_damaged_whole(_spec(name, kind, damaged, options), folder)
        return
    assert isinstance(spec, ImageSpec)  # the only other kind
    plan = spec.plan_reading(spec.find(), lambda _: None)
    assert len(plan.items) > 2, "expected a synthetic release with more than two images"
    stems = {path.stem for item in plan.items for path in plan.files(item) if len(path.stem) >= MIN_SEARCHED_LENGTH}
    whole = folder / "whole" / name
    lines: list[str] = []
    prepare(spec, whole, workers=1, say=lines.append)
    _check_alone(whole)
    _check_names(stems, (whole / "datalist.json").read_text(encoding="utf-8"), "the data list contains")
    _check_names(stems, "\n".join(lines), "messages contain")
    _check_kill(spec, folder / "again" / name, whole, stems, len(plan.items) // 2)
    prepare(spec, folder / "parallel" / name, workers=2)
    _check_same(folder / "parallel" / name, whole, "with two processes there are")
    _damage(damaged / plan.files(plan.items[0])[0].relative_to(release))
    _check_damaged(_spec(name, kind, damaged, options), folder, whole)


class _KillAfter:
    """Loader that kills its own process with ``kill -9`` after a number of items."""

    def __init__(self, load: Callable[[Any], LoadedItem], left: int) -> None:
        self.load, self.left = load, left

    def __call__(self, item: Any) -> LoadedItem:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return self.load(item)


def _spec(name: str, kind: type[DatasetSpec], release: Path, options: Mapping[str, Any]) -> DatasetSpec:
    """Return the data set's spec for a synthetic release. Paths in the options are relative to the release's folder."""
    paths = {key: release / options[key] for key in path_fields(kind) if key in options}
    place = {"source": release} if "source" in kind.model_fields else kind.locate(release, options)
    return read_settings(kind, {**place, **options, **paths}, where=f"data set '{name}'")


def _check_kill(spec: ImageSpec, out: Path, whole: Path, stems: Collection[str], after: int) -> None:
    """Check that a killed process leaves nothing at `out`, and that the next one ends with the same bytes."""

    def child() -> None:
        checkpoint.FLUSH_SECONDS = 0.0
        prepare(_killed(spec, after), out, workers=1)

    _end_by_kill(child, f"after {after} images")
    assert not out.exists(), "a data set is written whole or not at all, here a part of it is there"
    journal = (work_folder(out) / "journal.jsonl").read_text(encoding="utf-8")
    _check_names(stems, journal, "the files for a restart contain")
    lines: list[str] = []
    prepare(spec, out, workers=1, say=lines.append)
    assert any("an earlier call was interrupted" in line for line in lines), "expected it to continue where it stopped"
    _check_same(out, whole, "after an interruption there are")
    assert not work_folder(out).exists(), "expected the files for a restart to be removed at the end"


def _check_whole(spec: WholeSpec, folder: Path) -> None:
    """Check a data set that does not read one file per image; it is killed at its last message."""
    whole, again = (folder / case / spec.dataset for case in ("whole", "again"))
    lines: list[str] = []
    prepare(spec, whole, say=lines.append)
    _check_alone(whole)
    left = len(lines)

    def kill_at_the_last(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _end_by_kill(lambda: prepare(spec, again, say=kill_at_the_last), "at its last line")
    assert not again.exists(), "a data set is written whole or not at all, here a part of it is there"
    prepare(spec, again)
    _check_same(again, whole, "after an interruption there are")


def _check_damaged(spec: DatasetSpec, folder: Path, whole: Path) -> None:
    """Check that an unreadable first image is left out and listed, and that nothing else changes."""
    less, none = folder / "less" / whole.name, folder / "none" / whole.name
    datalist = prepare(spec, less, workers=1, require_complete=False)
    images, others = (np.load(out / checkpoint.ARRAY_FILE, mmap_mode="r") for out in (whole, less))
    assert _count(datalist) == len(others) == len(images) - 1, (
        f"a file that can't be read costs one image, here {len(images) - len(others)}"
    )
    assert np.array_equal(images[1:], others), "a file that can't be read changes no other image"
    assert (less / QUARANTINE).is_file(), f"a file that can't be read is listed in {QUARANTINE}"
    _check_refused(spec, none, require_complete=True)


def _check_damaged_whole(spec: DatasetSpec, folder: Path) -> None:
    """Check that a damaged release is refused without output, or that the damaged file is listed."""
    less = folder / "less" / spec.dataset
    try:
        prepare(spec, less, require_complete=False)
    except DataError:
        assert not less.exists(), "a data set is written whole or not at all, here a part of it is there"
    else:
        assert (less / QUARANTINE).is_file(), f"a file that can't be read is listed in {QUARANTINE}"


def _check_refused(spec: DatasetSpec, out: Path, **options: Any) -> None:
    """Check that an unreadable file stops the preparation without output, if all images are required."""
    try:
        prepare(spec, out, workers=1, **options)
    except DataError:
        assert not out.exists(), "a data set is written whole or not at all, here a part of it is there"
        return
    raise AssertionError("expected an unreadable file to stop the preparation if all images are required")


def _check_names(stems: Collection[str], text: str, where: str) -> None:
    """Check that a text contains no name of a file."""
    count = sum(stem in text for stem in stems)
    assert not count, f"{where} {count} names of files: leave them out, because they may identify a patient"


def _check_alone(out: Path) -> None:
    """Check that no other file remains next to the data set."""
    others = [path.name for path in out.parent.iterdir() if path != out]
    assert not others, f"expected no other file next to the data set, found {', '.join(others)}"


def _check_same(out: Path, whole: Path, what: str) -> None:
    """Check that two folders have the same files with the same bytes."""
    names = sorted(path.relative_to(whole) for path in _files(whole))
    assert sorted(path.relative_to(out) for path in _files(out)) == names, f"{what} other files"
    unlike = [str(name) for name in names if (out / name).read_bytes() != (whole / name).read_bytes()]
    assert not unlike, f"{what} other bytes in {', '.join(unlike)}"


def _end_by_kill(work: Callable[[], object], when: str) -> None:
    """Execute a function in a process that kills itself with ``kill -9``."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)  # it should have been killed
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"expected the process to be killed {when}, but it ended by itself"


def _killed(spec: ImageSpec, after: int) -> ImageSpec:
    """Return a spec of the same data set whose loader kills the process."""
    kind: Any = type(spec)

    class Killed(kind):
        def plan_reading(self, files: Any, say: Say) -> ReadPlan:
            plan: ReadPlan = super().plan_reading(files, say)
            plan.load = _KillAfter(plan.load, after)
            return plan

    killed: ImageSpec = Killed.model_construct(**dict(spec))
    return killed


def _damage(path: Path) -> None:
    """Truncate a file."""
    path.write_bytes(path.read_bytes()[:20])


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def _count(datalist: Datalist) -> int:
    """Return the number of cases in a data list."""
    return sum(map(len, datalist.splits.values()))
