"""The carrier over NVIDIA FLARE: its oldest layer (Controller, Executor, Task, Shareable, aux messages), and no more.

Nothing here knows a method, a bundle or a run: bytes go out in tasks and come back in results, and parcels go from site
to site in aux messages, encrypted for their receiver, so that the server that relays them can't read them. A Shareable
holds bytes and strings only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, SendOrder, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from medfl.carriers.heartbeat import Silence
from medfl.carriers.remote_messages import AFTER, PROGRESS, TASK
from medfl.errors import MedflError
from medfl.types import Meta
from medfl.utils.text import one_line

logger = logging.getLogger(__name__)

BLOB, REFUSED = "medfl", "refused"
"""What stands in a Shareable."""

PARCEL = "medfl.parcel"
"""Topic of aux messages from site to site."""

HEARTBEAT = "medfl.beat"
"""Topic of aux messages from a site that works to the server."""

NEVER = 10**7
"""Seconds of NVFlare's own deadline for a task, which counts duration; `Silence` decides long before."""

POLL = 0.1
"""Seconds between two looks at tasks."""

PARCEL_TRIES = 3
"""How often a parcel is sent before its receiver counts as out of reach. A dead one is known at once."""

WHY = {
    TaskCompletionStatus.TIMEOUT: "did not answer in time",
    TaskCompletionStatus.CLIENT_DEAD: "its process has ended",
}
"""NVFlare's words for how a task ended."""


class StoppedError(MedflError):
    """The job was stopped from outside; what is finished is saved."""


class FlareTransport:
    """Tasks as a `medfl.carriers.remote.Transport`.

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
        fl_ctx.get_engine().register_aux_message_handler(HEARTBEAT, self._on_beat)

    def listen(self, hear: Callable[[str, bytes], bool]) -> None:
        """Name what reads heartbeats."""
        self._hear = hear

    def _on_beat(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        site, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BLOB)
        if isinstance(blob, bytes) and self._hear(site, blob):
            self._silence.moved(site)
        return make_reply(ReturnCode.OK)

    def ask(self, requests: Mapping[str, bytes], patience: float, take: Callable[[str, bytes], None]) -> dict[str, str]:
        """Send each site a task with its message, and wait for those whose work moves.

        Raises:
            StoppedError: If the job is to stop.
        """
        failed = {site: "is not connected" for site in requests if site not in self._present}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None  # frees its memory
            site = client_task.client.name
            blob = result.get(BLOB) if isinstance(result, Shareable) else None
            if result.get_return_code() == ReturnCode.OK and isinstance(blob, bytes):
                take(site, blob)
            else:
                failed[site] = f"its process could not carry out the task ({result.get_return_code()})"

        silence = self._silence = Silence(requests.keys() - failed.keys(), patience)
        tasks = {site: self._send(site, requests[site], received) for site in requests if site not in failed}
        while any(task.completion_status is None for task in tasks.values()):
            if self._abort.triggered:
                raise StoppedError("The job was stopped. What is finished is saved; resume the run to go on.")
            for site in silence.overdue():
                if tasks[site].completion_status is None:
                    failed[site] = silence.why
                    self._controller.cancel_task(tasks[site], TaskCompletionStatus.TIMEOUT)
            time.sleep(POLL)
        for site, task in tasks.items():
            if task.completion_status != TaskCompletionStatus.OK and site not in failed:
                failed[site] = WHY.get(task.completion_status, f"its task ended as {task.completion_status}")
        return failed

    def _send(self, site: str, blob: bytes, received: Callable[[ClientTask, FLContext], None]) -> Task:
        task = Task(TASK, Shareable({BLOB: blob}), timeout=NEVER, result_received_cb=received)
        self._controller.send(task, self._fl_ctx, targets=[site], send_order=SendOrder.SEQUENTIAL)
        return task


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


class FlareExecutor(Executor):  # type: ignore[misc]
    """A site's side of a job."""

    def __init__(self) -> None:
        super().__init__()
        self._fl_ctx: FLContext | None = None
        self._engine: Any = None

    @abstractmethod
    def open(self, local: Path) -> None:
        """Make ready to answer.

        Args:
            local: The participant's own folder of settings.
        """

    @abstractmethod
    def answer(self, blob: bytes) -> bytes:
        """The answer to a message of the server."""

    @abstractmethod
    def receive(self, sender: str, blob: bytes) -> str | None:
        """Take a parcel of another site; returns why it is refused, or None."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Called by NVFlare: gets ready before the first task."""
        if event_type == EventType.START_RUN:
            engine = self._engine = fl_ctx.get_engine()
            self.open(Path(engine.get_workspace().get_site_config_dir()).absolute())
            engine.register_aux_message_handler(PARCEL, self._on_parcel)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Called by NVFlare with a task of the server."""
        blob = shareable.get(BLOB)
        if task_name != TASK or not isinstance(blob, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        self._fl_ctx = fl_ctx
        return Shareable({BLOB: self.answer(blob)})

    def post(self, to: str, blob: bytes, patience: float) -> bool:
        """Bring a parcel to another site, encrypted for it; returns whether it was acknowledged within `patience` s."""
        assert self._fl_ctx is not None
        for _ in range(PARCEL_TRIES):
            answers = self._fl_ctx.get_engine().send_aux_request(
                targets=[to],
                topic=PARCEL,
                request=Shareable({BLOB: blob}),
                timeout=patience / PARCEL_TRIES,
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
        with contextlib.suppress(Exception), self._engine.new_context() as fl_ctx:
            self._engine.fire_and_forget_aux_request(HEARTBEAT, Shareable({BLOB: blob}), fl_ctx, optional=True)

    def _on_parcel(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        sender, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BLOB)
        refused = self.receive(sender, blob) if isinstance(blob, bytes) else "expected bytes"
        reply = make_reply(ReturnCode.OK)
        reply[REFUSED] = refused or ""
        return reply
