"""Proving a participant's own file before it connects: each check is one line, and all of them are made.

Nothing here needs NVIDIA FLARE; a network is needed only to look whether the server can be reached. The participant's
own, reviewed copy of a bundle is opened as a run opens it, so that its ``$`` expressions are evaluated; that is what
the review is for. Of splits and classes only numbers of images at or above the file's ``min_count`` are told.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import countable
from medfl.data.sites import SiteData
from medfl.errors import DataError, MedflError, SettingsError, explain
from medfl.objectives import Objective
from medfl.plugins import load_plugins
from medfl.settings import Execution
from medfl.training.loop import pick_device
from medfl.types import GLOBAL, NO_SITES, PUBLIC
from medfl_flare.kit_check import check_kit
from medfl_flare.offer import method_version
from medfl_flare.offered_bundle import configuration, facts_in, forward, source_of, to_give
from medfl_flare.sites.file import SECRET, SiteBundle, SiteFile, read_site_file
from medfl_flare.sites.policy import check_counts, promise
from medfl_flare.sites.preflight import Caution, images, machine
from medfl_flare.sites.preflight.locks import kit_locks, run_locks
from medfl_flare.sites.preflight.server import check_server


@dataclass(frozen=True)
class Line:
    """What a check found.

    Attributes:
        ok: Whether a run can begin.
        text: What was checked, and what was found or what to do.
        warns: Whether a run can begin but may go wrong.
    """

    ok: bool
    text: str
    warns: bool = False

    def __str__(self) -> str:
        return f"{'warn' if self.warns else 'ok' if self.ok else 'FAIL'}: {self.text}"


def check_site(path: Path, bundle: str | None = None, kit: Path | None = None, online: bool = False) -> list[Line]:
    """Check a participant's own file, and all that it names.

    Args:
        path: The file.
        bundle: Only this bundle; None checks all that are listed.
        kit: NVFlare's startup kit of the participant; None leaves it out.
        online: Whether the server of a site's kit is looked for; nothing of the site is sent to it.

    Returns:
        A line for each check.
    """
    try:
        file = read_site_file(path)
    except MedflError as error:
        return [Line(False, " ".join(str(error).split()))]
    who = "the server" if file.is_server else f"site '{file.site}'"
    lines = [Line(True, f"file: '{file.path}' is read; it is the file of {who}")]
    checks: list[tuple[str, Callable[[], str]]] = [
        ("state folder", lambda: machine.space(file.state, file.max_message_mb)),
        ("locks", lambda: run_locks(file.state)),
        *([] if file.is_server else [("secret", lambda: _secret(file))]),
        ("methods", lambda: _methods(file)),
        ("device", lambda: _device(file)),
        *([] if file.device == "cpu" else [("GPU", lambda: machine.gpu(file.device))]),
        ("shared memory", lambda: machine.shared_memory(file.loaders)),
        ("limits", lambda: _limits(file)),
        ("privacy", lambda: _privacy(file)),
    ]
    if file.privacy is not None and file.privacy.ledger is not None:
        ledger = file.privacy.ledger
        checks.append(("ledger", lambda: machine.space(ledger)))
    if file.cache == "disk" and file.cache_dir is not None:
        cache_dir = file.cache_dir
        checks.append(("cache", lambda: machine.space(cache_dir)))
    lines += [_line(title, check) for title, check in checks]
    names = sorted(file.bundles) if bundle is None else [bundle]
    if not names:
        lines.append(Line(False, "bundles: none is listed, so no run is accepted; write a table [bundles.NAME]"))
    for name in names:
        lines += _bundle(file, name)
    if kit is not None:
        site = None if file.is_server else file.site
        of_kit = [("folder", lambda: machine.space(kit)), ("locks", lambda: kit_locks(kit)), *check_kit(kit, site)]
        lines += [_line(f"kit, {title}", check) for title, check in of_kit]
    if kit is not None and online and not file.is_server:
        lines += _server(kit)
    return lines


def _server(kit: Path) -> Iterator[Line]:
    """The checks of the server; the others need the first."""
    for title, check in check_server(kit):
        line = _line(f"server, {title}", check)
        yield line
        if not line.ok:
            return


def _line(title: str, check: Callable[[], str], hidden: tuple[str, str] | None = None) -> Line:
    """Make one check. Whatever it raises is what went wrong; `hidden` is a text and what to print for it."""
    try:
        ok, text = True, check()
    except Exception as error:  # a bundle's own code may raise anything, and the other checks go on
        ok, text = False, explain(error).reason
    warns = isinstance(text, Caution)
    if hidden is not None:
        text = text.replace(*hidden)
    return Line(ok, f"{title}: {' '.join(text.split())}", warns)


def _secret(file: SiteFile) -> str:
    file.secret()
    mode = (file.state / SECRET).stat().st_mode & 0o777
    return f"it is there and only its owner can read it (mode {mode:04o})"


def _methods(file: SiteFile) -> str:
    registry = load_plugins()
    for name in file.methods:
        registry.method_class(name)
    if not file.methods:
        raise SettingsError("no_methods", "none may run here, so no run is accepted; list them in 'methods'")
    return ", ".join(f"{name} ({method_version(registry, name)})" for name in file.methods)


def _device(file: SiteFile) -> str:
    device = torch.device(pick_device(file.device))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            "missing_gpu",
            f"'{device}' was asked for, there are {torch.cuda.device_count()} GPUs; correct 'device'",
            device=str(device),
            count=torch.cuda.device_count(),
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if file.threads > cores:
        raise SettingsError(
            "too_many_threads",
            f"'threads' is {file.threads}, there are {cores} cores; give as many threads at most",
            found=file.threads,
            maximum=cores,
        )
    return f"{device}, {file.threads} of {cores} cores"


def _limits(file: SiteFile) -> str:
    tells = " and ".join(file.disclose) or "nothing"
    can_do = "nothing" if file.profile is None else "what it can do"
    least = file.least_threshold
    alone = "one by one" if least is None else f"in a sum of {least} sites or more only"
    return (
        f"at most {file.max_rounds} rounds, messages of {file.max_message_mb} MB and networks of "
        f"{file.max_network_mb} MB; scores only of {file.min_count} images or more; tells {tells} of its training data "
        f"and {can_do} of its machine; updates leave {alone}; "
        f"models {'are' if file.cross_site_evaluation else 'are not'} exchanged for a global test, "
        f"its own {'is' if file.shared_test else 'is not'} scored on a test set that all sites share"
    )


def _privacy(file: SiteFile) -> str:
    floor = file.privacy
    if floor is None:
        return "no floor: runs without differential privacy are accepted"
    total = "" if floor.total_epsilon is None else f"; all runs together stay within epsilon {floor.total_epsilon:g}"
    account = " and the account is in the ledger" if floor.ledger is not None else ""
    return f"over all its releases a run must promise at least {promise(floor)}{total}{account}"


def _bundle(file: SiteFile, name: str) -> Iterator[Line]:
    """The checks of one bundle. Those of its data need its configuration."""
    title = f"bundle '{name}'"
    configured = _line(title, lambda: configuration(file.bundle(name)))
    yield configured
    if not configured.ok:
        return
    bundle = file.bundle(name)
    if bundle.data is None:
        yield _line(f"{title}, network", lambda: forward(bundle, None, bundle.folder / "no-data"))
        return
    with _dataset(file, bundle.data) as folder:
        shown = (str(folder if file.is_server else folder / file.site), str(bundle.data))
        parts: list[SiteData] = []
        yield _line(f"{title}, data", lambda: _data(file, bundle, folder, parts), shown)
        if parts:
            yield _line(f"{title}, network", lambda: forward(bundle, parts[0], folder), shown)
            yield _line(f"{title}, leaks", lambda: _leaks(file, bundle, folder), shown)
            yield from _images(title, file, bundle, folder, parts[0])


def _images(title: str, file: SiteFile, bundle: SiteBundle, folder: Path, data: SiteData) -> Iterator[Line]:
    """The checks of what the training images hold, where there are enough that something may be told of them."""
    _, objective = source_of(bundle, folder)
    if len(data.train) < max(file.min_count, 1):
        return
    if objective.titles:
        counts = objective.counts(countable(data.train, objective))
        yield _line(f"{title}, labels", lambda: images.labels(data.classes, counts))
    yield _line(f"{title}, intensities", lambda: images.intensities(data.train, bundle.folder))
    if len(data.shape) != 1:  # a table has none
        declared = getattr(objective, "spacing", None)
        fixed = declared if isinstance(declared, tuple) else None
        yield _line(f"{title}, voxels", lambda: images.spacings(data.train, fixed))


@contextmanager
def _dataset(file: SiteFile, data: Path) -> Iterator[Path]:
    """A folder as bundles expect it, with one folder for each site: here links to this participant's data alone."""
    links = {file.site: data}
    if file.shared_test and (data.parent / GLOBAL).is_dir():
        links[GLOBAL] = data.parent / GLOBAL
    if file.is_server:
        links = {name: data / name for name in NO_SITES if (data / name).is_dir()}
        links |= {"any": next(iter(links.values()))} if links else {}  # a bundle takes its facts from any site
    with tempfile.TemporaryDirectory() as folder:
        for name, target in links.items():
            (Path(folder) / name).symlink_to(target, target_is_directory=True)
        yield Path(folder)


def _data(file: SiteFile, bundle: SiteBundle, folder: Path, parts: list[SiteData]) -> str:
    """Load all data; they go to `parts`."""
    names = [name for name in (NO_SITES if file.is_server else (file.site, GLOBAL)) if (folder / name).is_symlink()]
    if not names:
        raise DataError(
            "missing_folder",
            f"expected {' or '.join(NO_SITES)} in '{bundle.data}'; leave 'data' out if there is neither",
            path=bundle.data,
            expected=NO_SITES,
        )
    if file.shared_test and GLOBAL not in names:
        raise DataError(
            "missing_test_set",
            f"shared_test is true: expected a folder '{GLOBAL}' beside the data, as the server has it",
            setting="shared_test",
            name=GLOBAL,
        )
    facts = facts_in(bundle, folder)
    source, objective = source_of(bundle, folder)
    parts += [source.site(folder / name, Execution()) for name in names]
    places = [(folder / name).readlink() for name in names]  # as a run reads them
    own = [source.site(place, Execution()) for place in places]
    check_unchanged(places[0].parent, own, bundle.allow_changes)
    if not file.is_server:
        check_counts(file, len(parts[0].train))
    return "; ".join(_told(file, part, objective) for part in parts) + to_give(bundle, facts)


def _told(file: SiteFile, part: SiteData, objective: Objective) -> str:
    def count(number: int) -> str:
        return str(number) if number == 0 or number >= file.min_count else f"fewer than {file.min_count}"

    sizes = ((part.train, "training"), (part.val, "validation"), (part.test, "test"))
    splits = ", ".join(f"{count(len(data))} {name}" for data, name in sizes)
    numbers = zip(part.classes, objective.counts(countable(part.train, objective)), strict=True)
    classes = ", ".join(f"{name}: {count(number)}" for name, number in numbers)
    shape = " x ".join(map(str, part.shape)) or "unlike sizes"
    return f"{part.name}: {splits} images of {shape}; {len(part.classes)} classes, for training {classes}"


def _leaks(file: SiteFile, bundle: SiteBundle, folder: Path) -> str:
    public = PUBLIC if file.is_server and (folder / PUBLIC).is_dir() else None
    source, _ = source_of(bundle, folder)
    source.check_leaks(folder, [] if file.is_server else [file.site], public)
    return "its splits share no patient and no image"
