"""The server's commits: one atomic file for each step, and the rows of metrics that go with it.

The rows of a step are in its file; they are appended to ``metrics.csv`` when the step is committed, and a restart makes
``metrics.csv`` end with exactly the rows of the last commit. So a kill neither loses nor doubles a row.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfl.contract import Findings, Model, Request, State
from medfl.engine.attendance import Stretches
from medfl.engine.evaluation import Best, Row, csv_lines
from medfl.engine.status import RUNNING
from medfl.engine.store import Record, Store
from medfl.errors import DamagedError, SettingsError, StoreError
from medfl.settings import Settings
from medfl.types import SERVER, Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import write_atomic

logger = logging.getLogger(__name__)


KEPT = "kept"
"""In a run folder: the server's models after rounds that the setting `keep_rounds` names."""


@dataclass
class Commit:
    """The server's last commit.

    Attributes:
        step: Its number; 0 is the setup.
        status: ``running``, ``finished``, ``diverged`` or ``incomplete``.
        round: The round of the step.
        rounds_done: Rounds that are over.
        evaluated: The last round whose scores are committed.
        answers: Site to its last step.
        facts: What the sites told at the start.
        csv_offset: Length of metrics.csv before this step's rows.
        csv_sha256: Of metrics.csv as far as that.
        rows: This step's rows.
        reason: Why the run ended early.
        best: The round with the best validation scores so far.
        keep: Earlier steps that are still needed.
        ordered: The sites that this step had orders for.
        missed: Site to the rounds in which it was asked and nothing usable came: first and last of each stretch.
        away: Sites from which nothing usable came when they were asked last.
    """

    step: int = 0
    status: str = RUNNING
    round: int = 0
    rounds_done: int = 0
    evaluated: int = 0
    answered_steps: dict[str, int] = field(default_factory=dict)
    site_info: dict[str, Meta] = field(default_factory=dict)
    csv_offset: int = 0
    csv_sha256: str = ""
    rows: list[Row] = field(default_factory=list)
    reason: str = ""
    best: Best = field(default_factory=Best)
    keep: list[int] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    missed_rounds: Stretches = field(default_factory=dict)
    unavailable: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """The sites that this step had orders for and of which it has nothing usable."""
        return sorted(set(self.requested) & set(self.unavailable))


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        status: ``finished``, ``diverged`` or ``incomplete``.
        rounds: Rounds that are over.
        round: The round that the models are of.
        step: Its last step.
        best: The round with the best validation scores.
        reason: Why it ended early, or empty.
        published: What every site needs to take its model home.
        models: The server's models.
        findings: What the method has to show of all rounds, beside its scores.
        missed: As of the last `Commit`.
        away: As of the last `Commit`.
    """

    status: str
    rounds: int
    round: int
    step: int
    best: Best
    reason: str
    published: Tensors
    models: dict[str, Model]
    findings: Findings
    missed_rounds: Stretches = field(default_factory=dict)
    unavailable: list[str] = field(default_factory=list)


class Journal:
    """The server's commits in a run folder.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "state" / SERVER)
        self._csv, self._size, self._sha256 = folder / "metrics.csv", 0, hashlib.sha256()
        self._kept = folder / KEPT

    def begin(self, state: State, first: Commit) -> None:
        """The first commit of a run; rows that a run before it left without a commit are cut off."""
        if self._csv.exists():
            self._csv.unlink()
        self.commit(state, first)

    def commit(self, state: State, now: Commit) -> None:
        """Save a step and append its rows.

        Raises:
            StoreError: If either can't be written; the step before stays valid.
        """
        now.csv_offset, now.csv_sha256 = self._size, self._sha256.hexdigest()
        meta = {"commit": vars(now) | {"rows": [list(row) for row in now.rows], "best": vars(now.best)}}
        self.store.save(now.step, state, meta, keep=now.keep)
        self._append(now.rows, now.csv_offset)

    def check_keeping(self, settings: Settings, models: Mapping[str, Model], rounds_done: int) -> None:
        """Refuse to keep models that there will not be, warn of those that are gone, and say what it costs.

        Args:
            settings: The run's; they name at least one round.
            models: The server's.
            rounds_done: Rounds that are over.

        Raises:
            SettingsError: If the server has no model, or a round is beyond the run's last.
        """
        rounds = settings.keep_rounds
        if "global" not in models:
            raise SettingsError(
                "no_server_model",
                "'keep_rounds' keeps the server's model, and with this method the server has none. Leave it out, or "
                "choose another method.",
                setting="keep_rounds",
            )
        if max(rounds) > settings.rounds:
            raise SettingsError(
                "setting_out_of_range",
                f"'keep_rounds' names round {max(rounds)} and the run has {settings.rounds}: name rounds of the run.",
                setting="keep_rounds",
                found=max(rounds),
                maximum=settings.rounds,
            )
        if gone := sorted({round_ for round_ in rounds if round_ <= rounds_done} - set(self.kept_rounds())):
            logger.warning("Over already, and their models were not kept: rounds %s.", ", ".join(map(str, gone)))
        size = sum(tensor.nbytes for tensor in models["global"].tensors.values()) / 1e6
        logger.info("The models of %d rounds are kept, %.1f MB each.", len(set(rounds)), size)

    def keep_model(self, round_: int, model: Model) -> None:
        """Keep the server's model after a round. Before that round's commit: after a kill it is made again, the same.

        Raises:
            StoreError: If it can't be written.
        """
        write_atomic(self._model(round_), wire.encode(model.tensors, {"network": model.network, "meta": model.meta}))

    def kept_rounds(self) -> list[int]:
        """Rounds whose model is kept, ascending."""
        return sorted(int(path.stem[6:]) for path in self._kept.glob("round-*.safetensors"))

    def kept_model(self, round_: int) -> Model:
        """The server's model after a round that is kept.

        Raises:
            StoreError: If there is none, or it is damaged.
        """
        try:
            tensors, meta = wire.decode(self._model(round_).read_bytes())
        except FileNotFoundError:
            rounds = ", ".join(map(str, self.kept_rounds())) or "none"
            raise StoreError(
                "round_not_kept",
                f"The model after round {round_} was not kept in '{self._kept}'; kept are: {rounds}. Name one of "
                "these, or run again with the round in the setting 'keep_rounds'.",
                path=self._kept,
                round=round_,
                known=self.kept_rounds(),
            ) from None
        except (OSError, DamagedError) as error:
            raise StoreError(
                "unreadable_file",
                f"The model in '{self._model(round_)}' can't be read: {error}. Run again.",
                path=self._model(round_),
                round=round_,
            ) from None
        return Model(meta["network"], tensors, meta["meta"])

    def _model(self, round_: int) -> Path:
        return self._kept / f"round-{round_}.safetensors"

    def latest(self) -> tuple[State, Commit] | None:
        """The newest valid commit, or None in a new folder.

        Raises:
            StoreError: If there are commits and none can be read.
        """
        record = self.store.latest()
        if record is not None:
            return record.state(), _committed(record)
        if self.store.steps():
            raise StoreError(
                "unreadable_steps",
                f"No step of the server in '{self.store.folder}' can be read. Start the run in a new folder.",
                path=self.store.folder,
            )
        return None

    def at(self, step: int) -> tuple[State, Commit]:
        """A step that is kept."""
        record = self.store.load(step)
        return record.state(), _committed(record)

    def can_go_back(self, last: Commit) -> bool:
        """Whether the step before the last commit is kept."""
        return last.step - 1 in self.store.steps()

    def go_back(self, last: Commit) -> tuple[State, Commit]:
        """Forget the last commit; returns the one before it."""
        before = self.at(last.step - 1)
        self.store.drop(last.step)
        return before

    def reconcile(self, last: Commit) -> None:
        """Make metrics.csv end with exactly the rows of the last commit.

        Raises:
            StoreError: If rows before them were removed or changed, or it can't be written.
        """
        rows = self._csv.read_bytes()[: last.csv_offset] if self._csv.exists() else b""
        if len(rows) < last.csv_offset:
            raise StoreError(
                "missing_rows",
                f"'{self._csv}' has {len(rows)} bytes where the saved steps account for {last.csv_offset}: rows were "
                "removed from it. Put it back, or start the run in a new folder.",
                path=self._csv,
                expected=last.csv_offset,
                found=len(rows),
            )
        self._size, self._sha256 = len(rows), hashlib.sha256(rows)
        if self._sha256.hexdigest() != last.csv_sha256:
            raise StoreError(
                "damaged_file",
                f"'{self._csv}' is damaged: its first {len(rows)} bytes are not those of the saved steps. It was "
                "damaged, or changed by hand. Put it back, or start the run in a new folder.",
                path=self._csv,
                size=len(rows),
            )
        self._append(last.rows, last.csv_offset)

    def _append(self, rows: list[Row], at: int) -> None:
        """Write rows to metrics.csv at an offset and cut off whatever stood behind it; flushed to disk."""
        lines = csv_lines(rows, header=at == 0).encode()
        try:
            with open(self._csv, "ab") as file:
                file.truncate(at)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"Could not write '{self._csv}': {error.strerror}. The step is saved: mend that and give the same "
                "command again; its rows are added then.",
                path=self._csv,
                reason=error.strerror,
            ) from error
        self._size += len(lines)
        self._sha256.update(lines)


def _committed(record: Record) -> Commit:
    values: dict[str, Any] = json.loads(json.dumps(record.meta["commit"]))
    return Commit(**(values | {"rows": [Row(*row) for row in values["rows"]], "best": Best(**values["best"])}))


def request_digest(request: Request, tensors_digest: str) -> str:
    """Identifies an order: the same order sent again has the same digest."""
    text = json.dumps([request.op, request.meta, tensors_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
