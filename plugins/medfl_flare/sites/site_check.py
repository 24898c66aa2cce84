"""Check of a participant's own file before the participant connects: each check gives one result, and all checks run.

The participant's own file (``medfl-site.toml``) lists its folders and its permissions for runs. A participant is a site
or the server.

The checks don't need NVIDIA FLARE; only the check of the server's reachability needs a network. A bundle, the
participant's own reviewed copy, is opened as in a run, so its ``$`` expressions are evaluated. The participant's review
of the bundle must cover these expressions. Results contain the number of images of a split or class only if the number
is at least the file's ``min_count``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import countable_targets
from medfl.data.sites import SiteData
from medfl.errors import DataError, MedflError, SettingsError, explain
from medfl.objectives import Objective
from medfl.plugins import load_plugins
from medfl.settings import Execution
from medfl.training.devices import pick_device
from medfl.types import GLOBAL, NON_SITE_NAMES, PUBLIC
from medfl.utils.processes import core_count
from medfl_flare.kit_check import kit_checks
from medfl_flare.offer import method_version
from medfl_flare.offered_bundle import (
    check_configuration,
    check_network,
    data_dependent_values,
    read_source,
    required_options,
)
from medfl_flare.sites.policy import check_counts, guarantee_text
from medfl_flare.sites.preflight import Caution, images, machine
from medfl_flare.sites.preflight.locks import check_kit_locks, check_run_locks
from medfl_flare.sites.preflight.server import server_checks
from medfl_flare.sites.preflight.weights import check_weights
from medfl_flare.sites.site_file import SECRET_FILE_NAME, SiteBundle, SiteFile, read_site_file


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        ok: Whether the check passed, possibly with a warning, so that a run can begin.
        text: Name of the check, followed by the finding or by what to do.
        warns: Whether the check passed with a warning: a run can begin but may fail later.
    """

    ok: bool
    text: str
    warns: bool = False

    def __str__(self) -> str:
        return f"{'warn' if self.warns else 'ok' if self.ok else 'FAIL'}: {self.text}"


def check_site(
    path: Path, bundle: str | None = None, kit: Path | None = None, online: bool = False
) -> list[CheckResult]:
    """Check a participant's own file, and everything that it names.

    Args:
        path: Path of the file.
        bundle: Name of the only bundle to check; None checks all bundles of the file.
        kit: NVFlare's startup kit of the participant, the folder with its certificate and settings; None skips the
            checks of the kit.
        online: Whether to check the connection from a site's kit to the server. Nothing about the site is sent.

    Returns:
        Result of each check.
    """
    try:
        file = read_site_file(path)
    except MedflError as error:
        return [CheckResult(False, " ".join(str(error).split()))]
    who = "the server" if file.is_server else f"site '{file.site}'"
    lines = [CheckResult(True, f"file: '{file.path}' is valid; it is the file of {who}")]
    checks: list[tuple[str, Callable[[], str]]] = [
        ("state folder", lambda: machine.check_space(file.state, file.max_message_mb)),
        ("locks", lambda: check_run_locks(file.state)),
        *([] if file.is_server else [("secret", lambda: _check_secret(file))]),
        ("methods", lambda: _check_methods(file)),
        ("device", lambda: _check_device(file)),
        *([] if file.device == "cpu" else [("GPU", lambda: machine.check_gpu(file.device))]),
        ("shared memory", lambda: machine.check_shared_memory(file.loaders)),
        ("limits", lambda: _limits_text(file)),
        ("privacy", lambda: _privacy_text(file)),
    ]
    if file.privacy is not None and file.privacy.ledger is not None:
        ledger = file.privacy.ledger
        checks.append(("ledger", lambda: machine.check_space(ledger)))
    if file.cache == "disk" and file.cache_dir is not None:
        cache_dir = file.cache_dir
        checks.append(("cache", lambda: machine.check_space(cache_dir)))
    if file.weights is not None:
        weights = file.weights
        checks.append(("weights", lambda: check_weights(weights, load_plugins().pretrained_weights.values())))
    lines += [_run_check(title, check) for title, check in checks]
    names = sorted(file.bundles) if bundle is None else [bundle]
    if not names:
        lines.append(CheckResult(False, "bundles: none is listed, so no run is accepted; add a table [bundles.NAME]"))
    for name in names:
        lines += _check_bundle(file, name)
    if kit is not None:
        site = None if file.is_server else file.site
        of_kit = [
            ("folder", lambda: machine.check_space(kit)),
            ("locks", lambda: check_kit_locks(kit)),
            *kit_checks(kit, site),
        ]
        lines += [_run_check(f"kit, {title}", check) for title, check in of_kit]
    if kit is not None and online and not file.is_server:
        lines += _check_server(kit)
    return lines


def _check_server(kit: Path) -> Iterator[CheckResult]:
    """Run the checks of the server; stop at the first failure, as the others depend on it."""
    for title, check in server_checks(kit):
        line = _run_check(f"server, {title}", check)
        yield line
        if not line.ok:
            return


def _run_check(title: str, check: Callable[[], str], hidden: tuple[str, str] | None = None) -> CheckResult:
    """Run one check and return its result. Every exception counts as a failure.

    Args:
        title: Name of the check.
        check: Function that returns the finding, or raises.
        hidden: A text and its replacement in the printed line, or None.
    """
    try:
        ok, text = True, check()
    except Exception as error:  # a bundle's own code may raise anything; the other checks must still run
        ok, text = False, explain(error).reason
    warns = isinstance(text, Caution)
    if hidden is not None:
        text = text.replace(*hidden)
    return CheckResult(ok, f"{title}: {' '.join(text.split())}", warns)


def _check_secret(file: SiteFile) -> str:
    """Check that the noise secret exists, or create it, and that only its owner can read it."""
    file.secret()
    mode = (file.state / SECRET_FILE_NAME).stat().st_mode & 0o777
    return f"it exists and only its owner can read it (mode {mode:04o})"


def _check_methods(file: SiteFile) -> str:
    """Check that the allowed methods are installed; return their versions."""
    registry = load_plugins()
    for name in file.methods:
        registry.method_class(name)
    if not file.methods:
        raise SettingsError("no_methods", "no method is allowed, so no run is accepted; list them in 'methods'")
    return ", ".join(f"{name} ({method_version(registry, name)})" for name in file.methods)


def _check_device(file: SiteFile) -> str:
    """Check that the device exists and that there are enough cores."""
    device = torch.device(pick_device(file.device))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            "missing_gpu",
            f"the file names '{device}', but there are {torch.cuda.device_count()} GPUs; correct 'device'",
            device=str(device),
            count=torch.cuda.device_count(),
        )
    cores = core_count()
    if file.threads > cores:
        raise SettingsError(
            "too_many_threads",
            f"'threads' is {file.threads}, but there are {cores} cores; give at most {cores}",
            found=file.threads,
            maximum=cores,
        )
    return f"{device}, {file.threads} of {cores} cores"


def _limits_text(file: SiteFile) -> str:
    """Return the permissions of the file as text."""
    disclosed = " and ".join(file.disclose) or "nothing"
    profile = "nothing" if file.profile is None else "a profile"
    least = file.least_threshold
    updates = "one by one" if least is None else f"only in a sum of at least {least} sites"
    return (
        f"at most {file.max_rounds} rounds, messages of {file.max_message_mb} MB and networks of "
        f"{file.max_network_mb} MB; scores only of {file.min_count} images or more; discloses {disclosed} about its "
        f"training data and {profile} of its machine; updates leave {updates}; "
        f"cross-site evaluation is {'allowed' if file.cross_site_evaluation else 'not allowed'}; scores of its "
        f"own model on a test set that all sites share are {'allowed' if file.shared_test else 'not allowed'}; "
        f"evaluations of finished models may get {', '.join(file.evaluation_scores) or 'no score'}"
    )


def _privacy_text(file: SiteFile) -> str:
    """Return the required minimum privacy as text."""
    floor = file.privacy
    if floor is None:
        return "no minimum: runs without differential privacy are accepted"
    total = "" if floor.total_epsilon is None else f"; all runs together stay within epsilon {floor.total_epsilon:g}"
    account = " and the account is in the ledger" if floor.ledger is not None else ""
    return f"over all its releases a run must guarantee at least {guarantee_text(floor)}{total}{account}"


def _check_bundle(file: SiteFile, name: str) -> Iterator[CheckResult]:
    """Run the checks of one bundle. The checks of its data need its configuration."""
    title = f"bundle '{name}'"
    configured = _run_check(title, lambda: check_configuration(file.bundle(name)))
    yield configured
    if not configured.ok:
        return
    bundle = file.bundle(name)
    if bundle.data is None:
        yield _run_check(f"{title}, network", lambda: check_network(bundle, None, bundle.folder / "no-data"))
        return
    with _linked_dataset(file, bundle.data) as folder:
        shown = (str(folder if file.is_server else folder / file.site), str(bundle.data))
        parts: list[SiteData] = []
        yield _run_check(f"{title}, data", lambda: _load_data(file, bundle, folder, parts), shown)
        if parts:
            yield _run_check(f"{title}, network", lambda: check_network(bundle, parts[0], folder), shown)
            yield _run_check(f"{title}, leaks", lambda: _check_leaks(file, bundle, folder), shown)
            yield from _check_images(title, file, bundle, folder, parts[0])


def _check_images(
    title: str, file: SiteFile, bundle: SiteBundle, folder: Path, data: SiteData
) -> Iterator[CheckResult]:
    """Check the content of the training images, if there are enough of them to disclose something."""
    _, objective = read_source(bundle, folder)
    if len(data.train) < max(file.min_count, 1):
        return
    if objective.titles:
        counts = objective.counts(countable_targets(data.train, objective))
        yield _run_check(f"{title}, labels", lambda: images.check_labels(data.classes, counts))
    yield _run_check(f"{title}, intensities", lambda: images.check_intensities(data.train, bundle.folder))
    if len(data.shape) != 1:  # tables have no voxels
        declared = getattr(objective, "spacing", None)
        fixed = declared if isinstance(declared, tuple) else None
        yield _run_check(f"{title}, voxels", lambda: images.check_spacings(data.train, fixed))


@contextmanager
def _linked_dataset(file: SiteFile, data: Path) -> Iterator[Path]:
    """Context manager for a folder in the layout that bundles expect, one folder per site.

    The folder contains links to this participant's data only.
    """
    links = {file.site: data}
    if file.shared_test and (data.parent / GLOBAL).is_dir():
        links[GLOBAL] = data.parent / GLOBAL
    if file.is_server:
        links = {name: data / name for name in NON_SITE_NAMES if (data / name).is_dir()}
        links |= {"any": next(iter(links.values()))} if links else {}  # a bundle reads shape and classes from any site
    with tempfile.TemporaryDirectory() as folder:
        for name, target in links.items():
            (Path(folder) / name).symlink_to(target, target_is_directory=True)
        yield Path(folder)


def _load_data(file: SiteFile, bundle: SiteBundle, folder: Path, parts: list[SiteData]) -> str:
    """Load all data and append them to `parts`; return their description."""
    names = [
        name for name in (NON_SITE_NAMES if file.is_server else (file.site, GLOBAL)) if (folder / name).is_symlink()
    ]
    if not names:
        raise DataError(
            "missing_folder",
            f"expected {' or '.join(NON_SITE_NAMES)} in '{bundle.data}'; remove 'data' if there is neither",
            path=bundle.data,
            expected=NON_SITE_NAMES,
        )
    if file.shared_test and GLOBAL not in names:
        raise DataError(
            "missing_test_set",
            f"shared_test is true: expected a folder '{GLOBAL}' beside the data, as the server has it",
            setting="shared_test",
            name=GLOBAL,
        )
    facts = data_dependent_values(bundle, folder)
    source, objective = read_source(bundle, folder)
    parts += [source.site(folder / name, Execution()) for name in names]
    places = [(folder / name).readlink() for name in names]  # as a run reads them
    own = [source.site(place, Execution()) for place in places]
    check_unchanged(places[0].parent, own, bundle.allow_changes)
    if not file.is_server:
        check_counts(file, len(parts[0].train))
    return "; ".join(_describe_data(file, part, objective) for part in parts) + required_options(bundle, facts)


def _describe_data(file: SiteFile, part: SiteData, objective: Objective) -> str:
    """Return the description of one site's data; small counts are replaced by "fewer than"."""

    def count(number: int) -> str:
        return str(number) if number == 0 or number >= file.min_count else f"fewer than {file.min_count}"

    sizes = ((part.train, "training"), (part.val, "validation"), (part.test, "test"))
    splits = ", ".join(f"{count(len(data))} {name}" for data, name in sizes)
    numbers = zip(part.classes, objective.counts(countable_targets(part.train, objective)), strict=True)
    classes = ", ".join(f"{name}: {count(number)}" for name, number in numbers)
    shape = " x ".join(map(str, part.shape)) or "different sizes"
    return f"{part.name}: {splits} images of {shape}; {len(part.classes)} classes, for training {classes}"


def _check_leaks(file: SiteFile, bundle: SiteBundle, folder: Path) -> str:
    """Check that the splits share no patient and no image."""
    public = PUBLIC if file.is_server and (folder / PUBLIC).is_dir() else None
    source, _ = read_source(bundle, folder)
    source.check_leaks(folder, [] if file.is_server else [file.site], public)
    return "its splits share no patient and no image"
