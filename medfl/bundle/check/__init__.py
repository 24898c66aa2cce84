"""Check a MONAI bundle before it is run: offline, and without importing or evaluating any of its content."""

from __future__ import annotations

import contextlib
import importlib.metadata
from pathlib import Path
from typing import Any

from medfl.bundle.check.files import check_files
from medfl.bundle.check.listing import find_code, find_logging_code
from medfl.bundle.check.metadata import OLD_PACKAGES, SCHEMA, check_metadata
from medfl.bundle.check.reading import SUFFIXES, inside, macro_file, read_config, walk
from medfl.bundle.check.references import check_references, missing_properties
from medfl.bundle.check.report import BundleReport, CodeEntry, FileNote
from medfl.engine.runs.setting_ids import SETTINGS_ID
from medfl.errors import SettingsError, did_you_mean
from medfl.settings import run_fields
from medfl.types import PathLike

__all__ = ["BundleReport", "CodeEntry", "FileNote", "check_bundle"]

METADATA = "configs/metadata.json"
"""Path of the metadata file, relative to the bundle."""


def check_bundle(root: PathLike) -> BundleReport:
    """Check a bundle's metadata, configurations and files.

    The configurations are all JSON and YAML files under ``configs/``, and the files that a macro reads. The check reads
    them as data: it imports, instantiates and evaluates nothing of the bundle, and uses no network.

    Args:
        root: Folder of the bundle.

    Returns:
        Report with errors, warnings, notes, code and files.

    Raises:
        SettingsError: If the folder does not exist or has no folder ``configs``.
    """
    root = Path(root)
    if not (root / "configs").is_dir():
        raise SettingsError(
            "not_a_bundle", f"'{root}' is not a MONAI bundle: expected the folder '{root / 'configs'}'.", path=root
        )
    report = BundleReport(root)
    contents = _read_all(report)
    metadata = contents.get(METADATA)
    _check_metadata(report, metadata)
    own = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"}
    for name, content in contents.items():
        report.code += find_code(name, content, own)
    _list_logging(report)
    _check_configs(report, contents, metadata)
    check_files(report)
    return report


def _read_all(report: BundleReport) -> dict[str, Any]:
    """Return the content of each readable configuration by its path in the bundle. Add other errors to the report."""
    root = report.root
    files = sorted(path for path in (root / "configs").rglob("*") if path.suffix.lower() in SUFFIXES)
    waiting = [path for path in files if inside(path, root)]  # check_files reports links that lead out of the bundle
    contents: dict[str, Any] = {}
    for path in waiting:  # grows as macros name more files
        name = path.relative_to(root).as_posix()
        content, problems = read_config(path)
        report.errors += [f"{name}: {problem}" for problem in problems]
        if content is None:
            continue
        contents[name] = content
        waiting += [file for file in _pulled_in(content, root) if file not in waiting]
    return contents


def _pulled_in(content: Any, root: Path) -> list[Path]:
    """Return the files of the bundle that a configuration reads by macros."""
    files = []
    for _, value in walk(content):
        if isinstance(value, str) and value.startswith("%"):
            with contextlib.suppress(ValueError, OSError):  # check_references reports them
                file = macro_file(value, root)
                if file is not None and file.is_file():
                    files.append(root / file.relative_to(root.resolve()))
    return files


def _list_logging(report: BundleReport) -> None:
    """Add the code in logging configurations to the report."""
    for path in sorted((report.root / "configs").rglob("*.conf")):
        name = path.relative_to(report.root).as_posix()
        if not inside(path, report.root):
            continue
        try:
            report.code += find_logging_code(path, name)
        except (OSError, ValueError) as error:
            report.errors.append(f"{name}: can't be read: {error}")


def _check_metadata(report: BundleReport, metadata: Any) -> None:
    """Check the metadata and add problems, notes and the title to the report."""
    if not (report.root / METADATA).is_file():
        report.errors.append(f"{METADATA} is missing")
    if metadata is None:
        return
    report.errors += [f"{METADATA}: {problem}" for problem in check_metadata(metadata)]
    if not isinstance(metadata, dict):
        return
    report.title = f"{metadata.get('name') or report.root.resolve().name} {metadata.get('version', '')}".strip()
    if OLD_PACKAGES in metadata:
        report.warnings.append(f"{METADATA}: '{OLD_PACKAGES}' is the old name of 'required_packages_version'")
    schema = str(metadata.get("schema", "")).rpartition("/")[2]
    if schema != SCHEMA:
        report.notes.append(f"{METADATA}: checked by the rules of {SCHEMA}; it names '{schema}'")
    for package, key in (("monai", "monai_version"), ("torch", "pytorch_version")):
        installed = importlib.metadata.version(package)
        report.notes.append(f"{package}: made with {metadata.get(key, 'an unknown version')}, installed is {installed}")


def _check_configs(report: BundleReport, contents: dict[str, Any], metadata: Any) -> None:
    """Check required ids, settings and references of the configurations, and add problems to the report."""
    configs = {}
    for name, content in contents.items():
        short = name.removeprefix("configs/")
        if name == METADATA or short == name:
            continue
        if isinstance(content, dict):
            configs[short] = content
        else:
            report.errors.append(f"{name}: expected an object of ids, got a {type(content).__name__}")
    report.errors += [f"configs/{name}: {text}" for name, content in configs.items() for text in _settings(content)]
    stems = {Path(name).stem: name for name in configs}
    if "train" not in stems:
        report.warnings.append(
            "configs/train.json is missing: the bundle can't be trained at one site or as a federation"
        )
    for kind in ("train", "inference"):
        if kind in stems:
            missing = missing_properties(kind, configs[stems[kind]], report.root)
            if missing:
                report.errors.append(f"configs/{stems[kind]}: MONAI requires these ids, missing: {', '.join(missing)}")
    errors, notes = check_references(configs, metadata if isinstance(metadata, dict) else {}, report.root)
    report.errors += [f"configs/{error}" for error in errors]
    report.notes += [f"configs/{note}" for note in notes]


def _settings(content: dict[str, Any]) -> list[str]:
    """Return the problems with the names of a federation's settings. Values may be expressions and are not checked."""
    federation, settings = content.get("federation"), content.get(SETTINGS_ID)
    if not isinstance(federation, dict) or federation.get(SETTINGS_ID) != f"@{SETTINGS_ID}" or settings is None:
        return []
    if not isinstance(settings, dict):
        return [f"expected '{SETTINGS_ID}' as an object of settings by name, got a {type(settings).__name__}"]
    fields = list(run_fields())
    unknown = [str(name) for name in settings if name not in fields]
    return [
        f"'{SETTINGS_ID}' has an unknown setting '{name}'. {did_you_mean(name, fields, 'medfl run --help-settings')}"
        for name in unknown
    ]
