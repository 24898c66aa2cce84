"""Spec of MedMNIST: options, download and preparation of a data set from one ``.npz`` file.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `check_release` (check the files) and `make` (write the data set).

Copies of a file from elsewhere may have an official name but other images (subsets, re-saves), so sizes and checksums
are compared with the official table.

Prepared data set: one array of all splits (``images.npy``, uint8) and one data list; each record has ``label`` and
``subject_id``. MedMNIST does not state patients, so each image counts as a patient of its own. The splits are those of
the file.

Source: Yang et al., MedMNIST v2, Scientific Data 10, 41 (2023); sizes and checksums come from release 3.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.ingest.array_file import report_space_needed
from medfl.data.ingest.download import download
from medfl.data.ingest.options import check_mirror
from medfl.data.ingest.spec import WholeSpec
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.records.datalist import CaseRecord
from medfl.utils.progress import progress
from medfl.utils.text import Say
from medfl_datasets.medmnist.files import NPZ_SPLITS, NpzContent, copy_images, read_npz
from medfl_datasets.medmnist.releases import CITATION, RELEASES, URL, MedmnistRelease, find_release, split_flag


def find_npz(source: Path, flag: str) -> Path:
    """Return the path of a data set's file, which must exist.

    Args:
        source: The file itself, or a folder that contains ``<flag>.npz``.
        flag: Name of the data set, with the suffix of the size if there is one, for example ``bloodmnist_64``.

    Raises:
        DataError: If the file does not exist.
    """
    path = _expected_file(source, flag)
    if path.is_file():
        return path
    hint = "" if find_release(flag) else did_you_mean(split_flag(flag)[0], RELEASES) + " "
    raise DataError(
        "missing_file",
        f"expected the MedMNIST file {path}, found none. {hint}"
        f"Add --download, or download {flag}.npz from {URL.removesuffix('/files')} and give its folder as --source.",
        path=path,
    )


def fetch_npz(source: Path, flag: str, url: str = URL, say: Say = lambda _: None) -> Path:
    """Return the path of a data set's file, and download the file if it does not exist.

    Args:
        source: Folder that contains ``<flag>.npz`` or receives it; or the file, if it exists.
        flag: Name of an official data set, with the suffix of the size if it is not 28.
        url: Address of the folder of the files, for mirrors.
        say: Receives lines about progress.

    Raises:
        DataError: If the download fails or its checksum is wrong.
        SettingsError: If there is no official file of that name.
    """
    path = _expected_file(source, flag)
    if path.is_file():
        return path
    name, side = split_flag(flag)
    release = find_release(flag)
    if release is None:
        raise SettingsError(
            "unknown_choice",
            f"there is no official MedMNIST file '{flag}'. {did_you_mean(name, RELEASES)}",
            what="MedMNIST file",
            choice=flag,
        )
    if side not in release.md5:
        known = [name if size == 28 else f"{name}_{size}" for size in release.md5]
        raise SettingsError(
            "unknown_choice",
            f"there is no official MedMNIST file '{flag}'. {did_you_mean(flag, known)}",
            what="MedMNIST file",
            choice=flag,
        )
    if source.suffix == ".npz":
        raise SettingsError(
            "missing_folder",
            f"expected a folder to download to as --source, got {source}, which is not there",
            path=source,
        )
    return download(f"{url.rstrip('/')}/{flag}.npz?download=1", path, md5=release.md5[side], say=say)


def deviations(flag: str, content: NpzContent) -> list[str]:
    """Describe the differences between a file's content and the official release, one sentence each."""
    release = find_release(flag)
    if release is None:
        return [f"no official sizes are known for '{flag}', so the file was not compared with a release"]
    sentences = []
    if content.counts != release.counts:
        counts = "/".join(map(str, content.counts))
        official = "/".join(map(str, release.counts))
        sentences.append(f"{counts} images (train/val/test), the official release has {official}")
    highest = _highest_label(content)
    if not release.multi_label and highest >= len(release.labels):
        sentences.append(f"labels up to {highest}, the official release has {len(release.labels)} classes from 0")
    side = split_flag(flag)[1]
    if content.shape[0] != side:
        sentences.append(f"images of {content.shape[0]} pixels a side, the name states {side}")
    if side in release.md5:
        with content.path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != release.md5[side]:
            sentences.append(f"MD5 {md5}, the official file has {release.md5[side]}: a re-save or another version")
    else:
        sentences.append(f"no official checksum is known for images of {side} pixels a side")
    return sentences


def prepare(
    source: Path,
    flag: str,
    out: Path,
    *,
    finding: str | None = None,
    fetch: bool = False,
    url: str = URL,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Read a MedMNIST file and write the prepared data set.

    Args:
        source: The folder that contains ``<flag>.npz``, or the file.
        flag: Name of the data set, for example ``bloodmnist`` or, for larger images, ``bloodmnist_64``.
        out: Output folder; it is written completely or not at all.
        finding: Finding to classify as absent or present, for data sets with several labels an image (ChestMNIST).
        fetch: Whether to download the file into `source` if it does not exist.
        url: Address to download from.
        force: Whether an existing data set may be replaced.
        say: Receives licence, citation and warnings, one line each, before anything is written.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the file is missing or invalid, or `out` may not be written.
        SettingsError: If there is no such finding, or nothing to download.
    """
    check_output_folder(out, force, [source])
    path = None if fetch else find_npz(source, flag)
    release = find_release(flag)
    licence = release.licence if release else "unknown: see https://medmnist.com"
    say(f"{flag}: licence {licence}")
    say(f"Please cite: {CITATION}")
    content = read_npz(path or fetch_npz(source, flag, url, say))
    labels, names = _labels_and_classes(flag, release, content, finding)
    differences = deviations(flag, content)
    for sentence in differences:
        say(f"warning: {content.path.name}: {sentence}")
    say("note: MedMNIST does not state which images are of one patient: each image counts as a patient of its own")
    datalist = Datalist(
        name=flag if finding is None else f"{flag}-{finding}",
        image_array="images.npy",
        num_classes=len(names),
        labels={str(number): name for number, name in enumerate(names)},
        modality=release.modality if release else "unknown",
        licence=licence,
        splits=_records(flag, labels),
        extra={"citation": CITATION, "deviations": differences},
    )
    with atomic_folder(out, force) as folder:
        report_space_needed(folder / datalist.image_array, (sum(content.counts), *content.shape), np.uint8, 1, say)
        with progress(f"unpacking {content.path.name}", sum(content.counts), "images", say) as show:
            copy_images(content, folder / datalist.image_array, show)
        write_datalist(folder, datalist)
    return datalist


def _expected_file(source: Path, flag: str) -> Path:
    """Return `source` if it is a file, otherwise the path of the data set's file in it."""
    return source if source.is_file() or source.suffix == ".npz" else source / f"{flag}.npz"


def _records(flag: str, labels: list[np.ndarray]) -> dict[str, list[CaseRecord]]:
    """Build the records of each split; the rows of the array are numbered through all splits."""
    splits, start = {}, 0
    for (part, split), of_part in zip(NPZ_SPLITS, labels, strict=True):
        splits[split] = make_records(range(start, start + len(of_part)), of_part, f"{flag}-{part}")
        start += len(of_part)
    return splits


def _labels_and_classes(
    flag: str, release: MedmnistRelease | None, content: NpzContent, finding: str | None
) -> tuple[list[np.ndarray], list[str]]:
    """Return the labels (n,) of each split and the names of the classes.

    Raises:
        DataError: If the file has several labels an image and the release one, or vice versa, or if it has only one
            class.
        SettingsError: If a finding is given for a data set without findings, or is unknown.
    """
    several = content.labels[0].ndim == 2
    if several != bool(release and release.multi_label):
        raise DataError(
            "wrong_label_count",
            f"expected {'several labels' if release and release.multi_label else 'one label'} for each image in "
            f"{content.path}, got labels of shape {content.labels[0].shape} in train. Download the file again.",
            path=content.path,
            expected="several" if release and release.multi_label else "one",
            found=content.labels[0].shape,
        )
    if release and several:
        return _finding_labels(flag, release.labels, content, finding)
    if finding is not None:
        raise SettingsError(
            "unsupported_setting",
            f"{flag} has one label for each image and no findings to choose from: leave out --finding",
            setting="finding",
            dataset=flag,
        )
    names = list(release.labels) if release else []
    names += [f"class {number}" for number in range(len(names), _highest_label(content) + 1)]
    if len(names) < 2:
        raise DataError(
            "too_few_classes",
            f"expected at least two classes in {content.path}, all its labels are 0. Give another file.",
            path=content.path,
            minimum=2,
            found=1,
        )
    return content.labels, names


def _highest_label(content: NpzContent) -> int:
    """Return the highest label of all splits."""
    return max(int(labels.max()) for labels in content.labels if len(labels))


def _finding_labels(
    flag: str, findings: tuple[str, ...], content: NpzContent, finding: str | None
) -> tuple[list[np.ndarray], list[str]]:
    """Return the labels of one finding and the names of its two classes, absent and present."""
    if finding is None:
        raise SettingsError(
            "missing_setting",
            f"{flag} states for each of {len(findings)} findings whether an image shows it; a task here has one label "
            f"for an image. Choose a finding with --finding. Known: {', '.join(findings)}.",
            setting="finding",
            dataset=flag,
        )
    if finding not in findings:
        raise SettingsError(
            "unknown_choice",
            f"{flag} has no finding '{finding}'. {did_you_mean(finding, findings)}",
            what="finding",
            choice=finding,
        )
    for labels in content.labels:
        if labels.shape[1] != len(findings) or labels.size and labels.max() > 1:
            raise DataError(
                "wrong_label",
                f"expected labels 0 or 1 for {len(findings)} findings in {content.path}, got shape {labels.shape} and "
                f"values up to {labels.max(initial=0)}. Download the file again.",
                path=content.path,
                findings=len(findings),
                shape=labels.shape,
                highest=int(labels.max(initial=0)),
            )
    column = findings.index(finding)
    return [labels[:, column] for labels in content.labels], [f"{finding} absent", f"{finding} present"]


class MedMNIST(WholeSpec):
    """MedMNIST, in 2-D and 3-D and all sizes. Nothing is downloaded without --download.

    Source: Yang et al., Scientific Data 10, 41 (2023). Licence: CC BY 4.0; DermaMNIST CC BY-NC 4.0.

    Example: medfl prep medmnist --source downloads --flag bloodmnist --download --out data/bloodmnist
    """

    dataset = "medmnist"
    """Name of the data set, as users type it."""
    parallel = False
    """Whether several processes can read the release."""

    source: Path
    """The folder that contains <flag>.npz, or the file."""
    flag: str = Field(pattern=r"^\w+$")
    """Name of the data set: bloodmnist, organmnist3d, bloodmnist_64, ..."""
    finding: str | None = None
    """Finding to classify as absent or present, for ChestMNIST, whose images have labels for several findings."""
    download: bool = False
    """Download the file if it does not exist."""
    url: str | None = None
    """Address of a mirror's folder that contains <flag>.npz."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise SettingsError if a mirror is given without --download."""
        check_mirror(self.url, self.download)
        return self

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``medmnist`` in `top` if that contains ``<flag>.npz``, otherwise `top`
            itself.
        """
        nested = top / cls.dataset
        return {"source": nested if (nested / f"{options.get('flag')}.npz").is_file() else top}

    def check_release(self) -> object:
        """Check the release: raise DataError if the file is missing, unless it may be downloaded."""
        return None if self.download else find_npz(self.source, self.flag)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Read the file and write the prepared data set to `out`; see `prepare`.

        Args:
            out: Output folder; it is written completely or not at all.
            force: Whether an existing data set may be replaced.
            workers: Unused, because one process reads the file.
            require_complete: Unused, because a damaged file always stops the preparation.
            say: Receives licence, citation and warnings, one line each.
        """
        return prepare(
            self.source,
            self.flag,
            out,
            finding=self.finding,
            fetch=self.download,
            url=self.url or URL,
            force=force,
            say=say,
        )
