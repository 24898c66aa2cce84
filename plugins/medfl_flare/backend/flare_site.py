"""A site's side of the NVFlare transport; `medfl_flare.backend.flare_server` is the server's side.

A task of NVFlare tells the site that a message of the server waits for it. The site fetches the message and sends its
reply, both in parts. The parts, heartbeats and peer messages (messages from site to site) travel in NVFlare's aux
messages, which are independent of tasks.
"""

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

from medfl.utils.memory import LITTLE, GarbageSweeper
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.flare_server import (
    BYTES_KEY,
    HEARTBEAT_TOPIC,
    NVFLARE_OVERHEAD_BYTES,
    OFFSET_KEY,
    PART_TOPIC,
    RECEIVED_KEY,
    SIZE_KEY,
    TOKEN_KEY,
)
from medfl_flare.backend.message_transfer import fetch_message, send_reply
from medfl_flare.backend.protocol_messages import TASK_NAME

logger = logging.getLogger(__name__)

REFUSAL_KEY = "refused"
"""Key of the reason for a refusal in the acknowledgement of a peer message; the value is empty if the message was
accepted."""

PEER_MESSAGE_TOPIC = "medfl.peer_message"
"""Topic of the aux messages with peer messages, which go from site to site."""

MAX_PEER_MESSAGE_TRIES = 3
"""Number of attempts to send a peer message before its receiver is treated as unreachable. NVFlare reports a dead
receiver at once."""

RETRY_SECONDS = 30.0
"""Seconds after which a site requests a part again. The time doubles with each attempt, as many sites may share the
connection."""

GIVE_UP_SECONDS = 1800.0
"""Seconds without a response after which a site treats the server as unreachable."""


class FlareExecutor(Executor):  # type: ignore[misc]
    """A site's side of an NVFlare job. Subclasses process the messages; this class transports them."""

    def __init__(self) -> None:
        super().__init__()
        self._fl_ctx: FLContext | None = None
        self._engine: Any = None
        self._sweeper = GarbageSweeper()
        self._token, self._responses = "", queue.SimpleQueue[Shareable]()

    @abstractmethod
    def open(self, local: Path) -> None:
        """Prepare the site for messages. Called once, before the first message.

        Args:
            local: Folder ``local`` of the site's startup kit, with the site's own settings.
        """

    @abstractmethod
    def refuse_by_size(self, size: int) -> bytes | None:
        """Return the reply to a message that is refused for its size, or None if the site must fetch the message.

        Args:
            size: Size of the message in bytes.
        """

    @abstractmethod
    def answer(self, blob: Blob) -> bytes:
        """Process a message of the server and return the packed reply."""

    @abstractmethod
    def receive(self, sender: str, blob: bytes) -> str | None:
        """Process a peer message and return the reason for its refusal, or None if it was accepted.

        Args:
            sender: Name of the sending site, as NVFlare reports it.
            blob: The packed peer message.
        """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Call `open` and register the handlers of aux messages when a run starts. NVFlare calls this method."""
        if event_type == EventType.START_RUN:
            engine = self._engine = fl_ctx.get_engine()
            workspace = engine.get_workspace()
            self._path = Path(workspace.get_run_dir(fl_ctx.get_job_id())).absolute() / "medfl.message"
            self.open(Path(workspace.get_site_config_dir()).absolute())
            engine.register_aux_message_handler(PEER_MESSAGE_TOPIC, self._on_peer_message)
            engine.register_aux_message_handler(PART_TOPIC, self._on_part)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Fetch the server's message, process it and send the reply. NVFlare calls this method with a task."""
        token, size = shareable.get(TOKEN_KEY), shareable.get(SIZE_KEY)
        if task_name != TASK_NAME or not isinstance(token, str) or type(size) is not int:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        self._fl_ctx, self._token = fl_ctx, token
        exchange_part = partial(self._exchange_part, abort_signal)
        answer = self.refuse_by_size(size)
        if answer is None:
            message = fetch_message(exchange_part, size, self._path)
            if message is None:
                return make_reply(ReturnCode.COMMUNICATION_ERROR)
            answer = self.answer(message)
        send_reply(exchange_part, answer)
        self._sweeper.left(0, LITTLE)
        return Shareable({SIZE_KEY: len(answer)})

    def _exchange_part(self, abort_signal: Signal, offset: int, part: bytes) -> tuple[int, bytes] | None:
        """Send a part or a request for a part, and wait for the response; repeat it if it was lost.

        See `medfl_flare.backend.message_transfer.PartExchange` for the result.
        """
        patience, given_up = RETRY_SECONDS, time.monotonic() + GIVE_UP_SECONDS
        self._sweeper.left(len(part) + NVFLARE_OVERHEAD_BYTES)
        while not abort_signal.triggered and time.monotonic() < given_up:
            self._send_without_reply(
                PART_TOPIC, Shareable({TOKEN_KEY: self._token, OFFSET_KEY: offset, BYTES_KEY: part})
            )
            again = time.monotonic() + patience
            while not abort_signal.triggered and (left := again - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    response = self._responses.get(timeout=min(left, 1.0))
                    if response.get(TOKEN_KEY) == self._token and response.get(OFFSET_KEY) == offset:
                        have, wanted = response.get(RECEIVED_KEY), response.get(BYTES_KEY)
                        fits = type(have) is int and have >= 0 and isinstance(wanted, bytes)
                        return (have, wanted) if fits else None
            patience *= 2
        return None

    def _on_part(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Queue the server's response if it has the token of the current message."""
        if request.get(TOKEN_KEY) == self._token:  # only the server and this site know the token
            self._responses.put(request)
        return make_reply(ReturnCode.OK)

    def post(self, to: str, blob: bytes, patience: float) -> bool:
        """Send a peer message to another site. NVFlare encrypts it for that site.

        Args:
            to: Name of the receiving site.
            blob: The packed peer message.
            patience: Seconds for all attempts together.

        Returns:
            Whether the receiver acknowledged the message in this time.
        """
        assert self._fl_ctx is not None
        for _ in range(MAX_PEER_MESSAGE_TRIES):
            answers = self._fl_ctx.get_engine().send_aux_request(
                targets=[to],
                topic=PEER_MESSAGE_TOPIC,
                request=Shareable({BYTES_KEY: blob}),
                timeout=patience / MAX_PEER_MESSAGE_TRIES,
                fl_ctx=self._fl_ctx,
                secure=True,
            )
            answer = answers.get(to) if answers else None
            if answer is not None and answer.get_return_code() == ReturnCode.OK:
                if answer.get(REFUSAL_KEY):
                    logger.warning("'%s' refuses the peer message: %s", to, one_line(answer[REFUSAL_KEY], 2000))
                return not answer.get(REFUSAL_KEY)
            time.sleep(1)
        return False

    def beat(self, blob: bytes) -> None:
        """Send a packed heartbeat, a sign that the site is working, to the server.

        The heartbeat may be lost. The caller is a separate thread.
        """
        self._send_without_reply(HEARTBEAT_TOPIC, Shareable({BYTES_KEY: blob}))

    def _send_without_reply(self, topic: str, about: Shareable) -> None:
        """Send a message to the server without waiting for an acknowledgement. Errors are ignored."""
        with contextlib.suppress(Exception), self._engine.new_context() as fl_ctx:
            self._engine.fire_and_forget_aux_request(topic, about, fl_ctx, optional=True)

    def _on_peer_message(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Pass a peer message to `receive` and return the acknowledgement."""
        sender, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BYTES_KEY)
        refused = self.receive(sender, blob) if isinstance(blob, bytes) else "expected bytes"
        reply = make_reply(ReturnCode.OK)
        reply[REFUSAL_KEY] = refused or ""
        return reply
