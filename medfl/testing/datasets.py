"""What every data set promises, checked on its made-up release; see `check_dataset`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from medfl.ingest import checkpoint
from medfl.ingest.choice import Choice
from medfl.ingest.pipeline import QUARANTINE
from medfl.ingest.prepare import prepare
from medfl.ingest.spec import ImageSpec, Say
from medfl.ingest.workers import Loaded
from medfl.plugins import load_plugins
from medfl.settings import read_settings

LEAST = 6
"""Letters that a file's name must have to be looked for in a data list: shorter ones stand there by chance."""


class _KillAfter:
    """Reads items, and ends this process as ``kill -9`` does before one too many."""

    def __init__(self, load: Callable[[Any], Loaded], left: int) -> None:
        self.load, self.left = load, left

    def __call__(self, item: Any) -> Loaded:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return self.load(item)


def check_dataset(name: str, folder: Path, plugins: Iterable[Path] = (), **options: Any) -> None:
    """Check what every data set promises, on its made-up release.

    It goes on after ``kill -9`` and ends with the same bytes; nothing is written before all is there; the data list
    has no name of a file; a file that can't be read is left out and listed, and the rest stays.

    Args:
        name: Of the data set, an `ImageSpec` whose field ``source`` is its release.
        folder: An empty folder to work in.
        plugins: Plugin files to load.
        options: Of the data set.

    Raises:
        AssertionError: If a promise is broken; the message says which one.
        PluginError: If there is no such data set, or it has no made-up release.
    """
    registry = load_plugins(plugins)
    source = folder / "release"
    registry.phantom(name)(source)
    kind: type[ImageSpec] = registry.dataset(name)
    spec = read_settings(kind, {"source": source, **options}, where=f"data set '{name}'")
    choice = spec.choose(spec.find(), lambda _: None)
    assert len(choice.items) > 2, "expected a made-up release with more than two images"
    whole = folder / "whole"
    datalist = prepare(spec, whole, workers=1)
    _check_names(choice, whole)
    _check_kill(spec, folder / "again", whole, len(choice.items) // 2)
    prepare(spec, folder / "parallel", workers=2)
    _check_same(folder / "parallel", whole, "with two processes")
    damaged = folder / "damaged"
    shutil.copytree(source, damaged)
    victim = damaged / choice.files(choice.items[0])[0].relative_to(source)
    victim.write_bytes(victim.read_bytes()[:20])
    less = prepare(spec.model_copy(update={"source": damaged}), folder / "less", workers=1, require_complete=False)
    counts = [sum(map(len, made.splits.values())) for made in (datalist, less)]
    assert counts[1] == counts[0] - 1, f"a file that can't be read costs one image, here {counts[0] - counts[1]}"
    assert (folder / "less" / QUARANTINE).is_file(), f"a file that can't be read is listed in {QUARANTINE}"


def _check_names(choice: Choice, out: Path) -> None:
    text = (out / "datalist.json").read_text(encoding="utf-8")
    stems = {path.stem for item in choice.items for path in choice.files(item)}
    kept = sum(len(stem) >= LEAST and stem in text for stem in stems)
    assert not kept, f"the data list holds {kept} names of files: leave them out, they may tell who a patient is"


def _check_kill(spec: ImageSpec, out: Path, whole: Path, after: int) -> None:
    """A process that is killed leaves nothing at `out`; the next one goes on and ends with the same bytes."""
    child = os.fork()
    if child == 0:
        try:
            checkpoint.EVERY_SECONDS = 0.0
            prepare(_killed(spec, after), out, workers=1)
        finally:
            os._exit(1)  # it should have been killed
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"expected reading to be cut short after {after} images, it ended by itself"
    assert not out.exists(), "a data set is written whole or not at all, here a part of it is there"
    lines: list[str] = []
    prepare(spec, out, workers=1, say=lines.append)
    assert any("an earlier call was interrupted" in line for line in lines), "expected it to go on where it stopped"
    _check_same(out, whole, "after an interruption")


def _killed(spec: ImageSpec, after: int) -> ImageSpec:
    """The same data set, whose reading ends the process."""
    kind: Any = type(spec)

    class Killed(kind):
        def choose(self, files: Any, say: Say) -> Choice:
            choice: Choice = super().choose(files, say)
            choice.load = _KillAfter(choice.load, after)
            return choice

    killed: ImageSpec = Killed.model_construct(**dict(spec))
    return killed


def _check_same(out: Path, whole: Path, when: str) -> None:
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names, f"{when} other files are written"
    unlike = [name for name in names if (out / name).read_bytes() != (whole / name).read_bytes()]
    assert not unlike, f"{when} there are other bytes in {', '.join(unlike)}"
