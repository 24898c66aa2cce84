"""Check the files of a bundle other than configurations: files with code or weights, links, and missing files."""

from __future__ import annotations

import zipfile
from pathlib import Path

from medfl.bundle.check.reading import inside
from medfl.bundle.check.report import BundleReport, FileNote

CODE = {
    ".py": "Python code",
    ".pyc": "compiled Python code",
    ".so": "compiled code",
    ".pyd": "compiled code",
    ".dll": "compiled code",
    ".sh": "a shell script",
    ".ipynb": "a notebook with code",
}
"""Maps each suffix of files with code to a description of the code."""

PICKLES = {".pkl", ".pickle", ".joblib"}
"""Suffixes of pickle files."""

WEIGHTS = {".pt", ".pth", ".ckpt"}
"""Suffixes of torch's checkpoints."""

MAX_PICKLE = 50_000_000
"""Largest size in bytes of the unpacked pickle in a checkpoint. A small forged file may unpack to any size."""


def check_files(report: BundleReport) -> None:
    """Check the files of a report's bundle, and add problems and the files with code or weights to the report."""
    root = report.root
    names = {path.name.lower() for folder in (root, root / "docs") if folder.is_dir() for path in folder.iterdir()}
    if not (root / "docs" / "README.md").is_file():
        report.warnings.append("docs/README.md is missing: it should describe the purpose of the model")
    if not any(name.startswith(("license", "licence")) for name in names):
        report.warnings.append("LICENSE is missing: it should state how the bundle may be used")
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() and not inside(path, root):
            report.errors.append(f"{name}: a link that leads out of the bundle, or nowhere")
        elif path.is_file():
            _check_file(report, path, name)


def _check_file(report: BundleReport, path: Path, name: str) -> None:
    """Add a file to the report if it contains code or weights."""
    suffix = path.suffix.lower()
    if suffix in CODE:
        report.files.append(FileNote(name, f"{CODE[suffix]}; read it before you run the bundle"))
    elif suffix in PICKLES:
        report.files.append(FileNote(name, "a pickle: loading it runs any code in it"))
        report.warnings.append(f"{name}: a pickle; do not load it unless you trust its author")
    elif suffix == ".ts":
        report.files.append(FileNote(name, "TorchScript: a compiled network, which runs when it is loaded and called"))
    elif suffix in WEIGHTS:
        _check_weights(report, path, name)


def _check_weights(report: BundleReport, path: Path, name: str) -> None:
    """Add a checkpoint and the Python names that loading it would import, read from its pickle without loading it."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    if not zipfile.is_zipfile(path):
        report.files.append(FileNote(name, "weights in an old format that can't be inspected without loading it"))
        report.warnings.append(f"{name}: load it with weights_only=True only")
        return
    if _pickle_size(path) > MAX_PICKLE:
        report.errors.append(f"{name}: its pickle has more than {MAX_PICKLE // 10**6} MB; it is not opened")
        return
    try:
        names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    except Exception as error:  # a damaged or forged file may raise any error
        report.errors.append(f"{name}: not a checkpoint that torch can read ({type(error).__name__}: {error})")
        return
    if names:
        report.files.append(FileNote(name, f"weights that need {', '.join(names)}: loading them can run code"))
        report.warnings.append(f"{name}: does not load with weights_only=True; it imports {', '.join(names)}")
    else:
        report.files.append(FileNote(name, "weights, loads with weights_only=True"))


def _pickle_size(path: Path) -> int:
    """Return the unpacked size of a checkpoint's pickle in bytes, or 0 for a damaged file, which torch reports."""
    try:
        with zipfile.ZipFile(path) as archive:
            return max((entry.file_size for entry in archive.infolist() if entry.filename.endswith(".pkl")), default=0)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0
