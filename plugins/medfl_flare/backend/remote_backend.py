"""Backend whose sites are on other machines: the server's side of the protocol, over any transport.

Each call sends messages to sites and waits for their replies. A site is unavailable if it refuses, sends an invalid
reply, or is silent for too long; the backend keeps the reason. The run's quorum, the minimum number of replies in a
step, decides whether the run continues.
A working site sends heartbeats, and the server waits for every site whose work makes progress
(`medfl_flare.backend.heartbeat`). Replies are checked when they arrive and stored in files. During aggregation, a
reply's tensors are read from its file on access.

Messages of the protocol (`medfl_flare.sites.site_service` is the site's side):

* ``hello``: the offer of a run. The site returns the network that it trains, and, if the run requests it and the site's
  own file allows it, a profile of its machine. Otherwise it returns the reason why it does not take part.
* ``begin``: the networks of all sites. The site loads its data, and returns information about the data and its newest
  step.
* ``feature_sums`` and ``feature_moments``: harmonisation of features, if the run asks for it, before its steps.
* ``step``: a request, the state that the server published for the evaluation of the previous round, and the earlier
  steps whose site state is still needed.
* ``send_model`` and ``score_model``: cross-site evaluation. A site sends its model to the others; each of them scores
  it.
* ``install``: the state that the server published at the end. The site exports its bundle.
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
from medfl.data.harmonisation.combat import FeatureSums, PooledMoments
from medfl.engine.backend import Evaluation, EventListener, SiteResult, StepResult, ignore_event
from medfl.engine.evaluation import MetricRow
from medfl.engine.replies import StoredReplies
from medfl.engine.store import StepNumbers
from medfl.errors import MedflError, StoreError
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.progress import Heartbeat, JobEnd, JobStart, UnavailableSite
from medfl.records.run_file import JoinedSite
from medfl.training.batches import TRAINING
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import map_file
from medfl_flare.backend.feature_messages import MOMENTS, SUMS, moments_to_tensors, read_sums
from medfl_flare.backend.heartbeat import MIN_HEARTBEAT_SECONDS, read_heartbeat
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.protocol_messages import (
    UNDELIVERED,
    HelloReply,
    MessagePosition,
    StepMessages,
    read_begin_reply,
    read_hello_reply,
    read_position,
    read_privacy_account,
    read_scores,
)
from medfl_flare.backend.site_replies import ReplyRules, RequestedStep, read_step_reply, store_reply, unpack_reply
from medfl_flare.backend.transport import Transport

logger = logging.getLogger(__name__)

MAX_SILENT_STEPS = 2
"""Number of successive steps without a reply after which the server sends a site no more requests."""

ACTIVITIES = {
    "hello": "joining",
    "begin": "loading data",
    SUMS: "computing features",
    MOMENTS: "harmonising features",
    "step": TRAINING,
    "send_model": "cross-site evaluation",
    "score_model": "cross-site evaluation",
    "install": "exporting its bundle",
    "end": "leaving",
}
"""Maps the kind of a message to the activity of the site until its first heartbeat."""


class FlareBackend:
    """Backend that exchanges messages between the server, in this process, and sites on other machines.

    Args:
        transport: Transport of the messages.
        sites: Names of all sites of the run.
        folder: Folder in which replies are stored until they are aggregated; it is emptied at every step.
        limits: Limits of a message.
        patience: Seconds of silence after which the server stops waiting for a site.

    Attributes:
        missing: Maps each unavailable site to the reason. A site that replies again is removed.
        greetings: Maps each site to its reply to `begin`, a dict with the keys ``facts``, ``newest`` and ``data``.
        joins: Maps each site that joined after the run began to its first round. The site gets no request before it.
        note: Function that receives progress events. It is set later, as the backend is made before the run can record
            events.
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
        self._viewers: Callable[[Evaluation], list[MetricRow]] = lambda evaluation: []
        self._lock, self._silent_steps = threading.Lock(), dict[str, int]()
        self.missing: dict[str, str] = {}
        self.greetings: dict[str, Meta] = {}
        self.joins: dict[str, int] = {}
        self._expected: ReplyRules | None = None
        self.note: EventListener = ignore_event
        self._last_heartbeats: dict[str, float] = {}
        transport.listen(self._record_heartbeat, folder, limits)

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can receive requests, sorted."""
        return self._all

    def set_viewers(self, viewers: Callable[[Evaluation], list[MetricRow]]) -> None:
        """Set the function that scores a round's models on the server's own test data.

        Args:
            viewers: Function that takes an evaluation, the round to score, and returns rows of scores.
        """
        self._viewers = viewers

    # ---- start of the run

    def hello(self, offer: Meta, patience: float) -> dict[str, HelloReply]:
        """Offer the run to all sites and return the reply of each site that accepts.

        Args:
            offer: The offer as JSON values.
            patience: Seconds of silence after which the server stops waiting for a site.
        """
        return self._exchange_messages(
            dict.fromkeys(self._all, Message("hello", {}, offer)), read_hello_reply, patience
        )

    def begin(
        self, networks: Mapping[str, str], expected: ReplyRules, joined: Mapping[str, JoinedSite] | None = None
    ) -> None:
        """Request that the sites that accepted the offer load their data. Fills `greetings` with their replies.

        Args:
            networks: Maps each site whose network differs from the task's default to its network.
            expected: Rules for the sites' replies.
            joined: Maps each site that joined after the run began to its first round and network.
        """
        self._expected = expected
        ready = [site for site in self._all if site not in self.missing]
        entries = {site: entry.to_json() for site, entry in (joined or {}).items()}
        message = Message("begin", {}, {"networks": dict(networks), "joined": entries})
        objective = expected.task.objective
        counts = (len(objective.titles), objective.outputs)

        def read(site: str, message: Message) -> Meta:
            """Return the site information in a reply to ``begin``."""
            task = expected.task
            start = None if task.start is None else task.start.sha256
            return read_begin_reply(site, message, *counts, task.frozen_digest(networks.get(site)), start)

        self.greetings = self._exchange_messages(dict.fromkeys(ready, message), read)

    def collect_feature_sums(self, features: int) -> dict[str, FeatureSums]:
        """Request the sums over the features of each available site. A site without valid sums gets no more requests.

        Args:
            features: Number of features.

        Returns:
            Maps each site with valid sums to them, sorted by site.
        """

        def read(site: str, message: Message) -> FeatureSums:
            """Return the sums in a reply to ``feature_sums``."""
            return read_sums(site, message, features, self.greetings[site]["facts"].get("size"))

        return self._exchange_with_all(Message(SUMS), read)

    def send_feature_moments(self, pooled: PooledMoments) -> None:
        """Send each available site the moments of all features. A site that can't use them gets no more requests.

        Args:
            pooled: Moments of the features of all sites.
        """
        self._exchange_with_all(Message(MOMENTS, moments_to_tensors(pooled)), lambda site, message: True)

    def _exchange_with_all(self, message: Message, read: Callable[[str, Message], Any]) -> dict[str, Any]:
        """Send a message to each available site, and return the checked replies. Excludes sites without one."""
        replies = self._exchange_messages(dict.fromkeys(sorted(self.greetings), message), read)
        self.greetings = {site: greeting for site, greeting in self.greetings.items() if site in replies}
        return replies

    def exclude_site(self, site: str, why: str) -> None:
        """Exclude a site from the run until the run is resumed, and record the reason in `missing`.

        Args:
            site: Name of the site.
            why: Reason for the exclusion.
        """
        self.greetings.pop(site, None)
        self.missing[site] = why
        self.note(UnavailableSite(site=site, reason=why))

    def site_info(self) -> dict[str, Meta]:
        """Return the information that each site disclosed in its reply to ``begin``, by site; empty if unavailable."""
        return {site: self.greetings[site]["facts"] if site in self.greetings else {} for site in self._all}

    def newest(self, site: str) -> int:
        """Return the number of the newest step whose state is valid on a site's disk.

        An unavailable site is assumed to have every step that it has replied to.
        """
        return int(self.greetings[site]["newest"]) if site in self.greetings else 2**31

    # ---- the run

    def step(
        self,
        step: int,
        round_: int,
        requests: list[Request],
        evaluation: Evaluation | None = None,
        keep: StepNumbers = (),
    ) -> StepResult:
        """Send the requests of a step and the evaluation of the previous round, and wait for the replies.

        Args:
            step: Step number.
            round_: Round of the requests.
            requests: Requests of the step, at most one for each site.
            evaluation: Evaluation of the previous round, or None.
            keep: Earlier steps whose state the sites must keep.

        Returns:
            Results of the available sites; names of the sites with a request but no usable result; scores of the
            evaluation. All are sorted by site.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        assert self._expected is not None, "begin comes first"
        requested, expected = {request.to: request for request in requests}, self._expected
        there = [site for site in self._all if site in self.greetings and self.joins.get(site, 0) <= round_]
        sites = [site for site in there if site in requested or evaluation]
        packed = StepMessages(step, round_, evaluation, keep)
        asked_for = RequestedStep(step, round_, evaluation.round if evaluation else None)
        rows = self._viewers(evaluation) if evaluation else []
        answered = self._exchange_messages(
            {site: packed.message(requested.get(site)) for site in sites},
            lambda site, message: read_step_reply(
                site, message, asked_for, requested.get(site), expected, self._limits
            ),
            keep=True,
        )
        self._drop_silent_sites(sites, answered)
        answers = [answer for answer, _ in answered.values() if answer is not None]
        rows += [row for _, scores in answered.values() for row in scores]
        unavailable = sorted(set(requested) - {answer.site for answer in answers})
        self._mark_failed_senders(answers, unavailable)
        answers = [answer for answer in answers if answer.site not in unavailable]
        return StepResult(
            results=sorted(answers, key=lambda answer: answer.site),
            unavailable=unavailable,
            scores=sorted(rows, key=lambda row: row.site),
        )

    def _drop_silent_sites(self, sites: list[str], answered: Collection[str]) -> None:
        """Drop each site that did not reply in `MAX_SILENT_STEPS` successive steps, as all other sites wait for it."""
        for site in sites:
            self._silent_steps[site] = 0 if site in answered else self._silent_steps.get(site, 0) + 1
            if self._silent_steps[site] >= MAX_SILENT_STEPS:
                self.exclude_site(site, f"{self.missing.get(site, 'no reply')}; excluded until the run is resumed")

    def _mark_failed_senders(self, answers: list[SiteResult], unavailable: list[str]) -> None:
        """Mark a sender as unavailable if its peer message did not reach an available receiver, which lacks it.

        Changes `unavailable` and the metadata of the results in place.
        """
        for answer in answers:
            lost = sorted(set(answer.meta.pop(UNDELIVERED, [])) - set(unavailable) - set(self.missing))
            if lost:
                self.missing[answer.site] = f"could not deliver its peer message to {', '.join(lost)}"
                unavailable.append(answer.site)

    def replies(self, answers: list[SiteResult], missing: list[str]) -> StoredReplies:
        """Return the replies that the method aggregates; their tensors are read from files on access.

        Args:
            answers: Results of the sites that replied, from `step`; refusals are left out.
            missing: Names of the sites without a usable result.
        """
        return StoredReplies(lambda answer: wire.view(map_file(self._file(answer.site)))[0], answers, missing)

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[MetricRow]:
        """Run the cross-site evaluation: score each site's model on the test data of every site, and return the scores.

        The sites take turns as the owner, in ring order, so that a site stores only one other model at a time.
        """
        rows, read = [], partial(read_scores, round_=evaluation.round)
        meta = {"step": evaluation.step, "round": evaluation.round}
        names = sorted(self.greetings)
        for start, owner in enumerate(names):
            others = names[start + 1 :] + names[:start]
            sending = Message("send_model", evaluation.published, meta | {"to": others})
            rows_by_site = self._exchange_messages({owner: sending}, read)
            if owner in rows_by_site:
                scoring = Message("score_model", {}, meta | {"owner": owner})
                rows_by_site |= self._exchange_messages(dict.fromkeys(others, scoring), read)
            rows += [row for site in (owner, *others) for row in rows_by_site.get(site, [])]
        return rows

    def install(self, published: Tensors, step: int, round_: int) -> dict[str, PrivacyAccount | None]:
        """Request that every site exports its own bundle.

        Args:
            published: State that the server published at the end.
            step: Last step of the run.
            round_: Last round of the run.

        Returns:
            Maps each site that replied to its privacy account, or to None if it keeps none.
        """
        message = Message("install", published, {"step": step, "round": round_})
        return self._exchange_messages(dict.fromkeys(sorted(self.greetings), message), read_privacy_account)

    def end(self) -> None:
        """Tell the available sites that this job ends. The run may be resumed later."""
        there = sorted(set(self.greetings) - set(self.missing))
        self._exchange_messages(dict.fromkeys(there, Message("end")), lambda site, message: None)

    # ---- messages

    def _exchange_messages(
        self,
        messages: Mapping[str, Message],
        read: Callable[[str, Message], Any],
        patience: float | None = None,
        keep: bool = False,
    ) -> dict[str, Any]:
        """Send messages to sites, wait, and return the checked reply of each site.

        Fills `missing` with the reasons of the sites without a valid reply, and removes the others from it.

        Args:
            messages: Maps each site to its message.
            read: Function that checks a site's reply and returns the result.
            patience: Seconds of silence after which the server stops waiting for a site; None takes the default.
            keep: Whether each valid reply is stored in a file.

        Raises:
            StoreError: If a reply can't be written to the server's disk.
        """
        results: dict[str, Any] = {}
        write_errors: list[StoreError] = []

        def store(site: str, blob: wire.Blob) -> None:
            """Check a site's reply, or store the reason in `missing` if it is invalid."""
            with self._lock:
                try:
                    result = read(site, unpack_reply(blob, messages[site].kind, self._limits))
                except MedflError as error:
                    self.missing[site] = str(error)
                except Exception as error:  # an unexpected error in one reply must not end the run for the others
                    self.missing[site] = f"its reply could not be read ({type(error).__name__})"
                else:
                    write_errors.extend(store_reply(self._file(site), blob) if keep else ())
                    results[site] = result
                    self.missing.pop(site, None)
                    self.note(JobEnd(sites=(site,), job=messages[site].kind))

        blobs: dict[int, bytes] = {}
        for message in messages.values():  # most sites get the same message
            if id(message) not in blobs:
                blobs[id(message)] = pack(message)
        requests = {site: blobs[id(message)] for site, message in messages.items()}
        sites_by_job: dict[tuple[str, MessagePosition], list[str]] = {}
        for site, message in sorted(messages.items()):
            sites_by_job.setdefault((message.kind, read_position(message.meta)), []).append(site)
        for (kind, (round_, step)), sites in sites_by_job.items():
            self.note(JobStart(sites=tuple(sites), job=kind, activity=ACTIVITIES[kind], round=round_, step=step))
        silent = self._transport.ask(requests, patience or self._patience, store)
        if write_errors:  # no site is at fault
            raise write_errors[0]
        with self._lock:
            self.missing |= {site: why for site, why in silent.items() if site not in results}
        for site in sorted(set(messages) - set(results)):
            why = self.missing.get(site, "no reply")
            logger.warning("%s is unavailable: %s", site, why)
            self.note(UnavailableSite(site=site, reason=why))
        return {site: results[site] for site in messages if site in results}

    def _record_heartbeat(self, site: str, blob: bytes) -> bool:
        """Record a heartbeat as a progress event, and return whether the site's work made progress.

        At most one heartbeat of a site is recorded within `MIN_HEARTBEAT_SECONDS`. An invalid heartbeat counts as no
        progress.
        """
        try:
            beat = read_heartbeat(blob)
        except MedflError as error:
            logger.debug("A heartbeat of %s was refused: %s", site, error)
            return False
        now = time.monotonic()
        if site in self._all and now - self._last_heartbeats.get(site, -math.inf) >= MIN_HEARTBEAT_SECONDS:
            self._last_heartbeats[site] = now
            self.note(
                Heartbeat(
                    sites=(site,),
                    activity=beat.doing,
                    batch=beat.batch,
                    batches=beat.batches,
                    has_progressed=beat.moved,
                )
            )
        return beat.moved

    def _file(self, site: str) -> Path:
        """Return the path of a site's stored reply."""
        return self._folder / f"{site}.safetensors"
