"""The record of a search: what was looked for, and the result of every step. A search that was killed goes on by it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from medfl.errors import StoreError
from medfl.tune.samplers import Step
from medfl.tune.trials import Result
from medfl.types import Meta
from medfl.utils.files import write_json

RECORD = "search.json"
"""Its file, in the folder of a search."""


class Record:
    """What is known of a search.

    Args:
        out: Folder of the search.
        looked_for: What decides which trials there are and what they score, as JSON.

    Raises:
        StoreError: If the folder has another search, or its file is damaged.
    """

    def __init__(self, out: Path, looked_for: Meta) -> None:
        self._path, self._looked_for = out / RECORD, json.loads(json.dumps(looked_for))
        self.results: list[Result] = []
        if self._path.is_file():
            self._read()

    def known(self, row: str, step: Step) -> Result | None:
        """The result of a step, or of an earlier trial with the same parameters and rounds; None if it is to do.

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
        return None if twin is None else Result(row, step, twin.run, twin.status, twin.score, twin.seconds)

    def add(self, results: Iterable[Result]) -> None:
        """Note results down that are not there yet."""
        for result in results:
            if result not in self.results:
                self.results.append(result)
        self.write({})

    def of(self, row: str) -> list[Result]:
        """The results of a row, in the order of the search."""
        return [result for result in self.results if result.row == row]

    def write(self, more: Meta) -> None:
        """Write the file.

        Args:
            more: What else it says, once the search is over.
        """
        trials = [_as_json(result) for result in self.results]
        write_json(self._path, {"version": 1, "looked_for": self._looked_for, "trials": trials} | more)

    def _read(self) -> None:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            before, self.results = content["looked_for"], [_from_json(trial) for trial in content["trials"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                "damaged_file",
                f"'{self._path}' is damaged ({error}). Remove it: finished trials are read again from their folders, "
                "except those that halving continued; for these give another --out.",
                path=self._path,
            ) from None
        now = self._looked_for
        if before != now:
            keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
            raise StoreError(
                "other_search",
                f"'{self._path}' is the record of another search: {', '.join(keys)} changed. Give another --out, or "
                "the study as it was.",
                path=self._path,
                changed=keys,
            )


def _as_json(result: Result) -> Meta:
    step = result.step
    return {
        "row": result.row,
        "trial": step.trial,
        "rounds": step.rounds,
        "parameters": step.parameters,
        "run": result.run,
        "status": result.status,
        "score": result.score,
        "seconds": result.seconds,
    }


def _from_json(trial: Meta) -> Result:
    step = Step(trial["trial"], trial["parameters"], trial["rounds"])
    return Result(trial["row"], step, trial["run"], trial["status"], trial["score"], trial["seconds"])
