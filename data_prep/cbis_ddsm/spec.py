"""CBIS-DDSM: the release as downloaded in, a pooled data set of mammograms or of lesions out.

`medfl_datasets.cbis_ddsm.tables` reads the case descriptions, `medfl_datasets.cbis_ddsm.files` finds files in every
layout of the release, `medfl_datasets.cbis_ddsm.choice` says which images are used with which label in which split, and
`medfl_datasets.cbis_ddsm.pixels` and `medfl.data.readers.mammograms` what becomes of a file. The array holds uint16.

Images without a file, and files that can't be read, are left out and listed in ``quarantine.csv``. A prepared data set
holds the release's own pseudonyms of patients (``P_00001``), nothing else about them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from medfl.data.datalists import Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.readers.dicom_identity import CHECKS
from medfl.data.readers.dicom_intent import NOT_SAID, intent_records, tell_intents
from medfl.data.readers.mammogram_image import about_reading
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.ingest.pipeline import QUARANTINE, Ingested, ingest, told, work_folder, write_quarantine
from medfl_datasets.cbis_ddsm import files as cbis_files
from medfl_datasets.cbis_ddsm.choice import LEAKING, THREE_CLASSES, TWO_CLASSES, Choice, Image, choose
from medfl_datasets.cbis_ddsm.pixels import Film, Options, load
from medfl_datasets.cbis_ddsm.tables import TABLES, Lesion, deviations, read_tables

NAME = "cbis_ddsm"
"""Of the data set."""

LICENCE = "CC BY 3.0 (The Cancer Imaging Archive, doi:10.7937/K9/TCIA.2016.7O02S9CY)"
CITATION = (
    "Sawyer-Lee et al., Curated Breast Imaging Subset of Digital Database for Screening Mammography (CBIS-DDSM), The "
    "Cancer Imaging Archive (2016), doi:10.7937/K9/TCIA.2016.7O02S9CY; Lee et al., A curated mammography data set for "
    "use in computer-aided detection and diagnosis research, Scientific Data 4, 170177 (2017)"
)

VIEWS = ("full", "crop")
"""Whole mammograms, or lesions cut out of them."""

ABNORMALITIES = {"both": ("mass", "calc"), "mass": ("mass",), "calc": ("calc",)}
"""What `prepare` calls the kinds of lesions to the beginnings of the tables' names."""

NO_FILE = "there is no file of its series"
"""Why an image is left out."""

SHOWN = 5
"""Names that a message gives at most."""

Say = Callable[[str], None]


def prepare(
    source: Path,
    out: Path,
    *,
    tables: Path | None = None,
    view: str = "full",
    abnormality: str = "both",
    three_classes: bool = False,
    options: Options | None = None,
    workers: int | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn CBIS-DDSM into a pooled data set. After an interruption the same call goes on where it stopped.

    Args:
        source: The folder of the images, in any layout of the release.
        out: The folder to write; it is written whole or not at all.
        tables: The folder of the four case descriptions; None means they lie somewhere in `source`.
        view: One of `VIEWS`.
        abnormality: One of `ABNORMALITIES`.
        three_classes: Whether "benign without callback" is a class of its own.
        options: Size of the images and what else is done to each.
        workers: Processes; None means one for each core.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the folder is not that of the release, a table is wrong, a class has no image, or `out` may not be
            written.
        SettingsError: If an option is impossible.
    """
    options = options or Options()
    for what, given, known in (
        ("view", view, VIEWS),
        ("abnormality", abnormality, ABNORMALITIES),
        ("deidentify check", options.check, CHECKS),
    ):
        if given not in known:
            raise SettingsError(f"unknown {what} '{given}'. {did_you_mean(given, known)}")
    check_free(out, force, [path for path in (source, tables) if path])
    say(f"{NAME}: licence {LICENCE}")
    say(f"Please cite: {CITATION}")
    tree, lesions = read_release(source, tables, abnormality)
    unlike = deviations(lesions)
    for sentence in unlike:
        say(f"warning: {sentence}")
    choice = choose([lesion for lesion in lesions if lesion.kind in ABNORMALITIES[abnormality]], view == "crop")
    films = find_films(tree, choice.images)
    _say_choice(choice, say)
    _say_files(tree, lesions, films, len(choice.images), say)
    with written_whole(out, force) as folder:
        places = sorted(films)
        recipe = {"data set": NAME, "view": view, **asdict(options)}
        found = ingest(
            [films[place] for place in places],
            functools.partial(load, options),
            lambda film: film.files,
            folder / "images.npy",
            options.size,
            "uint16",
            work=work_folder(out),
            recipe=recipe,
            workers=workers,
            say=say,
        )
        failed = {place: NO_FILE for place in range(len(choice.images)) if place not in films}
        failed |= {places[place]: reason for place, reason in found.failed.items()}
        _write_quarantine(folder / QUARANTINE, choice.images, failed, say)
        _say_headers(found, say)
        used = [(choice.images[places[place]], found.facts[place]) for place in found.kept]
        datalist = _datalist(used, choice, failed, unlike, view, three_classes, options)
        datalist.extra["warnings"] = tell_intents(_intents(used), say)
        write_datalist(folder, datalist)
    return datalist


def read_release(
    source: Path, tables: Path | None = None, abnormality: str = "both"
) -> tuple[cbis_files.Tree, list[Lesion]]:
    """List the files of a release and read its tables; no image is opened.

    Args:
        source: As in `prepare`.
        tables: As in `prepare`.
        abnormality: As in `prepare`; other tables are read, too, if they are there.

    Raises:
        DataError: If tables are missing or wrong.
    """
    tree = cbis_files.look_through(source)
    there = cbis_files.look_through(tables).tables if tables else tree.tables
    needed = {key: name for key, name in TABLES.items() if key[0] in ABNORMALITIES[abnormality]}
    missing = [name for key, name in needed.items() if key not in there]
    if missing:
        raise DataError(
            f"expected the case descriptions of CBIS-DDSM in {tables or source}, missing: {', '.join(missing)}. The "
            "Cancer Imaging Archive has them beside the images: download them into this folder, or give theirs as "
            "--tables."
        )
    return tree, read_tables({key: there[key] for key in TABLES if key in there})


def find_films(tree: cbis_files.Tree, images: Sequence[Image]) -> dict[int, Film]:
    """The files of images.

    Returns:
        Place in `images` to its files, for those that have any.

    Raises:
        DataError: If no image has one.
    """
    found = {place: film for place, image in enumerate(images) if (film := _film(tree, image)).files}
    if not found:
        raise DataError(
            f"none of the {len(images)} images of the tables is in {tree.top}, which holds {tree.count()} image files. "
            "Expected CBIS-DDSM as downloaded, for example CBIS-DDSM/Mass-Training_P_00001_LEFT_CC/<date>-DDSM-NA-<5 "
            "digits>/1.000000-full mammogram images-<5 digits>/1-1.dcm, or folders called by the UIDs of series, as "
            "in jpeg/<series UID>/1-001.jpg. Give the folder that holds these."
        )
    return found


def _film(tree: cbis_files.Tree, image: Image) -> Film:
    """What is to be read for an image; of two copies of a film the first one that is there."""
    first = image.lesions[0]
    if image.crop:
        wanted = list(dict.fromkeys((first.crop, first.mask)))
        files = [file for series in wanted for file in tree.find(series)]
    else:
        copies = list(dict.fromkeys(lesion.image for lesion in image.lesions))
        held = {series: tree.find(series) for series in copies}
        wanted = [next((series for series in copies if held[series]), copies[0])]
        files = held[wanted[0]]
    names = (first.patient, *(series.subject for series in wanted))
    uids = tuple(series.series for series in wanted)
    return Film(tuple(files), uids, names, first.side.lower(), image.crop)


def _say_choice(choice: Choice, say: Say) -> None:
    if choice.left_out:
        say(
            f"note: {choice.leaking_patients} patients are in the training part of one kind of lesion and in the test "
            f"part of the other: their {choice.left_out} training images are left out"
        )
    if choice.mixed:
        say(f"note: {choice.mixed} images show malignant and other lesions: they count as malignant")


def _say_files(
    tree: cbis_files.Tree, lesions: Sequence[Lesion], films: Mapping[int, Film], wanted: int, say: Say
) -> None:
    if wanted > len(films):
        say(f"warning: {wanted - len(films)} of {wanted} images of the tables have no file")
    for lesion in lesions:
        for series in (lesion.image, lesion.crop, lesion.mask):
            tree.find(series)
    unused = tree.unused()
    if unused:
        names = sorted(name for name in unused if name)
        shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "") + "; " * bool(names)
        others = f"{unused['']} in other folders; " if unused.get("") else ""
        say(f"note: {sum(unused.values())} image files are in no row of the tables ({(shown + others)[:-2]})")


def _say_headers(found: Ingested, say: Say) -> None:
    burned = sum("burned_in" in facts for facts in found.facts.values())
    if burned:
        say(
            f"warning: the headers of {burned} images say that names or the like are burned into the pixels: look at "
            "them ('burned_in' in the data list) before you use or share the array"
        )
    told_names = sum("identifying" in facts for facts in found.facts.values())
    if told_names:
        say(f"warning: the headers of {told_names} images may tell who the patient is; nothing of them was kept")


def _write_quarantine(path: Path, images: Sequence[Image], failed: Mapping[int, str], say: Say) -> None:
    rows = [
        (images[place].name, ", ".join(lesion.where for lesion in images[place].lesions), failed[place])
        for place in sorted(failed)
    ]
    write_quarantine(path, ("image", "table_rows", "reason"), rows, say)


def _intents(used: Sequence[tuple[Image, Mapping[str, object]]]) -> list[str]:
    return [str(facts.get("intent", NOT_SAID)) for _, facts in used]


def _datalist(
    used: Sequence[tuple[Image, Mapping[str, object]]],
    choice: Choice,
    failed: Mapping[int, str],
    unlike: list[str],
    view: str,
    three: bool,
    options: Options,
) -> Datalist:
    classes = THREE_CLASSES if three else TWO_CLASSES
    gone = [name for label, name in enumerate(classes) if all(image.label(three) != label for image, _ in used)]
    if gone:
        raise DataError(
            f"no readable image is left of the classes {', '.join(gone)}: {told(failed)}. Download the missing images."
        )
    splits: dict[str, list[Record]] = {"training": [], "validation": [], "test": []}
    intents = intent_records(_intents(used))
    for row, (image, facts) in enumerate(used):
        record = {"image": row, "label": image.label(three), "subject_id": image.patient} | image.about()
        record |= {"burned_in": True} if "burned_in" in facts else {}
        splits[image.split].append(record | intents[row])
    reasons = {LEAKING: choice.left_out} | dict.fromkeys(failed.values(), 0)
    for reason in failed.values():
        reasons[reason] += 1
    reading = {"crop_breast": options.crop_breast and view == "full", "align": options.align, "voi": options.voi}
    return Datalist(
        name=NAME if view == "full" else f"{NAME}-crop",
        image_array="images.npy",
        num_classes=len(classes),
        labels={str(label): name for label, name in enumerate(classes)},
        modality="mammography",
        licence=LICENCE,
        splits=splits,
        extra={
            "citation": CITATION,
            "deviations": unlike,
            "exclusions": [{"reason": reason, "count": count} for reason, count in reasons.items() if count],
            "label_rule": "the worst lesion of an image counts",
            **about_reading(reading),
        },
    )
