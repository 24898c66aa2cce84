"""MedMNIST: one ``.npz`` file as released in, a pooled data set out.

The pooled data set is a folder with one array of all splits (``images.npy``) and one data list. Community copies under
an official name hold other images (subsets, re-saves), so sizes and checksums are compared with the official table.

Source: Yang et al., MedMNIST v2, Scientific Data 10, 41 (2023); sizes and checksums are those of release 3.0.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, did_you_mean

CITATION = (
    "Yang, J. et al.: MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image "
    "classification. Scientific Data 10, 41 (2023)."
)
"""To be cited with every use."""

PARTS = (("train", "training"), ("val", "validation"), ("test", "test"))
"""The prefix of a split in the release, and its name in a data list, in the order of the rows."""


@dataclass(frozen=True)
class Release:
    """What the official release says of one data set.

    Attributes:
        sizes: Number of training, validation and test images.
        md5: Checksum of the file with the smallest images.
        modality: How the images were taken.
        labels: Names of the classes, from 0.
        licence: Terms of use.
    """

    sizes: tuple[int, int, int]
    md5: str
    modality: str
    labels: tuple[str, ...]
    licence: str = "CC BY 4.0"


_ORGANS = "bladder|femur-left|femur-right|heart|kidney-left|kidney-right|liver|lung-left|lung-right|pancreas|spleen"
_ORGANS_3D = "liver|kidney-right|kidney-left|femur-right|femur-left|bladder|heart|lung-right|lung-left|spleen|pancreas"
_BLOOD = "basophil|eosinophil|erythroblast|immature granulocyte|lymphocyte|monocyte|neutrophil|platelet"
_PATH = (
    "adipose|background|debris|lymphocytes|mucus|smooth muscle|normal colon mucosa|cancer-associated stroma|"
    "colorectal adenocarcinoma epithelium"
)
_DERMA = (
    "actinic keratoses and intraepithelial carcinoma|basal cell carcinoma|benign keratosis-like lesions|"
    "dermatofibroma|melanoma|melanocytic nevi|vascular lesions"
)


def _ct(sizes: tuple[int, int, int], md5: str, organs: str = _ORGANS) -> Release:
    return Release(sizes, md5, "abdominal CT", tuple(organs.split("|")))


RELEASES: Mapping[str, Release] = {
    "bloodmnist": Release(
        (11959, 1712, 3421), "7053d0359d879ad8a5505303e11de1dc", "blood cell microscope", tuple(_BLOOD.split("|"))
    ),
    "organamnist": _ct((34561, 6491, 17778), "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "organcmnist": _ct((12975, 2392, 8216), "b9ceb9546e10131b32923c5bbeaea2b1"),
    "organsmnist": _ct((13932, 2452, 8827), "9ab87b696fb54e2a387ebe992d6ed5f1"),
    "organmnist3d": _ct((971, 161, 610), "a0c5a1ff56af4f155c46d46fbb45a2fe", _ORGANS_3D),
    "pathmnist": Release(
        (89996, 10004, 7180), "a8b06965200029087d5bd730944a56c1", "colon pathology", tuple(_PATH.split("|"))
    ),
    "dermamnist": Release(
        (7007, 1003, 2005),
        "0744692d530f8e62ec473284d019b0c7",
        "dermatoscope",
        tuple(_DERMA.split("|")),
        "CC BY-NC 4.0",
    ),
    "pneumoniamnist": Release(
        (4708, 524, 624), "28209eda62fecd6e6a2d98b1501bb15f", "chest X-ray", ("normal", "pneumonia")
    ),
    "breastmnist": Release(
        (546, 78, 156), "750601b1f35ba3300ea97c75c52ff8f6", "breast ultrasound", ("malignant", "normal or benign")
    ),
    "nodulemnist3d": Release((1158, 165, 310), "8755a7e9e05a4d9ce80a24c3e7a256f3", "chest CT", ("benign", "malignant")),
    "adrenalmnist3d": Release(
        (1188, 98, 298), "bbd3c5a5576322bc4cdfea780653b1ce", "abdominal CT", ("normal", "hyperplasia")
    ),
}
"""The official table, by flag."""


@dataclass(frozen=True)
class Content:
    """A read file: images and labels (n,) of the three splits, in the order of `PARTS`."""

    images: list[np.ndarray]
    labels: list[np.ndarray]


def find_npz(source: Path, flag: str) -> Path:
    """The file of a data set.

    Args:
        source: The file itself, or a folder that holds ``<flag>.npz``.
        flag: Name of the data set, with the suffix of the size if there is one, for example ``bloodmnist_64``.

    Raises:
        DataError: If there is no such file.
    """
    path = source / f"{flag}.npz" if source.is_dir() else source
    if path.is_file():
        return path
    hint = "" if base_flag(flag) in RELEASES else did_you_mean(flag, RELEASES) + " "
    raise DataError(
        f"expected the MedMNIST file {path}, there is none. {hint}"
        f"Download {flag}.npz from https://zenodo.org/records/10519652 and give its folder as --source."
    )


def base_flag(flag: str) -> str:
    """The flag without the suffix of a size: ``bloodmnist`` for ``bloodmnist_64``."""
    head, _, size = flag.rpartition("_")
    return head if size.isdigit() else flag


def read_npz(path: Path) -> Content:
    """Read a MedMNIST file.

    Args:
        path: A ``.npz`` file with images (N, H, W), (N, H, W, 3) or (N, D, H, W), uint8, and integer labels (N,) or
            (N, 1), for ``train``, ``val`` and ``test``.

    Raises:
        DataError: If it can't be read, an array is missing, or a shape or type is wrong.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [f"{part}_{kind}" for part, _ in PARTS for kind in _KINDS if f"{part}_{kind}" not in archive]
            if missing:
                raise DataError(
                    f"expected the arrays of a MedMNIST file in {path}, missing: {', '.join(missing)}. "
                    f"It holds: {', '.join(archive.files) or 'nothing'}. Download the file again."
                )
            images = [archive[f"{part}_images"] for part, _ in PARTS]
            labels = [archive[f"{part}_labels"] for part, _ in PARTS]
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} can't be read as a .npz file: {error}. Download it again.") from None
    shape = images[0].shape[1:]
    for (part, _), split_images, split_labels in zip(PARTS, images, labels, strict=True):
        _check_images(split_images, shape, f"{part}_images of {path}")
        _check_labels(split_labels, len(split_images), f"{part}_labels of {path}")
    return Content(images, [split.reshape(-1).astype(np.int64) for split in labels])


def deviations(path: Path, flag: str, content: Content) -> list[str]:
    """How a file differs from the official release: sentences, none if it does not."""
    release = RELEASES.get(base_flag(flag))
    if release is None:
        return [f"no official sizes are known for '{flag}', so the file was not compared with a release"]
    sizes = tuple(len(split) for split in content.labels)
    found = []
    if sizes != release.sizes:
        found.append(f"{_slashed(sizes)} images (train/val/test), the official release has {_slashed(release.sizes)}")
    if base_flag(flag) == flag:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != release.md5:
            found.append(f"MD5 {md5}, the official file has {release.md5}: a re-save or another version")
    return found


def prepare(
    source: Path, flag: str, out: Path, *, force: bool = False, say: Callable[[str], None] = lambda _: None
) -> Datalist:
    """Turn a MedMNIST file into a pooled data set.

    Args:
        source: The file, or the folder that holds ``<flag>.npz``.
        flag: Name of the data set, for example ``bloodmnist``.
        out: The folder to write; it is written whole or not at all.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation and warnings, a line each, before anything is written.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the file is missing or wrong, or `out` may not be written.
    """
    check_free(out, force)
    path = find_npz(source, flag)
    release = RELEASES.get(base_flag(flag))
    licence = release.licence if release else "unknown: see https://medmnist.com"
    say(f"{flag}: licence {licence}")
    say(f"Please cite: {CITATION}")
    content = read_npz(path)
    unlike = deviations(path, flag, content)
    for sentence in unlike:
        say(f"warning: {path.name}: {sentence}")
    datalist = _datalist(flag, licence, release, content, unlike)
    with written_whole(out, force) as folder:
        np.save(folder / "images.npy", np.concatenate(content.images), allow_pickle=False)
        write_datalist(folder, datalist)
    return datalist


_KINDS = ("images", "labels")


def _datalist(flag: str, licence: str, release: Release | None, content: Content, unlike: list[str]) -> Datalist:
    highest = max(int(labels.max()) for labels in content.labels if len(labels))
    names = list(release.labels) if release else []
    names += [f"class {number}" for number in range(len(names), highest + 1)]
    splits, start = {}, 0
    for (part, split), labels in zip(PARTS, content.labels, strict=True):
        splits[split] = make_records(range(start, start + len(labels)), labels, f"{flag}-{part}")
        start += len(labels)
    return Datalist(
        name=flag,
        image_array="images.npy",
        num_classes=len(names),
        labels={str(number): name for number, name in enumerate(names)},
        modality=release.modality if release else "unknown",
        licence=licence,
        splits=splits,
        extra={"citation": CITATION, "deviations": unlike},
    )


def _check_images(images: np.ndarray, shape: tuple[int, ...], where: str) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[1:] != shape:
        raise DataError(
            f"expected uint8 images (N, H, W), (N, H, W, 3) or (N, D, H, W), of one shape in all splits, in {where}; "
            f"got {images.dtype} of shape {images.shape} (train has {shape}). Download the file again."
        )


def _check_labels(labels: np.ndarray, count: int, where: str) -> None:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(
            f"expected one label for each image in {where}, got shape {labels.shape}: several labels for one image "
            "(as in ChestMNIST) are not supported. Choose another data set."
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape not in ((count,), (count, 1)):
        raise DataError(
            f"expected integer labels of shape ({count},) or ({count}, 1) in {where}, got {labels.dtype} of shape "
            f"{labels.shape}. Download the file again."
        )


def _slashed(sizes: tuple[int, ...]) -> str:
    return "/".join(map(str, sizes))
