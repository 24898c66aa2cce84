"""History of a search: its definition and the result of every trial. A search that was killed continues from it."""

from __future__ import annotations

from pathlib import Path

from medfl.errors import StoreError
from medfl_studies.records.study_files import Result, SearchDefinition, SearchOutcome, SearchRecord, Trial


class History:
    """The results of a search so far, in memory and in the folder of the search.

    Args:
        out: Folder of the search.
        definition: Everything that decides the trials and their scores.

    Raises:
        StoreError: If the folder holds another search, or its file is damaged.
    """

    def __init__(self, out: Path, definition: SearchDefinition) -> None:
        self._path, self._definition = out / SearchRecord.NAME, definition
        self.results: list[Result] = []
        if self._path.is_file():
            self._read()

    def known(self, row: str, trial: Trial) -> Result | None:
        """Return the result of a trial, or of an earlier one with the same parameters, or None.

        Raises:
            StoreError: If the trial of that number had other parameters.
        """
        for result in self.of(row):
            if result.trial.number == trial.number:
                if result.trial.parameters != trial.parameters:
                    raise StoreError(
                        "changed_trial",
                        f"'{self._path}': trial {trial.number} of row '{row}' had {result.trial.parameters}, and "
                        f"the sampler now names {trial.parameters}. Give another --out.",
                        path=self._path,
                        row=row,
                        trial=trial.number,
                    )
                return result
        twin = next((result for result in self.of(row) if result.trial.parameters == trial.parameters), None)
        return None if twin is None else twin.model_copy(update={"trial": trial})

    def add(self, result: Result) -> None:
        """Add a result unless it is there."""
        if result not in self.results:
            self.results.append(result)

    def of(self, row: str) -> list[Result]:
        """Return the results of a row, in the order of the search."""
        return [result for result in self.results if result.row == row]

    def write(self, outcome: SearchOutcome | None = None) -> None:
        """Write the file.

        Args:
            outcome: The outcome, once the search is over.
        """
        SearchRecord(definition=self._definition, results=tuple(self.results), outcome=outcome).write(self._path)

    def _read(self) -> None:
        record = SearchRecord.read(self._path)
        if record.definition != self._definition:
            keys = record.definition.changes(self._definition)
            raise StoreError(
                "other_search",
                f"'{self._path}' is the record of another search: {', '.join(keys)} changed. Give another --out, or "
                "the study as it was.",
                path=self._path,
                changed=keys,
            )
        self.results = list(record.results)
