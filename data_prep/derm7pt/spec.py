"""Derm7pt: the release of dermoscopic and clinical images in, a pooled data set out.

Each case has a dermoscopic and a clinical image; a data set has one view of them. Cases fall into five groups of
diagnoses (BCC, MEL, MISC, NEV, SK). The sex of the patient and the location on the body are kept; no name of a file and
no identifier of a case is. The release does not say which cases are of one patient, so each case has a
``subject_id`` of its own.

Nine cases have no clinical image: the table names the dermoscopic one twice. They are counted, and left out of the view
``clinic``, where a network would otherwise see another kind of image.

The release becomes the table that `medfl.ingest.own_images` reads, with the same numbers of rows, and the rest is done
there: images are read in RGB and resized with antialiasing; their aspect ratio is not kept.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.errors import DataError, check_choice
from medfl.ingest import own_images
from medfl.ingest.labels import Columns
from medfl.ingest.options import Choose
from medfl.ingest.spec import WholeSpec, folder_with
from medfl.utils.text import Say
from medfl_datasets.derm7pt import RECORDS
from medfl_datasets.derm7pt.tables import GROUPS, Release, read_release

LICENCE = RECORDS[0].licence
"""Terms of use."""

CITATION = (
    "Kawahara et al., Seven-Point Checklist and Skin Lesion Classification Using Multitask Multimodal Neural Nets, "
    "IEEE Journal of Biomedical and Health Informatics 23(2), 538-546 (2019), doi:10.1109/JBHI.2018.2824327"
)
"""What users of the data are asked to cite."""

VIEWS = {"derm": "dermoscopy", "clinic": "clinical photograph"}
"""View, which is also the column of its images, to modality."""

SPLITTINGS = ("official", "none")
"""Training, validation and test as the release has them, or all cases in training."""

NO_CLINICAL_IMAGE = "the case has no clinical image: the release names its dermoscopic one twice"
"""Why a case is left out of the view ``clinic``."""


def prepare(
    source: Path,
    out: Path,
    *,
    size: int = 224,
    view: str = "derm",
    split: str = "official",
    skip_unreadable: bool = False,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn a release of Derm7pt into a pooled data set.

    Args:
        source: The folder ``release_v0``, or the one that holds it.
        out: The folder to write; it is written whole or not at all.
        size: Height and width of the images in pixels, >= 1.
        view: One of `VIEWS`.
        split: One of `SPLITTINGS`. A partition deals the training images to sites, so ``none`` is for protocols that
            deal all cases and test in folds at each site, as FedSKD's does.
        skip_unreadable: Whether images that can't be read are left out and listed in ``quarantine.csv``.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is incomplete or wrong, or `out` may not be written.
        SettingsError: If there is no such view or split, or the size is impossible.
    """
    check_choice("view", view, VIEWS)
    check_choice("split", split, SPLITTINGS)
    check_free(out, force, [source])
    name, say = "derm7pt" if view == "derm" else f"derm7pt-{view}", _once(say)
    say(f"{name}: licence {LICENCE}")
    say(f"Please cite: {CITATION}")
    release = read_release(source)
    unlike = release.deviations()
    for sentence in unlike:
        say(f"warning: {sentence}")
    kept, exclusions = _choose(release, view, say)
    release.check_images(view, kept)
    say("note: Derm7pt does not say which cases are of one patient: each case counts as a patient of its own")
    with tempfile.TemporaryDirectory() as place, written_whole(out, force) as folder:
        table = Path(place, "meta.csv")
        columns = _write_table(table, release, kept, view, split)
        datalist = own_images.prepare(
            release.images,
            table,
            columns,
            (size,),
            folder,
            name=name,
            licence=LICENCE,
            channels=3,
            skip_unreadable=skip_unreadable,
            say=say,
        )
        exclusions += datalist.extra["exclusions"]
        extra = {"citation": CITATION, "deviations": unlike, "exclusions": exclusions}
        datalist = replace(datalist, modality=VIEWS[view], extra=extra)
        write_datalist(folder, datalist)
    return datalist


def _once(say: Say) -> Say:
    """Say no line twice: the licence comes first, before anything is read, and `own_images` would repeat it."""
    said: set[str] = set()

    def tell(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return tell


def _choose(release: Release, view: str, say: Say) -> tuple[list[int], list[dict[str, str | int]]]:
    """The cases that a view has, and what was left out with reasons."""
    count, cases, leave = sum(release.doubled), range(len(release.doubled)), view == "clinic"
    if count:
        say(
            f"note: {count} cases have no clinical image, the release names the dermoscopic one twice; the view "
            f"{view} {'leaves them out' if leave else 'has them'}"
        )
    kept = [place for place in cases if not (leave and release.doubled[place])]
    absent = [group for group in GROUPS if group not in {release.groups[place] for place in kept}]
    if absent:
        raise DataError(
            f"expected cases of all groups of diagnoses, {', '.join(GROUPS)}; there are none of {', '.join(absent)} in "
            f"{release.table.path}. Give the whole release."
        )
    return kept, [{"reason": NO_CLINICAL_IMAGE, "count": count}] if leave and count else []


def _write_table(path: Path, release: Release, kept: Sequence[int], view: str, split: str) -> Columns:
    """Write a table for `own_images`; what is left out leaves an empty row, so that the numbers stay those of meta.csv.

    Returns:
        Which of its columns says what.
    """
    rows: list[tuple[str, ...]] = [()] * max(release.table.numbers)
    rows[0] = ("image", "group", "case_num", "split", "sex", "location")
    for place in kept:
        case = release.table.rows[place]
        into = release.splits[place] if split == "official" else "training"
        group = release.groups[place]
        rows[release.table.numbers[place] - 1] = (
            case[view],
            group,
            case["case_num"],
            into,
            case["sex"],
            case["location"],
        )
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return Columns("image", "group", "case_num", split="split", keep=("sex", "location"))


class Derm7pt(WholeSpec):
    """Derm7pt: skin lesions in five groups. Nothing is downloaded.

    Sex and location are kept, the aspect ratio is not. Nine cases without a clinical image are not in the view clinic.
    """

    dataset = "derm7pt"
    unreadable = "option skip_unreadable"
    parallel = False

    source: Path
    """The folder release_v0, as unpacked, or the one that holds it."""
    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    view: Annotated[str, Choose(VIEWS)] = "derm"
    """derm (dermoscopy) or clinic (photograph)."""
    split: Annotated[str, Choose(SPLITTINGS)] = "official"
    """official, or none: all cases in training, for folds at each site as FedSKD has them."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """The folder that holds ``release_v0``: one of its name, or the source folder itself."""
        return {"source": folder_with(top, cls.dataset, "release_v0/meta/meta.csv")}

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        return prepare(
            self.source,
            out,
            size=self.size,
            view=self.view,
            split=self.split,
            skip_unreadable=not require_complete,
            force=force,
            say=say,
        )
