"""Schema of ``runs.json.gz``: settings, identity and status of every run of a study whose raw results are kept.

The file is in the folder of the study's raw results, beside ``scores.csv.gz`` and the files with the predictions.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import ClassVar, Self

from medfl.records.record import FileRecord, Record
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.utils.files import gzip_bytes
from medfl_studies.records.study_files import JobIdentity


class KeptDataSet(Record):
    """A data set of a study with raw results.

    Attributes:
        dataset: Name of the data set in its data list.
        licence: Licence of the source, as its data list states it.
        citation: Citation of the source; empty if the data list has none.
        predictions: Name of the file with the predictions; None if no run has predictions.
        rounding_error: Largest change of a score by the rounding of the predictions.
        score_error: Largest difference between a score of a run and the score of its predictions. It is not 0 if the
            exported model computes in another order than the trained one, for example after the adapters are merged.
    """

    dataset: str
    licence: str
    citation: str = ""
    predictions: str | None = None
    rounding_error: float = 0.0
    score_error: float = 0.0


class KeptRun(Record):
    """A run of a study.

    Attributes:
        data: Name of the data set in the study.
        row: Name of the row.
        seed: Seed of the run.
        fold: Fold that is the test set of every site, counted from 0; None without folds.
        job: Options of the run, and digests of its configuration, its data lists and its code; None if the run was
            not finished.
        run: Identity, versions and provenance, without the origins of single settings and the path of the data.
        summary: Status, costs and image counts, without the scores.
    """

    data: str
    row: str
    seed: int
    fold: int | None
    job: JobIdentity | None
    run: RunFile
    summary: Summary


class UnfinishedRun(Record):
    """A run of the study without results.

    Attributes:
        data: Name of the data set in the study.
        row: Name of the row.
        seed: Seed of the run.
        fold: Fold that is the test set of every site; None without folds.
        status: Status of the run, such as ``not run``.
    """

    data: str
    row: str
    seed: int
    fold: int | None
    status: str


class CodeVersion(Record):
    """Version of medfl's code.

    Attributes:
        medfl: Version of the package.
        commit: Git commit, with ``-dirty`` after changes; None outside of a checkout.
    """

    medfl: str
    commit: str | None


class RawResults(FileRecord):
    """Raw results of a study, without its scores and predictions.

    Attributes:
        study: Name of the study.
        study_file: Text of the study file.
        study_sha256: SHA-256 of the study file.
        scale: Scale of the study.
        collected_with: Code that wrote the raw results. The code of a run is in its `KeptRun.run` and `KeptRun.job`.
        digits: Maximum number of significant digits of the predictions; some runs may have fewer.
        decimals: Number of decimals of the probabilities of classes (`round_probabilities`); None if only `digits`
            limits them.
        data: Maps each data set of the study to its licence and files.
        rows: Names of the rows, in the order of the study file.
        baseline: Row that others are compared with; None without one.
        runs: Runs with results, in the order of data set, row, seed and fold.
        unfinished: Runs without results.
        notes: Sentences about the origin of the runs, such as a conversion of their files.
    """

    NAME: ClassVar[str] = "runs.json.gz"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Put it back from version control, or collect the study again."
    """Advice for a user whose file is damaged; part of the error message."""

    study: str
    study_file: str
    study_sha256: str
    scale: str
    collected_with: CodeVersion
    digits: int
    decimals: int | None = None
    data: dict[str, KeptDataSet]
    rows: tuple[str, ...]
    baseline: str | None
    runs: tuple[KeptRun, ...]
    unfinished: tuple[UnfinishedRun, ...] = ()
    notes: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the compressed content of the file, with one line for each run."""
        values = self.to_json() | {"version": self.VERSION}
        runs = values.pop("runs")
        head = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False)
        lines = ",\n".join(json.dumps(run, sort_keys=True, ensure_ascii=False, separators=(",", ":")) for run in runs)
        return gzip_bytes(f'{head[:-2]},\n "runs": [\n{lines}\n ]\n}}\n'.encode())

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Self:
        """Validate the compressed content of a file; see `FileRecord.from_bytes`."""
        try:
            text = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise cls._damaged(path, f"it can't be decompressed ({type(error).__name__})") from None
        return super().from_bytes(text, path)
