"""A site's end of the conversation: bytes in, bytes out, whatever brings them.

Everything that comes is checked (`medfl_flare.backend.messages`), compared with the site's own file
(`medfl_flare.sites.policy`) and only then given to the same idempotent step that a run on one machine uses
(`medfl.engine.site.SiteRunner`). What can't be done is refused in a sentence, and the site waits for the next message.
What was asked and what leaves is noted down (`medfl_flare.sites.audit`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
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
from medfl.utils.memory import keep_freed_memory
from medfl.utils.pulse import Beat, Pulse
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.heartbeat import pack_beat
from medfl_flare.backend.message_checks import check_size
from medfl_flare.backend.messages import Limits, Message, pack, unpack
from medfl_flare.backend.remote import DOING
from medfl_flare.backend.remote_messages import rows_from_json
from medfl_flare.describing.request import KIND, Request
from medfl_flare.describing.site import answer_request
from medfl_flare.offered_bundle import OfferedRun, open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites.audit import Audit
from medfl_flare.sites.file import SiteFile
from medfl_flare.sites.policy import told_profile
from medfl_flare.sites.run import SiteRun

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer
    from medfl_flare.backend.sealed import Seal

logger = logging.getLogger(__name__)

Post = Callable[[str, bytes, float], bool]
"""Brings a parcel to another site: (receiver, blob, seconds to try) to whether it was acknowledged."""

PEER_MESSAGES = 0.5
"""Share of a step's time-out that sending its parcels may take."""

BEFORE_BEGIN = Limits(max_bytes=2**20, max_tensors=0)
"""What a message may be before the run has begun."""


class SiteService:
    """Answers the server's messages and takes other sites' parcels.

    Args:
        site_file: The site's own file.
        post: Brings a parcel to another site.
        beat: Brings a heartbeat to the server, or loses it; called from a thread of its own.
        signer: Signs this site's parcels, and those of others must be signed; None where nobody passes them on.
    """

    def __init__(
        self,
        site_file: SiteFile,
        post: Post,
        beat: Callable[[bytes], None] = lambda blob: None,
        signer: Signer | None = None,
    ) -> None:
        self._file, self._post, self._send_beat = site_file, post, beat
        self._limits = Limits(max_bytes=site_file.max_message_mb * 10**6)
        self._signer = signer
        self._seal: Seal | None = None
        self._opened: OfferedRun | None = None
        self._run: SiteRun | None = None
        self._held = contextlib.ExitStack()
        self._audit = Audit(site_file)
        self._spent: PrivacyAccount | None = None
        keep_freed_memory()
        torch.set_num_threads(site_file.threads)

    def refusal(self, size: int) -> bytes | None:
        """The answer to a message of so many bytes, if it is refused for that; it need not be brought."""
        try:
            check_size(size, self._now)
        except RefusedError as error:
            return self._refuse("refused", str(error))
        return None

    @property
    def _now(self) -> Limits:
        return BEFORE_BEGIN if self._run is None else self._limits

    def answer(self, blob: Blob) -> bytes:
        """The answer to a message of the server; a refusal if it can't be carried out. Raises nothing."""
        kind = "refused"
        try:
            message = unpack(blob, self._now)
            kind = message.kind[:64]
            with Pulse(self._beat):
                answer = self._answers(message)
                reply = pack(answer)
            self._audit.answered(message, answer, len(reply), self._spent if self._run is None else self._run.budget())
            return reply
        except RefusedError as error:
            return self._refuse(kind, str(error))
        except MedflError as error:  # its text is for this site's administrator: it may name folders
            logger.error("%s", error)
            problem = type(error).__name__.removesuffix("Error").lower()
            return self._refuse(
                kind, f"'{self._file.site}' can't take part: a problem with its {problem}. Its log says more."
            )
        except Exception as error:
            logger.exception("A message of kind '%s' brought about an error.", kind)
            return self._refuse(kind, f"an unexpected {type(error).__name__}; its own log says more")

    def receive(self, sender: str, blob: bytes) -> str | None:
        """Take a parcel of another site: stored, flushed to the disk and noted when this returns.

        Args:
            sender: Who sends, as the network says.
            blob: The parcel.

        Returns:
            Why it is refused, or None.
        """
        why = self._take(sender, blob)
        self._audit.received(sender, why)
        return why

    def _take(self, sender: str, blob: bytes) -> str | None:
        try:
            if self._run is None:
                raise RefusedError("run_not_started", "no run has begun here")
            opened = blob if self._seal is None else self._seal.open(blob, sender)
            self._run.receive(sender, unpack(opened, self._limits))
        except MedflError as error:
            logger.warning("A parcel of '%s' is refused: %s", sender, error)
            return str(error) if isinstance(error, RefusedError) else "it could not be stored"
        except Exception as error:
            logger.exception("A parcel of '%s' brought about an error.", sender)
            return f"an unexpected {type(error).__name__}"
        return None

    def close(self) -> None:
        """Leave the run; what is finished is saved."""
        self._opened = self._run = None
        self._held.close()

    def _refuse(self, kind: str, why: str) -> bytes:
        why = one_line(why, 2000)  # it may repeat what came
        logger.warning("Refused ('%s'): %s", kind, why)
        self._audit.refused(kind, why)
        return pack(Message(kind, {}, {"refused": why}))

    def _answers(self, message: Message) -> Message:
        if message.kind == "hello":
            return self._hello(Offer.from_meta(message.meta))
        if message.kind == "begin":
            return self._begin(message.meta)
        if message.kind == "end":
            self.close()
            return Message("end", {}, {"refused": None})
        if message.kind == KIND and self._opened is None:
            return self._describe(Request.from_meta(message.meta))
        if self._run is None:
            raise RefusedError(
                "wrong_message_order", f"expected 'begin' before '{message.kind}'", expected="begin", found=message.kind
            )
        parts = {
            "step": self._run.step,
            "post": self._run.post_model,
            "guest": self._run.score_guest,
            "install": self._run.install,
        }
        if message.kind not in parts:
            raise RefusedError(
                "unexpected_message_kind",
                f"expected a message of kind {sorted(parts)}, got '{message.kind}'",
                expected=sorted(parts),
                found=message.kind,
            )
        sites, job = (self._file.site,), message.kind
        self._run.note(JobStart(sites=sites, job=job, activity=DOING[job]))
        tensors, meta = parts[job](message)
        self._run.note(JobEnd(sites=sites, job=job))
        if message.kind == "step":
            self._note_step(self._run, message.meta, meta)
        return Message(message.kind, tensors, {"refused": None} | meta)

    def _note_step(self, run: SiteRun, step: Meta, answer: Meta) -> None:
        """Record for this site's administrator what the site did, as far as the server learns it, too."""
        site, request, evaluate = self._file.site, step.get("request"), step.get("evaluate")
        if (request := request or evaluate) is None:
            return
        rows = rows_from_json(answer["evaluation"] + (answer["answer"] or {"rows": []})["rows"], site)
        rounds_done = request["round"] - bool(request)
        run.note(
            CommittedStep(
                step=request["step"],
                round=rounds_done + bool(request),
                rounds_done=rounds_done,
                requested=(site,) if request else (),
                metrics=step_metrics(rows, run.task.metrics[0]),
            )
        )

    def _hello(self, offer: Offer) -> Message:
        self.close()
        self._audit.offered(offer)
        self._opened = open_offer(offer, self._file)
        if self._signer is not None:
            from medfl_flare.backend.sealed import Seal  # it needs what comes with NVFlare

            self._seal = Seal(self._signer, offer.to_json())
        assignment = self._opened.assignment
        profile = told_profile(self._file, assignment) if assignment is not None and assignment.asks_sites else None
        network = self._file.bundle(offer.bundle).network
        return Message("hello", {}, {"refused": None, "network": network, "profile": profile})

    def _describe(self, request: Request) -> Message:
        self._audit.described(request.describe, request.bundle)
        description, self._spent = answer_request(request, self._file)
        return Message(KIND, {}, {"refused": None} | description.model_dump(mode="json"))

    def _begin(self, meta: Meta) -> Message:
        if self._opened is None:
            raise RefusedError(
                "wrong_message_order", "expected 'hello' before 'begin'", expected="hello", found="begin"
            )
        if self._run is None:
            run = SiteRun(self._opened.with_networks(_networks(meta), _joined(meta)), self._file, self._send)
            self._held.enter_context(run.held())
            self._run = run
        return Message("begin", {}, {"refused": None} | self._run.facts())

    def _beat(self, beat: Beat) -> None:
        """Say that the work goes on. The share that is done tells how many images there are, so it may stay here."""
        if self._run is not None:
            self._run.note(
                Heartbeat(sites=(self._file.site,), activity=beat.doing, share=beat.share, has_progressed=beat.moved)
            )
        opened = self._opened
        discloses = opened is not None and policy_of(opened.settings).discloses_metadata("private")
        tells = discloses and "size" in self._file.disclose
        self._send_beat(pack_beat(beat if tells else replace(beat, share=None)))

    def _send(self, peer_message: PeerMessage, step: int, use: str) -> bool:
        meta = {"step": step, "use": use, "meta": peer_message.meta}
        assert self._opened is not None
        self._audit.sends(peer_message)
        patience = PEER_MESSAGES * self._opened.offer.answer_timeout
        blob = pack(Message("peer_message", peer_message.tensors, meta))
        return self._post(
            peer_message.to, blob if self._seal is None else self._seal.close(blob, peer_message.to), patience
        )


def _networks(meta: Meta) -> dict[str, str]:
    """Site to network, from a message."""
    networks: Any = meta.get("networks")
    if not isinstance(networks, dict) or not all(isinstance(name, str) for name in networks.values()):
        raise RefusedError("invalid_message", "expected the name of a network for each site", name="networks")
    return dict(networks)


def _joined(meta: Meta) -> dict[str, JoinedSite]:
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
