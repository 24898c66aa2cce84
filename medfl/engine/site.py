"""A site's part of a step: execute the request, check and filter the reply, save the step, score the models.

Every backend calls `SiteRunner`, on whatever machine the site is. `SiteRunner.step` is idempotent: if the step is on
disk, the stored result is returned. A repeated request therefore never trains twice and never draws fresh noise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.contract import Capability, Method, Model, PeerMessage, Reply, Request, Site, State
from medfl.data.pooled import countable_targets
from medfl.engine.backend import MethodFactory, SiteResult
from medfl.engine.encoding import Encoder
from medfl.engine.evaluation import (
    MetricRow,
    Predictors,
    ScoreCache,
    Scorer,
    build_predictor,
    score_dataset,
    scores_to_rows,
)
from medfl.engine.filters import Filters, check_receivers, unquantised_bytes
from medfl.engine.journal import request_digest
from medfl.engine.plan import RunPlan
from medfl.engine.reply_checks import check_before_sending
from medfl.engine.secure.method import SecureMethod
from medfl.engine.store import DISCARDED, RETAINED_STEPS, Inbox, StepNumbers, Store, StoredStep, copy_state
from medfl.errors import RefusedError, StoreError
from medfl.privacy.ledger import hash_dataset, open_account
from medfl.privacy.policy import policy_of
from medfl.privacy.secret_site import SecretSite, derive_site_run_id
from medfl.training.checkpoints import StepCheckpoints, delete_checkpoints
from medfl.types import NON_SITE_NAMES, Dataset, Meta, Tensors
from medfl.utils import wire
from medfl.utils.rng import SecretStream, seeded_generators

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer

SCORED = ("val", "test")
"""Names of the splits on which a site's models are scored."""


@dataclass
class Splits:
    """Data of one site.

    Attributes:
        train: Training data.
        val: Validation data; may be empty.
        test: Test data; may be empty. Only the engine uses them, never a method.
        digest: Digest of the data lists, or empty if there are none.
        shared: Test data that all sites share, or None. Only personal models are scored on these data.
    """

    train: Dataset
    val: Dataset
    test: Dataset
    digest: str = ""
    shared: Dataset | None = None


@dataclass(frozen=True)
class SiteOptions:
    """Options of a site that its administrator decides.

    Attributes:
        secret: Key of the site's privacy noise. None derives it from the run's seed, which is safe only in simulations.
        scored: Splits whose scores may leave the site.
        withheld: Keys of the replies' metadata that must not leave the site.
        signer: Signer of the site's keys in secure aggregation, or None in a simulation.
        checkpoint_minutes: Most minutes of training within a step that are lost by a kill; None writes no checkpoints.
    """

    secret: bytes | None = None
    scored: Collection[str] = SCORED
    withheld: Collection[str] = ()
    signer: Signer | None = None
    checkpoint_minutes: float | None = None


DEFAULT_SITE_OPTIONS = SiteOptions()
"""Options of a site whose administrator decided nothing."""


@dataclass
class _Outgoing:
    """Everything of a step that leaves the site, after checks and filters.

    Attributes:
        tensors: Tensors of the reply (prefix ``reply/``) and of the peer messages (``peer_message/INDEX/``).
        meta: Metadata of the reply.
        peer_messages: For each peer message, a dict with the keys ``to`` (receiving site) and ``meta``.
    """

    tensors: Tensors = field(default_factory=dict)
    meta: Meta = field(default_factory=dict)
    peer_messages: list[Meta] = field(default_factory=list)


class SiteRunner:
    """Runs the steps of one site and stores them in the site's private folder.

    Args:
        name: Name of the site.
        data: Data of the site.
        folder: Folder in which the site's steps are stored.
        plan: Description of the run. Peer messages can be sent only to its sites.
        post: Function that delivers a peer message (a message to another site), called as ``post(step, message)``. It
            returns when the receiver has stored the message.
        options: Options that the site's administrator decides.

    Attributes:
        name: Name of the site.
        data: Data of the site.
        settings: Settings of the run.
        task: The learning problem, with class weights from the site's targets if the settings ask for them.
        run_id: Identifier of the run, from which the keys of the site's noise are derived.
        score_cache: Last scores of the site's personal models.
        store: Step files of the site.
        account: Privacy account of the site, which records the noised values that leave it; None without privacy.
    """

    __slots__ = (  # a run can have 100,000 sites
        "_frozen_digest",
        "_noises_training",
        "_options",
        "_peers",
        "_post",
        "account",
        "data",
        "name",
        "run_id",
        "score_cache",
        "settings",
        "store",
        "task",
    )

    def __init__(
        self,
        name: str,
        data: Splits,
        folder: Path,
        plan: RunPlan,
        post: Callable[[int, PeerMessage], None],
        options: SiteOptions = DEFAULT_SITE_OPTIONS,
    ) -> None:
        settings, task = plan.settings, plan.task
        self.name, self.data, self.settings, self._options = name, data, settings, options
        self.run_id, self._peers, self._post = plan.run_id, plan.sites, post
        self.task = (
            task.with_class_weights(countable_targets(data.train, task.objective))
            if settings.balance == "loss"
            else task
        )
        self._frozen_digest = task.frozen_digest(settings.networks_by_site.get(name))
        self._noises_training = policy_of(settings).noises_training and len(data.train) > 0
        if self._noises_training:
            self.run_id = derive_site_run_id(
                plan.run_id, hash_dataset(data.train), task, settings.networks_by_site.get(name)
            )
        self.store = Store(folder)
        self.account = open_account(settings, data.train, data.digest, name, self.run_id, folder)
        self.score_cache: ScoreCache = {}

    @property
    def scorer(self) -> Scorer:
        """Scorer of the site's models."""
        return Scorer(self.task, self.settings, self.score_cache)

    @property
    def inbox(self) -> Inbox:
        """Peer messages that wait for the site."""
        return Inbox(self.store.folder)

    @property
    def secret(self) -> bytes:
        """Key of the site's privacy noise."""
        simulated = f"{self.settings.seed}/{self.name}/simulated secret"
        return self._options.secret or hashlib.sha256(simulated.encode()).digest()

    @property
    def _scored_splits(self) -> list[str]:
        """Splits whose scores may leave the site."""
        return [split for split in SCORED if split in self._options.scored]

    def check_account(self) -> None:
        """Check that the privacy account lists all releases (noised values that left the site) of the stored steps.

        Raises:
            StoreError: If a release is missing; the summary would then report too small an epsilon.
        """
        if self.account is not None:
            records = [self.store.latest(before=step + 1) for step in self.store.steps()]
            self.account.check_holds(
                {release for record in records if record for release in record.meta.get("released", [])}
            )

    def site_info(self) -> Meta:
        """Return the information that this site discloses to the server at the start.

        Returns:
            A dict with the keys ``trainable`` and ``validates`` (bool), ``frozen`` (digest of the frozen parameters, if
            the network has any), ``start`` (SHA-256 of the weights from which the run starts, if it has any), and
            ``size`` and ``label_counts`` if the setting `disclose` lists them and the run's privacy policy allows them.
        """
        train, objective = self.data.train, self.task.objective
        info: Meta = {
            "trainable": objective.can_train_on(countable_targets(train, objective)),
            "validates": len(self.data.val) > 0,
        }
        frozen = self._frozen_digest
        if frozen is not None:
            info["frozen"] = frozen
        if self.task.start is not None:
            info["start"] = self.task.start.sha256
        if policy_of(self.settings).discloses_statistics:
            if "size" in self.settings.disclose:
                info["size"] = len(train)
            if "label_counts" in self.settings.disclose:
                info["label_counts"] = objective.counts(countable_targets(train, objective))
        return info

    def step(
        self,
        make_method: MethodFactory,
        request: Request,
        step: int,
        round_: int,
        tensors_digest: str,
        keep: StepNumbers = (),
    ) -> SiteResult:
        """Execute a request and save the step, or return the stored result if the step is on disk.

        Args:
            make_method: Factory that returns a new method object.
            request: Request of the server. The site may change its tensors in place.
            step: Step number.
            round_: Round of the step.
            tensors_digest: SHA-256 of the request's tensors (`wire.digest`).
            keep: Numbers of earlier steps whose states must not be deleted (`Store.save`).

        Returns:
            Result of the step. The tensors of the reply stay in the step's file.

        Raises:
            StoreError: If the stored step belongs to another request, or the step can't be saved.
        """
        digest = request_digest(request, tensors_digest)
        record = self._stored(step, digest)
        if record is None:
            record = self._execute_and_save(make_method(), request, step, round_, digest, keep)
        if self.store.flushes:  # also if the site was killed after it had saved the step
            delete_checkpoints(self.store.folder)
        for index, peer_message in enumerate(record.meta["peer_messages"]):
            tensors = wire.select(record.tensors, f"peer_message/{index}/")
            self._post(step, PeerMessage(peer_message["to"], tensors, peer_message["meta"], self.name))
        meta = record.meta
        return SiteResult(self.name, step, meta["refused"], meta["reply"], [MetricRow(*row) for row in meta["rows"]])

    def _stored(self, step: int, digest: str) -> StoredStep | None:
        """Return the valid record of a step on disk, or None.

        Raises:
            StoreError: If the record belongs to another request, or its reply was deleted.
        """
        record = self.store.latest(before=step + 1) if step in self.store.steps() else None
        if record is None or record.step != step:
            return None  # absent or damaged: the step runs again from the previous state
        if record.meta["request"] != digest:
            raise StoreError(
                "other_run",
                f"Site '{self.name}' has stored step {step} for another request: expected {digest[:12]}, found "
                f"{record.meta['request'][:12]}. The run folder mixes two runs; start in a new folder.",
                site=self.name,
                step=step,
                expected=digest[:12],
                found=record.meta["request"][:12],
            )
        if DISCARDED in record.meta:
            raise StoreError(
                "deleted_reply",
                f"Site '{self.name}' no longer has its reply of step {step}: the run had finished and its replies were "
                "deleted. The server's state is older than that. Restore the server's state, or start in a new folder.",
                site=self.name,
                step=step,
            )
        return record

    def _execute_and_save(
        self, method: Method, request: Request, step: int, round_: int, digest: str, keep: StepNumbers
    ) -> StoredStep:
        """Execute a request and save the step as one file. A refusal is saved with the state of the previous step."""
        # 1. Restore the site's state and its peer messages.
        last_step, state = self.store.last_state(before=step)
        site, state_before = self._view(method, round_, state, digest), copy_state(state)
        has_peers = Capability.PEER_MESSAGES in method.supports
        site.inbox = self.inbox.read(last_step, step) if has_peers else []
        site.checkpoints = self._step_checkpoints(step, digest)
        started = time.perf_counter()

        # 2. Execute the request, and check and filter everything that leaves the site.
        refused, released = None, list[str]()
        try:
            reply, outgoing = self._outgoing(method, site, request, digest, released)
        except RefusedError as error:
            refused, reply, outgoing = str(error), Reply(), _Outgoing()
            site.state = state_before
        if self.settings.compression is not None:
            reply.log["bytes_up_plain"] = unquantised_bytes(wire.select(outgoing.tensors, "reply/"), outgoing.meta)

        # 3. Score the trained models and save everything in one file.
        rows = self._rows(method, reply, request, outgoing.tensors, round_, time.perf_counter() - started)
        content: Meta = {
            "request": digest,
            "reply": outgoing.meta,
            "peer_messages": outgoing.peer_messages,
            "refused": refused,
            "round": round_,
            "rows": [list(row) for row in rows],
        }
        if released:
            content["released"] = released
        self.store.save(step, site.state, content, outgoing.tensors, keep)
        if has_peers:
            self.inbox.delete_before([0, *self.store.steps()][-RETAINED_STEPS])
        return StoredStep(step, outgoing.tensors, content)

    def _step_checkpoints(self, step: int, request: str) -> StepCheckpoints | None:
        """Return the checkpoints of a step, or None if the site writes none.

        With privacy of the unit ``sample`` the noise of a training must not be drawn twice, so there are none.
        """
        minutes = self._options.checkpoint_minutes
        if minutes is None or self._noises_training:
            return None
        return StepCheckpoints(self.store.folder, step, request, 60 * minutes)

    def _outgoing(
        self, method: Method, site: Site, request: Request, digest: str, released: list[str]
    ) -> tuple[Reply, _Outgoing]:
        """Execute a request, and check and filter its reply and peer messages.

        Args:
            method: Method of the run.
            site: View of this site; its state changes in place.
            request: Request of the server.
            digest: Digest of the request.
            released: List to which the site's privacy releases are appended.

        Raises:
            RefusedError: If the method refuses the request, or the reply breaks a rule of the contract.
        """
        encoder = Encoder(method.filters(), method.sends, site.rng)
        filters = Filters(method.sends, method.sends_meta, self.settings, self.settings.rounds, encoder)
        noise = partial(self._noise, site, released)
        # A method may change the dictionaries of its request; the checks need the request as the server sent it.
        as_sent = replace(request, tensors=dict(request.tensors), meta=dict(request.meta))
        if isinstance(method, SecureMethod):
            method = method.at(self.store.folder, noise, self._options.signer, self._peers)
        reply = self._execute(method, site, request, digest, released)
        sent, meta = reply.tensors, reply.meta
        if not isinstance(method, SecureMethod):  # secure aggregation has already checked and filtered its inner reply
            check_before_sending(method, self.task, self.settings, as_sent, reply, f"site '{self.name}'")
            sent, meta = filters.outgoing(reply.tensors, reply.meta, site=self.name, stream_factory=noise)
        outgoing = _Outgoing(
            tensors=wire.prefixed(sent, "reply/"),
            meta={key: value for key, value in meta.items() if key not in self._options.withheld},
        )
        check_receivers(reply.peer_messages, Capability.PEER_MESSAGES in method.supports, self.name, self._peers)
        for index, message in enumerate(reply.peer_messages):
            tensors, message_meta = filters.outgoing_peer_message(message.tensors, message.meta, site=self.name)
            outgoing.tensors |= wire.prefixed(tensors, f"peer_message/{index}/")
            outgoing.peer_messages.append({"to": message.to, "meta": message_meta})
        return reply, outgoing

    def _execute(self, method: Method, site: Site, request: Request, digest: str, released: list[str]) -> Reply:
        """Execute a request with seeded generators.

        With privacy of the unit ``sample``, the release is recorded in the privacy account before the reply can leave.
        """
        if not isinstance(site, SecretSite):
            with seeded_generators(self.settings.seed, self.name, site.round, "global"):
                return method.execute(site, request)
        start = f"{site.round} {digest} {wire.digest(site.state.tensors, site.state.meta)}"
        try:
            with seeded_generators("secret", site.secret_seed("global")):
                reply = method.execute(site, request)
        except RefusedError:
            self._release(f"{start} refused", released)  # a refusal depends on the data, too
            raise
        self._release(f"{start} {wire.digest(reply.tensors)} {wire.digest(site.state.tensors)}", released)
        return reply

    def _noise(self, site: Site, released: list[str], payload: str, turn: str = "") -> SecretStream:
        """Return the random stream of an update's noise. Records the release in the privacy account first.

        Args:
            site: View of this site in the round.
            released: List to which the release is appended.
            payload: Hash of the update. Equal updates receive equal noise.
            turn: Identifies the secure aggregation of the update; the account counts the update once per aggregation.
        """
        self._release(f"{site.round} {payload} {turn}".rstrip(), released)
        return site.secret_rng("noise", payload)

    def _release(self, made_of: str, released: list[str]) -> None:
        assert self.account is not None
        self.account.release(made_of)
        released.append(made_of)

    def _rows(
        self, method: Method, reply: Reply, request: Request, sent: Tensors, round_: int, seconds: float
    ) -> list[MetricRow]:
        costs = reply.log | {
            "work_seconds": seconds,
            "bytes_down": wire.payload_bytes(request.tensors),
            "bytes_up": wire.payload_bytes({name: t for name, t in sent.items() if name.startswith("reply/")}),
            "bytes_to_peers": wire.payload_bytes(
                {name: t for name, t in sent.items() if name.startswith("peer_message/")}
            ),
        }
        rows = scores_to_rows(costs, round_, self.name, "personal", "train", "trained")
        for kind, model in reply.trained.items() if "trained" in self.settings.moments else ():
            predictor = build_predictor(method, self.task, model)
            for split in self._scored_splits:
                scores = score_dataset(predictor, getattr(self.data, split), self.task, self.settings)
                rows += scores_to_rows(scores, round_, self.name, kind, split, "trained")
        return rows

    def _view(self, method: Method, round_: int, state: State, request: str = "") -> Site:
        """Return the method's view of this site with the given state."""
        task = method.task_of(self.task).in_round(round_, self.settings)
        site = Site(self.name, round_, state, task, self.settings, self.store)
        if self._noises_training:
            site = SecretSite(self.name, round_, state, task, self.settings, self.store, request=request)
        site.train, site.val, site.secret, site.run_id = self.data.train, self.data.val, self.secret, self.run_id
        return site

    def evaluate(
        self, method: Method, published: Tensors, step: int, round_: int, shared: Predictors
    ) -> list[MetricRow]:
        """Score this site's models after a round, on its validation and test data and on shared test data.

        Only personal models are scored on shared test data. A personal model that is unchanged since its last scoring
        is not scored again.

        Args:
            method: Method of the run.
            published: Tensors that the server published after `step`.
            step: Last step of the round.
            round_: Round to score.
            shared: Networks of models that are the same at all sites, by kind of model. Missing ones are added in
                place, so use one dictionary per round for all sites.

        Returns:
            Rows with the scores, and one row with the seconds that the scoring took.
        """
        own = {split: getattr(self.data, split) for split in self._scored_splits}
        every = own | ({"shared": self.data.shared} if self.data.shared is not None else {})
        if not any(map(len, every.values())):
            return []
        rows, started = [], time.perf_counter()
        for kind, model in self.models(method, published, step, round_).items():
            splits = every if kind == "personal" else own
            for split, scores in self.scorer.scores(method, kind, model, splits, shared).items():
                rows += scores_to_rows(scores, round_, self.name, kind, split, "aggregated")
        cost = {} if self.name in NON_SITE_NAMES else {"evaluate_seconds": time.perf_counter() - started}
        return rows + scores_to_rows(cost, round_, self.name, "personal", "train", "aggregated")

    def models(self, method: Method, published: Tensors, step: int, round_: int) -> dict[str, Model]:
        """Return the site's models after a step, by kind: ``global``, ``personal`` or both.

        Args:
            method: Method of the run.
            published: Tensors that the server published after `step`.
            step: Step after which the models are taken.
            round_: Round of the step.
        """
        site = self._view(method, round_, self.store.read_state(before=step + 1))
        site.published = published
        models = method.models(site)
        return {kind: model for kind, model in models.items() if kind == "global" or self.name not in NON_SITE_NAMES}
