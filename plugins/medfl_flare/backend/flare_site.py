"""A site's end of the carrier over NVIDIA FLARE; see `medfl_flare.backend.flare`."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medfl.utils.memory import LITTLE, Sweeper
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.flare import BLOB, HAVE, HEARTBEAT, KEPT, OFFSET, PARTS, SIZE, TOKEN
from medfl_flare.backend.parts import bring, fetch
from medfl_flare.backend.remote_messages import TASK

logger = logging.getLogger(__name__)

REFUSED = "refused"
"""In the answer to a parcel: why it is refused, or nothing."""

PEER_MESSAGE = "medfl.peer_message"
"""Topic of aux messages from site to site."""

PEER_MESSAGE_TRIES = 3
"""How often a parcel is sent before its receiver counts as out of reach. A dead one is known at once."""

LOST = 30.0
"""Seconds after which a part is asked for again; twice as long each time, for the line may be shared by many."""

GIVE_UP = 1800.0
"""Seconds without an answer after which a site takes the server to be out of reach."""


class FlareExecutor(Executor):  # type: ignore[misc]
    """A site's side of a job."""

    def __init__(self) -> None:
        super().__init__()
        self._fl_ctx: FLContext | None = None
        self._engine: Any = None
        self._sweeper = Sweeper()
        self._token, self._brought = "", queue.SimpleQueue[Shareable]()

    @abstractmethod
    def open(self, local: Path) -> None:
        """Make ready to answer.

        Args:
            local: The participant's own folder of settings.
        """

    @abstractmethod
    def refusal(self, size: int) -> bytes | None:
        """The answer to a message of so many bytes, if it need not come for that."""

    @abstractmethod
    def answer(self, blob: Blob) -> bytes:
        """The answer to a message of the server."""

    @abstractmethod
    def receive(self, sender: str, blob: bytes) -> str | None:
        """Take a parcel of another site; returns why it is refused, or None."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Called by NVFlare: gets ready before the first task."""
        if event_type == EventType.START_RUN:
            engine = self._engine = fl_ctx.get_engine()
            workspace = engine.get_workspace()
            self._path = Path(workspace.get_run_dir(fl_ctx.get_job_id())).absolute() / "medfl.message"
            self.open(Path(workspace.get_site_config_dir()).absolute())
            engine.register_aux_message_handler(PEER_MESSAGE, self._on_peer_message)
            engine.register_aux_message_handler(PARTS, self._on_part)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Called by NVFlare with a task of the server."""
        token, size = shareable.get(TOKEN), shareable.get(SIZE)
        if task_name != TASK or not isinstance(token, str) or type(size) is not int:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        self._fl_ctx, self._token = fl_ctx, token
        ask = partial(self._ask, abort_signal)
        answer = self.refusal(size)
        if answer is None:
            message = fetch(ask, size, self._path)
            if message is None:
                return make_reply(ReturnCode.COMMUNICATION_ERROR)
            answer = self.answer(message)
        bring(ask, answer)
        self._sweeper.left(0, LITTLE)
        return Shareable({SIZE: len(answer)})

    def _ask(self, abort_signal: Signal, offset: int, part: bytes) -> tuple[int, bytes] | None:
        """As `medfl_flare.backend.parts.Ask`. What is lost on the way is said again."""
        patience, given_up = LOST, time.monotonic() + GIVE_UP
        self._sweeper.left(len(part) + KEPT)
        while not abort_signal.triggered and time.monotonic() < given_up:
            self._tell(PARTS, Shareable({TOKEN: self._token, OFFSET: offset, BLOB: part}))
            again = time.monotonic() + patience
            while not abort_signal.triggered and (left := again - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    brought = self._brought.get(timeout=min(left, 1.0))
                    if brought.get(TOKEN) == self._token and brought.get(OFFSET) == offset:
                        have, wanted = brought.get(HAVE), brought.get(BLOB)
                        fits = type(have) is int and have >= 0 and isinstance(wanted, bytes)
                        return (have, wanted) if fits else None
            patience *= 2
        return None

    def _on_part(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        if request.get(TOKEN) == self._token:  # which nobody else knows
            self._brought.put(request)
        return make_reply(ReturnCode.OK)

    def post(self, to: str, blob: bytes, patience: float) -> bool:
        """Bring a parcel to another site, encrypted for it; returns whether it was acknowledged within `patience` s."""
        assert self._fl_ctx is not None
        for _ in range(PEER_MESSAGE_TRIES):
            answers = self._fl_ctx.get_engine().send_aux_request(
                targets=[to],
                topic=PEER_MESSAGE,
                request=Shareable({BLOB: blob}),
                timeout=patience / PEER_MESSAGE_TRIES,
                fl_ctx=self._fl_ctx,
                secure=True,
            )
            answer = answers.get(to) if answers else None
            if answer is not None and answer.get_return_code() == ReturnCode.OK:
                if answer.get(REFUSED):
                    logger.warning("'%s' refuses the parcel: %s", to, one_line(answer[REFUSED], 2000))
                return not answer.get(REFUSED)
            time.sleep(1)
        return False

    def beat(self, blob: bytes) -> None:
        """Send a heartbeat to the server, which may be lost; called from a thread of its own."""
        self._tell(HEARTBEAT, Shareable({BLOB: blob}))

    def _tell(self, topic: str, about: Shareable) -> None:
        """Say something to the server that may be lost."""
        with contextlib.suppress(Exception), self._engine.new_context() as fl_ctx:
            self._engine.fire_and_forget_aux_request(topic, about, fl_ctx, optional=True)

    def _on_peer_message(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        sender, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BLOB)
        refused = self.receive(sender, blob) if isinstance(blob, bytes) else "expected bytes"
        reply = make_reply(ReturnCode.OK)
        reply[REFUSED] = refused or ""
        return reply
