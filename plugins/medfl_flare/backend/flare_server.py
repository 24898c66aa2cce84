"""The server's side of the NVFlare transport.

It uses only NVFlare's Controller, Executor, Task, Shareable (NVFlare's container for the content of a message) and aux
messages (messages outside of tasks). It knows nothing of methods, bundles and runs.

A task tells a site that a message waits for it at the server. The task's result tells the server that the site has sent
its reply. The bytes of both travel in aux messages, one part at a time (`medfl_flare.backend.message_transfer`):
NVFlare keeps a whole task or result in memory, twice while it arrives, and the tasks of all sites at once. Peer
messages travel from site to site in aux messages. NVFlare encrypts them for their receiver, so the server that relays
them can't read them. A Shareable contains only bytes, numbers and strings.
"""

from __future__ import annotations

import json
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
from medfl.utils.memory import LITTLE, GarbageSweeper, release_memory
from medfl.utils.wire import Blob
from medfl_flare.backend.heartbeat import SilenceTimer
from medfl_flare.backend.message_checks import Limits
from medfl_flare.backend.message_transfer import MessageTransfer
from medfl_flare.backend.protocol_messages import KNOWN_BYTES_KEY, PROGRESS_COMMAND, TASK_NAME
from medfl_flare.records.gpu_request import GpuRequest, requested_gpus

logger = logging.getLogger(__name__)

BYTES_KEY, TOKEN_KEY, SIZE_KEY, OFFSET_KEY, RECEIVED_KEY = "medfl", "token", "size", "offset", "have"
"""Keys of a Shareable.

* ``medfl``: the bytes.
* ``token``: identifies the message; only the server and the receiving site know it.
* ``size``: size of the message or reply in bytes.
* ``offset``: position of a part.
* ``have``: bytes of the reply that the server has received, or -1 if it wants no reply any more."""

PART_TOPIC = "medfl.part"
"""Topic of the aux messages that carry one part of a message or of a reply."""

NVFLARE_OVERHEAD_BYTES = 2**20
"""Estimated number of bytes that NVFlare allocates in addition to a message. After sending, reference cycles keep the
message and these bytes in memory until Python's garbage collector runs."""

HEARTBEAT_TOPIC = "medfl.beat"
"""Topic of the heartbeats from a working site to the server."""

TASK_TIMEOUT_SECONDS = 10**7
"""Timeout of NVFlare's task in seconds. NVFlare measures the duration of a task, while medfl's deadline measures a
site's silence (`SilenceTimer`). The timeout is far above every such deadline, so it never ends a task first."""

POLL_SECONDS = 0.1
"""Seconds between two checks of the tasks."""

TASK_END_REASONS = {
    TaskCompletionStatus.TIMEOUT: "did not reply in time",
    TaskCompletionStatus.CLIENT_DEAD: "its process has ended",
}
"""Maps NVFlare's status of a task that ended without a result to the reason why the site is unavailable."""


class StoppedError(MedflError):
    """The job was stopped from outside; the finished steps are saved."""


class FlareTransport:
    """Transport of messages through NVFlare (`medfl_flare.backend.transport.Transport`).

    Args:
        controller: Controller that sends the tasks.
        fl_ctx: Context of the controller's flow.
        abort_signal: Signal that is triggered when the job must stop.
        gpus: GPUs that the job requested of each site. NVFlare starts no job at a site that did not grant them.
    """

    def __init__(
        self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, gpus: GpuRequest | None = None
    ) -> None:
        self._controller, self._fl_ctx, self._abort, self._gpus = controller, fl_ctx, abort_signal, gpus
        self._connected_sites = {client.name for client in fl_ctx.get_engine().get_clients()}
        self._silence = SilenceTimer((), 1.0)
        self._heartbeat_handler: Callable[[str, bytes], bool] = lambda site, blob: False
        self._transfers: dict[str, tuple[str, MessageTransfer]] = {}
        self._sweeper = GarbageSweeper()
        self._reply_handler: Callable[[str, Blob], None] = _discard_reply
        self._engine = fl_ctx.get_engine()
        self._engine.register_aux_message_handler(HEARTBEAT_TOPIC, self._on_beat)
        self._engine.register_aux_message_handler(PART_TOPIC, self._on_part)

    def listen(self, on_heartbeat: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        """Set the handler of heartbeats, and the folder and limits of incoming replies.

        Args:
            on_heartbeat: Function that receives (site, heartbeat) and returns whether the site's work made progress.
            folder: Folder for replies while they arrive.
            limits: Limits of a reply.
        """
        self._heartbeat_handler, self._folder, self._limits = on_heartbeat, folder, limits

    def _on_beat(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Pass a heartbeat to its handler, and restart the site's silence timer if it reports progress."""
        site, blob = str(fl_ctx.get_peer_context().get_identity_name()), request.get(BYTES_KEY)
        if isinstance(blob, bytes) and self._heartbeat_handler(site, blob):
            self._silence.record_progress(site)
        return make_reply(ReturnCode.OK)

    def _on_part(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Store a part of a reply or send a part of a message. NVFlare calls this method with a site's aux message.

        A message with an unknown token stores nothing and gets no part.
        """
        token, offset, part = (request.get(name) for name in (TOKEN_KEY, OFFSET_KEY, BYTES_KEY))
        if not isinstance(token, str) or type(offset) is not int or offset < 0 or not isinstance(part, bytes):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        site, transfer = self._transfers.get(token, (str(fl_ctx.get_peer_context().get_identity_name()), None))
        have, wanted = -1, b""
        if transfer is not None:
            have, wanted = transfer.exchange_part(offset, part)
            self._silence.record_progress(site)
        answer = Shareable({TOKEN_KEY: token, OFFSET_KEY: offset, RECEIVED_KEY: have, BYTES_KEY: wanted})
        with self._engine.new_context() as own:
            self._engine.send_aux_request([site], PART_TOPIC, answer, timeout=0.0, fl_ctx=own, optional=True)
        self._sweeper.left(len(wanted) + NVFLARE_OVERHEAD_BYTES)
        return make_reply(ReturnCode.OK)

    def ask(
        self, requests: Mapping[str, Blob], patience: float, on_reply: Callable[[str, Blob], None]
    ) -> dict[str, str]:
        """Send each site its message, wait for the replies, and pass each complete reply to `on_reply`.

        Args:
            requests: Maps each site to its packed message.
            patience: Seconds of silence after which the server stops waiting for a site. Silence starts with the
                message and starts again whenever the site's work makes progress.
            on_reply: Function that receives (site, reply).

        Returns:
            Maps each site that did not reply to the reason.

        Raises:
            StoppedError: If the job must stop.
            StoreError: If a reply can't be written at the server.
        """
        absence = "is not connected" + (f", or did not grant {self._gpus}" if self._gpus else "")
        failed = {site: absence for site in requests if site not in self._connected_sites}
        self._folder.mkdir(parents=True, exist_ok=True)
        tokens = {site: secrets.token_hex(16) for site in requests if site not in failed}
        transfers = {
            site: MessageTransfer(requests[site], self._folder / f"{token}.part", self._limits)
            for site, token in tokens.items()
        }

        def on_result(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            site = client_task.client.name
            size = result.get(SIZE_KEY) if isinstance(result, Shareable) else None
            if result.get_return_code() != ReturnCode.OK or type(size) is not int:
                failed[site] = f"its process could not execute the task ({result.get_return_code()})"
                if result.get_return_code() == ReturnCode.BAD_TASK_DATA:
                    failed[site] += ": it does not have the server's version of medfl"
                return
            try:
                answer = transfers[site].answer(size)
            except MedflError as error:
                failed[site] = str(error)
            else:
                self._reply_handler(site, answer)

        # an attribute and not a variable of `on_result`, as NVFlare keeps finished tasks and their closures
        self._reply_handler = on_reply
        silence = self._silence = SilenceTimer(tokens, patience)
        self._transfers = {token: (site, transfers[site]) for site, token in tokens.items()}
        try:
            tasks = {site: self._send(site, Shareable({TOKEN_KEY: token, SIZE_KEY: len(requests[site])}), on_result)
                     for site, token in tokens.items()}  # fmt: skip
            while any(task.completion_status is None for task in tasks.values()):
                if self._abort.triggered:
                    raise StoppedError(
                        "stopped_job", "The job was stopped. The finished steps are saved; resume the run to continue."
                    )
                for write_error in filter(None, (transfer.failed for transfer in transfers.values())):
                    raise write_error
                for site in silence.silent_sites():
                    if tasks[site].completion_status is None:
                        failed[site] = silence.reason
                        self._controller.cancel_task(tasks[site], TaskCompletionStatus.TIMEOUT)
                        transfers[site].close()
                time.sleep(POLL_SECONDS)
        finally:
            self._transfers, self._reply_handler = {}, _discard_reply
            for transfer in transfers.values():
                transfer.close()
            self._sweeper.left(0, LITTLE)
            release_memory()  # each of NVFlare's threads keeps freed memory of the received parts
        for site, task in tasks.items():
            if task.completion_status != TaskCompletionStatus.OK and site not in failed:
                failed[site] = TASK_END_REASONS.get(
                    task.completion_status, f"its task ended as {task.completion_status}"
                )
        return failed

    def _send(self, site: str, about: Shareable, on_result: Callable[[ClientTask, FLContext], None]) -> Task:
        """Send a task to one site."""
        task = Task(TASK_NAME, about, timeout=TASK_TIMEOUT_SECONDS, result_received_cb=on_result)
        self._controller.send(task, self._fl_ctx, targets=[site], send_order=SendOrder.SEQUENTIAL)
        return task


def _discard_reply(site: str, answer: Blob) -> None:
    """Discard a reply that arrived after `FlareTransport.ask` had returned."""


class FlareController(Controller):  # type: ignore[misc]
    """The server's side of an NVFlare job. Subclasses run the federation.

    Attributes:
        config: Folder of the job's configuration, available within `federate`.
    """

    config: Path

    def __init__(self) -> None:
        super().__init__(task_check_period=POLL_SECONDS)

    @abstractmethod
    def federate(self, transport: FlareTransport, local: Path, result: Path) -> None:
        """Run the federation.

        Args:
            transport: Transport of the messages to the sites.
            local: Folder ``local`` of the server's startup kit, with its own settings.
            result: Folder whose content is sent to the researcher who submitted the job.
        """

    @abstractmethod
    def progress(self, after: int) -> Meta:
        """Return the progress of the run as JSON values.

        Args:
            after: Number of bytes of the run's progress file that the caller already has.
        """

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Register the command that returns the progress. NVFlare calls this method before the flow."""
        fl_ctx.get_engine().register_app_command(
            PROGRESS_COMMAND, lambda topic, data, fl_ctx: self.progress(_known_bytes(data))
        )

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the federation. NVFlare calls this method."""
        workspace = fl_ctx.get_engine().get_workspace()
        self.config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id())).absolute()
        result = Path(workspace.get_run_dir(fl_ctx.get_job_id())).absolute() / "medfl"
        meta = json.loads(Path(workspace.get_job_meta_path(fl_ctx.get_job_id())).read_text(encoding="utf-8"))
        transport = FlareTransport(self, fl_ctx, abort_signal, requested_gpus(meta))
        self.federate(transport, Path(workspace.get_site_config_dir()).absolute(), result)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing. NVFlare calls this method after the flow."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Log a reply that arrived too late; the site has it on its disk. NVFlare calls this method."""
        logger.warning("A reply of %s arrived too late.", client.name)


def _known_bytes(data: Any) -> int:
    """Return the number of known bytes in a progress request, or 0 if it has none."""
    after = data.get(KNOWN_BYTES_KEY) if isinstance(data, dict) else None
    return after if type(after) is int and after >= 0 else 0
