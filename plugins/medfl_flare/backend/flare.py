"""The server's end of the carrier over NVIDIA FLARE: Controller, Executor, Task, Shareable, aux messages, and no more.

Nothing here knows a method, a bundle or a run. A task tells a site that a message waits for it, and its result that the
answer is there; the bytes of both go in aux messages, a part at a time (`medfl_flare.backend.parts`), for NVFlare has
all of a task or result in memory, twice while it comes, and those of all sites at once. Parcels go from site to site in
aux messages, encrypted for their receiver, so that the server that relays them can't read them. A Shareable holds
bytes, numbers and strings only.
"""

from __future__ import annotations

import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, SendOrder, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medfl.errors import MedflError
from medfl.types import Meta
from medfl.utils.memory import LITTLE, Sweeper, release
from medfl.utils.wire import Blob
from medfl_flare.backend.heartbeat import Silence
from medfl_flare.backend.message_checks import Limits
from medfl_flare.backend.parts import Exchange
from medfl_flare.backend.remote_messages import AFTER, PROGRESS, TASK

logger = logging.getLogger(__name__)

BLOB, TOKEN, SIZE, OFFSET, HAVE = "medfl", "token", "size", "offset", "have"
"""What stands in a Shareable: bytes; which message, which only the server and its site know; of how many bytes message
or answer is; where a part begins; how many bytes of the answer the server has, -1 where it wants none."""

PARTS = "medfl.part"
"""Topic of aux messages with parts."""

KEPT = 2**20
"""Bytes that NVFlare takes for a message beside it. When it was sent both keep themselves alive."""

HEARTBEAT = "medfl.beat"
"""Topic of aux messages from a site that works to the server."""

NEVER = 10**7
"""Seconds of NVFlare's own deadline for a task, which counts duration; `Silence` decides long before."""

POLL = 0.1
"""Seconds between two looks at tasks."""

WHY = {
    TaskCompletionStatus.TIMEOUT: "did not answer in time",
    TaskCompletionStatus.CLIENT_DEAD: "its process has ended",
}
"""NVFlare's words for how a task ended."""


class StoppedError(MedflError):
    """The job was stopped from outside; what is finished is saved."""


class FlareTransport:
    """Tasks as a `medfl_flare.backend.remote.Transport`.

    Args:
        controller: Sends them.
        fl_ctx: Of the controller's flow.
        abort_signal: Triggered when the job is to stop.
    """

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort_signal
        self._present = {client.name for client in fl_ctx.get_engine().get_clients()}
        self._silence = Silence((), 1.0)
        self._hear: Callable[[str, bytes], bool] = lambda site, blob: False
        self._exchanges: dict[str, tuple[str, Exchange]] = {}
        self._sweeper = Sweeper()
        self._take: Callable[[str, Blob], None] = _drop
        self._engine = fl_ctx.get_engine()
        self._engine.register_aux_message_handler(HEARTBEAT, self._on_beat)
        self._engine.register_aux_message_handler(PARTS, self._on_part)

    def listen(self, hear: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        """As `medfl_flare.backend.transport.Transport.listen`."""
        self._hear, self._folder, self._limits = hear, folder, limits

    def _on_beat(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        site, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BLOB)
        if isinstance(blob, bytes) and self._hear(site, blob):
            self._silence.moved(site)
        return make_reply(ReturnCode.OK)

    def _on_part(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        token, offset, part = (request.get(name) for name in (TOKEN, OFFSET, BLOB))
        if not isinstance(token, str) or type(offset) is not int or offset < 0 or not isinstance(part, bytes):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        site, exchange = self._exchanges.get(token, (str(fl_ctx.get_peer_context().get_identity_name()), None))
        have, wanted = -1, b""
        if exchange is not None:
            have, wanted = exchange.take(offset, part)
            self._silence.moved(site)
        answer = Shareable({TOKEN: token, OFFSET: offset, HAVE: have, BLOB: wanted})
        with self._engine.new_context() as own:
            self._engine.send_aux_request([site], PARTS, answer, timeout=0.0, fl_ctx=own, optional=True)
        self._sweeper.left(len(wanted) + KEPT)
        return make_reply(ReturnCode.OK)

    def ask(self, requests: Mapping[str, Blob], patience: float, take: Callable[[str, Blob], None]) -> dict[str, str]:
        """Tell each site by a task that its message waits here, and wait for those whose work moves.

        Raises:
            StoppedError: If the job is to stop.
            StoreError: If an answer can't be written here.
        """
        failed = {site: "is not connected" for site in requests if site not in self._present}
        self._folder.mkdir(parents=True, exist_ok=True)
        tokens = {site: secrets.token_hex(16) for site in requests if site not in failed}
        exchanges = {
            site: Exchange(requests[site], self._folder / f"{token}.part", self._limits)
            for site, token in tokens.items()
        }

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            site = client_task.client.name
            size = result.get(SIZE) if isinstance(result, Shareable) else None
            if result.get_return_code() != ReturnCode.OK or type(size) is not int:
                failed[site] = f"its process could not carry out the task ({result.get_return_code()})"
                if result.get_return_code() == ReturnCode.BAD_TASK_DATA:
                    failed[site] += ": it does not have the server's version of medfl"
                return
            try:
                answer = exchanges[site].answer(size)
            except MedflError as error:
                failed[site] = str(error)
            else:
                self._take(site, answer)

        self._take = take  # not named in `received`: NVFlare keeps finished tasks, and with them what that names
        silence = self._silence = Silence(tokens, patience)
        self._exchanges = {token: (site, exchanges[site]) for site, token in tokens.items()}
        try:
            tasks = {site: self._send(site, Shareable({TOKEN: token, SIZE: len(requests[site])}), received)
                     for site, token in tokens.items()}  # fmt: skip
            while any(task.completion_status is None for task in tasks.values()):
                if self._abort.triggered:
                    raise StoppedError(
                        "stopped_job", "The job was stopped. What is finished is saved; resume the run to go on."
                    )
                for unwritten in filter(None, (exchange.failed for exchange in exchanges.values())):
                    raise unwritten
                for site in silence.overdue():
                    if tasks[site].completion_status is None:
                        failed[site] = silence.why
                        self._controller.cancel_task(tasks[site], TaskCompletionStatus.TIMEOUT)
                        exchanges[site].close()
                time.sleep(POLL)
        finally:
            self._exchanges, self._take = {}, _drop
            for exchange in exchanges.values():
                exchange.close()
            self._sweeper.left(0, LITTLE)
            release()  # each of NVFlare's threads keeps room for what came
        for site, task in tasks.items():
            if task.completion_status != TaskCompletionStatus.OK and site not in failed:
                failed[site] = WHY.get(task.completion_status, f"its task ended as {task.completion_status}")
        return failed

    def _send(self, site: str, about: Shareable, received: Callable[[ClientTask, FLContext], None]) -> Task:
        task = Task(TASK, about, timeout=NEVER, result_received_cb=received)
        self._controller.send(task, self._fl_ctx, targets=[site], send_order=SendOrder.SEQUENTIAL)
        return task


def _drop(site: str, answer: Blob) -> None:
    """What becomes of an answer that nobody waits for."""


class FlareController(Controller):  # type: ignore[misc]
    """The server's side of a job."""

    def __init__(self) -> None:
        super().__init__(task_check_period=POLL)

    @abstractmethod
    def federate(self, transport: FlareTransport, local: Path, result: Path) -> None:
        """Run the federation.

        Args:
            transport: Brings messages to the sites.
            local: The participant's own folder of settings.
            result: A folder whose content whoever submitted the job gets.
        """

    @abstractmethod
    def progress(self, after: int) -> Meta:
        """How far the run is; JSON.

        Args:
            after: Bytes of the run's progress that whoever asks has already.
        """

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Called by NVFlare before the flow."""
        fl_ctx.get_engine().register_app_command(PROGRESS, lambda topic, data, fl_ctx: self.progress(_after(data)))

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Called by NVFlare: the job's work."""
        workspace = fl_ctx.get_engine().get_workspace()
        result = Path(workspace.get_run_dir(fl_ctx.get_job_id())).absolute() / "medfl"
        transport = FlareTransport(self, fl_ctx, abort_signal)
        self.federate(transport, Path(workspace.get_site_config_dir()).absolute(), result)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Called by NVFlare after the flow."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Called by NVFlare with an answer that came too late; the site has it on its disk."""
        logger.warning("An answer of %s came too late.", client.name)


def _after(data: Any) -> int:
    """The number in a question how far a run is; 0 where there is none."""
    after = data.get(AFTER) if isinstance(data, dict) else None
    return after if type(after) is int and after >= 0 else 0
