"""Life cycle of a run in its folder, the same for a simulation, for a server and for a site on its own machine.

One process locks the folder. The run claims the folder with ``run.json``. The run is over when the folder contains
``summary.json`` (a site's own folder never does). If the process ends before that, the next process continues the run.
`run_federation` runs a federation. `RunParticipants` is the part that depends on the place of the sites. `RunViewer`
reads a run folder at any time and never writes to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from medfl.contract import Model, PeerMessage, Server, Site, State
from medfl.data.pooled import EmptyDataset
from medfl.engine.backend import Backend, EventListener
from medfl.engine.evaluation import MetricRow
from medfl.engine.journal import Commit, Journal, RunOutcome
from medfl.engine.plan import RunPlan, ServerData
from medfl.engine.runs.findings import write_findings
from medfl.engine.runs.folder import claim, save_best_round, versions
from medfl.engine.runs.progress import committed_step, record_progress
from medfl.engine.runs.start_source import start_origin
from medfl.engine.runs.summary import summarise
from medfl.engine.server import ServerLoop
from medfl.engine.site import DEFAULT_SITE_OPTIONS, SiteOptions, SiteRunner, Splits
from medfl.engine.status import FINISHED
from medfl.engine.store import LOCK_SECONDS, Store, lock_for_writing
from medfl.errors import RefusedError, StoreError
from medfl.records.progress import MAX_ROUND, RunEnd, RunStart
from medfl.records.run_file import Provenance, RunFile
from medfl.records.summary import Summary
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.types import SERVER, Dataset, PathLike, Tensors

REMOTE_LOCK_SECONDS = 90.0
"""Seconds to wait for the lock of the run folder in a run between machines.

The process of an earlier attempt may need time to end.
"""


@dataclass(frozen=True)
class RunWriter:
    """Writer of a run folder. Call `held`, `claim`, `begin` and `finish` in this order.

    Attributes:
        plan: Description of the run.
        folder: Path of the run folder.
        execution: Device, workers and threads of this process.
    """

    plan: RunPlan
    folder: Path
    execution: Execution = field(default_factory=Execution)

    def held(self, patience: float = LOCK_SECONDS) -> AbstractContextManager[None]:
        """Lock the folder for writing during a block.

        Args:
            patience: Seconds to wait for another process.

        Raises:
            StoreError: If another process holds the lock, or the folder can't be written.
        """
        return lock_for_writing(self.folder, patience)

    def claim(self, provenance: Provenance, backend: str = "local") -> None:
        """Write ``run.json`` into a new folder, or check that the folder holds this run.

        Args:
            provenance: Origin of the settings, the data and the code.
            backend: Name of the backend that runs the sites: ``local`` (this machine) or ``flare`` (other machines).

        Raises:
            StoreError: If the folder holds another run, a run whose state was deleted (``medfl clean``), or a run with
                more rounds.
        """
        execution = self.execution.model_copy(update={"device": self.plan.task.device})
        if (start := self.plan.task.start) is not None:
            provenance = provenance.model_copy(update={"start": start_origin(start)})
        run = RunFile(
            identity=self.plan.identity,
            rounds=self.plan.settings.rounds,
            execution=execution,
            backend=backend,
            versions=versions(),
            provenance=provenance,
        )
        claim(self.folder, run)

    def begin(self) -> None:
        """Delete the summary of an earlier end of the run, because a continued run is not finished.

        Raises:
            StoreError: If the summary can't be deleted.
        """
        path = self.folder / Summary.NAME
        try:
            if path.exists():
                path.unlink()
        except OSError as error:
            raise StoreError(
                "unremovable_file",
                f"Could not delete '{path}' of the run's earlier end: {error.strerror}. Fix the cause and run the same "
                "command again.",
                path=path,
                reason=error.strerror,
            ) from error

    def runner(
        self,
        name: str,
        data: Splits,
        post: Callable[[int, PeerMessage], None],
        options: SiteOptions = DEFAULT_SITE_OPTIONS,
    ) -> SiteRunner:
        """Return the runner that executes a site's requests and stores the site's state in the run folder.

        Args:
            name: Name of the site.
            data: Splits of the site.
            post: Function that delivers a peer message (a message to another site), called with (step, message). It
                must return only after the message is stored at the receiver.
            options: Options that the administrator of the site decides.
        """
        folder = self.folder / "state" / name
        return SiteRunner(name=name, data=data, folder=folder, plan=self.plan, post=post, options=options)

    def viewer(self, name: str, test: Dataset, val: Dataset | None = None) -> SiteRunner:
        """Return the runner of a participant that only has test and validation data, and never trains or sends.

        Args:
            name: Name of the participant.
            test: Test images.
            val: Validation images, or None.
        """
        return self.runner(name, Splits(EmptyDataset(), val or EmptyDataset(), test), _refuse_to_post)

    def record_progress(self, missing: Mapping[str, str] | None = None) -> AbstractContextManager[EventListener]:
        """Record the progress events of the run in ``progress.jsonl`` during a block.

        The block receives a callback that appends an event.

        Args:
            missing: Maps each site that does not take part so far to the reason.
        """
        return record_progress(self.folder, self.start_event(self.plan.sites, missing or {}))

    def start_event(self, sites: Iterable[str], unavailable: Mapping[str, str]) -> RunStart:
        """Return the progress event of the run's start.

        Args:
            sites: Names of the sites.
            unavailable: Maps each site that does not take part so far to the reason.
        """
        return RunStart(
            method=self.plan.method.name,
            seed=self.plan.settings.seed,
            rounds=min(self.plan.settings.rounds, MAX_ROUND),
            sites=tuple(sorted(sites)),
            metric=self.plan.task.metrics[0],
            privacy=self.plan.settings.privacy,
            unavailable=dict(unavailable),
        )

    def commit_callback(self, note: EventListener) -> Callable[[Commit], None]:
        """Return a callback that records a progress event for each commit (saved step) of the server.

        Args:
            note: Callback that appends a progress event to the file.
        """
        return lambda commit: note(committed_step(commit, self.plan.task.metrics[0]))

    def summarise(self, outcome: RunOutcome, missing: Collection[str] = ()) -> Summary:
        """Return the summary of the run: status, scores, costs, attendance and best round.

        Args:
            outcome: Result of the run at the server.
            missing: Further unavailable sites, besides those in `outcome`.
        """
        csv, metric = self.folder / "metrics.csv", self.plan.task.metrics[0]
        return summarise(csv, self.plan.method.name, outcome, self.plan.settings, metric, self.plan.sites, missing)

    def finish(self, outcome: RunOutcome, summary: Summary) -> None:
        """Write the findings, the best round and the summary. ``summary.json``, which marks the end, is written last.

        Args:
            outcome: Result of the run at the server.
            summary: Result of `summarise`, which the caller may have extended.

        Raises:
            StoreError: If a file can't be written.
        """
        write_findings(self.folder, outcome.findings)
        save_best_round(self.folder, summary.best_round)
        summary.write(self.folder / Summary.NAME)

    def free_space(self, outcome: RunOutcome) -> None:
        """Delete the stored steps that are not needed to continue a finished run with more rounds.

        A run that ended early keeps all state, because the same command repeats its last round.

        Args:
            outcome: Result of the run at the server.
        """
        if outcome.status != FINISHED:
            return
        keep = [outcome.best.step] if self.plan.settings.best_round and outcome.best.round else []
        for path in sorted((self.folder / "state").iterdir()):
            if path.is_dir():
                Store(path).free_space(keep)

    def record_end(self, note: EventListener, summary: Summary) -> None:
        """Record the progress event of the run's end.

        Args:
            note: Callback that appends a progress event.
            summary: Summary that `finish` wrote.
        """
        note(
            RunEnd(
                status=summary.status,
                reason=summary.reason,
                rounds=summary.rounds,
                unavailable=summary.attendance.unavailable,
            )
        )


class RunParticipants(ABC):
    """Interface to the server's data and to the sites: the part of a run that depends on where the sites are.

    Subclasses exist for sites on this machine and for sites on other machines.

    `run_federation` calls the methods in the order of their definition.

    Attributes:
        backend: Name of the backend, for ``run.json``.
        patience: Seconds to wait for the lock of the run folder.
    """

    backend: ClassVar[str] = "local"
    patience: ClassVar[float] = LOCK_SECONDS

    @abstractmethod
    def prepare(self) -> Provenance:
        """Prepare the sites before the run claims its folder, and return the provenance for ``run.json``.

        Raises:
            MedflError: If a site refuses the run. The folder is then not claimed.
        """

    @abstractmethod
    def start(self) -> None:
        """Announce the start of the run, after it has claimed its folder."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Maps each site that does not take part so far to the reason."""
        return {}

    @abstractmethod
    def connect(self, note: EventListener) -> Backend:
        """Connect the server to its sites, and return the backend.

        Args:
            note: Callback that appends a progress event.

        Raises:
            MedflError: If the sites do not fit the run.
        """

    @property
    @abstractmethod
    def server_data(self) -> ServerData:
        """Data of the server itself: public data and test sets. They are available after `connect`."""

    @abstractmethod
    def end_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Report a committed round, for example to a progress bar.

        Args:
            round_: Number of the round.
            rows: Rows of metrics of the round, and scores of the previous round.
        """

    def disconnect(self) -> None:
        """Release the resources of `connect`. It is also called if the run fails."""
        return

    @abstractmethod
    def export(self, outcome: RunOutcome) -> Summary:
        """Export the models, and return the summary of the run.

        Args:
            outcome: Result of the run at the server.
        """

    @abstractmethod
    def end(self, outcome: RunOutcome) -> None:
        """Announce the end of the run, after its summary was written.

        Args:
            outcome: Result of the run at the server.
        """


def run_federation(writer: RunWriter, participants: RunParticipants) -> RunOutcome:
    """Run a federation to its end, or continue it from the state in its folder. All backends use this function.

    Args:
        writer: Writer of the run folder.
        participants: Data of the server and its connection to the sites.

    Raises:
        StoreError: If the folder belongs to another run, is being written, or can't be written.
        MedflError: If a site refuses the run, or the method fails.
    """
    with writer.held(participants.patience):
        writer.claim(participants.prepare(), participants.backend)
        participants.start()
        writer.begin()
        with writer.record_progress(participants.missing) as note:
            backend = participants.connect(note)
            try:
                outcome = ServerLoop(
                    plan=writer.plan,
                    backend=backend,
                    folder=writer.folder,
                    data=participants.server_data,
                    on_round=participants.end_round,
                    on_commit=writer.commit_callback(note),
                ).run()
            finally:
                participants.disconnect()
            summary = participants.export(outcome)
            writer.finish(outcome, summary)
            writer.record_end(note, summary)
            participants.end(outcome)
    return outcome


def _refuse_to_post(step: int, peer_message: PeerMessage) -> None:
    raise RefusedError("read_only_run", "a participant that only has test data can't send peer messages", step=step)


class RunViewer:
    """Reader of a run folder, also while the run is being written. It never changes the folder.

    Args:
        folder: Path of the run folder.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder, self._journal = Path(folder), Journal(Path(folder))

    @property
    def has_state(self) -> bool:
        """True if the folder has the state of the server, which `medfl clean` deletes."""
        return bool(self._journal.store.steps())

    def latest(self) -> tuple[State, Commit] | None:
        """Read the newest valid commit and the server's state after it; return None in a folder without commits.

        Raises:
            StoreError: If the folder has commits but no commit can be read.
        """
        return self._journal.latest()

    def at(self, step: int) -> tuple[State, Commit]:
        """Read the server's state and the commit of a step that is still stored.

        Raises:
            DamagedError: If the file is damaged.
            FileNotFoundError: If the step is not stored.
        """
        return self._journal.at(step)

    def kept_rounds(self) -> list[int]:
        """Return the rounds whose model of the server is kept, ascending."""
        return self._journal.kept_rounds()

    def kept_model(self, round_: int) -> Model:
        """Read the server's model after a kept round.

        Raises:
            StoreError: If the model was not kept, or its file is damaged.
        """
        return self._journal.kept_model(round_)

    def server(self, state: State, last: Commit, task: Task, settings: Settings) -> Server:
        """Return the participant object of the server after a commit, as a method sees it.

        Args:
            state: State of the server.
            last: The commit.
            task: The learning problem.
            settings: Settings of the run.
        """
        return Server(
            SERVER,
            last.rounds_done + 1,
            state,
            task,
            settings,
            _ReadOnlyBlobs(self._journal.store),
            sites=sorted(last.site_info),
            site_info=last.site_info,
            rounds_done=last.rounds_done,
        )

    def site(self, name: str, last: Commit, task: Task, settings: Settings) -> Site:
        """Return the participant object of a site after a commit of the server, without its data and its secret.

        Args:
            name: Name of the site.
            last: The commit.
            task: The learning problem as the site has it.
            settings: Settings of the run.
        """
        store = Store(self.folder / "state" / name)
        return Site(
            name, last.rounds_done, store.read_state(before=last.step + 1), task, settings, _ReadOnlyBlobs(store)
        )


class _ReadOnlyBlobs:
    """Blobs of a participant that can be read and not written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, digest: str) -> Tensors:
        return self._store.get(digest)

    def put(self, tensors: Tensors) -> str:
        raise StoreError("read_only_run", "a run folder that is open for reading can't be written")
