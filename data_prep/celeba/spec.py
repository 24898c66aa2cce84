"""CelebA: faces of celebrities with 40 attributes in, a pooled data set out whose label is one attribute.

If the release has ``identity_CelebA.txt``, images of one person have one ``subject_id`` and one ``identity``, so that
`medfl partition` tears no person apart, or makes a site of each: ``--scheme by_site --column identity``, as LEAF has it
(there with 5 images or more of each person). Persons get running numbers: no name of a file and no number of the
release is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from medfl.data.datalists import SPLITS, Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, SettingsError, check_choice
from medfl.ingest.labels import number_subjects
from medfl.ingest.pipeline import QUARANTINE, ingest, work_folder, write_quarantine
from medfl_datasets.celeba.files import ALIGNED, IDENTITY, PARTITION, SIZE, Files, find_files, read_face
from medfl_datasets.celeba.tables import Attribute, all_of, read_attribute, read_identities, read_splits

LICENCE = "non-commercial research only; images may not be passed on"
"""Terms of use."""

CITATION = "Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766"
"""What users of the data are asked to cite."""

IMAGES, PERSONS, ATTRIBUTES = 202_599, 10_177, 40
"""Of the release."""

SPLIT = ("auto", "official", "none")
"""Where the split comes from: the official one if its table is there; that; or all images are in training."""

NO_FILE = "there is no image file"
FEW = "there are too few images of the person"
"""Why rows of the table are left out."""

NO_PERSONS = (
    f"there is no {IDENTITY}.txt: each image counts as a person of its own, and images of one person may be at several "
    "sites and in several splits"
)
"""Said without the table of persons."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Release:
    """What the tables say; all lists have an entry for each image of the attribute table."""

    attribute: Attribute
    persons: list[str] | None
    splits: list[str]


def prepare(
    source: Path,
    out: Path,
    *,
    attribute: str = "Smiling",
    size: tuple[int, int] = (64, 64),
    crop: bool = False,
    split: str = "auto",
    min_images: int = 1,
    workers: int | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn CelebA into a pooled data set.

    Args:
        source: The folder of images and tables, however deep they lie in it.
        out: The folder to write; it is written whole or not at all.
        attribute: The label: class 1 if the attribute is there, 0 if not.
        size: Height and width of the images in pixels, each >= 1; without `crop` the aspect ratio is not kept.
        crop: Whether to cut the largest square out of the middle of each image.
        split: One of `SPLIT`.
        min_images: Persons with fewer images, of those whose files are there, are left out; >= 1.
        workers: Processes that read, >= 1; None means one for each core.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If a table is wrong or missing, no image of a class is left, or `out` may not be written.
        SettingsError: If there is no such attribute, or an option is impossible.
    """
    check_choice("split", split, SPLIT)
    if min(size) < 1 or min_images < 1:
        raise SettingsError(f"expected a size and a number of images >= 1, got {size[0]}, {size[1]} and {min_images}")
    check_free(out, force, [source])
    say(f"celeba: licence: {LICENCE}")
    say(f"Please cite: {CITATION}")
    files = find_files(source)
    release = _read_tables(files, attribute, split, min_images)
    warnings = [] if release.persons else [NO_PERSONS]
    unlike = _deviations(release)
    for sentence in [*unlike, *warnings]:
        say(f"warning: {sentence}")
    places, reasons = _choose(release, files, min_images, say)
    with written_whole(out, force) as folder:
        done = ingest(
            [files.images[release.attribute.images[place]] for place in places],
            partial(read_face, size=size, crop=crop),
            lambda path: [path],
            folder / "images.npy",
            (*size, 3),
            np.uint8,
            work=work_folder(out),
            recipe={"data set": "celeba", "size": size, "crop": crop},
            workers=workers,
            say=say,
        )
        reasons |= {places[place]: reason for place, reason in done.failed.items()}
        lines = release.attribute.lines
        listed = [(lines[place], reasons[place]) for place in sorted(reasons) if reasons[place] != FEW]
        write_quarantine(folder / QUARANTINE, ("table_line", "reason"), listed, say)
        sizes = sum(facts["size"] != SIZE for facts in done.facts.values())
        if sizes:
            unlike.append(f"{sizes} of {len(done.kept)} images are not of {SIZE[0]} x {SIZE[1]} pixels, as in CelebA")
            say(f"warning: {unlike[-1]}")
        datalist = _datalist(release, [places[place] for place in done.kept], Counter(reasons.values()))
        datalist.extra |= {"deviations": unlike, "warnings": warnings}
        write_datalist(folder, datalist)
    return datalist


def _read_tables(files: Files, attribute: str, split: str, min_images: int) -> _Release:
    found = read_attribute(files.attributes, attribute)
    if split == "official" and files.partition is None:
        raise DataError(
            f"expected {PARTITION}.txt or {PARTITION}.csv for the official split, there is none. Put it beside the "
            "folder of images, or leave out --split."
        )
    if min_images > 1 and files.identity is None:
        raise DataError(
            f"expected {IDENTITY}.txt to count the images of each person, there is none. Put it beside the folder of "
            "images, or leave out --min-images."
        )
    persons, splits = None, [SPLITS[0]] * len(found.images)
    if files.identity is not None:
        persons = all_of(read_identities(files.identity), found.images, files.identity)
    if files.partition is not None and split != "none":
        splits = all_of(read_splits(files.partition), found.images, files.partition)
    return _Release(found, persons, splits)


def _deviations(release: _Release) -> list[str]:
    """How the tables differ from the release: sentences, none if they do not."""
    found = []
    if len(release.attribute.images) != IMAGES:
        found.append(f"the table has {len(release.attribute.images)} images; CelebA has {IMAGES}")
    if release.attribute.known != ATTRIBUTES:
        found.append(f"the table has {release.attribute.known} attributes; CelebA has {ATTRIBUTES}")
    if release.persons is not None and len(set(release.persons)) != PERSONS:
        found.append(f"there are {len(set(release.persons))} persons; CelebA has {PERSONS}")
    return found


def _choose(release: _Release, files: Files, min_images: int, say: Say) -> tuple[list[int], dict[int, str]]:
    """Places in the table of what is to be read, and why others are left out."""
    images = release.attribute.images
    surplus = len(files.images.keys() - set(images))
    if surplus:
        say(f"note: {surplus} image files are in no row of {files.attributes.name}: they are passed over")
    reasons = {place: NO_FILE for place, image in enumerate(images) if image not in files.images}
    if len(reasons) == len(images):
        raise DataError(
            f"none of the {len(images)} images of {files.attributes} has a file. The table and the images do not "
            f"belong together: give the folder that holds {ALIGNED} and the table of one release."
        )
    there = [place for place in range(len(images)) if place not in reasons]
    if release.persons is None or min_images == 1:
        return there, reasons
    counts = Counter(release.persons[place] for place in there)
    kept = [place for place in there if counts[release.persons[place]] >= min_images]
    few = sum(count < min_images for count in counts.values())
    say(f"note: {len(there) - len(kept)} images of {few} persons with fewer than {min_images} are left out")
    if not kept:
        raise DataError(
            f"no person has {min_images} images or more, the most are {max(counts.values())}. Give a smaller "
            "--min-images."
        )
    return kept, reasons | dict.fromkeys(set(there) - set(kept), FEW)


def _datalist(release: _Release, kept: Sequence[int], reasons: Mapping[str, int]) -> Datalist:
    """The data list; row n of the array is the image at place n of `kept`."""
    name = release.attribute.name
    classes = [f"no {name}", name]
    labels = [release.attribute.present[place] for place in kept]
    gone = [text for label, text in enumerate(classes) if label not in labels]
    if gone:
        raise DataError(f"no image is left of the class '{gone[0]}'. Give more images, or another --attribute.")
    persons = [str(place) if release.persons is None else release.persons[place] for place in kept]
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for row, (place, subject) in enumerate(zip(kept, number_subjects(persons), strict=True)):
        record: Record = {"image": row, "label": labels[row], "subject_id": subject}
        identity = {} if release.persons is None else {"identity": subject.replace("subject", "identity")}
        splits[release.splits[place]].append(record | identity)
    return Datalist(
        name="celeba",
        image_array="images.npy",
        num_classes=len(classes),
        labels={str(label): text for label, text in enumerate(classes)},
        modality="photographs of faces",
        licence=LICENCE,
        splits=splits,
        extra={
            "citation": CITATION,
            "exclusions": [{"reason": reason, "count": count} for reason, count in reasons.items()],
        },
    )
