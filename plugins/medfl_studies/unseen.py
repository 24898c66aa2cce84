"""Runs of a study that train without one site, and the evaluation of their models at that site.

The study key ``unseen`` names the sites, or ``each``. A run without a site gets a folder of data without that site: no
image of it can enter training, validation, the choice of a round, or the scale of table columns, which is computed
again from the other sites. The server's test set is left out, too, as it may contain images of the site.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from medfl.data.arrays import FEATURE_MEAN, open_array
from medfl.data.datalists import (
    DATALIST_FILE,
    Datalist,
    parse_datalist,
    read_datalist,
    read_datalist_bytes,
    write_datalist,
)
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.partition.writing import feature_scale
from medfl.data.sites import data_digest, site_names
from medfl.engine.runs.records import read_run
from medfl.errors import MedflError, SettingsError, did_you_mean
from medfl.plugins import Registry
from medfl.records.partition import Partition
from medfl.records.site_card import SiteCard
from medfl.types import PUBLIC
from medfl.utils.files import sha256_of, write_atomic
from medfl.utils.text import Say
from medfl_report.evaluation.stored import read_evaluations
from medfl_studies.jobs import RunJob, digest_of
from medfl_studies.launchers.launcher import JobLauncher
from medfl_studies.launchers.resources import Resources
from medfl_studies.runner import JobOutcome, run_jobs
from medfl_studies.schema import Study, slug, split_name


@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """Evaluation of a run's models at the site that the run left out.

    Attributes:
        run: Run without the site.
        site: Folder of the site.
        split: Images to evaluate.
    """

    run: RunJob
    site: Path
    split: Literal["test", "all"]

    @property
    def title(self) -> str:
        """Name of the evaluation in messages."""
        return f"evaluation of {self.run.title}"

    @property
    def folder(self) -> Path:
        """Run folder; the evaluation writes into its folder ``evaluations``."""
        return self.run.folder

    @property
    def log(self) -> Path:
        """Path of the evaluation's log file, beside the run's log."""
        return self.folder.with_name(f"{self.folder.name}-evaluate.log")

    @property
    def resources(self) -> Resources:
        """Resources of the run."""
        return self.run.resources

    def command(self) -> list[str]:
        """Return the words of the command line ``medfl evaluate ...``."""
        words = [sys.executable, "-m", "medfl", "evaluate", str(self.folder), "--dataset-dir", str(self.site)]
        words += ["--split", self.split]
        device = self.run.options.get("device")
        return words if device is None else [*words, "--device", str(device)]

    def inputs_digest(self) -> str:
        """Return a digest of the command line; `is_done` compares models and data."""
        return digest_of(self.command())

    def status(self) -> str:
        """Return ``finished`` if the run folder has this evaluation of its current models, else ``not run``."""
        try:
            records = [stored.record for stored in read_evaluations(read_run(self.folder))]
            content = read_datalist_bytes(self.site)
            data = data_digest(self.site, content, parse_datalist(content, self.site / DATALIST_FILE))
        except MedflError:
            return "not run"
        return "finished" if any((record.data, record.split) == (data, self.split) for record in records) else "not run"

    def is_done(self) -> bool:
        """Return whether the run folder has this evaluation of its current models."""
        return self.status() == "finished"

    def mark_done(self) -> None:
        """Do nothing: the evaluation's own file contains the digests of models and data."""


@dataclass(frozen=True)
class UnseenOutcome:
    """Status of the runs without a site, and of the evaluations there.

    Attributes:
        runs: Status of each run without a site.
        evaluations: Status of each evaluation.
    """

    runs: JobOutcome[RunJob]
    evaluations: JobOutcome[EvaluationJob]

    def folders(self, data: str) -> dict[str, list[Path]]:
        """Return the folders of the runs with a finished evaluation, by row.

        Args:
            data: Name of a data set.
        """
        folders: dict[str, list[Path]] = {}
        for job, status in self.evaluations.status.items():
            if job.run.data == data and status == "finished":
                folders.setdefault(job.run.row, []).append(job.folder)
        return folders

    def unfinished(self, data: str) -> list[str]:
        """Return a line for each run or evaluation that is not finished.

        Args:
            data: Name of a data set.
        """
        lines = [f"{job.title}: {self.runs.status[job]}" for job in self.runs.unfinished() if job.data == data]
        evaluations = [job for job in self.evaluations.unfinished() if job.run.data == data]
        return lines + [f"{job.title}: {self.evaluations.status[job]}" for job in evaluations]


def check_unseen(study: Study, registry: Registry, adopted: bool) -> None:
    """Raise if sites can't be left out of a study without a trace.

    Args:
        study: The study.
        registry: Registry with the data sets.
        adopted: Whether the bundle is adopted.

    Raises:
        SettingsError: If the bundle is adopted, prepared values depend on several sites, or public data come from the
            same release as the sites.
    """
    if study.unseen is None:
        return
    if adopted:
        raise SettingsError(
            "unsupported_bundle",
            "'unseen' needs a bundle of medfl: the models of an adopted bundle are scored by its own evaluate "
            "configuration. Remove 'unseen'.",
            setting="unseen",
        )
    for name, data in study.data.items():
        prep = data.prep
        if prep is not None and registry.dataset(prep.dataset).pools_statistics(prep.options()):
            raise SettingsError(
                "pooled_statistics",
                f"'data.{name}.prep': with these options the values of each site depend on the other sites, so the "
                "site that 'unseen' leaves out would enter the training. Choose another scale, or remove 'unseen'.",
                dataset=name,
                setting="unseen",
            )
        if (data.partition or {}).get("public") in ("validation", "training"):
            raise SettingsError(
                "incompatible_settings",
                f"'data.{name}.partition.public': the pooled validation split may contain images of the site that "
                "'unseen' leaves out. Remove one of the two keys.",
                dataset=name,
                settings=["public", "unseen"],
            )


def run_without_sites(
    study: Study,
    jobs: Sequence[RunJob],
    without: list[RunJob],
    say: Say,
    launcher: JobLauncher,
) -> UnseenOutcome:
    """Run each row without each unseen site, and evaluate the finished models there.

    Args:
        study: The study; its data exist.
        jobs: Runs of the study with all sites.
        without: Runs without a site, from `unseen_jobs`.
        say: Callback that receives lines of progress.
        launcher: Launcher that carries out the runs and evaluations.
    """
    runs = run_jobs(without, say, _ignore, launcher, "run without a site")
    evaluations = [
        EvaluationJob(job, _site_folder(jobs, job), study.unseen_split)
        for job in without
        if runs.status[job] == "finished"
    ]
    return UnseenOutcome(runs, run_jobs(evaluations, say, _ignore, launcher, "evaluation"))


def _ignore(outcome: object, job: object) -> None:
    """Do nothing after a job: the tables are written at the end."""


def _site_folder(jobs: Sequence[RunJob], without: RunJob) -> Path:
    """Return the folder of the site that a run left out."""
    full = next(job for job in jobs if _key(job) == _key(without))
    assert without.unseen is not None
    return full.dataset_dir / without.unseen


def _key(job: RunJob) -> tuple[str, str, int, int | None]:
    """Return the data set, row, seed and fold of a run."""
    return job.data, job.row, job.seed, job.fold


def unseen_jobs(study: Study, jobs: Sequence[RunJob], out: Path) -> list[RunJob]:
    """Write the data without each unseen site, and return the runs on them; empty without the key ``unseen``.

    Args:
        study: The study; its data exist.
        jobs: Runs of the study with all sites.
        out: Output folder of the study.

    Raises:
        SettingsError: If a named site does not exist, or is the only one of a data set.
    """
    without = []
    for job in jobs if study.unseen is not None else ():
        chosen = job.options.get("sites")
        sites = list(chosen) if chosen is not None else site_names(job.dataset_dir)
        for site in _unseen_sites(study, sites, job.data):
            place = out / "data" / slug(job.data) / f"{job.dataset_dir.name}-unseen" / site
            write_without(job.dataset_dir, [name for name in sites if name != site], place)
            folder = out / "unseen" / slug(job.data) / slug(job.row) / split_name(job.seed, job.fold) / site
            options = {name: value for name, value in job.options.items() if name != "sites"}
            without.append(replace(job, dataset_dir=place, folder=folder, options=options, unseen=site))
    return without


def _unseen_sites(study: Study, sites: list[str], data: str) -> list[str]:
    """Return the sites of a data set to leave out in turn."""
    wanted = sites if study.unseen == "each" or study.unseen is None else study.unseen
    for site in wanted:
        if site not in sites:
            raise SettingsError(
                "unknown_site",
                f"'unseen' names '{site}', which is no site of the data set '{data}'. {did_you_mean(site, sites)}",
                site=site,
                dataset=data,
                known=sites,
            )
    if len(sites) < 2:
        raise SettingsError(
            "too_few_sites",
            f"'unseen' leaves out one of the sites of '{data}', so it needs at least 2 sites, got {len(sites)}.",
            dataset=data,
            minimum=2,
            found=len(sites),
        )
    return wanted


def write_without(dataset_dir: Path, sites: list[str], out: Path) -> None:
    """Write the data lists of some sites, and of public data, to another folder. No image is copied.

    The lists name the same arrays. The scale of table columns is computed from the training rows of these sites. Files
    with the right content are not written again.

    Args:
        dataset_dir: Partitioned data set.
        sites: Names of the sites to keep.
        out: Folder to write.

    Raises:
        DataError: If a data list is damaged.
    """
    names = [*sites, *([PUBLIC] if (dataset_dir / PUBLIC / DATALIST_FILE).is_file() else [])]
    lists = {name: read_datalist(dataset_dir / name) for name in names}
    scale = _scale_of(dataset_dir, {site: lists[site] for site in sites})
    partition = Partition.find(dataset_dir)
    digests = {} if partition is None else dict(partition.sha256_by_file)
    hashes = {}
    for name, datalist in lists.items():
        moved = {
            path: os.path.relpath((dataset_dir / name / path).resolve(), out.resolve() / name)
            for path in (datalist.image_array, datalist.mask_array)
            if path
        }
        changed = replace(
            datalist,
            extra=datalist.extra | (scale if FEATURE_MEAN in datalist.extra else {}),
            image_array=moved[datalist.image_array],
            mask_array=moved.get(datalist.mask_array, ""),
        )
        _write_list(out / name, changed)
        hashes[f"{name}/{DATALIST_FILE}"] = sha256_of(out / name / DATALIST_FILE)
        for path, new_path in moved.items():
            before = digests.get(os.path.normpath(f"{name}/{path}"))
            hashes |= {} if before is None else {os.path.normpath(f"{name}/{new_path}"): before}
        card = dataset_dir / name / SiteCard.NAME
        if card.is_file():
            _write_changed(out / name / SiteCard.NAME, card.read_bytes())
    if partition is not None:
        record = partition.model_copy(update={"sha256_by_file": hashes})
        _write_changed(out / Partition.NAME, record.to_bytes())


def _scale_of(dataset_dir: Path, lists: dict[str, Datalist]) -> dict[str, list[float]]:
    """Return the scale of table columns over the training rows of sites; empty for data without such a scale."""
    if not any(FEATURE_MEAN in datalist.extra for datalist in lists.values()):
        return {}
    first = next(iter(lists))
    array = open_array(dataset_dir / first / lists[first].image_array)
    columns = typed_columns(lists[first].extra)
    return feature_scale(array, {site: datalist.splits for site, datalist in lists.items()}, columns)


def _write_list(folder: Path, datalist: Datalist) -> None:
    """Write a data list if it differs from the file in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="medfl-list-") as place:
        write_datalist(Path(place), datalist)
        _write_changed(folder / DATALIST_FILE, (Path(place) / DATALIST_FILE).read_bytes())


def _write_changed(path: Path, content: bytes) -> None:
    """Write a file unless it has this content."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)
