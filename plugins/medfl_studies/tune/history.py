"""History of a search: its definition and the result of every step. A search that was killed continues from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medfl.errors import StoreError
from medfl_studies.records.study_files import Result, SearchDefinition, SearchOutcome, SearchRecord, Step


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

    def known(self, row: str, step: Step) -> Result | None:
        """Return the result of a step, or of an earlier trial with the same parameters and rounds, or None.

        Raises:
            StoreError: If the trial of that number had other parameters.
        """
        for result in self.results:
            if (result.row, result.step.trial, result.step.rounds) == (row, step.trial, step.rounds):
                if result.step.parameters != step.parameters:
                    raise StoreError(
                        "changed_trial",
                        f"'{self._path}': trial {step.trial} of row '{row}' had {result.step.parameters}, and the "
                        f"sampler now names {step.parameters}. Give another --out.",
                        path=self._path,
                        row=row,
                        trial=step.trial,
                    )
                return result
        same = [result for result in self.of(row) if result.step.rounds == step.rounds]
        twin = next((result for result in same if result.step.parameters == step.parameters), None)
        return None if twin is None else twin.model_copy(update={"step": step})

    def add(self, results: Iterable[Result]) -> None:
        """Add results that are not there yet, and write the file."""
        for result in results:
            if result not in self.results:
                self.results.append(result)
        self.write()

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
