"""History of a search: its definition and the results of its trials. A search that was killed continues from it.

A trial is a run of one row of the study (a method with settings) with other parameters.
"""

from __future__ import annotations

from pathlib import Path

from medfl.errors import StoreError
from medfl_studies.records.study_files import SearchDefinition, SearchOutcome, SearchRecord, Trial, TrialResult


class SearchHistory:
    """Results of a search so far, in memory and in the folder of the search.

    Args:
        out: Output folder of the search.
        definition: Everything that determines the trials and their scores.

    Attributes:
        results: Results in the order of the search.

    Raises:
        StoreError: If the folder contains another search, or its file is damaged.
    """

    def __init__(self, out: Path, definition: SearchDefinition) -> None:
        self._path, self._definition = out / SearchRecord.NAME, definition
        self.results: list[TrialResult] = []
        if self._path.is_file():
            self._read()

    def find_result(self, row: str, trial: Trial) -> TrialResult | None:
        """Return the result of a trial, or of an earlier trial with the same parameters, or None.

        Raises:
            StoreError: If the trial with this number had other parameters.
        """
        for result in self.row_results(row):
            if result.trial.number == trial.number:
                if result.trial.parameters != trial.parameters:
                    raise StoreError(
                        "changed_trial",
                        f"'{self._path}': trial {trial.number} of row '{row}' had the parameters "
                        f"{result.trial.parameters}, but the sampler now proposes {trial.parameters}. Choose another "
                        "folder with --out.",
                        path=self._path,
                        row=row,
                        trial=trial.number,
                    )
                return result
        same_parameters = next(
            (result for result in self.row_results(row) if result.trial.parameters == trial.parameters), None
        )
        return None if same_parameters is None else same_parameters.model_copy(update={"trial": trial})

    def add(self, result: TrialResult) -> None:
        """Add a result, unless the history contains it."""
        if result not in self.results:
            self.results.append(result)

    def row_results(self, row: str) -> list[TrialResult]:
        """Return the results of a row, in the order of the search."""
        return [result for result in self.results if result.row == row]

    def write(self, outcome: SearchOutcome | None = None) -> None:
        """Write the history to its file.

        Args:
            outcome: Outcome of the search, or None before the search has ended.
        """
        SearchRecord(definition=self._definition, results=tuple(self.results), outcome=outcome).write(self._path)

    def _read(self) -> None:
        """Read the results from the file; raise StoreError if it belongs to another search."""
        record = SearchRecord.read(self._path)
        if record.definition != self._definition:
            keys = record.definition.changes(self._definition)
            raise StoreError(
                "other_search",
                f"'{self._path}' is the record of another search: {', '.join(keys)} changed. Choose another folder "
                "with --out, or undo the change of the study.",
                path=self._path,
                changed=keys,
            )
        self.results = list(record.results)
