"""From a study to its runs: each a command line that anyone can give again."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.bundle.files import bundle_hash
from medfl.bundle.option_spelling import option_of_id
from medfl.data.datalists import FILE
from medfl.engine.runs.provenance import bundle_values, run_files
from medfl.engine.runs.records import repetition
from medfl.errors import StoreError
from medfl.records.partition import Partition
from medfl.records.summary import Summary
from medfl.types import GLOBAL, Meta
from medfl_studies.records.study_files import JobIdentity
from medfl_studies.schema import DataSet, Study, slug


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a study.

    Attributes:
        data: Name of the data set.
        row: Name of the row.
        seed: The run's seed.
        bundle: The bundle's folder.
        dataset_dir: The partitioned data set.
        folder: The run folder.
        options: Options of the run by name.
        workers: Processes that train sites, or None to leave that to the bundle.
        fold: The fold that is the sites' test sets, from 0; None where there are no folds.
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

    @property
    def title(self) -> str:
        """How to call it."""
        return f"{self.data} / {self.row} / {self.repetition}"

    @property
    def repetition(self) -> str:
        """Its seed and, if there is one, its fold."""
        return repetition(self.seed, self.fold)

    @property
    def log(self) -> Path:
        """Where the run's messages go."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def command(self) -> list[str]:
        """The words of the command line."""
        options = self.options | ({} if self.workers is None else {"workers": self.workers})
        words = [sys.executable, "-m", "medfl", "run", str(self.bundle)]
        words += ["--dataset-dir", str(self.dataset_dir), "--output-dir", str(self.folder)]
        for name, value in options.items():
            words += [option_of_id(name), _word(value)]
        return words

    def status(self) -> str:
        """Return the status in ``summary.json``, or ``not run`` if there is none."""
        try:
            return Summary.read(self.folder / Summary.NAME).status
        except StoreError:
            return "not run"

    def identity(self) -> JobIdentity:
        """Return everything that decides the run's numbers: its options, and digests of the bundle and of the data."""
        closed = [] if self.options.get("open_test", True) else [self.dataset_dir / GLOBAL / FILE]
        lists = [path for path in sorted(self.dataset_dir.glob(f"*/{FILE}")) if path not in closed]
        lists = [self.dataset_dir / Partition.NAME, *lists]
        adopted = is_adopted(self.bundle)  # then it reads further configurations, code, and files of other names
        return JobIdentity(
            options=json.loads(json.dumps(self.options)),
            configuration=_digest(run_files(self.bundle)),
            data=_digest(lists),
            code=bundle_hash(self.bundle) if adopted else None,
            data_files=_sizes(self.dataset_dir) if adopted else None,
        )

    def is_done(self) -> bool:
        """Return whether this very run is finished; if another one is, `medfl run` refuses or continues it."""
        try:
            before = JobIdentity.read(self.folder / JobIdentity.NAME)
        except StoreError:
            return False
        return self.status() == "finished" and before == self.identity()

    def stamp(self) -> None:
        """Write the identity of the run into its folder: it is over, and is not started again."""
        self.identity().write(self.folder / JobIdentity.NAME)


def is_adopted(bundle: Path) -> bool:
    """Whether a bundle is a stock one that ``medfl adopt`` made a federation's of; its sites have files as it says."""
    return "adopted" in bundle_values(bundle)


def dataset_dir(out: Path, source: Path | None, name: str, data: DataSet, seed: int, fold: int | None = None) -> Path:
    """The partitioned folder that a seed, or a fold of it, uses.

    Args:
        out: Folder of the study.
        source: Folder of the data as they are; needed for a folder that is partitioned already.
        name: Of the data set.
        data: The data set.
        seed: Of the run.
        fold: Of the run, if there are folds.
    """
    if data.partition is None:
        assert source is not None  # checked when the study's data were looked for
        assert data.folder is not None  # a data set without partition is a folder
        return source / data.folder
    seed = data.partition.get("seed", seed)
    return out / "data" / slug(name) / f"sites-{_folder_name(seed, fold)}"


def public_dir(out: Path, name: str) -> Path:
    """The public data of a data set, prepared.

    Args:
        out: Folder of the study.
        name: Of the data set.
    """
    return out / "data" / slug(name) / "public" / "pooled"


def drops_public(data: DataSet) -> bool:
    """Whether the partition writes the public data, without images that are at a site or in the server's test set.

    It does with ``duplicates: drop``; otherwise a run takes them whole, and refuses them if they share any image.
    """
    return data.public is not None and (data.partition or {}).get("duplicates") == "drop"


def expand(study: Study, bundle: Path, source: Path | None, out: Path, workers: int | None = None) -> list[Job]:
    """All runs of a study, data set by data set, seed by seed, fold by fold, row by row: early tables compare all rows.

    Args:
        study: The study.
        bundle: The bundle's folder.
        source: Folder of the data as they are.
        out: Folder of the study.
        workers: Processes that train sites, in each run.
    """
    jobs = []
    for name, data in study.data.items():
        for seed, fold in study.repetitions(data):
            for title in [title for title in study.rows if title in (data.rows or study.rows)]:
                row = study.rows[title]
                options: dict[str, Any] = {"given_by": f"study {study.name}", "method": row.method}
                options |= {f"method_args#{key}": value for key, value in row.method_args.items()}
                options |= {"metrics": study.metrics} if study.metrics else {}
                if data.public is not None and not drops_public(data):
                    options |= {"public": str(public_dir(out, name).resolve())}
                options |= study.settings | data.options | row.settings | {"seed": seed}
                folder = out / "runs" / slug(name) / slug(title) / _folder_name(seed, fold)
                place = dataset_dir(out, source, name, data, seed, fold)
                jobs.append(Job(name, title, seed, bundle, place, folder, options, workers, fold))
    return jobs


def _folder_name(seed: int, fold: int | None) -> str:
    return f"seed-{seed}" + ("" if fold is None else f"-fold-{fold}")


def _word(value: Any) -> str:
    """A value on the command line, where Python literals are read as such and everything else as text."""
    if isinstance(value, str) and not _is_literal(value):
        return value
    text = json.dumps(value)  # its double quotes need no quoting within a shell's single ones
    return text if _is_literal(text) and ast.literal_eval(text) == value else repr(value)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _sizes(folder: Path) -> str:
    """A hash of the names and sizes of all files in a folder; hidden ones, such as caches, do not count."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [(path.relative_to(folder), path.stat().st_size) for path in files]
    shown = [(name.as_posix(), size) for name, size in names if not any(part.startswith(".") for part in name.parts)]
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def _digest(paths: Iterable[Path]) -> str:
    parts = [(path.parent.name, path.name, path.read_bytes()) for path in paths if path.is_file()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
