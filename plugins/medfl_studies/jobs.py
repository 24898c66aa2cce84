"""The runs of a study, each defined by a command line that the user can also start separately.

Each row of the study is a method with settings. A row has one run for each data set, seed and fold.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfl.bundle.bundle_folders import bundle_hash
from medfl.bundle.option_spelling import option_of_id
from medfl.data.datalists import DATALIST_FILE
from medfl.engine.runs.provenance import bundle_values, run_files
from medfl.engine.runs.records import describe_repetition
from medfl.errors import StoreError
from medfl.records.partition import Partition
from medfl.records.summary import Summary
from medfl.types import GLOBAL, Meta
from medfl_studies.code_version import current_commit
from medfl_studies.launchers.resources import Resources
from medfl_studies.records.study_files import JobIdentity
from medfl_studies.schema import DataSet, Study, slug, split_name


@dataclass(frozen=True, eq=False)
class RunJob:
    """One run of a study.

    Attributes:
        data: Name of the data set in the study.
        row: Name of the row.
        seed: Seed of the run.
        bundle: Folder of the bundle.
        dataset_dir: Folder of the partitioned data set.
        folder: Run folder.
        options: Options of the run by name.
        workers: Number of processes that train sites, or None for the bundle's number.
        fold: Fold that serves as the sites' test sets, counted from 0; None without folds.
        unseen: Site that the run trains without; None if all sites take part.
        resources: Resources of the run on a cluster. They do not change its numbers.
    """

    data: str
    row: str
    seed: int
    bundle: Path
    dataset_dir: Path
    folder: Path
    options: Meta
    workers: int | None = None
    fold: int | None = None
    unseen: str | None = None
    resources: Resources = field(default_factory=Resources)

    @property
    def title(self) -> str:
        """Name of the run in messages."""
        without = "" if self.unseen is None else f" / without {self.unseen}"
        return f"{self.data} / {self.row} / {self.repetition}{without}"

    @property
    def repetition(self) -> str:
        """Seed of the run and, if the study has folds, its fold, as text."""
        return describe_repetition(self.seed, self.fold)

    @property
    def log(self) -> Path:
        """Path of the run's log file."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def command(self) -> list[str]:
        """Return the words of the run's command line, as for a subprocess."""
        options = self.options | ({} if self.workers is None else {"workers": self.workers})
        words = [sys.executable, "-m", "medfl", "run", str(self.bundle)]
        words += ["--dataset-dir", str(self.dataset_dir), "--output-dir", str(self.folder)]
        for name, value in options.items():
            words += [option_of_id(name), _format_word(value)]
        return words

    def status(self) -> str:
        """Return the run's status from ``summary.json`` in the run folder, or ``not run`` without this file."""
        try:
            return Summary.read(self.folder / Summary.NAME).status
        except StoreError:
            return "not run"

    def identity(self) -> JobIdentity:
        """Return everything that determines the run's numbers: its options, and digests of the bundle and the data."""
        closed = [] if self.options.get("open_test", True) else [self.dataset_dir / GLOBAL / DATALIST_FILE]
        lists = [path for path in sorted(self.dataset_dir.glob(f"*/{DATALIST_FILE}")) if path not in closed]
        lists = [self.dataset_dir / Partition.NAME, *lists]
        adopted = is_adopted_bundle(self.bundle)  # adopted bundles read further configurations, code and data files
        return JobIdentity(
            options=json.loads(json.dumps(self.options)),
            configuration=_hash_files(run_files(self.bundle)),
            data=_hash_files(lists),
            code=bundle_hash(self.bundle) if adopted else None,
            data_files=_hash_file_sizes(self.dataset_dir) if adopted else None,
        )

    def inputs_digest(self) -> str:
        """Return a digest of the identity: of options, bundle and data."""
        return digest_of(self.identity().to_json())

    def is_done(self) -> bool:
        """Return whether the run folder holds exactly this run, and the run is finished.

        For a folder with a run with other options it returns False; `medfl run` refuses or continues such a run.
        """
        return self.changed_inputs() == []

    def changed_inputs(self) -> list[str] | None:
        """Return the names of the inputs in which the finished run in the folder differs from this run.

        Returns:
            Names of fields of `JobIdentity` with spaces, sorted; None if there is no finished run.
        """
        try:
            before = JobIdentity.read(self.folder / JobIdentity.NAME).to_json()
        except StoreError:
            return None
        if self.status() != "finished":
            return None
        now = self.identity().to_json()  # reads the data lists
        names = (before.keys() | now.keys()) - {"commit"}
        return sorted(name.replace("_", " ") for name in names if before.get(name) != now.get(name))

    def mark_done(self) -> None:
        """Write the identity of the run into its folder, so that the finished run is not started again."""
        identity = self.identity().model_copy(update={"commit": current_commit()})
        identity.write(self.folder / JobIdentity.NAME)


def is_adopted_bundle(bundle: Path) -> bool:
    """Return whether the bundle is adopted: a stock MONAI bundle for which ``medfl adopt`` wrote a federation file.

    The sites of an adopted bundle have data files in the bundle's own format.
    """
    return "adopted" in bundle_values(bundle)


def dataset_dir(out: Path, source: Path | None, name: str, data: DataSet, seed: int, fold: int | None = None) -> Path:
    """Return the folder of the partitioned data set for a seed and fold.

    Args:
        out: Output folder of the study.
        source: Folder of the source data; required for a data set that is already partitioned.
        name: Name of the data set.
        data: The data set.
        seed: Seed of the run.
        fold: Fold of the run, or None without folds.
    """
    if data.partition is None:
        assert source is not None  # `check_data` refused a study without source
        assert data.folder is not None  # a data set without partition is a folder
        return source / data.folder
    seed = data.partition.get("seed", seed)
    return out / "data" / slug(name) / f"sites-{split_name(seed, fold)}"


def public_dir(out: Path, name: str) -> Path:
    """Return the folder of the prepared public data of a data set.

    Args:
        out: Output folder of the study.
        name: Name of the data set.
    """
    return out / "data" / slug(name) / "public" / "pooled"


def drops_public_duplicates(data: DataSet) -> bool:
    """Return whether the partition drops public images that are also private (the setting ``duplicates: drop``).

    The partition then writes the public data without the images that are also at a site or in the server's test set.
    Otherwise a run uses all public images, and raises an error if one of them is also at a site.
    """
    return data.public is not None and (data.partition or {}).get("duplicates") == "drop"


def expand_study(
    study: Study, bundle: Path, source: Path | None, out: Path, workers: int | None = None
) -> list[RunJob]:
    """Return all runs of a study, ordered by data set, seed, fold and row.

    In this order early tables already compare all rows.

    Args:
        study: The study.
        bundle: Folder of the bundle.
        source: Folder of the source data.
        out: Output folder of the study.
        workers: Number of processes that train sites, in each run; None for the bundle's number.
    """
    jobs = []
    for name, data in study.data.items():
        for seed, fold in study.repetitions(data):
            for title in [title for title in study.rows if title in (data.rows or study.rows)]:
                row = study.rows[title].changed(study.rows[title].splits.get(split_name(seed, fold)))
                options: dict[str, Any] = {"given_by": f"study {study.name}", "method": row.method}
                options |= {f"method_args#{key}": value for key, value in row.method_args.items()}
                options |= {"metrics": study.metrics} if study.metrics else {}
                if data.public is not None and not drops_public_duplicates(data):
                    options |= {"public": str(public_dir(out, name).resolve())}
                options |= study.settings | data.options | row.settings | {"seed": seed}
                folder = out / "runs" / slug(name) / slug(title) / split_name(seed, fold)
                place = dataset_dir(out, source, name, data, seed, fold)
                resources = study.resources.merged(row.resources)
                job = RunJob(name, title, seed, bundle, place, folder, options, workers, fold, resources=resources)
                jobs.append(job)
    return jobs


def _format_word(value: Any) -> str:
    """Format a value for the command line, where Python literals are parsed and everything else is text."""
    if isinstance(value, str) and not _is_literal(value):
        return value
    text = json.dumps(value)  # double quotes need no escape within the single quotes of a shell
    return text if _is_literal(text) and ast.literal_eval(text) == value else repr(value)


def _is_literal(text: str) -> bool:
    """Return whether a text is a Python literal."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _hash_file_sizes(folder: Path) -> str:
    """Return a hash of the names and sizes of all files in a folder, except hidden files such as caches."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [(path.relative_to(folder), path.stat().st_size) for path in files]
    shown = [(name.as_posix(), size) for name, size in names if not any(part.startswith(".") for part in name.parts)]
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def _hash_files(paths: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files."""
    parts = [(path.parent.name, path.name, path.read_bytes()) for path in paths if path.is_file()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
