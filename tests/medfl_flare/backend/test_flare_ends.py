"""Both ends of the NVFlare transport without its processes: lost parts, unknown senders, too large messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medfl_flare.backend import message_transfer
from medfl_flare.backend.messages import Limits

flare = pytest.importorskip("medfl_flare.backend.flare_server")
flare_site = pytest.importorskip("medfl_flare.backend.flare_site")

SITE, PART = "site-01", 1000
NO_ABORT = SimpleNamespace(triggered=False)


class Line:
    """Stand-in for NVFlare's engine and controller between a server and one site.

    Attributes:
        loses: Function of (topic, number of earlier messages) that returns whether a message is lost.
        sent: All messages that the site sent to the server.
    """

    def __init__(self, executor: Any) -> None:
        self.executor, self.handlers = executor, dict[str, Callable[..., Any]]()
        self.loses: Callable[[str, int], bool] = lambda topic, number: False
        self.sent: list[Any] = []

    @contextmanager
    def new_context(self) -> Iterator[Any]:
        peer = SimpleNamespace(get_identity_name=lambda: SITE)
        yield SimpleNamespace(get_peer_context=lambda: peer, get_engine=lambda: self)

    def get_engine(self) -> Line:
        return self

    def get_clients(self) -> list[Any]:
        return [SimpleNamespace(name=SITE)]

    def register_aux_message_handler(self, topic: str, handler: Callable[..., Any]) -> None:
        self.handlers[topic] = handler

    def fire_and_forget_aux_request(self, topic: str, about: Any, fl_ctx: Any, optional: bool) -> None:
        self.sent.append(about)
        if not self.loses(topic, len(self.sent)):
            self.handlers[topic](topic, about, fl_ctx)

    def send_aux_request(self, targets: list[str], topic: str, request: Any, timeout: float, **about: Any) -> None:
        assert (targets, timeout) == ([SITE], 0.0)
        if not self.loses("answer", len(self.sent)):
            self.executor._on_part(topic, request, None)

    def send(self, task: Any, fl_ctx: Any, targets: list[str], send_order: Any) -> None:
        def work() -> None:
            result = self.executor.execute(flare.TASK_NAME, task.data, self, NO_ABORT)
            client = SimpleNamespace(name=SITE)
            task.result_received_cb(SimpleNamespace(result=result, client=client), None)
            task.completion_status = flare.TaskCompletionStatus.OK

        threading.Thread(target=work, daemon=True).start()


class Reversed(flare_site.FlareExecutor):
    """Executor that replies with the reversed message, twice."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path, self.largest = folder / "message", 10**6

    def open(self, local: Path) -> None: ...

    def receive(self, sender: str, blob: bytes) -> None: ...

    def refuse_by_size(self, size: int) -> bytes | None:
        return b"too large" if size > self.largest else None

    def answer(self, blob: Any) -> bytes:
        return bytes(blob)[::-1] * 2


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(message_transfer, "PART_BYTES", PART)
    monkeypatch.setattr(flare_site, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(flare, "POLL_SECONDS", 0.01)
    (tmp_path / "site").mkdir()
    executor = Reversed(tmp_path / "site")
    line = executor._engine = Line(executor)
    return line


def exchanged(
    line: Line, message: bytes, folder: Path, limits: Limits | None = None
) -> tuple[list[bytes], dict[str, str]]:
    """Return the site's reply, and the reason if there is none."""
    transport, answers = flare.FlareTransport(line, line, NO_ABORT), list[bytes]()
    transport.listen(lambda site, blob: True, folder / "server", limits or Limits())
    failed = transport.ask({SITE: message}, 60.0, lambda site, blob: answers.append(bytes(blob)))
    assert not [path for path in folder.rglob("*") if path.is_file()]
    return answers, failed


MESSAGE = bytes(range(256)) * 14  # four parts


def test_a_message_of_many_parts_and_its_reply(line: Line, tmp_path: Path) -> None:
    assert exchanged(line, MESSAGE, tmp_path) == ([MESSAGE[::-1] * 2], {})
    assert max(len(about[flare.BYTES_KEY]) for about in line.sent) == PART


@pytest.mark.parametrize("what", [flare.PART_TOPIC, "answer"])
def test_what_is_lost_on_the_way_is_said_again(line: Line, tmp_path: Path, what: str) -> None:
    lost: list[int] = []

    def loses(topic: str, number: int) -> bool:
        if topic == what and number in (1, 2, 3, 9, 12):
            lost.append(number)
            return True
        return False

    line.loses = loses
    assert exchanged(line, MESSAGE, tmp_path) == ([MESSAGE[::-1] * 2], {})
    assert len(lost) == 5


def test_a_message_above_the_sites_limit_is_refused_and_not_fetched(line: Line, tmp_path: Path) -> None:
    line.executor.largest = len(MESSAGE) - 1
    assert exchanged(line, MESSAGE, tmp_path) == ([b"too large"], {})
    assert len(line.sent) == 1, "the refusal"


def test_a_reply_above_the_servers_limit_makes_the_site_missing(line: Line, tmp_path: Path) -> None:
    answers, failed = exchanged(line, MESSAGE, tmp_path, Limits(max_bytes=5000))
    assert answers == []
    assert f"expected at most 5000 bytes, got {2 * len(MESSAGE)}" in failed[SITE]


def test_parts_of_strangers_are_not_taken(line: Line, tmp_path: Path) -> None:
    """Another site can send to both ends, but it knows no token."""

    def interfere(topic: str, number: int) -> bool:
        for token in ("", "0" * 32):
            forged = flare.Shareable(
                {flare.TOKEN_KEY: token, flare.OFFSET_KEY: 0, flare.RECEIVED_KEY: 10**6, flare.BYTES_KEY: b"forged"}
            )
            line.executor._on_part(topic, forged, None)
        with line.new_context() as fl_ctx:
            line.executor, real = SimpleNamespace(_on_part=lambda *about: refused.append(about[1])), line.executor
            line.handlers[flare.PART_TOPIC](flare.PART_TOPIC, forged, fl_ctx)
            line.executor = real
        return False

    refused: list[Any] = []
    line.loses = lambda topic, number: topic == flare.PART_TOPIC and interfere(topic, number)
    assert exchanged(line, MESSAGE, tmp_path) == ([MESSAGE[::-1] * 2], {})
    assert {(about[flare.RECEIVED_KEY], about[flare.BYTES_KEY]) for about in refused} == {(-1, b"")}
