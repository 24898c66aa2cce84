"""Journal of the server: it commits each step in one atomic file, together with the step's rows of metrics.

A commit is the server's state after a step with the metadata of the step. A round has one or more steps.

The file of a step contains its rows. A commit also appends them to ``metrics.csv``. A restart truncates
``metrics.csv`` after the rows of the last commit, so a killed process neither loses nor duplicates a row.
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
from medfl.engine.evaluation import BestEvaluation, MetricRow, rows_to_csv
from medfl.engine.status import RUNNING
from medfl.engine.store import Store, StoredStep
from medfl.errors import DamagedError, SettingsError, StoreError
from medfl.settings import Settings
from medfl.types import SERVER, Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import write_atomic

logger = logging.getLogger(__name__)


KEPT_MODELS_FOLDER = "kept"
"""Name of the folder in a run folder with the server's models after the rounds in the setting ``keep_rounds``."""


@dataclass
class Commit:
    """Metadata that the server saves with its state after a step.

    Attributes:
        step: Number of the step; 0 is the setup of the method.
        status: Status of the run: ``running``, ``finished``, ``diverged`` or ``incomplete``.
        round: Round that the step belongs to.
        rounds_done: Number of rounds that are over.
        evaluated: Number of the last round whose scores are committed.
        answered_steps: Maps each site to the number of the last step to which it replied.
        site_info: Maps each site to the information that it disclosed about itself at the start.
        csv_offset: Size of ``metrics.csv`` in bytes before the rows of this step.
        csv_sha256: SHA-256 of the first `csv_offset` bytes of ``metrics.csv``.
        rows: Rows of metrics of this step.
        reason: Reason for an early end of the run; empty otherwise.
        best: Round with the best validation score so far.
        keep: Numbers of earlier steps whose states must not be deleted.
        requested: Names of the sites that received a request in this step.
        missed_rounds: Maps each site to the rounds in which it received a request and sent no usable reply, as
            stretches [first round, last round].
        unavailable: Names of the sites that sent no usable reply to their last request.
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
    rows: list[MetricRow] = field(default_factory=list)
    reason: str = ""
    best: BestEvaluation = field(default_factory=BestEvaluation)
    keep: list[int] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    missed_rounds: Stretches = field(default_factory=dict)
    unavailable: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Sites that received a request in this step and sent no usable reply, sorted."""
        return sorted(set(self.requested) & set(self.unavailable))


@dataclass
class RunOutcome:
    """Result of a run at the server: its status and the models that it ended with.

    Attributes:
        status: ``finished``, ``diverged`` or ``incomplete``.
        rounds: Number of rounds that are over.
        round: Round of the exported models: the best round with the setting ``best_round``, otherwise the last round.
        step: Number of the last step of the round of the exported models.
        best: Round with the best validation score.
        reason: Reason for an early end of the run; empty otherwise.
        published: Tensors that every site needs from the server to build its model.
        models: Maps each kind of model of the server (such as ``global``) to the model.
        findings: Results of the method for its section of the report, besides models and scores.
        missed_rounds: Maps each site to the rounds that it missed, as stretches [first round, last round].
        unavailable: Names of the sites that sent no usable reply to their last request.
    """

    status: str
    rounds: int
    round: int
    step: int
    best: BestEvaluation
    reason: str
    published: Tensors
    models: dict[str, Model]
    findings: Findings
    missed_rounds: Stretches = field(default_factory=dict)
    unavailable: list[str] = field(default_factory=list)


class Journal:
    """Commits of the server in a run folder, with ``metrics.csv`` and the kept models.

    Args:
        folder: Path of the run folder.

    Attributes:
        store: Step files of the server, which contain the commits.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "state" / SERVER)
        self._csv, self._size, self._sha256 = folder / "metrics.csv", 0, hashlib.sha256()
        self._kept_models = folder / KEPT_MODELS_FOLDER

    def begin(self, state: State, first: Commit) -> None:
        """Save the first commit of a run. Delete ``metrics.csv`` if an earlier run left it without a commit.

        Args:
            state: State of the server after the setup of the method.
            first: The commit of step 0.

        Raises:
            StoreError: If a file can't be written.
        """
        if self._csv.exists():
            self._csv.unlink()
        self.commit(state, first)

    def commit(self, state: State, now: Commit) -> None:
        """Save a step and append its rows to ``metrics.csv``. Set the commit's `csv_offset` and `csv_sha256` in place.

        Args:
            state: State of the server after the step.
            now: The commit.

        Raises:
            StoreError: If a file can't be written. The previous step stays valid.
        """
        now.csv_offset, now.csv_sha256 = self._size, self._sha256.hexdigest()
        meta = {"commit": vars(now) | {"rows": [list(row) for row in now.rows], "best": vars(now.best)}}
        self.store.save(now.step, state, meta, keep=now.keep)
        self._append(now.rows, now.csv_offset)

    def check_keep_rounds(self, settings: Settings, models: Mapping[str, Model], rounds_done: int) -> None:
        """Check the setting ``keep_rounds`` (rounds whose models are kept), and log the size of the kept models.

        Log a warning for each round that is over and whose model was not kept.

        Args:
            settings: Settings of the run; ``keep_rounds`` names at least one round.
            models: Maps each kind of model of the server to the model.
            rounds_done: Number of rounds that are over.

        Raises:
            SettingsError: If the server has no model, or a round is after the last round of the run.
        """
        rounds = settings.keep_rounds
        if "global" not in models:
            raise SettingsError(
                "no_server_model",
                "'keep_rounds' keeps the server's model, but the server has no model with this method. Leave "
                "'keep_rounds' out, or choose another method.",
                setting="keep_rounds",
            )
        if max(rounds) > settings.rounds:
            raise SettingsError(
                "setting_out_of_range",
                f"'keep_rounds' names round {max(rounds)}, but the run has {settings.rounds} rounds. Name rounds of "
                "the run.",
                setting="keep_rounds",
                found=max(rounds),
                maximum=settings.rounds,
            )
        if lost := sorted({round_ for round_ in rounds if round_ <= rounds_done} - set(self.kept_rounds())):
            logger.warning(
                "These rounds are over and their models were not kept: rounds %s.", ", ".join(map(str, lost))
            )
        size = sum(tensor.nbytes for tensor in models["global"].tensors.values()) / 1e6
        logger.info("Keeping the models of %d rounds, %.1f MB each.", len(set(rounds)), size)

    def keep_model(self, round_: int, model: Model) -> None:
        """Write the server's model after a round to the folder of kept models.

        Call it before the commit of the round. If the process is killed in between, the continued run computes the
        same model again and overwrites the file.

        Raises:
            StoreError: If the file can't be written.
        """
        content = wire.encode(model.tensors, {"network": model.network, "meta": model.meta})
        write_atomic(self._kept_model_path(round_), content)

    def kept_rounds(self) -> list[int]:
        """Return the rounds whose model is kept, ascending."""
        return sorted(int(path.stem[6:]) for path in self._kept_models.glob("round-*.safetensors"))

    def kept_model(self, round_: int) -> Model:
        """Read the server's model after a kept round.

        Raises:
            StoreError: If the model was not kept, or its file is damaged.
        """
        try:
            tensors, meta = wire.decode(self._kept_model_path(round_).read_bytes())
        except FileNotFoundError:
            rounds = ", ".join(map(str, self.kept_rounds())) or "none"
            raise StoreError(
                "round_not_kept",
                f"The model after round {round_} was not kept in '{self._kept_models}'. Kept rounds: {rounds}. Name "
                "one of these, or run again with the round in the setting 'keep_rounds'.",
                path=self._kept_models,
                round=round_,
                known=self.kept_rounds(),
            ) from None
        except (OSError, DamagedError) as error:
            raise StoreError(
                "unreadable_file",
                f"The model in '{self._kept_model_path(round_)}' can't be read: {error}. Run again.",
                path=self._kept_model_path(round_),
                round=round_,
            ) from None
        return Model(meta["network"], tensors, meta["meta"])

    def _kept_model_path(self, round_: int) -> Path:
        return self._kept_models / f"round-{round_}.safetensors"

    def latest(self) -> tuple[State, Commit] | None:
        """Read the newest valid commit, with the server's state; return None in a new folder.

        Raises:
            StoreError: If the folder has commits but no commit can be read.
        """
        record = self.store.latest()
        if record is not None:
            return record.state(), _read_commit(record)
        if self.store.steps():
            raise StoreError(
                "unreadable_steps",
                f"No saved step of the server in '{self.store.folder}' can be read. Start the run in a new folder.",
                path=self.store.folder,
            )
        return None

    def at(self, step: int) -> tuple[State, Commit]:
        """Read the server's state and the commit of a given step, which must still be stored.

        Raises:
            DamagedError: If the file is damaged.
            FileNotFoundError: If the step is not stored.
        """
        record = self.store.load(step)
        return record.state(), _read_commit(record)

    def can_go_back(self, last: Commit) -> bool:
        """Return whether `go_back` is possible: whether the step before the last commit is still stored.

        Args:
            last: The last commit.
        """
        return last.step - 1 in self.store.steps()

    def go_back(self, last: Commit) -> tuple[State, Commit]:
        """Delete the last commit, and return the server's state and commit of the step before it.

        Args:
            last: The last commit.
        """
        before = self.at(last.step - 1)
        self.store.delete_step(last.step)
        return before

    def reconcile(self, last: Commit) -> None:
        """Rewrite the end of ``metrics.csv`` so that it ends with the rows of the last commit.

        Raises:
            StoreError: If earlier rows were removed or changed, or the file can't be written.
        """
        rows = self._csv.read_bytes()[: last.csv_offset] if self._csv.exists() else b""
        if len(rows) < last.csv_offset:
            raise StoreError(
                "missing_rows",
                f"'{self._csv}' has {len(rows)} bytes, but the saved steps wrote {last.csv_offset}: rows were removed "
                "from it. Restore the file from a copy, or start the run in a new folder.",
                path=self._csv,
                expected=last.csv_offset,
                found=len(rows),
            )
        self._size, self._sha256 = len(rows), hashlib.sha256(rows)
        if self._sha256.hexdigest() != last.csv_sha256:
            raise StoreError(
                "damaged_file",
                f"'{self._csv}' is damaged: its first {len(rows)} bytes are not those of the saved steps. It was "
                "damaged, or changed by hand. Restore the file from a copy, or start the run in a new folder.",
                path=self._csv,
                size=len(rows),
            )
        self._append(last.rows, last.csv_offset)

    def _append(self, rows: list[MetricRow], at: int) -> None:
        """Truncate ``metrics.csv`` at an offset, write rows there, and flush the file to the disk."""
        lines = rows_to_csv(rows, header=at == 0).encode()
        try:
            with open(self._csv, "ab") as file:
                file.truncate(at)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"Could not write '{self._csv}': {error.strerror}. The step is saved. Fix the cause and run the same "
                "command again; it adds the rows of the step.",
                path=self._csv,
                reason=error.strerror,
            ) from error
        self._size += len(lines)
        self._sha256.update(lines)


def _read_commit(record: StoredStep) -> Commit:
    values: dict[str, Any] = json.loads(json.dumps(record.meta["commit"]))
    return Commit(
        **(values | {"rows": [MetricRow(*row) for row in values["rows"]], "best": BestEvaluation(**values["best"])})
    )


def request_digest(request: Request, tensors_digest: str) -> str:
    """Return a SHA-256 that identifies a request. A request that is sent again has the same digest.

    Args:
        request: The request.
        tensors_digest: SHA-256 of the request's tensors (`medfl.utils.wire.digest`).
    """
    text = json.dumps([request.op, request.meta, tensors_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
