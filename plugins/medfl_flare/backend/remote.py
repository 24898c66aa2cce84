"""A carrier whose sites are elsewhere: the server's end of the conversation, over any transport.

Each call asks sites and waits. A site that refuses, answers what can't be used, or is silent for too long counts as
missing, with the reason; the quorum of the plan decides whether the run goes on. While it works a site sends
heartbeats, and one whose work moves is waited for (`medfl_flare.backend.heartbeat`). Answers are checked as they come
and laid into files; when they are folded, a reply's tensors are read from its file as they are looked at.

What is said (`medfl_flare.sites.service` is the other end):

* ``hello``: the offer of a run. The site says which network it trains, and what its machine can do if the run asks and
  its own file lets it, or why it won't take part.
* ``begin``: all sites' networks. The site loads its data, says what it tells about them and how far it is.
* ``step``: an order, beside it what the server published for the evaluation of the round before, and the earlier steps
  after which the site's state is still needed.
* ``post`` and ``guest``: the global test. A site posts its model to the others; each scores it.
* ``install``: what the server published at the end. The site writes its own bundle.
* ``end``: the run is over for now.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from medfl.contract import Request
from medfl.engine.backend import Evaluation, EventListener, SiteResult, StepResult, ignore_event
from medfl.engine.evaluation import Row
from medfl.engine.replies import StoredReplies
from medfl.engine.store import Steps
from medfl.errors import MedflError, StoreError
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.progress import Heartbeat, JobEnd, JobStart, UnavailableSite
from medfl.records.run_file import JoinedSite
from medfl.training.batches import TRAINING
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import mapped
from medfl_flare.backend.answers import Expected, Step, lay_down, opened, read_answer
from medfl_flare.backend.heartbeat import FASTEST, read_beat
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.remote_messages import (
    UNDELIVERED,
    Joining,
    StepMessages,
    read_account,
    read_facts,
    read_joining,
    read_rows,
)
from medfl_flare.backend.transport import Transport

logger = logging.getLogger(__name__)

MAX_SILENT = 2
"""Steps in a row without an answer after which a site is asked no more."""

DOING = {
    "hello": "joining",
    "begin": "loading data",
    "step": TRAINING,
    "post": "global test",
    "guest": "global test",
    "install": "writing its bundle",
    "end": "leaving",
}
"""Kind of a message to what a site does with it, before it says more itself."""


class FlareBackend:
    """Moves messages between the server, which is here, and sites on other machines.

    Args:
        transport: Brings messages.
        sites: All sites of the run.
        folder: Where answers lie until they are folded; emptied at every step.
        limits: Of a message.
        patience: Seconds of silence after which a site is waited for no more.

    Attributes:
        missing: Site to the reason why nothing came from it last; a site that answers again is taken out.
        facts: What each site told of its data in `begin`: ``facts``, ``newest``, ``data``.
        joins: Site that came when the run had begun to the round before which it is asked nothing.
        note: Receives progress events; the carrier is made before the run has any.
    """

    def __init__(
        self,
        transport: Transport,
        sites: Collection[str],
        folder: Path,
        limits: Limits,
        patience: float,
    ) -> None:
        self._transport, self._all, self._folder = transport, sorted(sites), folder
        self._limits, self._patience = limits, patience
        self._viewers: Callable[[Evaluation], list[Row]] = lambda evaluation: []
        self._lock, self._silent = threading.Lock(), dict[str, int]()
        self.missing: dict[str, str] = {}
        self.greetings: dict[str, Meta] = {}
        self.joins: dict[str, int] = {}
        self._expected: Expected | None = None
        self.note: EventListener = ignore_event
        self._noted: dict[str, float] = {}
        transport.listen(self._hear, folder, limits)

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        return self._all

    def set_viewers(self, viewers: Callable[[Evaluation], list[Row]]) -> None:
        """Name what scores models on test data that the server itself holds."""
        self._viewers = viewers

    # ---- before the run

    def hello(self, offer: Meta, patience: float) -> dict[str, Joining]:
        """Offer the run to all sites; returns what each one that takes it says of itself."""
        return self._talk(dict.fromkeys(self._all, Message("hello", {}, offer)), read_joining, patience)

    def begin(
        self, networks: Mapping[str, str], expected: Expected, joined: Mapping[str, JoinedSite] | None = None
    ) -> None:
        """Have the sites that took the offer load their data; fills `facts`.

        Args:
            networks: Site to network.
            expected: What their answers may hold.
            joined: Maps each site that joined after the run began to the facts about that.
        """
        self._expected = expected
        ready = [site for site in self._all if site not in self.missing]
        entries = {site: entry.to_json() for site, entry in (joined or {}).items()}
        message = Message("begin", {}, {"networks": dict(networks), "joined": entries})
        objective = expected.task.objective
        counts = (len(objective.titles), objective.outputs)

        def read(site: str, message: Message) -> Meta:
            return read_facts(site, message, *counts, frozen=expected.task.frozen_digest(networks.get(site)))

        self.greetings = self._talk(dict.fromkeys(ready, message), read)

    def drop(self, site: str, why: str) -> None:
        """Leave a site out of the run, as far as the quorum allows."""
        self.greetings.pop(site, None)
        self.missing[site] = why
        self.note(UnavailableSite(site=site, reason=why))

    def site_info(self) -> dict[str, Meta]:
        """What each site tells about itself; nothing of a site that is missing."""
        return {site: self.greetings[site]["facts"] if site in self.greetings else {} for site in self._all}

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk. A missing site is taken to have all that it ever answered."""
        return int(self.greetings[site]["newest"]) if site in self.greetings else 2**31

    # ---- the run

    def step(
        self, step: int, round_: int, requests: list[Request], evaluation: Evaluation | None = None, keep: Steps = ()
    ) -> StepResult:
        """Carry out a step's orders, and the evaluation of the round before beside them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        assert self._expected is not None, "begin comes first"
        requested, expected = {request.to: request for request in requests}, self._expected
        there = [site for site in self._all if site in self.greetings and self.joins.get(site, 0) <= round_]
        sites = [site for site in there if site in requested or evaluation]
        packed = StepMessages(step, round_, evaluation, keep)
        asked_for = Step(step, round_, evaluation.round if evaluation else None)
        rows = self._viewers(evaluation) if evaluation else []
        answered = self._talk(
            {site: packed.message(requested.get(site)) for site in sites},
            lambda site, message: read_answer(site, message, asked_for, requested.get(site), expected, self._limits),
            keep=True,
        )
        self._leave_out_silent(sites, answered)
        answers = [answer for answer, _ in answered.values() if answer is not None]
        rows += [row for _, scores in answered.values() for row in scores]
        unavailable = sorted(set(requested) - {answer.site for answer in answers})
        self._blame_senders(answers, unavailable)
        answers = [answer for answer in answers if answer.site not in unavailable]
        return StepResult(
            results=sorted(answers, key=lambda answer: answer.site),
            unavailable=unavailable,
            scores=sorted(rows, key=lambda row: row.site),
        )

    def _leave_out_silent(self, sites: list[str], answered: Collection[str]) -> None:
        """Ask a site no more that was silent several times in a row: each time all others waited for it."""
        for site in sites:
            self._silent[site] = 0 if site in answered else self._silent.get(site, 0) + 1
            if self._silent[site] >= MAX_SILENT:
                self.drop(site, f"{self.missing.get(site, 'no answer')}; left out until the run is resumed")

    def _blame_senders(self, answers: list[SiteResult], unavailable: list[str]) -> None:
        """Count senders whose parcel did not reach a receiver that is there as missing: the receiver lacks it."""
        for answer in answers:
            lost = sorted(set(answer.meta.pop(UNDELIVERED, [])) - set(unavailable) - set(self.missing))
            if lost:
                self.missing[answer.site] = f"could not deliver its parcel to {', '.join(lost)}"
                unavailable.append(answer.site)

    def replies(self, answers: list[SiteResult], missing: list[str]) -> StoredReplies:
        """The replies behind answers that were not refused, from the files that they were laid into."""
        return StoredReplies(lambda answer: wire.view(mapped(self._file(answer.site)))[0], answers, missing)

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[Row]:
        """The global test: each site's model on every site's test data, one foreign model at a time, in ring order."""
        rows, read = [], partial(read_rows, round_=evaluation.round)
        meta = {"step": evaluation.step, "round": evaluation.round}
        names = sorted(self.greetings)
        for start, owner in enumerate(names):
            others = names[start + 1 :] + names[:start]
            post = Message("post", evaluation.published, meta | {"to": others})
            rows_by_site = self._talk({owner: post}, read)
            if owner in rows_by_site:
                guest = Message("guest", {}, meta | {"owner": owner})
                rows_by_site |= self._talk(dict.fromkeys(others, guest), read)
            rows += [row for site in (owner, *others) for row in rows_by_site.get(site, [])]
        return rows

    def install(self, published: Tensors, step: int, round_: int) -> dict[str, PrivacyAccount | None]:
        """Have every site write its own bundle.

        Args:
            published: State that the server published at the end.
            step: Last step of the run.
            round_: Last round of the run.

        Returns:
            Maps each site that answered to its privacy account, or to None if it keeps none.
        """
        message = Message("install", published, {"step": step, "round": round_})
        return self._talk(dict.fromkeys(sorted(self.greetings), message), read_account)

    def end(self) -> None:
        """Tell the sites that are there that the run is over for now."""
        there = sorted(set(self.greetings) - set(self.missing))
        self._talk(dict.fromkeys(there, Message("end")), lambda site, message: None)

    # ---- one exchange of messages

    def _talk(
        self,
        messages: Mapping[str, Message],
        read: Callable[[str, Message], Any],
        patience: float | None = None,
        keep: bool = False,
    ) -> dict[str, Any]:
        """Ask sites; site to what `read` makes of its answer. Why a site is not in it stands in `missing`.

        With `keep` an answer that can be used is laid into a file; a StoreError where the disk here does not take it.
        """
        results: dict[str, Any] = {}
        full: list[StoreError] = []

        def take(site: str, blob: wire.Blob) -> None:
            """Read a site's answer, or note in `missing` why it can't be."""
            with self._lock:
                try:
                    result = read(site, opened(blob, messages[site].kind, self._limits))
                except MedflError as error:
                    self.missing[site] = str(error)
                except Exception as error:  # whatever a message brings about, the others go on
                    self.missing[site] = f"its answer could not be read ({type(error).__name__})"
                else:
                    full.extend(lay_down(self._file(site), blob) if keep else ())
                    results[site] = result
                    self.missing.pop(site, None)
                    self.note(JobEnd(sites=(site,), job=messages[site].kind))

        blobs: dict[int, bytes] = {}
        for message in messages.values():  # most sites get the same message
            if id(message) not in blobs:
                blobs[id(message)] = pack(message)
        requests = {site: blobs[id(message)] for site, message in messages.items()}
        for kind in sorted({message.kind for message in messages.values()}):
            working = tuple(sorted(site for site, message in messages.items() if message.kind == kind))
            self.note(JobStart(sites=working, job=kind, activity=DOING[kind]))
        silent = self._transport.ask(requests, patience or self._patience, take)
        if full:  # no site is to blame
            raise full[0]
        with self._lock:
            self.missing |= {site: why for site, why in silent.items() if site not in results}
        for site in sorted(set(messages) - set(results)):
            why = self.missing.get(site, "no answer")
            logger.warning("%s is missing: %s", site, why)
            self.note(UnavailableSite(site=site, reason=why))
        return {site: results[site] for site in messages if site in results}

    def _hear(self, site: str, blob: bytes) -> bool:
        """Whether a heartbeat says that the site's work moves; it is noted down, but not more often than they come."""
        try:
            beat = read_beat(blob)
        except MedflError as error:
            logger.debug("A heartbeat of %s is refused: %s", site, error)
            return False
        now = time.monotonic()
        if site in self._all and now - self._noted.get(site, -math.inf) >= FASTEST:
            self._noted[site] = now
            self.note(Heartbeat(sites=(site,), activity=beat.doing, share=beat.share, has_progressed=beat.moved))
        return beat.moved

    def _file(self, site: str) -> Path:
        return self._folder / f"{site}.safetensors"
