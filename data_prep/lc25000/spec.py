"""LC25000: tiles of lung and colon tissue under the microscope in, a pooled data set out.

The 25,000 images are copies of 1,250 tiles, turned and flipped by their authors, and no name says which are copies of
one tile. So a random split has copies of most of its test images in training. Copies are found by a perceptual hash
(`medfl_datasets.lc25000.copies`), and get one ``subject_id``: no partition tears them apart. The release does not say
which tiles are of one patient.

All images are in the training split: the release has no other, and `medfl partition` holds test sets out. ``organ`` is
kept. No name of a file is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, SettingsError, check_choice
from medfl.ingest.labels import number_subjects
from medfl.ingest.pipeline import QUARANTINE, Ingested, ingest, work_folder, write_quarantine
from medfl_datasets.lc25000.copies import group_copies
from medfl_datasets.lc25000.files import CLASSES, OFFICIAL, SIZE, find_files, read_tile, thumbnail

LICENCE = "offered for free download to researchers by its authors; for terms see the release"
"""Terms of use: neither the paper nor the page of the release names a licence."""

CITATION = (
    "Borkowski, Bui, Thomas, Wilson, DeLand and Mastorides, Lung and Colon Cancer Histopathological Image Dataset "
    "(LC25000), arXiv:1912.12142 (2019)"
)
"""What users of the data are asked to cite."""

ORGANS = ("both", "lung", "colon")
"""Which classes there are: all five, three of the lung, two of the colon."""

GROUPS = ("hash", "none")
"""What stays together in a partition: copies that the hash finds, or nothing."""

LARGE = 100
"""A group of more images is told: the release has 20 of a tile on average."""

COPIES = (
    "the images are copies of about 1250 tiles, turned and flipped by the authors, and tiles of one patient are not "
    "marked: scores on test images from this release are too high"
)
"""Said always."""

FOUND = "copies of a tile that the hash does not find may be in training and in the test set"
NOT_SOUGHT = "copies were not looked for (groups: none), and most test images will have copies in training"
"""What follows for splits."""

Say = Callable[[str], None]


def prepare(
    source: Path,
    out: Path,
    *,
    size: int = 224,
    organ: str = "both",
    groups: str = "hash",
    workers: int | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn LC25000 into a pooled data set.

    Args:
        source: ``lung_colon_image_set``, or a folder that holds it.
        out: The folder to write; it is written whole or not at all.
        size: Height and width of the images in pixels, >= 1.
        organ: One of `ORGANS`.
        groups: One of `GROUPS`. The hash takes about a minute for each class of 5000 images.
        workers: Processes that read, >= 1; None means one for each core.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is wrong, no image of a class is left, or `out` may not be written.
        SettingsError: If an option is impossible.
    """
    classes = classes_of(organ)
    check_choice("groups", groups, GROUPS)
    if size < 1:
        raise SettingsError(f"expected a size >= 1, got {size}")
    check_free(out, force, [source])
    name = "lc25000" if organ == "both" else f"lc25000-{organ}"
    say(f"{name}: licence: {LICENCE}")
    say(f"Please cite: {CITATION}")
    files = find_files(source, classes)
    warnings = [COPIES, FOUND if groups == "hash" else NOT_SOUGHT]
    for sentence in warnings:
        say(f"warning: {sentence}")
    if files.surplus:
        say(f"note: {files.surplus} files are no images of the release: they are passed over")
    with written_whole(out, force) as folder:
        done = ingest(
            files.paths,
            partial(read_tile, size=size),
            lambda path: [path],
            folder / "images.npy",
            (size, size, 3),
            np.uint8,
            work=work_folder(out),
            recipe={"data set": "lc25000", "size": size},
            workers=workers,
            say=say,
        )
        failed = [(f"{files.folders[n]}/{files.paths[n].name}", reason) for n, reason in done.failed.items()]
        quarantined = files.quarantined + failed
        write_quarantine(folder / QUARANTINE, ("image", "reason"), quarantined, say)
        kept = [files.folders[place] for place in done.kept]
        unlike = _deviations(kept, classes, done)
        numbers, strange = _group(kept, done, groups, say)
        for sentence in [*unlike, *strange]:
            say(f"warning: {sentence}")
        datalist = _datalist(name, classes, kept, number_subjects(numbers), Counter(why for _, why in quarantined))
        datalist.extra |= {"groups": groups, "deviations": unlike, "warnings": [*warnings, *strange]}
        write_datalist(folder, datalist)
    return datalist


def classes_of(organ: str) -> list[str]:
    """The classes of one of `ORGANS`, keys of `medfl_datasets.lc25000.files.CLASSES`.

    Raises:
        SettingsError: If there is no such organ.
    """
    check_choice("organ", organ, ORGANS)
    return [key for key, tissue in CLASSES.items() if organ in ("both", tissue.organ)]


def _deviations(kept: Sequence[str], classes: Sequence[str], done: Ingested) -> list[str]:
    """How the images differ from the release: sentences, none if they do not."""
    counts = Counter(kept)
    gone = [key for key in classes if not counts[key]]
    if gone:
        raise DataError(f"no readable image is left of the classes {', '.join(gone)}. Unpack LC25000 again.")
    found = []
    unlike = [f"{key} {counts[key]}" for key in classes if counts[key] != OFFICIAL]
    if unlike:
        found.append(f"LC25000 has {OFFICIAL} images of each class; here are {', '.join(unlike)}")
    sizes = sum(facts["size"] != SIZE for facts in done.facts.values())
    if sizes:
        found.append(f"{sizes} of {len(kept)} images are not of {SIZE[0]} x {SIZE[1]} pixels, as in LC25000")
    return found


def _group(kept: Sequence[str], done: Ingested, groups: str, say: Say) -> tuple[list[str], list[str]]:
    """The group of each row, and warnings."""
    if groups == "none":
        return [str(row) for row in range(len(kept))], []
    names, plain = [""] * len(kept), 0
    for key in sorted(set(kept)):
        rows = [row for row, folder in enumerate(kept) if folder == key]
        say(f"note: looking for copies among {len(rows)} images of {CLASSES[key].text}")
        found = group_copies(np.stack([thumbnail(done.facts[done.kept[row]]["grey"]) for row in rows]))
        plain += int(found.plain.sum())
        for row, number in zip(rows, found.numbers.tolist(), strict=True):
            names[row] = f"{key} {number}"
    sizes = sorted(Counter(names).values())
    say(
        f"note: {len(sizes)} groups of copies among {len(kept)} images: {sizes[0]} to {sizes[-1]} images in a group, "
        f"{median(sizes):g} in the median; {sizes.count(1)} images are alone. LC25000 was made of 250 tiles a class."
    )
    return names, _strange(sizes, plain)


def _strange(sizes: Sequence[int], plain: int) -> list[str]:
    """What may be wrong with the groups."""
    found = []
    if plain:
        found.append(f"{plain} images are blank in the middle: their copies were not found, each is a group of its own")
    large = [size for size in sizes if size > LARGE]
    if large:
        found.append(
            f"{len(large)} groups have more than {LARGE} images: different tiles that look alike may be in one group. "
            "This tears no copies apart, but look at the classes of each site"
        )
    return found


def _datalist(
    name: str, classes: Sequence[str], kept: Sequence[str], subjects: Sequence[str], reasons: Mapping[str, int]
) -> Datalist:
    """The data list; row n of the array is of the n-th class in `kept`."""
    records: list[Record] = [
        {"image": row, "label": classes.index(key), "subject_id": subject, "organ": CLASSES[key].organ}
        for row, (key, subject) in enumerate(zip(kept, subjects, strict=True))
    ]
    extra: dict[str, Any] = {
        "citation": CITATION,
        "exclusions": [{"reason": reason, "count": count} for reason, count in reasons.items()],
    }
    return Datalist(
        name=name,
        image_array="images.npy",
        num_classes=len(classes),
        labels={str(label): CLASSES[key].text for label, key in enumerate(classes)},
        modality="histology, light microscopy",
        licence=LICENCE,
        splits={"training": records, "validation": [], "test": []},
        extra=extra,
    )
