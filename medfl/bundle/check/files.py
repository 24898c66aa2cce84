"""The files of a bundle beside its configurations: what holds code, what holds weights, and what is missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

from medfl.bundle.check.reading import inside
from medfl.bundle.check.report import FileNote, Report

CODE = {
    ".py": "Python code",
    ".pyc": "compiled Python code",
    ".so": "compiled code",
    ".pyd": "compiled code",
    ".dll": "compiled code",
    ".sh": "a shell script",
    ".ipynb": "a notebook with code",
}
PICKLES = {".pkl", ".pickle", ".joblib"}
WEIGHTS = {".pt", ".pth", ".ckpt"}

MAX_PICKLE = 50_000_000
"""Bytes of a checkpoint's table of contents, unpacked: a small file may claim any number."""


def check_files(report: Report) -> None:
    """Add to a report what the files of its bundle are."""
    root = report.root
    names = {path.name.lower() for folder in (root, root / "docs") if folder.is_dir() for path in folder.iterdir()}
    if not (root / "docs" / "README.md").is_file():
        report.warnings.append("docs/README.md is missing: nobody is told what the model is for")
    if not any(name.startswith(("license", "licence")) for name in names):
        report.warnings.append("LICENSE is missing: nobody is told what may be done with the bundle")
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() and not inside(path, root):
            report.errors.append(f"{name}: a link that leads out of the bundle, or nowhere")
        elif path.is_file():
            _check_file(report, path, name)


def _check_file(report: Report, path: Path, name: str) -> None:
    suffix = path.suffix.lower()
    if suffix in CODE:
        report.files.append(FileNote(name, f"{CODE[suffix]}; read it before you run the bundle"))
    elif suffix in PICKLES:
        report.files.append(FileNote(name, "a pickle: loading it runs whatever is in it"))
        report.warnings.append(f"{name}: a pickle; do not load it unless you trust its author")
    elif suffix == ".ts":
        report.files.append(FileNote(name, "TorchScript: a compiled network, which runs when it is loaded and called"))
    elif suffix in WEIGHTS:
        _check_weights(report, path, name)


def _check_weights(report: Report, path: Path, name: str) -> None:
    """Which Python names a checkpoint asks for, read from its table without loading it."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    if not zipfile.is_zipfile(path):
        report.files.append(FileNote(name, "weights in an old format that can't be looked into without loading it"))
        report.warnings.append(f"{name}: load it with weights_only=True only")
        return
    if _pickled(path) > MAX_PICKLE:
        report.errors.append(f"{name}: its table of contents has more than {MAX_PICKLE // 10**6} MB; it is not opened")
        return
    try:
        names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    except Exception as error:  # a damaged or forged file fails in many ways; each is reported
        report.errors.append(f"{name}: is no checkpoint that torch can read ({type(error).__name__}: {error})")
        return
    if names:
        report.files.append(FileNote(name, f"weights that need {', '.join(names)}: loading them can run code"))
        report.warnings.append(f"{name}: does not load with weights_only=True; it asks for {', '.join(names)}")
    else:
        report.files.append(FileNote(name, "weights, loads with weights_only=True"))


def _pickled(path: Path) -> int:
    """Bytes that a checkpoint's table of contents has unpacked; 0 for a damaged file, which torch names."""
    try:
        with zipfile.ZipFile(path) as archive:
            return max((entry.file_size for entry in archive.infolist() if entry.filename.endswith(".pkl")), default=0)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0
