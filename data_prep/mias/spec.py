"""mini-MIAS: 322 films of the breast in, a pooled data set of whole films or of lesions out.

- ``view="full"``: each film is an image; one with a malignant abnormality is malignant, whatever else is in it.
- ``view="crop"``: each abnormality with coordinates is an image, with its own severity; four have none and are left
  out. Normal films are left out, too: no part of one is chosen as lesions are, so that a network could tell them by
  other things than what is in them. Crops are therefore benign or malignant.

The two films of a patient stay together: they have one ``subject_id`` and are on one side of the split. Which patients
are in the test set depends on the seed and the share alone, so it is the same for all views and labels. Side, view,
tissue and kind of abnormality are kept; no name of a file is.

The table and the films are described in `medfl_datasets.mias.tables` and `medfl_datasets.mias.files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from medfl.data.datalists import SPLITS, Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.readers.mammogram_image import about_reading
from medfl.errors import DataError, SettingsError, check_choice
from medfl.ingest.labels import number_subjects
from medfl.ingest.pipeline import QUARANTINE, Ingested, ingest, work_folder, write_quarantine
from medfl.partition.holdouts import holdout
from medfl.utils.rng import seed_of
from medfl_datasets.mias.choice import NO_FILE, Chosen, choose
from medfl_datasets.mias.files import find_films, find_table, read_part
from medfl_datasets.mias.tables import FILE, FINDINGS, NORMAL, SEVERITIES, TISSUES, Film, deviations, read_films

LICENCE = "research only; no redistribution (see Licence.txt of the release)"
"""Terms of use."""

CITATION = (
    "Suckling et al., The Mammographic Image Analysis Society Digital Mammogram Database, "
    "Excerpta Medica, International Congress Series 1069, 375-378 (1994)"
)
"""What users of the data are asked to cite."""

VIEWS = ("full", "crop")
"""Whole films, or lesions cut out of them."""

LABELS: dict[str, dict[str, str]] = {
    "three-class": {"normal": "normal", "benign": "benign", "malignant": "malignant"},
    "benign-malignant": {"benign": "benign", "malignant": "malignant"},
    "malignant-rest": {"normal": "benign or normal", "benign": "benign or normal", "malignant": "malignant"},
}
"""What is told apart: diagnosis to class; a diagnosis without a class is left out."""

TEST_SHARE = 0.15
"""Share of the patients in the test set: PFedCDP has 50 of 330 rows there."""

_DIAGNOSES = (NORMAL, *SEVERITIES.values())

Say = Callable[[str], None]


def prepare(
    source: Path,
    out: Path,
    *,
    size: tuple[int, int] = (224, 224),
    view: str = "full",
    labels: str | None = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
    crop_breast: bool = False,
    align: bool = False,
    require_complete: bool = False,
    workers: int | None = None,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn mini-MIAS into a pooled data set.

    Args:
        source: The folder ``all-mias``, or the one that holds it; copies that have the table outside of it, too.
        out: The folder to write; it is written whole or not at all.
        size: Height and width of the images in pixels, each >= 1.
        view: One of `VIEWS`.
        labels: One of `LABELS`; crops have ``benign-malignant`` only. None means that for crops, and ``three-class``
            for whole films.
        test_share: Share of the patients that are in the test set, 0 <= share < 1, alike for each diagnosis; the others
            are in training. 0 leaves it all to `medfl partition`.
        seed: Decides which patients are in the test set.
        crop_breast: Whether to cut the breast out of whole films.
        align: Whether to mirror right breasts, so that the chest wall is on the left in all images.
        require_complete: Whether a film that is missing or can't be read stops the command.
        workers: Processes that read, >= 1; None means one for each core.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is wrong, no image of a class is left, or `out` may not be written.
        SettingsError: If an option is impossible.
    """
    labels = _check_options(size, view, labels, test_share, crop_breast)
    check_free(out, force, [source])
    name = "mias" if view == "full" else "mias-crop"
    say(f"{name}: licence {LICENCE}")
    say(f"Please cite: {CITATION}")
    table = find_table(source)
    films = read_films(table)
    unlike = deviations(films)
    for sentence in unlike:
        say(f"warning: {sentence}")
    chosen = choose(films, find_films(table.parent), view, LABELS[labels], say)
    if chosen.missing and require_complete:
        raise DataError(f"a complete set of films is required, {len(chosen.missing)} are missing. Unpack it again.")
    tested = _tested(films, test_share, seed)
    with written_whole(out, force) as folder:
        found = ingest(
            chosen.parts,
            partial(read_part, size=size, crop_breast=crop_breast, align=align),
            lambda part: [part.path],
            folder / "images.npy",
            size,
            np.uint16,
            work=work_folder(out),
            recipe={"data set": name, "size": size, "crop_breast": crop_breast, "align": align},
            workers=workers,
            what="films" if view == "full" else "crops",
            say=say,
        )
        _check(chosen, found, LABELS[labels], require_complete)
        broken = [(chosen.findings[place].line, reason) for place, reason in found.failed.items()]
        rows = sorted(broken + [(line, NO_FILE) for line in chosen.missing])
        write_quarantine(folder / QUARANTINE, ("table_line", "reason"), rows, say)
        datalist = _datalist(name, LABELS[labels], chosen, found, tested)
        reading = about_reading({"crop_breast": crop_breast, "align": align})
        datalist.extra |= {"view": view, "deviations": unlike, **reading}
        write_datalist(folder, datalist)
    return datalist


def _check_options(size: tuple[int, int], view: str, labels: str | None, test_share: float, crop_breast: bool) -> str:
    """Refuse what is impossible; which labels are meant."""
    check_choice("view", view, VIEWS)
    labels = labels or ("three-class" if view == "full" else "benign-malignant")
    check_choice("labels", labels, LABELS)
    if view == "crop" and labels != "benign-malignant":
        raise SettingsError(
            f"expected --labels benign-malignant for --view crop, got {labels}: a normal film has no abnormality to "
            "cut out. Take whole films (--view full) for other labels."
        )
    if view == "crop" and crop_breast:
        raise SettingsError("--crop-breast is for whole films: leave it out, or take --view full.")
    if min(size) < 1:
        raise SettingsError(f"expected a height and a width >= 1, got {size[0]} and {size[1]}")
    if not 0 <= test_share < 1:
        raise SettingsError(f"expected 0 <= test share < 1, got {test_share}")
    return labels


def _tested(films: Sequence[Film], share: float, seed: int) -> set[int]:
    """The patients in the test set, in equal shares of those with a normal, benign and malignant worst film."""
    worst: dict[int, int] = {}
    for film in films:
        worst[film.patient] = max(worst.get(film.patient, 0), _DIAGNOSES.index(film.diagnosis))
    patients = np.array(sorted(worst))
    rng = np.random.default_rng(seed_of(seed, "mias", "test"))
    mask = holdout(np.array([worst[patient] for patient in patients]), share, rng)
    return set(patients[mask].tolist())


def _check(chosen: Chosen, found: Ingested, classes: dict[str, str], require_complete: bool) -> None:
    """Refuse what is not complete where it must be, and classes without an image."""
    if found.failed and require_complete:
        lines = sorted(chosen.findings[place].line for place in found.failed)
        raise DataError(
            f"a complete set of films is required, {len(lines)} can't be read: rows of {FILE} in lines "
            f"{', '.join(map(str, lines[:10]))}. Unpack it again."
        )
    left = {chosen.classes[place] for place in found.kept}
    gone = [f"'{name}'" for name in dict.fromkeys(classes.values()) if name not in left]
    if gone:
        raise DataError(f"no image is left of the classes {', '.join(gone)}. Unpack all-mias.tar.gz whole.")


def _datalist(name: str, classes: dict[str, str], chosen: Chosen, found: Ingested, tested: Collection[int]) -> Datalist:
    names = list(dict.fromkeys(classes.values()))
    subjects = number_subjects([str(chosen.films[place].patient) for place in found.kept])
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for row, place in enumerate(found.kept):
        film, finding = chosen.films[place], chosen.findings[place]
        record: Record = {
            "image": row,
            "label": names.index(chosen.classes[place]),
            "subject_id": subjects[row],
            "laterality": film.laterality,
            "view": "MLO",
            "tissue": TISSUES[finding.tissue],
            "finding": FINDINGS[finding.kind],
        }
        splits["test" if film.patient in tested else "training"].append(record)
    reasons = chosen.left_out + Counter(found.failed.values())
    return Datalist(
        name=name,
        image_array="images.npy",
        num_classes=len(names),
        labels={str(label): text for label, text in enumerate(names)},
        modality="mammography",
        licence=LICENCE,
        splits=splits,
        extra={
            "citation": CITATION,
            "exclusions": [{"reason": reason, "count": count} for reason, count in reasons.items()],
        },
    )
