"""Find the weights that the setting ``start`` names: known weights, a file, a run or a bundle."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from medfl.engine.runs.run_files import read_run_files
from medfl.engine.runs.weights_file import WEIGHTS_SUFFIXES, check_tensors, read_bytes, tensors_of
from medfl.errors import SettingsError, did_you_mean
from medfl.networks.transfer.start import Start
from medfl.plugin_records import PretrainedWeightsRecord
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import RunFile, StartOrigin
from medfl.settings import BUNDLE_START, RANDOM_START, Settings
from medfl.task import Task
from medfl.utils.files import sha256_of
from medfl.utils.text import SHOWN_DIGITS, names_and_more

logger = logging.getLogger(__name__)

DIGEST_PREFIX = "sha256:"
"""Beginning of a source that names a file by its SHA-256, in a run between machines."""

SITE_SEPARATOR, MONAI_SEPARATOR = "#", "::"
"""Separator of a run and a site, and the text by which MONAI's parser replaces it in all values of a configuration."""

GLOBAL_BUNDLE, SITE_BUNDLES = "global", "sites"
"""Folders of the exported bundles of a run: the global model's, and the one that holds a folder for each site."""

ACCEPTED = (
    "Expected the name of known weights, a file of safetensors or a state dict of torch "
    f"({', '.join(WEIGHTS_SUFFIXES)}), the folder of a finished run (RUN, or RUN#SITE for a "
    "site's model), the folder of a bundle with its models/model.pt, bundle for the run's own bundle, or none."
)
"""Sentence for messages: which sources the setting ``start`` accepts."""

RUN_ORIGIN = (
    "Weights of a run of medfl: they were trained on the data of its sites and may contain information on patients."
)
"""Origin of weights that a run of medfl has trained."""

MEAN_TOLERANCE = 0.02
"""Largest difference of a mean or standard deviation that counts as the same normalisation; images are in [0, 1]."""


def prepare_task(task: Task, settings: Settings, registry: Registry, bundle: Path | None = None) -> Task:
    """Return the task that a run trains, with the weights that it starts from, and with its untrained parts frozen.

    Args:
        task: Task with random initial weights and no part frozen by settings.
        settings: Settings of the run.
        registry: Loaded plugins, with the records of known weights.
        bundle: Folder of the run's bundle; None without a bundle.

    Raises:
        SettingsError: If there are no such weights, or their file can't be read.
    """
    start = find_start(settings.start, registry, settings.start_skip, bundle=bundle)
    return (task if start is None else task.with_start(start)).with_training_of(settings.train_part, settings.lora)


def find_start(
    source: str | None,
    registry: Registry,
    skip: Sequence[str] = (),
    *,
    bundle: Path | None = None,
    folders: Sequence[Path] | None = None,
) -> Start | None:
    """Return the weights that a source names, or None for the sources None and `RANDOM_START`.

    Args:
        source: Name of known weights, or a path; a relative path starts at the working directory.
        registry: Loaded plugins, with the records of known weights.
        skip: Names, or prefixes of names, of tensors to leave out.
        bundle: Folder of the run's bundle, for the source `BUNDLE_START`; None without a bundle.
        folders: If given, a path is refused, because another machine names the source; ``sha256:DIGEST`` names a file
            directly in one of these folders. None allows any path.

    Raises:
        SettingsError: If there is no such source, or the file can't be read, is not known as it should be, or contains
            anything but finite tensors.
    """
    if source == RANDOM_START:
        return None
    if source is None:
        if skip:
            raise SettingsError(
                "incompatible_settings",
                f"start_skip leaves out tensors of the weights in start, but start is not set; got {list(skip)}. Set "
                "start, or leave start_skip out.",
                settings=["start", "start_skip"],
            )
        return None
    if source in registry.pretrained_weights:
        return _known_weights(registry, registry.pretrained_weights[source], skip)
    if bundle is not None and (source == BUNDLE_START or source.startswith(f"{BUNDLE_START}:")):
        return _start_of_bundle(bundle, source.partition(":")[2], registry, skip)
    if source.startswith(DIGEST_PREFIX):
        digest = source.removeprefix(DIGEST_PREFIX)
        path = _file_with_digest(digest, folders or ())
        return _read_start(path, f"{DIGEST_PREFIX}{digest[:SHOWN_DIGITS]}", registry, skip)  # not the file's local name
    if folders is not None:
        raise _unknown_start(source, registry)
    path, site = split_run_and_site(source.replace(MONAI_SEPARATOR, SITE_SEPARATOR))
    if path.is_dir():
        return _start_of_folder(path.resolve(), site, registry, skip)
    if not path.is_file() or site:
        raise _unknown_start(source, registry)
    return _read_start(path.resolve(), path.name, registry, skip)


def portable_source(source: str | None, registry: Registry) -> str | None:
    """Return a source as other machines can read it: a path becomes ``sha256:DIGEST`` of the file that it names.

    Args:
        source: Value of the setting ``start``.
        registry: Loaded plugins, with the records of known weights.

    Raises:
        SettingsError: If the source is a path without weights.
    """
    names = {RANDOM_START, BUNDLE_START, *registry.pretrained_weights}
    if source is None or source in names or source.startswith((f"{BUNDLE_START}:", DIGEST_PREFIX)):
        return source
    start = find_start(source, registry)
    assert start is not None
    return start.source if start.source in registry.pretrained_weights else f"{DIGEST_PREFIX}{start.sha256}"


def _unknown_start(source: str, registry: Registry) -> SettingsError:
    """Return the error about a source that names no weights."""
    return SettingsError(
        "unknown_start",
        f"There are no weights '{source}' to start from. {ACCEPTED} "
        f"{did_you_mean(source, registry.pretrained_weights, 'medfl list weights')}",
        source=source,
        known=sorted(registry.pretrained_weights),
    )


def split_run_and_site(source: str) -> tuple[Path, str]:
    """Split ``RUN#SITE`` into a path and the name of a site; the name is empty in a source without one.

    Args:
        source: Path of a file or folder, or of a run with the name of one of its sites.
    """
    path = Path(source).expanduser()
    if path.exists() or SITE_SEPARATOR not in source:
        return path, ""
    text, _, site = source.rpartition(SITE_SEPARATOR)
    return Path(text).expanduser(), site


def start_origin(start: Start) -> StartOrigin:
    """Return the record of the weights for ``run.json``."""
    return StartOrigin(
        source=start.source,
        title=start.title,
        licence=start.licence,
        origin=start.origin,
        sha256=start.sha256,
        skip=start.skip,
    )


def warn_of_normalisation(start: Start, mean: Sequence[float], std: Sequence[float]) -> None:
    """Log a warning if a bundle normalises images in another way than the weights expect.

    Args:
        start: The weights.
        mean: Mean of each channel of the images that the bundle subtracts.
        std: Standard deviation of each channel that it divides by.
    """
    if start.mean is None or start.std is None:
        return
    if not (_is_close(start.mean, mean) and _is_close(start.std, std)):
        logger.warning(
            "The weights '%s' expect images with mean %s and standard deviation %s; the bundle normalises them with "
            'mean %s and standard deviation %s. Scores suffer from another normalisation: set --mean "%s" --std '
            '"%s".',
            start.source,
            list(start.mean),
            list(start.std),
            list(mean),
            list(std),
            list(start.mean),
            list(start.std),
        )


def start_normalisation(
    source: str | None, statistic: Literal["mean", "std"], default: Sequence[float], plugins: Sequence[str] = ()
) -> list[float]:
    """Return the mean or standard deviation that known weights expect of images, for the configuration of a bundle.

    Args:
        source: Value of the setting ``start``.
        statistic: ``mean`` or ``std``.
        default: Values for all other sources, one per channel. For images of one channel, the mean over the channels
            of the weights is returned.
        plugins: Plugin files with records of weights.
    """
    record = None if source is None else load_plugins(plugins).pretrained_weights.get(source)
    if record is None:
        return list(default)
    mean, std = _normalisation(record)
    values = mean if statistic == "mean" else std
    return [sum(values) / len(values)] if len(default) == 1 else list(values)


def _normalisation(record: PretrainedWeightsRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation with which a bundle must normalise images for known weights."""
    if record.network_normalises:
        return (0.0,) * len(record.mean), (1.0,) * len(record.std)
    return tuple(record.mean), tuple(record.std)


def _is_close(expected: Sequence[float], used: Sequence[float]) -> bool:
    """Return whether values per channel agree; a single used value is compared with the mean of the expected ones."""
    if len(used) == 1:
        expected = [sum(expected) / len(expected)]
    if len(expected) == 1:
        expected = list(expected) * len(used)
    differences = [abs(a - b) for a, b in zip(expected, used, strict=False)]
    return len(expected) == len(used) and max(differences) <= MEAN_TOLERANCE


# ---- sources


def _known_weights(registry: Registry, record: PretrainedWeightsRecord, skip: Sequence[str]) -> Start:
    """Return known weights from the file that the plugin of their record finds."""
    path = Path(registry.pretrained_weights_function(record.name, "target")())
    content = read_bytes(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != record.sha256:
        raise SettingsError(
            "wrong_checksum",
            f"The file '{path.name}' of the weights '{record.name}' has the SHA-256 {sha256}, expected "
            f"{record.sha256}. Install it again: {record.install}.",
            source=record.name,
            path=path,
            expected=record.sha256,
            found=sha256,
        )
    return _start_of_record(registry, record, path, content, skip)


def _start_of_record(
    registry: Registry, record: PretrainedWeightsRecord, path: Path, content: bytes, skip: Sequence[str]
) -> Start:
    """Return the weights in the file of a record, with the names of the record's network."""
    if record.read:
        tensors = registry.pretrained_weights_function(record.name, "read")(path)
    else:
        tensors = tensors_of(content, path)
    if record.convert:
        tensors = registry.pretrained_weights_function(record.name, "convert")(tensors)
    check_tensors(tensors, path)
    mean, std = _normalisation(record)
    return Start(
        source=record.name,
        title=record.title,
        sha256=record.sha256,
        tensors=tensors,
        licence=record.licence,
        origin=record.source,
        skip=_sorted_skip(skip),
        network=record.network,
        mean=mean,
        std=std,
        allows_missing_head=True,
    )


def _start_of_folder(folder: Path, site: str, registry: Registry, skip: Sequence[str]) -> Start:
    """Return the weights of a run or a bundle."""
    if (folder / RunFile.NAME).is_file():
        return _start_of_run(folder, site, registry, skip)
    if site:
        raise SettingsError(
            "unknown_start",
            f"'{folder}' is not the folder of a run, so it has no model of a site '{site}'. {ACCEPTED}",
            source=str(folder),
            site=site,
        )
    start = _start_of_bundle(folder, "", registry, skip)
    is_export = any((parent / RunFile.NAME).is_file() for parent in (folder.parent, folder.parent.parent))
    return replace(start, origin=RUN_ORIGIN) if is_export else start


def _start_of_bundle(bundle: Path, name: str, registry: Registry, skip: Sequence[str]) -> Start:
    """Return the weights of a bundle, from the file of that name in its folder ``models`` or from its usual file."""
    path = bundle / "models" / name if name else _model_file(bundle)
    if name != Path(name).name:
        raise SettingsError(
            "invalid_name", f"expected the name of a file in '{bundle / 'models'}', got '{name}'.", name=name
        )
    start = _read_start(path, bundle.resolve().name, registry, skip)
    return start if start.network else _describe_bundle(start, bundle, path)


def _describe_bundle(start: Start, bundle: Path, path: Path) -> Start:
    """Return a bundle's weights with title, licence and origin from its metadata, as far as they say so."""
    try:
        metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
        texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    except (OSError, ValueError, AttributeError):
        texts = {}
    name = texts.get("name") or bundle.resolve().name
    version = f", version {texts['version']}" if "version" in texts else ""
    rights = f" {texts['copyright'].rstrip('.')}." if texts.get("copyright") else ""
    return replace(
        start,
        title=f"{path.name} of the bundle '{name}'{version}",
        licence=texts.get("license", ""),
        origin=f"Weights that came with the bundle.{rights}",
    )


def _start_of_run(folder: Path, site: str, registry: Registry, skip: Sequence[str]) -> Start:
    """Return the global model of a finished run, or the model of one of its sites."""
    run, summary = read_run_files(folder)
    sites = sorted({*run.identity.sites, *run.provenance.joined})
    if summary is None:
        raise SettingsError(
            "unfinished_run",
            f"The run in '{folder}' has not ended and has no final model. Expected a finished run: run its command "
            "again to finish it.",
            path=folder,
        )
    if site and site not in sites:
        raise SettingsError(
            "unknown_site",
            f"The run in '{folder}' has no site '{site}'. {did_you_mean(site, sites)}",
            path=folder,
            site=site,
            known=sites,
        )
    bundle = folder / SITE_BUNDLES / site if site else folder / GLOBAL_BUNDLE
    if not bundle.is_dir():
        exported = [name for name in sites if (folder / SITE_BUNDLES / name / "models").is_dir()]
        what = f"model of site '{site}'" if site else "global model"
        advice = (
            f"Name the model of a site: {folder.name}#{exported[0]}."
            if exported
            else "It has no exported models, as a run on data in memory; save the state dict of one yourself."
        )
        raise SettingsError(
            "missing_model",
            f"The run in '{folder}' (method {run.identity.method}) has no exported {what}. {advice}",
            path=folder,
            sites=exported,
        )
    source = f"{folder.name}#{site}" if site else folder.name
    start = _read_start(_model_file(bundle), source, registry, skip)
    title = f"model of site '{site}'" if site else "global model"
    before = run.provenance.start
    return replace(
        start,
        title=f"Run '{folder.name}' ({run.identity.method}), {title}",
        licence="" if before is None else before.licence,
        origin=RUN_ORIGIN if before is None else f"{RUN_ORIGIN} That run started from: {before.sentence}",
    )


def _model_file(bundle: Path) -> Path:
    """Return the file of a bundle's weights: ``models/model.pt``, or the only file of weights in ``models``."""
    usual = bundle / "models" / "model.pt"
    if usual.is_file():
        return usual
    files = sorted(path for path in (bundle / "models").glob("*") if path.suffix in WEIGHTS_SUFFIXES and path.is_file())
    if len(files) == 1:
        return files[0]
    there = f"found {names_and_more([path.name for path in files], 5)}; name one of them" if files else "found none"
    raise SettingsError(
        "missing_model",
        f"Expected weights to start from in '{usual}', {there}. {ACCEPTED}",
        path=usual,
        found=[path.name for path in files],
    )


def _file_with_digest(digest: str, folders: Sequence[Path]) -> Path:
    """Return the file with a SHA-256 in one of the folders; no other file is opened."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise SettingsError(
            "invalid_digest", f"expected 64 hexadecimal digits after '{DIGEST_PREFIX}' in start.", source=digest[:100]
        )
    for folder in folders:
        for path in sorted(folder.iterdir() if folder.is_dir() else ()):
            if path.suffix in WEIGHTS_SUFFIXES and path.is_file() and sha256_of(path) == digest:
                return path
    raise SettingsError(
        "missing_weights",
        f"The run starts from weights with the SHA-256 {digest}, but no file of weights in the configured folder has "
        "it. Put the file there.",
        sha256=digest,
    )


def _read_start(path: Path, source: str, registry: Registry, skip: Sequence[str]) -> Start:
    """Read a file and return its weights. A file that a plugin's record knows gets the record's description."""
    content = read_bytes(path)
    sha256 = hashlib.sha256(content).hexdigest()
    for record in registry.pretrained_weights.values():
        if record.sha256 == sha256:
            return _start_of_record(registry, record, path, content, skip)
    tensors = tensors_of(content, path)
    check_tensors(tensors, path)
    return Start(source=source, title=source, sha256=sha256, tensors=tensors, skip=_sorted_skip(skip))


def _sorted_skip(skip: Sequence[str]) -> tuple[str, ...]:
    """Return names to leave out in the order in which they identify a run."""
    return tuple(sorted(set(skip)))
