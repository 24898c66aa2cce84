"""A site's side of the protocol: receives packed messages and returns packed replies, over any transport.

A peer message goes from one site to another. The site's own file lists its folders and its permissions for runs.

Every message is checked (`medfl_flare.backend.messages`) and compared with the site's own file
(`medfl_flare.sites.policy`). Only then does the same idempotent step as on one machine process it
(`medfl.engine.site.SiteRunner`). A message that can't be processed is refused with a reason, and the site waits for the
next message. The site records every message and everything that leaves it (`medfl_flare.sites.audit_log`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from medfl.contract import PeerMessage
from medfl.engine.runs.progress import step_metrics
from medfl.errors import MedflError, RefusedError
from medfl.privacy.policy import policy_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.progress import CommittedStep, Heartbeat, JobEnd, JobStart
from medfl.records.run_file import JoinedSite
from medfl.types import Meta
from medfl.utils.heartbeat import HeartbeatSender, HeartbeatSignal, HeartbeatThread
from medfl.utils.memory import keep_freed_memory
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.feature_messages import MOMENTS, SUMS
from medfl_flare.backend.heartbeat import pack_heartbeat
from medfl_flare.backend.message_checks import check_size
from medfl_flare.backend.messages import Limits, Message, pack, unpack
from medfl_flare.backend.protocol_messages import read_position, rows_from_json
from medfl_flare.backend.remote_backend import ACTIVITIES
from medfl_flare.federated_evaluation import evaluation_request
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest
from medfl_flare.federated_statistics.site_reply import compute_reply
from medfl_flare.federated_statistics.statistics_request import KIND, StatisticsRequest
from medfl_flare.offered_bundle import OfferedRun, open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites.audit_log import AuditLog
from medfl_flare.sites.policy import disclosed_profile
from medfl_flare.sites.site_file import SiteFile
from medfl_flare.sites.site_run import SiteRun

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer
    from medfl_flare.backend.signed_messages import PeerMessageSigner
    from medfl_flare.federated_evaluation.site_evaluation import OpenedEvaluation

logger = logging.getLogger(__name__)

PostFunction = Callable[[str, bytes, float], bool]
"""Type of a function that sends a packed peer message, called with (receiver, bytes, seconds to try).
The function returns whether the receiver acknowledged the message."""

PEER_MESSAGE_TIME_SHARE = 0.5
"""Share of a step's timeout that sending the site's peer messages may take."""

BEFORE_BEGIN = Limits(max_bytes=2**20, max_tensors=0)
"""Limits of a message before the run has begun."""


class SiteService:
    """Processes the messages of the server and of other sites.

    Args:
        site_file: The site's own file.
        post: Function that sends a peer message to another site.
        beat: Function that sends a heartbeat to the server; the heartbeat may be lost. Called from a separate thread.
        signer: Signer of this site's peer messages; other sites must sign theirs, too. None if no one relays the
            messages.
    """

    def __init__(
        self,
        site_file: SiteFile,
        post: PostFunction,
        beat: Callable[[bytes], None] = lambda blob: None,
        signer: Signer | None = None,
    ) -> None:
        self._file, self._post, self._send_beat = site_file, post, beat
        self._limits = Limits(max_bytes=site_file.max_message_mb * 10**6)
        self._signer = signer
        self._peer_signer: PeerMessageSigner | None = None
        self._opened: OfferedRun | None = None
        self._run: SiteRun | None = None
        self._evaluation: OpenedEvaluation | None = None
        self._locks = contextlib.ExitStack()
        self._audit = AuditLog(site_file)
        self._statistics_account: PrivacyAccount | None = None
        keep_freed_memory()
        torch.set_num_threads(site_file.threads)

    def refuse_by_size(self, size: int) -> bytes | None:
        """Return the reply to a message that is refused for its size, or None if the site must fetch the message.

        Args:
            size: Size of the message in bytes.
        """
        try:
            check_size(size, self._current_limits)
        except RefusedError as error:
            return self._refuse("refused", str(error))
        return None

    @property
    def _current_limits(self) -> Limits:
        """Limits of a message in the current state of the run or of the evaluation."""
        return BEFORE_BEGIN if self._run is None and self._evaluation is None else self._limits

    def answer(self, blob: Blob) -> bytes:
        """Process a message of the server and return the packed reply, or a packed refusal. Raises nothing."""
        kind = "refused"
        try:
            message = unpack(blob, self._current_limits)
            kind = message.kind[:64]
            with HeartbeatThread() as thread, HeartbeatSender(self._record_heartbeat, thread):
                answer = self._dispatch(message)
                reply = pack(answer)
            self._audit.record_reply(
                message, answer, len(reply), self._statistics_account if self._run is None else self._run.budget()
            )
            return reply
        except RefusedError as error:
            return self._refuse(kind, str(error))
        except MedflError as error:  # the text may name folders, so it is only for this site's administrator
            logger.error("%s", error)
            problem = type(error).__name__.removesuffix("Error").lower()
            return self._refuse(
                kind, f"'{self._file.site}' can't take part: a problem with its {problem}. See the log of the site."
            )
        except Exception as error:
            logger.exception("A message of kind '%s' caused an error.", kind)
            return self._refuse(kind, f"an unexpected {type(error).__name__}; see the log of the site")

    def receive(self, sender: str, blob: bytes) -> str | None:
        """Check and store a peer message. When this returns, the message is on the disk and recorded in the audit file.

        Args:
            sender: Name of the sender, as the transport reports it.
            blob: The packed peer message.

        Returns:
            The reason for the refusal, or None if the message was accepted.
        """
        why = self._store_peer_message(sender, blob)
        self._audit.record_received(sender, why)
        return why

    def _store_peer_message(self, sender: str, blob: bytes) -> str | None:
        """Check and store a peer message; return the reason for a refusal, or None."""
        try:
            if self._run is None:
                raise RefusedError("run_not_started", "no run has begun at this site")
            opened = blob if self._peer_signer is None else self._peer_signer.verify(blob, sender)
            self._run.receive(sender, unpack(opened, self._limits))
        except MedflError as error:
            logger.warning("A peer message of '%s' was refused: %s", sender, error)
            return str(error) if isinstance(error, RefusedError) else "it could not be stored"
        except Exception as error:
            logger.exception("A peer message of '%s' caused an error.", sender)
            return f"an unexpected {type(error).__name__}"
        return None

    def close(self) -> None:
        """Leave the run and release the lock of its folder; the finished steps are saved."""
        self._opened = self._run = self._evaluation = None
        self._locks.close()

    def _refuse(self, kind: str, why: str) -> bytes:
        """Log and record a refusal, and return the packed reply."""
        why = one_line(why, 2000)  # it may contain text from the message
        logger.warning("Refused ('%s'): %s", kind, why)
        self._audit.record_refusal(kind, why)
        return pack(Message(kind, {}, {"refused": why}))

    def _dispatch(self, message: Message) -> Message:
        """Process a message by its kind and return the reply."""
        if message.kind == "hello":
            return self._hello_reply(Offer.from_meta(message.meta))
        if message.kind == "begin":
            return self._begin_reply(message.meta)
        if message.kind == "end":
            self.close()
            return Message("end", {}, {"refused": None})
        if message.kind == KIND and self._opened is None:
            return self._statistics_reply(StatisticsRequest.from_meta(message.meta))
        if message.kind == evaluation_request.KIND and self._opened is None:
            return self._evaluation_reply(EvaluationRequest.from_meta(message.meta))
        if message.kind == evaluation_request.MODEL_KIND and self._evaluation is not None:
            return self._scores_reply(self._evaluation, message)
        if self._run is None:
            raise RefusedError(
                "wrong_message_order", f"expected 'begin' before '{message.kind}'", expected="begin", found=message.kind
            )
        parts = {
            "step": self._run.step,
            "send_model": self._run.send_model,
            "score_model": self._run.score_peer_model,
            "install": self._run.install,
        }
        if (harmonisation := self._run.harmonisation) is not None:
            if message.kind in parts and harmonisation.feature_map is None:
                raise RefusedError(
                    "wrong_message_order",
                    f"expected '{MOMENTS}' before '{message.kind}', as the run harmonises features",
                    expected=MOMENTS,
                    found=message.kind,
                )
            parts |= {SUMS: harmonisation.send_sums, MOMENTS: harmonisation.harmonise}
        if message.kind not in parts:
            raise RefusedError(
                "unexpected_message_kind",
                f"expected a message of kind {sorted(parts)}, got '{message.kind}'",
                expected=sorted(parts),
                found=message.kind,
            )
        sites, job = (self._file.site,), message.kind
        round_, step = read_position(message.meta)
        self._run.note(JobStart(sites=sites, job=job, activity=ACTIVITIES[job], round=round_, step=step))
        tensors, meta = parts[job](message)
        self._run.note(JobEnd(sites=sites, job=job))
        if message.kind == "step":
            self._record_step(self._run, message.meta, meta)
        return Message(message.kind, tensors, {"refused": None} | meta)

    def _record_step(self, run: SiteRun, step: Meta, answer: Meta) -> None:
        """Record a processed step in the site's own progress file.

        The record contains nothing that the server does not learn, too.
        """
        site, request, evaluate = self._file.site, step.get("request"), step.get("evaluate")
        about = request or evaluate  # a message without a request only evaluates
        if about is None:
            return
        rows = rows_from_json(answer["evaluation"] + (answer["answer"] or {"rows": []})["rows"], site)
        rounds_done = about["round"] - bool(request)
        run.note(
            CommittedStep(
                step=about["step"],
                round=rounds_done + bool(request),
                rounds_done=rounds_done,
                requested=(site,) if request else (),
                metrics=step_metrics(rows, run.task.metrics[0]),
            )
        )

    def _hello_reply(self, offer: Offer) -> Message:
        """Open an offered run and return the reply to ``hello``."""
        self.close()
        self._audit.set_run(offer)
        self._opened = open_offer(offer, self._file)
        if self._signer is not None:
            from medfl_flare.backend.signed_messages import (
                PeerMessageSigner,  # needs packages that are installed with NVFlare
            )

            self._peer_signer = PeerMessageSigner(self._signer, offer.to_json())
        assignment = self._opened.assignment
        profile = (
            disclosed_profile(self._file, assignment) if assignment is not None and assignment.asks_sites else None
        )
        network = self._file.bundle(offer.bundle).network
        return Message("hello", {}, {"refused": None, "network": network, "profile": profile})

    def _statistics_reply(self, request: StatisticsRequest) -> Message:
        """Compute the federated statistics of this site's data and return them as the reply."""
        self._audit.set_request(request.statistics, request.bundle)
        statistics, self._statistics_account = compute_reply(request, self._file)
        return Message(KIND, {}, {"refused": None} | statistics.model_dump(mode="json"))

    def _evaluation_reply(self, request: EvaluationRequest) -> Message:
        """Check a request to score a model, and return the reply that accepts the request."""
        from medfl_flare.federated_evaluation.site_evaluation import open_evaluation  # imports the report

        self._evaluation, self._statistics_account = None, None
        self._audit.set_request(request.evaluation, request.bundle)
        self._evaluation = open_evaluation(request, self._file)
        return Message(evaluation_request.KIND, {}, {"refused": None})

    def _scores_reply(self, opened: OpenedEvaluation, message: Message) -> Message:
        """Score the model in a message and return the scores that may leave. The evaluation ends in any case."""
        from medfl_flare.federated_evaluation.site_evaluation import score_model

        self._evaluation = None
        scores = score_model(opened, message.tensors)
        return Message(message.kind, {}, {"refused": None} | scores.model_dump(mode="json"))

    def _begin_reply(self, meta: Meta) -> Message:
        """Load the data of the run and return the reply to ``begin``."""
        if self._opened is None:
            raise RefusedError(
                "wrong_message_order", "expected 'hello' before 'begin'", expected="hello", found="begin"
            )
        if self._run is None:
            run = SiteRun(
                self._opened.with_networks(_read_networks(meta), _read_joined(meta)),
                self._file,
                self._send_peer_message,
            )
            self._locks.enter_context(run.locked())
            self._run = run
        return Message("begin", {}, {"refused": None} | self._run.begin_reply())

    def _record_heartbeat(self, beat: HeartbeatSignal) -> None:
        """Record a heartbeat at the site and send it to the server.

        The numbers of batches reveal the number of images, so they are removed unless the run and the site's own file
        let that number leave.
        """
        if self._run is not None:
            self._run.note(
                Heartbeat(
                    sites=(self._file.site,),
                    activity=beat.doing,
                    batch=beat.batch,
                    batches=beat.batches,
                    has_progressed=beat.moved,
                )
            )
        opened = self._opened
        discloses = opened is not None and policy_of(opened.settings).discloses_metadata("private")
        tells = discloses and "size" in self._file.disclose
        self._send_beat(pack_heartbeat(beat if tells else beat.without_counts()))

    def _send_peer_message(self, peer_message: PeerMessage, step: int, use: str) -> bool:
        """Record, sign and send a peer message; return whether the receiver acknowledged it."""
        meta = {"step": step, "use": use, "meta": peer_message.meta}
        assert self._opened is not None
        self._audit.record_sent(peer_message)
        patience = PEER_MESSAGE_TIME_SHARE * self._opened.offer.reply_timeout
        blob = pack(Message("peer_message", peer_message.tensors, meta))
        return self._post(
            peer_message.to,
            blob if self._peer_signer is None else self._peer_signer.sign(blob, peer_message.to),
            patience,
        )


def _read_networks(meta: Meta) -> dict[str, str]:
    """Return the mapping from site to network in a message."""
    networks: Any = meta.get("networks")
    if not isinstance(networks, dict) or not all(isinstance(name, str) for name in networks.values()):
        raise RefusedError("invalid_message", "expected a dict from site to network name", name="networks")
    return dict(networks)


def _read_joined(meta: Meta) -> dict[str, JoinedSite]:
    """Return the sites that joined after the run began, from a message."""
    joined: Any = meta.get("joined", {})
    try:
        return {str(site): JoinedSite.model_validate(entry, strict=True) for site, entry in joined.items()}
    except (AttributeError, ValidationError):
        raise RefusedError(
            "invalid_message",
            "expected round and network of each site that joined after the run began",
            name="joined",
            expected=("round", "network"),
        ) from None
