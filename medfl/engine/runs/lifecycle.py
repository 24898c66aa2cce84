"""The life of a run in its folder, the same on one machine, at a server and at a site of its own.

One process holds the folder. The run claims it with ``run.json``, and is over when it contains ``summary.json`` (a
site's own folder has none). If the process ends before that, the next one continues. `carry_out` runs a federation, and
`Participants` is the part that depends on where the sites are. `RunViewer` reads a folder at any time and can't write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from medfl.contract import Model, PeerMessage, Server, Site, State
from medfl.data.pooled import Empty
from medfl.engine.backend import Backend, EventListener
from medfl.engine.evaluation import Row
from medfl.engine.journal import Commit, Journal, Outcome
from medfl.engine.plan import RunPlan, ServerData
from medfl.engine.runs.findings import write_findings
from medfl.engine.runs.folder import claim, save_best_round, versions
from medfl.engine.runs.progress import committed_step, noted
from medfl.engine.runs.summary import summarise
from medfl.engine.server import ServerLoop
from medfl.engine.site import SiteOptions, SiteRunner, Splits
from medfl.engine.status import FINISHED
from medfl.engine.store import PATIENCE, Store, only_writer
from medfl.errors import RefusedError, StoreError
from medfl.records.progress import MAX_ROUND, RunEnd, RunStart
from medfl.records.run_file import Provenance, RunFile
from medfl.records.summary import Summary
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.types import SERVER, Dataset, PathLike, Tensors
from medfl.utils.locks import being_written

JOB_PATIENCE = 90.0
"""Seconds to wait between machines: the process of an attempt before may not have noticed yet that it is over."""


@dataclass(frozen=True)
class RunWriter:
    """A run and its folder, for the process that writes it: `held`, `claim`, `begin`, `finish`, in this order.

    Attributes:
        plan: The run.
        folder: The run folder.
        execution: Where and how this process computes.
    """

    plan: RunPlan
    folder: Path
    execution: Execution = field(default_factory=Execution)

    def held(self, patience: float = PATIENCE) -> AbstractContextManager[None]:
        """Hold the folder for writing.

        Args:
            patience: Seconds to wait for another process.

        Raises:
            StoreError: If another process holds it, or the folder can't be written.
        """
        return only_writer(self.folder, patience)

    def claim(self, provenance: Provenance, backend: str = "local") -> None:
        """Write ``run.json`` into a new folder, or check that the folder holds this run.

        Args:
            provenance: Where the settings, the data and the code come from.
            backend: ``local`` or ``flare``.

        Raises:
            StoreError: If the folder holds another run, a cleaned one, or one of more rounds.
        """
        execution = self.execution.model_copy(update={"device": self.plan.task.device})
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
        """Forget the end that the run had before: a run that goes on is not finished.

        Raises:
            StoreError: If its summary can't be removed.
        """
        path = self.folder / Summary.NAME
        try:
            if path.exists():
                path.unlink()
        except OSError as error:
            raise StoreError(
                "unremovable_file",
                f"Could not remove '{path}' of the run's end before: {error.strerror}. Mend that and give the "
                "same command again.",
                path=path,
                reason=error.strerror,
            ) from error

    def runner(
        self, name: str, data: Splits, post: Callable[[int, PeerMessage], None], options: SiteOptions | None = None
    ) -> SiteRunner:
        """A site of the run, with its state in the folder.

        Args:
            name: The site.
            data: Its splits.
            post: Delivers a parcel durably.
            options: What the site's administrator decides.
        """
        folder = self.folder / "state" / name
        return SiteRunner(name=name, data=data, folder=folder, plan=self.plan, post=post, options=options)

    def viewer(self, name: str, test: Dataset, val: Dataset | None = None) -> SiteRunner:
        """A holder of test data that trains nothing and has nothing to send.

        Args:
            name: Whose data they are.
            test: The test images.
            val: Validation images; None has none.
        """
        return self.runner(name, Splits(Empty(), val or Empty(), test), _refuse_to_post)

    def noted(self, missing: Mapping[str, str] | None = None) -> AbstractContextManager[EventListener]:
        """Record the run's progress during a block (`medfl.engine.runs.progress.noted`).

        Args:
            missing: Maps each site that does not take part so far to the reason.
        """
        return noted(self.folder, self.start_event(self.plan.sites, missing or {}))

    def start_event(self, sites: Iterable[str], unavailable: Mapping[str, str]) -> RunStart:
        """Return the event of the run's start.

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

    def commit_noted(self, note: EventListener) -> Callable[[Commit], None]:
        """Return a callback that records each commit.

        Args:
            note: Adds an event.
        """
        return lambda commit: note(committed_step(commit, self.plan.task.metrics[0]))

    def summarise(self, outcome: Outcome, missing: Collection[str] = ()) -> Summary:
        """Return the summary of a run that has ended this way (`medfl.engine.runs.summary.summarise`)."""
        csv, metric = self.folder / "metrics.csv", self.plan.task.metrics[0]
        return summarise(csv, self.plan.method.name, outcome, self.plan.settings, metric, self.plan.sites, missing)

    def finish(self, outcome: Outcome, summary: Summary) -> None:
        """Write the results of the run; ``summary.json``, which marks it as over, comes last.

        Args:
            outcome: How the run ended.
            summary: From `summarise`, with further facts.

        Raises:
            StoreError: If a file can't be written.
        """
        write_findings(self.folder, outcome.findings)
        save_best_round(self.folder, summary.best_round)
        summary.write(self.folder / Summary.NAME)

    def free_space(self, outcome: Outcome) -> None:
        """Delete state that no continuation of a finished run needs (`medfl.engine.store.Store.free_space`).

        A run that ended early keeps all of it: the same command tries its last round again.

        Args:
            outcome: How the run ended.
        """
        if outcome.status != FINISHED:
            return
        keep = [outcome.best.step] if self.plan.settings.best_round and outcome.best.round else []
        for path in sorted((self.folder / "state").iterdir()):
            if path.is_dir():
                Store(path).free_space(keep)

    def end_noted(self, note: EventListener, summary: Summary) -> None:
        """Add the event of the run's end.

        Args:
            note: Adds an event.
            summary: The summary that `finish` wrote.
        """
        note(
            RunEnd(
                status=summary.status,
                reason=summary.reason,
                rounds=summary.rounds,
                unavailable=summary.attendance.unavailable,
            )
        )


class Participants(ABC):
    """The server's own data and its connection to the sites: everything in the life of a run that depends on the place.

    `carry_out` calls the methods in the order in which they stand here.
    """

    backend: ClassVar[str] = "local"
    patience: ClassVar[float] = PATIENCE

    @abstractmethod
    def prepare(self) -> Provenance:
        """Prepare the sites before the run claims its folder, and return the provenance for ``run.json``.

        Raises:
            MedflError: If a site refuses the run; the folder then stays free.
        """

    @abstractmethod
    def start(self) -> None:
        """Announce the run, which now has its folder."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Maps each site that does not take part so far to the reason."""
        return {}

    @abstractmethod
    def connect(self, note: EventListener) -> Backend:
        """Connect the server to its sites, and return the carrier.

        Args:
            note: Adds a progress event.

        Raises:
            MedflError: If the sites do not fit the run.
        """

    @property
    @abstractmethod
    def server_data(self) -> ServerData:
        """The server's own data, once it is connected."""

    @abstractmethod
    def end_round(self, round_: int, rows: list[Row]) -> None:
        """Report a committed round.

        Args:
            round_: Number of the round.
            rows: Its metrics, and scores of the round before.
        """

    def disconnect(self) -> None:
        """Free what `connect` took, also if the run failed."""
        return

    @abstractmethod
    def export(self, outcome: Outcome) -> Summary:
        """Export the models, and return the summary of the run.

        Args:
            outcome: How the run ended.
        """

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """Announce the end of the run, whose summary is written.

        Args:
            outcome: How the run ended.
        """


def carry_out(writer: RunWriter, participants: Participants) -> Outcome:
    """Run a federation to its end, from wherever its folder stands. Every run lives here, wherever its sites are.

    Args:
        writer: The run and its folder.
        participants: The server's data and the sites.

    Raises:
        StoreError: If the folder belongs to another run, is being written, or can't be written.
        MedflError: If a site refuses the run, or the method fails.
    """
    with writer.held(participants.patience):
        writer.claim(participants.prepare(), participants.backend)
        participants.start()
        writer.begin()
        with writer.noted(participants.missing) as note:
            backend = participants.connect(note)
            try:
                outcome = ServerLoop(
                    plan=writer.plan,
                    backend=backend,
                    folder=writer.folder,
                    data=participants.server_data,
                    on_round=participants.end_round,
                    on_commit=writer.commit_noted(note),
                ).run()
            finally:
                participants.disconnect()
            summary = participants.export(outcome)
            writer.finish(outcome, summary)
            writer.end_noted(note, summary)
            participants.end(outcome)
    return outcome


def _refuse_to_post(step: int, peer_message: PeerMessage) -> None:
    raise RefusedError("read_only_run", "who only looks on posts nothing", step=step)


class RunViewer:
    """Looks into a run folder, also while it is written. What is read is checked, and nothing is changed.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder, self._journal = Path(folder), Journal(Path(folder))

    @property
    def being_written(self) -> bool:
        """Whether a process holds the folder."""
        return being_written(self.folder)

    @property
    def has_state(self) -> bool:
        """Whether the state is there that the run was computed with; `medfl clean` removes it."""
        return bool(self._journal.store.steps())

    def latest(self) -> tuple[State, Commit] | None:
        """The server's newest valid commit; None in a folder without any, as in a cleaned one.

        Raises:
            StoreError: If there are commits and none can be read.
        """
        return self._journal.latest()

    def at(self, step: int) -> tuple[State, Commit]:
        """The server's commit of a step that is kept."""
        return self._journal.at(step)

    def kept_rounds(self) -> list[int]:
        """Rounds whose model of the server is kept, ascending."""
        return self._journal.kept_rounds()

    def kept_model(self, round_: int) -> Model:
        """The server's model after a round that is kept.

        Raises:
            StoreError: If there is none, or it is damaged.
        """
        return self._journal.kept_model(round_)

    def server(self, state: State, last: Commit, task: Task, settings: Settings) -> Server:
        """A method's view of the server after a commit.

        Args:
            state: The server's state.
            last: The commit.
            task: The learning problem.
            settings: The run's.
        """
        return Server(
            SERVER,
            last.rounds_done + 1,
            state,
            task,
            settings,
            _Blobs(self._journal.store),
            sites=sorted(last.site_info),
            site_info=last.site_info,
            rounds_done=last.rounds_done,
        )

    def site(self, name: str, last: Commit, task: Task, settings: Settings) -> Site:
        """A method's view of a site after a commit of the server, without data and without its secret.

        Args:
            name: The site.
            last: The commit.
            task: The learning problem as the site has it.
            settings: The run's.
        """
        store = Store(self.folder / "state" / name)
        return Site(name, last.rounds_done, store.peek(before=last.step + 1), task, settings, _Blobs(store))


class _Blobs:
    """The large constants of a participant, for reading."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, digest: str) -> Tensors:
        return self._store.get(digest)

    def put(self, tensors: Tensors) -> str:
        raise StoreError("read_only_run", "who only looks into a run folder keeps nothing there")
