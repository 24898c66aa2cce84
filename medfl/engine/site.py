"""A site's side of a step: everything a carrier calls at a site, whatever machine that is on.

`SiteRunner.step` is idempotent: a step that is on disk is answered from there, so an order that is sent again never
trains twice and never draws fresh noise.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.contract import Capability, Method, Model, PeerMessage, Reply, Request, Site, State
from medfl.data.pooled import countable
from medfl.engine.backend import MethodFactory, SiteResult
from medfl.engine.encoding import Encoder
from medfl.engine.evaluation import Predictors, Row, Scorer, predictor_of, rows_of, score
from medfl.engine.filters import Filters, check_peer_messages, plain_bytes
from medfl.engine.journal import request_digest
from medfl.engine.plan import RunPlan
from medfl.engine.reply_checks import check_sent
from medfl.engine.secure.method import Secured
from medfl.engine.store import DISCARDED, KEEP, Inbox, Record, Steps, Store, copied
from medfl.errors import RefusedError, StoreError
from medfl.privacy.ledger import fingerprint, open_account
from medfl.privacy.policy import policy_of
from medfl.privacy.secret_site import SecretSite, secret_run_id
from medfl.types import NO_SITES, Dataset, Meta, Tensors
from medfl.utils import wire
from medfl.utils.rng import SecretStream, pinned

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer

SCORED = ("val", "test")
"""Splits that models are scored on."""


@dataclass
class Splits:
    """The splits of one site; `test` is for the core only. Whoever made them gives their digest, if there is one.
    `shared` are test images that all sites have in common; only personal models are scored on them."""

    train: Dataset
    val: Dataset
    test: Dataset
    digest: str = ""
    shared: Dataset | None = None


@dataclass(frozen=True)
class SiteOptions:
    """The part of a site's behaviour in a run that its administrator decides.

    Attributes:
        secret: Keys the site's privacy noise; None derives it from the run's seed, as only a simulation may.
        scored: Splits whose scores may leave the site.
        withheld: Keys of a reply's meta that stay at the site.
        signer: Signs the site's keys in a secure aggregation.
    """

    secret: bytes | None = None
    scored: Collection[str] = SCORED
    withheld: Collection[str] = ()
    signer: Signer | None = None


class SiteRunner:
    """One site: its data, its private folder, and what a carrier may ask of it.

    Args:
        name: The site's name.
        data: Its splits.
        folder: Where its steps are stored.
        plan: The run. Parcels can be sent to its sites only.
        post: Delivers a parcel durably: ``post(step, parcel)``; returns when the receiver has stored it.
        options: What the site's administrator decides.
    """

    def __init__(
        self,
        name: str,
        data: Splits,
        folder: Path,
        plan: RunPlan,
        post: Callable[[int, PeerMessage], None],
        options: SiteOptions | None = None,
    ) -> None:
        options = options or SiteOptions()
        settings, task = plan.settings, plan.task
        self._withheld, self._peers, self._signer = frozenset(options.withheld), plan.sites, options.signer
        self._scored = [split for split in SCORED if split in options.scored]
        self.name, self.data, self.settings = name, data, settings
        self.task = task.weighted(countable(data.train, task.objective)) if settings.balance == "loss" else task
        self.run_id, self._post, self.scorer = plan.run_id, post, Scorer(self.task, settings)
        self.secret = options.secret or hashlib.sha256(f"{settings.seed}/{name}/simulated secret".encode()).digest()
        self._noises_training = policy_of(settings).noises_training and len(data.train) > 0
        if self._noises_training:
            self.run_id = secret_run_id(plan.run_id, fingerprint(data.train), task, settings.networks_by_site.get(name))
        self.store, self.inbox = Store(folder), Inbox(folder)
        self.account = open_account(settings, data.train, data.digest, name, self.run_id, folder)

    def check_account(self) -> None:
        """Refuse to go on where the account lacks what stored steps released.

        Raises:
            StoreError: If it does; else the run's summary would say too little.
        """
        if self.account is not None:
            records = [self.store.latest(before=step + 1) for step in self.store.steps()]
            self.account.check_holds(
                {release for record in records if record for release in record.meta.get("released", [])}
            )

    def site_info(self) -> Meta:
        """Return what this site tells about itself.

        The keys are ``trainable``, ``validates``, the digest of its ``frozen`` parameters if it has any, and what the
        run's `describe` lists.
        """
        train, objective = self.data.train, self.task.objective
        facts: Meta = {
            "trainable": objective.teaches(countable(train, objective)),
            "validates": len(self.data.val) > 0,
        }
        frozen = self.task.frozen_digest(self.settings.networks_by_site.get(self.name))
        facts |= {} if frozen is None else {"frozen": frozen}
        if policy_of(self.settings).discloses_statistics:
            if "size" in self.settings.disclose:
                facts["size"] = len(train)
            if "label_counts" in self.settings.disclose:
                facts["label_counts"] = objective.counts(countable(train, objective))
        return facts

    def step(
        self,
        make_method: MethodFactory,
        request: Request,
        step: int,
        round_: int,
        tensors_digest: str,
        keep: Steps = (),
    ) -> SiteResult:
        """Carry out an order, or answer from disk if that was done before.

        Args:
            make_method: Makes the method.
            order: With tensors that nobody else holds.
            step: The step's number.
            round_: Its round.
            tensors_digest: `wire.digest` of the order's tensors.
            keep: Earlier steps after which the site's state is still needed (`Store.save`).

        Raises:
            StoreError: If the stored step answers another order, or the step can't be saved.
        """
        digest = request_digest(request, tensors_digest)
        record = self._stored(step, digest)
        if record is None:
            record = self._carry_out(make_method(), request, step, round_, digest, keep)
        for index, peer_message in enumerate(record.meta["peer_messages"]):
            tensors = wire.select(record.tensors, f"peer_message/{index}/")
            self._post(step, PeerMessage(peer_message["to"], tensors, peer_message["meta"], self.name))
        meta = record.meta
        return SiteResult(self.name, step, meta["refused"], meta["reply"], [Row(*row) for row in meta["rows"]])

    def _stored(self, step: int, digest: str) -> Record | None:
        record = self.store.latest(before=step + 1) if step in self.store.steps() else None
        if record is None or record.step != step:
            return None  # not done, or damaged: it is done again from the step before
        if record.meta["request"] != digest:
            raise StoreError(
                "other_run",
                f"Site '{self.name}' has carried out another order as step {step}: expected {digest[:12]}, found "
                f"{record.meta['order'][:12]}. The run folder mixes two runs; start in a new folder.",
                site=self.name,
                step=step,
                expected=digest[:12],
                found=record.meta["request"][:12],
            )
        if DISCARDED in record.meta:
            raise StoreError(
                "deleted_reply",
                f"Site '{self.name}' no longer has its reply of step {step}: the run had finished, and replies were "
                "deleted then. The server's state is older than that. Put back its state, or start in a new folder.",
                site=self.name,
                step=step,
            )
        return record

    def _carry_out(self, method: Method, request: Request, step: int, round_: int, digest: str, keep: Steps) -> Record:
        last = self.store.latest(before=step) or Record(0, {}, {"state": {}, "blobs": {}})
        site, before = self._view(method, round_, last.state(), digest), copied(last.state())
        site.inbox = self.inbox.read(last.step, step)
        encoder = Encoder(method.filters(), method.sends, site.rng)
        filters = Filters(method.sends, method.sends_meta, self.settings, self.settings.rounds, encoder)
        refused: str | None = None
        released: list[str] = []
        reply, tensors = Reply(), Tensors()
        started = time.perf_counter()
        as_sent = replace(
            request, tensors=dict(request.tensors), meta=dict(request.meta)
        )  # the method may change its own
        try:
            noise = partial(self._noise, site, released)
            if isinstance(method, Secured):
                method = method.at(self.store.folder, noise, self._signer, self._peers)
            reply = self._execute(method, site, request, digest, released)
            sent, meta = reply.tensors, reply.meta
            if not isinstance(method, Secured):  # all that it lets out has passed the filters
                check_sent(method, self.task, self.settings, as_sent, reply, f"site '{self.name}'")
                sent, meta = filters.outgoing(reply.tensors, reply.meta, site=self.name, stream_factory=noise)
            meta = {key: value for key, value in meta.items() if key not in self._withheld}
            tensors |= wire.prefixed(sent, "reply/")
            check_peer_messages(
                reply.peer_messages, Capability.PEER_MESSAGES in method.supports, self.name, self._peers
            )
            peer_messages = []
            for index, peer_message in enumerate(reply.peer_messages):
                posted, peer_message_meta = filters.outgoing_peer_message(
                    peer_message.tensors, peer_message.meta, site=self.name
                )
                tensors |= wire.prefixed(posted, f"peer_message/{index}/")
                peer_messages.append({"to": peer_message.to, "meta": peer_message_meta})
        except RefusedError as error:
            refused, reply, tensors, meta, peer_messages = str(error), Reply(), {}, {}, []
            site.state = before
        if self.settings.compression is not None:
            reply.log["bytes_up_plain"] = plain_bytes(wire.select(tensors, "reply/"), meta)
        rows = self._rows(method, reply, request, tensors, round_, time.perf_counter() - started)
        content: Meta = {
            "request": digest,
            "reply": meta,
            "peer_messages": peer_messages,
            "refused": refused,
            "round": round_,
        }
        content |= {"rows": [list(row) for row in rows]} | ({"released": released} if released else {})
        self.store.save(step, site.state, content, tensors, keep)
        self.inbox.forget([0, *self.store.steps()][-KEEP])
        return Record(step, tensors, content)

    def _execute(self, method: Method, site: Site, request: Request, digest: str, released: list[str]) -> Reply:
        """The method's work. Where single images are hidden it is in the account before anything of it leaves."""
        if not isinstance(site, SecretSite):
            with pinned(self.settings.seed, self.name, site.round, "global"):
                return method.execute(site, request)
        start = f"{site.round} {digest} {wire.digest(site.state.tensors, site.state.meta)}"
        try:
            with pinned("secret", site.secret_seed("global")):
                reply = method.execute(site, request)
        except RefusedError:
            self._release(f"{start} refused", released)  # that it refuses says something, too
            raise
        self._release(f"{start} {wire.digest(reply.tensors)} {wire.digest(site.state.tensors)}", released)
        return reply

    def _noise(self, site: Site, released: list[str], payload: str, turn: str = "") -> SecretStream:
        """Return the noise of an update. The release is in the account before the noise is drawn.

        Args:
            site: In the round.
            released: Takes the release in.
            payload: A hash of the update; the same one has the same noise.
            turn: Names the secure aggregation that the update is for; the account counts it in each one.
        """
        self._release(f"{site.round} {payload} {turn}".rstrip(), released)
        return site.secret_rng("noise", payload)

    def _release(self, made_of: str, released: list[str]) -> None:
        assert self.account is not None
        self.account.release(made_of)
        released.append(made_of)

    def _rows(
        self, method: Method, reply: Reply, request: Request, sent: Tensors, round_: int, seconds: float
    ) -> list[Row]:
        costs = reply.log | {
            "work_seconds": seconds,
            "bytes_down": wire.payload_bytes(request.tensors),
            "bytes_up": wire.payload_bytes({name: t for name, t in sent.items() if name.startswith("reply/")}),
            "bytes_to_peers": wire.payload_bytes(
                {name: t for name, t in sent.items() if name.startswith("peer_message/")}
            ),
        }
        rows = rows_of(costs, round_, self.name, "personal", "train", "trained")
        for kind, model in reply.trained.items() if "trained" in self.settings.moments else ():
            predictor = predictor_of(method, self.task, model)
            for split in self._scored:
                scores = score(predictor, getattr(self.data, split), self.task, self.settings)
                rows += rows_of(scores, round_, self.name, kind, split, "trained")
        return rows

    def _view(self, method: Method, round_: int, state: State, request: str = "") -> Site:
        """The method's view of this site with a given state."""
        task = method.task_of(self.task).in_round(round_, self.settings.lr_decay)
        site = Site(self.name, round_, state, task, self.settings, self.store)
        if self._noises_training:
            site = SecretSite(self.name, round_, state, task, self.settings, self.store, request=request)
        site.train, site.val, site.secret, site.run_id = self.data.train, self.data.val, self.secret, self.run_id
        return site

    def evaluate(self, method: Method, published: Tensors, step: int, round_: int, shared: Predictors) -> list[Row]:
        """Score this site's models after a round on its validation and test data, the personal one on shared ones, too.

        A personal model that has the bits of when it was last scored is not scored again.

        Args:
            method: The method.
            published: What the server published after `step`.
            step: The round's last step.
            round_: The round.
            shared: Predictors that are the same at every site, by kind; a caller passes one dict per round.
        """
        own = {split: getattr(self.data, split) for split in self._scored}
        every = own | ({"shared": self.data.shared} if self.data.shared is not None else {})
        if not any(map(len, every.values())):
            return []
        rows, started = [], time.perf_counter()
        for kind, model in self.models(method, published, step, round_).items():
            splits = every if kind == "personal" else own
            for split, scores in self.scorer.scores(method, kind, model, splits, shared).items():
                rows += rows_of(scores, round_, self.name, kind, split, "aggregated")
        cost = {} if self.name in NO_SITES else {"evaluate_seconds": time.perf_counter() - started}
        return rows + rows_of(cost, round_, self.name, "personal", "train", "aggregated")

    def models(self, method: Method, published: Tensors, step: int, round_: int) -> dict[str, Model]:
        """The site's models after `step`, given what the server published; its own test sets have none."""
        site = self._view(method, round_, self.store.peek(before=step + 1))
        site.published = published
        models = method.models(site)
        return {kind: model for kind, model in models.items() if kind == "global" or self.name not in NO_SITES}
