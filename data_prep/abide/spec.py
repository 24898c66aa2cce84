"""ABIDE I as the Preprocessed Connectomes Project (PCP) publishes it in, a pooled data set out.

The pooled data set is a folder with one array of all subjects (``images.npy``, float32, shape (N, X, Y, Z, channels),
a channel for each derivative), one data list, and, if an atlas is given, the atlas on the grid of the images with the
list of its regions. `medfl_datasets.abide.tables` says who takes part, `medfl_datasets.abide.files` what becomes of a
map.

A subject needs all the derivatives that are asked for. Who lacks one, or has one that can't be read, is left out and
listed in ``quarantine.csv`` by table row and derivative. Too many maps that can't be read mean a broken download, and
stop the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from medfl.data.datalists import SPLITS, Datalist, Record, write_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.readers.atlas import place_atlas, write_atlas
from medfl.data.readers.volumes import Grid, common_grid
from medfl.data.table import row_list
from medfl.errors import DataError
from medfl.ingest.array_file import keep_rows
from medfl.ingest.options import Words, check_mirror
from medfl.ingest.pipeline import QUARANTINE
from medfl.ingest.spec import WholeSpec, folder_with
from medfl_datasets.abide import RECORDS
from medfl_datasets.abide.download import URL, fetch_maps, fetch_phenotypes
from medfl_datasets.abide.files import DEFAULT_DERIVATIVES, Maps, find_maps, nothing_found
from medfl_datasets.abide.images import NO_MAP, Failures, Files, check_failures, told, write_images, write_quarantine
from medfl_datasets.abide.tables import CLASSES, FEDASD, FILE, Cohort, Subject, read_phenotypes

NAME = "abide"
"""Of the data set."""

LICENCE = RECORDS[0].licence
CITATION = (
    "Di Martino et al., The autism brain imaging data exchange, Molecular Psychiatry 19, 659 (2014); "
    "Craddock et al., The Neuro Bureau Preprocessing Initiative, Frontiers in Neuroinformatics 7 (2013)"
)

_TOPS = ("", "ABIDE_Initiative", "ABIDE_pcp")

Say = Callable[[str], None]


def prepare(
    source: Path,
    out: Path,
    *,
    maps: Maps | None = None,
    size: int = 48,
    sites: str = FEDASD,
    phenotypes: Path | None = None,
    atlas: Path | None = None,
    require_complete: bool = False,
    fetch: bool = False,
    url: str = URL,
    force: bool = False,
    say: Say = lambda _: None,
) -> Datalist:
    """Turn ABIDE I into a pooled data set.

    Args:
        source: Where the release lies, in PCP's or nilearn's layout, or all files in one folder.
        out: The folder to write; it is written whole or not at all.
        maps: Which derivatives, pipeline and strategy; by default those of `Maps`.
        size: Voxels along each edge of an image.
        sites: ``fedasd`` for the four regions of FedASD, or a column of the phenotypic file; of ``SITE_ID`` parts of
            one centre count as one.
        phenotypes: The phenotypic file; None means that of PCP in `source`.
        atlas: Labels in MNI152 space, to be put on the grid of the images; None means none.
        require_complete: Whether a map that is missing or can't be read stops the command.
        fetch: Whether to download what is not there into `source`.
        url: Where to download from.
        force: Whether a data set that is there may be replaced.
        say: Gets licence, citation, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the phenotypic file, the atlas or too many maps are wrong, no map is found, or `out` may not be
            written.
        SettingsError: If an option is impossible.
    """
    maps, grid = maps or Maps(), common_grid(size)
    check_free(out, force, [path for path in (source, phenotypes, atlas) if path])
    say(f"{NAME}: licence {LICENCE}")
    say(f"Please cite: {CITATION}")
    placed = place_atlas(atlas, grid, say) if atlas else None
    cohort = read_phenotypes(_phenotypes(source, phenotypes, fetch, url, say), sites)
    files = _files(source, maps, cohort.subjects, fetch, url, say)
    absent = _absent(maps, cohort.subjects, files, say)
    if absent and require_complete:
        raise DataError(f"a complete set of maps is required, {len(absent)} are missing: {told(absent)}.")
    complete = [subject for subject in cohort.subjects if all((subject.file_id, d) in files for d in maps.derivatives)]
    _check_classes(complete)
    with written_whole(out, force) as folder:
        array = folder / "images.npy"
        failed = write_images(array, complete, files, maps.derivatives, grid, say)
        check_failures(failed, len(complete) * len(maps.derivatives), require_complete)
        broken = {row for row, _ in failed}
        kept = [place for place, subject in enumerate(complete) if subject.row not in broken]
        used = [complete[place] for place in kept]
        _check_classes(used)
        if failed:
            keep_rows(array, kept)
        write_quarantine(folder / QUARANTINE, absent | failed, say)
        datalist = _datalist(maps, grid, cohort, complete, used)
        if placed:
            datalist.extra["atlas"] = write_atlas(folder, placed)
        write_datalist(folder, datalist)
    return datalist


def _phenotypes(source: Path, given: Path | None, fetch: bool, url: str, say: Say) -> Path:
    """The phenotypic file."""
    if given and not given.is_file():
        raise DataError(f"expected the phenotypic file {given}, there is none. Give another --phenotypes.")
    if given:
        return given
    found = next((path for top in _TOPS if (path := source / top / FILE).is_file()), None)
    if found:
        return found
    if fetch:
        return fetch_phenotypes(source, url, say)
    raise DataError(
        f"expected the phenotypic file {source / FILE}, there is none. Add --download, or give the file as "
        "--phenotypes."
    )


def _files(source: Path, maps: Maps, subjects: Sequence[Subject], fetch: bool, url: str, say: Say) -> Files:
    """The maps that are there, after those that are not were asked for if the user wants that."""
    ids = [subject.file_id for subject in subjects]
    files = find_maps(source, maps, ids)
    if fetch:
        wanted = [(subject, d) for d in maps.derivatives for subject in subjects if (subject.file_id, d) not in files]
        fetch_maps(source, maps, wanted, url, say)
        files = find_maps(source, maps, ids)
    if not files:
        raise nothing_found(source, maps, len(subjects))
    return files


def _absent(maps: Maps, subjects: Sequence[Subject], files: Files, say: Say) -> Failures:
    """Maps that are not there."""
    absent: Failures = {}
    for derivative in maps.derivatives:
        rows = [subject.row for subject in subjects if (subject.file_id, derivative) not in files]
        absent |= {(row, derivative): NO_MAP for row in rows}
        if rows:
            say(f"warning: no {derivative} map of {len(rows)} of {len(subjects)} subjects: {row_list(rows)}")
    return absent


def _check_classes(subjects: Sequence[Subject]) -> None:
    gone = [name for label, name in enumerate(CLASSES) if label not in {subject.label for subject in subjects}]
    if gone:
        raise DataError(
            f"no subject with all maps is left of the classes {', '.join(gone)}. Ask for fewer --derivatives, or add "
            "--download."
        )


def _datalist(maps: Maps, grid: Grid, cohort: Cohort, complete: Sequence[Subject], used: Sequence[Subject]) -> Datalist:
    reasons = cohort.left_out | {
        "a map is missing": len(cohort.subjects) - len(complete),
        "a map can't be read": len(complete) - len(used),
    }
    return Datalist(
        name=NAME,
        image_array="images.npy",
        num_classes=len(CLASSES),
        labels={str(label): name for label, name in enumerate(CLASSES)},
        modality="functional magnetic resonance imaging at rest, derivative maps",
        licence=LICENCE,
        splits={split: [] for split in SPLITS}
        | {"training": [_record(row, subject) for row, subject in enumerate(used)]},
        extra={
            "citation": CITATION,
            "exclusions": [{"reason": reason, "count": count} for reason, count in reasons.items() if count],
            "channels": list(maps.derivatives),
            "pipeline": maps.pipeline,
            "strategy": maps.strategy,
            "affine": grid.affine.tolist(),
            "space": "MNI152",
            "intensities": "each map: mean 0 and standard deviation 1 over its voxels that are not 0, then resampled",
        },
    )


def _record(row: int, subject: Subject) -> Record:
    return {
        "image": row,
        "label": subject.label,
        "subject_id": subject.subject_id,
        "site": subject.site,
        "centre": subject.centre,
        "sex": subject.sex,
        "age": subject.age,
    }


class Abide(WholeSpec):
    """ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) has them.

    871 subjects passed its raters. Who lacks a map is left out and listed in quarantine.csv.
    """

    dataset = "abide"
    unreadable = "option require_complete"
    parallel = False
    item = "map"

    source: Path
    """The folder with PCP's Outputs, nilearn's ABIDE_pcp, or all files."""
    derivatives: Words = DEFAULT_DERIVATIVES
    """The channels, separated by commas."""
    size: int = 48
    """Voxels along each edge of an image."""
    sites: str = FEDASD
    """fedasd for its four regions, or a column of the phenotypic file, such as SITE_ID."""
    pipeline: str = "cpac"
    """ccs, cpac, dparsf or niak."""
    strategy: str = "filt_noglobal"
    """filt_global, filt_noglobal, nofilt_..."""
    atlas: Path | None = None
    """Labels in MNI152 space (NIfTI), to put on the same grid."""
    phenotypes: Path | None = None
    """The phenotypic file, if it is not in --source."""
    download: bool = False
    """Download what is not in --source."""
    url: str | None = None
    """A mirror: the address below which Outputs lies."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_mirror(self.url, self.download)
        return self

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """The folder of the phenotypic file: one of its name, or the source folder itself."""
        return {"source": folder_with(top, cls.dataset, FILE)}

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        return prepare(
            self.source,
            out,
            maps=Maps(self.derivatives, self.pipeline, self.strategy),
            size=self.size,
            sites=self.sites,
            phenotypes=self.phenotypes,
            atlas=self.atlas,
            require_complete=require_complete,
            fetch=self.download,
            url=self.url or URL,
            force=force,
            say=say,
        )
