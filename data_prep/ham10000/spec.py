"""HAM10000: dermoscopic images of pigmented skin lesions and their table in, a pooled data set out.

Seven classes of diagnoses. Images of one lesion have one ``subject_id``, so that no lesion is on both sides of a split;
with ``groups="image"`` each image counts as a lesion of its own, as in papers that split by image, and the data set
says so. Lesions get running numbers: no name of a file, of an image or of a lesion is kept. Age, sex, localization
and ``dataset`` (the collection, a natural site: ``medfl partition --scheme by_site --column dataset``) are kept where
the table knows them.

All images are in the training split: the release has no other, and `medfl partition` holds test sets out.

The table and the files are described in `medfl_datasets.ham10000.tables` and `medfl_datasets.ham10000.files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from medfl.data.datalists import Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, SettingsError, check_choice
from medfl.ingest.labels import number_subjects
from medfl.ingest.pipeline import QUARANTINE, ingest, told, work_folder, write_quarantine
from medfl_datasets.ham10000.files import Files, Part, find_files, read_part
from medfl_datasets.ham10000.tables import OFFICIAL, Metadata, read_metadata, shared_lesions

LICENCE = "CC BY-NC 4.0"
"""Terms of use."""

CITATION = (
    "Tschandl, Rosendahl and Kittler, The HAM10000 dataset, a large collection of multi-source dermatoscopic images of "
    "common pigmented skin lesions, Scientific Data 5:180161 (2018), doi:10.1038/sdata.2018.161"
)
"""What users of the data are asked to cite."""

GROUPS = ("lesion", "image")
"""What stays together in a partition."""

PRESETS = {"medfl": "lesion", "paper": "image"}
"""Preset to what stays together; FedSDC's paper has 210 test images, 30 of each class, whatever their lesions."""

NO_FILE = "there is no image file"
NO_MASK = "there is no mask of the lesion"
"""Why rows of the table are left out."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Chosen:
    """What is to be read: rows of the table by their place, and why the others are left out."""

    places: list[int]
    parts: list[Part]
    missing: dict[int, str]


def prepare(
    source: Path,
    out: Path,
    *,
    metadata: Path | None = None,
    size: tuple[int, int] = (224, 224),
    groups: str | None = None,
    preset: str = "medfl",
    crop_lesion: bool = False,
    require_complete: bool = False,
    workers: int | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn HAM10000 into a pooled data set.

    Args:
        source: The folder of images and table, as unpacked; other folders of ISIC images work as well.
        out: The folder to write; it is written whole or not at all.
        metadata: The table, if it is not below `source`.
        size: Height and width of the images in pixels, each >= 1; the aspect ratio is not kept.
        groups: One of `GROUPS`; None leaves it to the preset.
        preset: One of `PRESETS`.
        crop_lesion: Whether to cut out the lesion, by its mask; see `medfl_datasets.ham10000.files.crop_box`.
        require_complete: Whether an image that is missing or can't be read stops the command.
        workers: Processes that read, >= 1; None means one for each core.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the table or the files are wrong, no image of a class is left, or `out` may not be written.
        SettingsError: If an option is impossible.
    """
    check_choice("preset", preset, PRESETS)
    groups = groups or PRESETS[preset]
    check_choice("groups", groups, GROUPS)
    if min(size) < 1:
        raise SettingsError(f"expected a height and a width >= 1, got {size[0]} and {size[1]}")
    check_free(out, force, [source] if metadata is None else [source, metadata])
    name = "ham10000-crop" if crop_lesion else "ham10000"
    say(f"{name}: licence {LICENCE}")
    say(f"Please cite: {CITATION}")
    files = find_files(source, metadata)
    found = read_metadata(files.table, need_lesions=groups == "lesion")
    unlike = found.deviations()
    warnings = _by_image(found) if groups == "image" else []
    for sentence in [*unlike, *warnings]:
        say(f"warning: {sentence}")
    chosen = _choose(found, files, crop_lesion, say)
    with written_whole(out, force) as folder:
        done = ingest(
            chosen.parts,
            partial(read_part, size=size),
            lambda part: [part.path] if part.mask is None else [part.path, part.mask],
            folder / "images.npy",
            (*size, 3),
            np.uint8,
            work=work_folder(out),
            recipe={"data set": name, "size": size},
            workers=workers,
            say=say,
        )
        reasons = chosen.missing | {chosen.places[place]: reason for place, reason in done.failed.items()}
        if reasons and require_complete:
            raise DataError(
                f"all images of {files.table.name} are required, {len(reasons)} of {len(found.images)} are missing or "
                f"can't be read: {told(reasons)}. Unpack the release again."
            )
        numbers = found.table.numbers
        rows = [(numbers[place], reasons[place]) for place in sorted(reasons)]
        write_quarantine(folder / QUARANTINE, ("table_row", "reason"), rows, say)
        datalist = make_datalist(name, found, [chosen.places[place] for place in done.kept], groups, reasons)
        datalist.extra |= {"deviations": unlike, "warnings": warnings}
        write_datalist(folder, datalist)
    return datalist


def _by_image(found: Metadata) -> list[str]:
    """What to say of images that count as lesions of their own."""
    which = "the table does not say which images are of one lesion"
    if found.lesions is not None:
        which = f"{shared_lesions(found.lesions)} of {len(found.images)} images are of lesions with several images"
    return [
        f"each image counts as a lesion of its own (groups: image): {which}, and these may be in training and in the "
        "test set"
    ]


def _choose(found: Metadata, files: Files, crop_lesion: bool, say: Say) -> _Chosen:
    """What is to be read, and what is missing."""
    surplus = len(files.images.keys() - set(found.images))
    if surplus:
        say(f"note: {surplus} image files are in no row of {files.table.name}: they are passed over")
    if crop_lesion and not files.masks:
        raise DataError(
            "expected the masks ISIC_0024306_segmentation.png, ... in the folder of --source, there are none. Unpack "
            "HAM10000_segmentations_lesion_tschandl.zip there, or leave out --crop-lesion."
        )
    chosen = _Chosen([], [], {})
    for place, name in enumerate(found.images):
        if name not in files.images:
            chosen.missing[place] = NO_FILE
        elif crop_lesion and name not in files.masks:
            chosen.missing[place] = NO_MASK
        else:
            chosen.places.append(place)
            chosen.parts.append(Part(files.images[name], files.masks[name] if crop_lesion else None))
    if not chosen.parts:
        raise DataError(
            f"none of the {len(found.images)} images of {files.table} can be used: {told(chosen.missing)}. The "
            "table and the images do not belong together: give others as --source or --metadata."
        )
    return chosen


def make_datalist(name: str, found: Metadata, kept: Sequence[int], groups: str, reasons: Mapping[int, str]) -> Datalist:
    """The data list of what was read.

    Args:
        name: Of the data set.
        found: The table.
        kept: For each row of the array its place in the table.
        groups: One of `GROUPS`.
        reasons: Place in the table to the reason why it was left out.

    Raises:
        DataError: If no image of a class is left.
    """
    classes = list(OFFICIAL)
    gone = [text for label, text in enumerate(classes) if label not in {found.labels[place] for place in kept}]
    if gone:
        raise DataError(f"no image is left of the classes {', '.join(gone)}. Unpack the release whole.")
    lesions = found.lesions if groups == "lesion" and found.lesions else list(map(str, found.table.numbers))
    subjects = number_subjects([lesions[place] for place in kept])
    records: list[Record] = [
        {"image": row, "label": found.labels[place], "subject_id": subject, **found.facts[place]}
        for row, (place, subject) in enumerate(zip(kept, subjects, strict=True))
    ]
    return Datalist(
        name=name,
        image_array="images.npy",
        num_classes=len(classes),
        labels={str(label): text for label, text in enumerate(classes)},
        modality="dermoscopy",
        licence=LICENCE,
        splits={"training": records, "validation": [], "test": []},
        extra={
            "citation": CITATION,
            "groups": groups,
            "exclusions": [{"reason": reason, "count": count} for reason, count in Counter(reasons.values()).items()],
        },
    )
