"""Deadlines measure silence: the server waits for a slow site that makes progress, but not for a silent one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused

from medfl.errors import RefusedError
from medfl.settings import Settings
from medfl.utils.heartbeat import HeartbeatSignal
from medfl_flare.backend.heartbeat import HEARTBEAT_LIMITS, SilenceTimer, pack_heartbeat, read_heartbeat
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.sites.site_service import SiteService


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "beat", [HeartbeatSignal(), HeartbeatSignal("training", 2, 8, True), HeartbeatSignal("scoring", 3, None, False)]
)
def test_a_heartbeat_arrives_as_it_was_sent(beat: HeartbeatSignal) -> None:
    assert read_heartbeat(pack_heartbeat(beat)) == beat


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"doing": "resting", "batch": None, "batches": None, "moved": True},
        {"doing": ["training"], "batch": None, "batches": None, "moved": True},
        {"doing": "training", "batch": 1.5, "batches": None, "moved": True},
        {"doing": "training", "batch": -1, "batches": None, "moved": True},
        {"doing": "training", "batch": 10**13, "batches": None, "moved": True},
        {"doing": "training", "batch": "half", "batches": None, "moved": True},
        {"doing": "training", "batch": True, "batches": None, "moved": True},
        {"doing": "training", "batch": 1, "batches": 0, "moved": True},
        {"doing": "training", "batch": 1, "batches": 2, "moved": 1},
    ],
)
def test_anything_else_is_refused(meta: dict[str, Any]) -> None:
    with refused(RefusedError, "invalid_heartbeat"):
        read_heartbeat(pack(Message("beat", {}, meta)))


def test_bytes_that_are_no_heartbeat_are_refused() -> None:
    fine = {"doing": "", "batch": None, "batches": None, "moved": True}
    for code, blob in (
        ("truncated_message", b""),
        ("header_too_large", b"beat"),
        ("invalid_heartbeat", pack(Message("step", {}, fine))),
        ("message_too_large", pack(Message("beat", {}, fine | {"x": "y" * 5000}))),
    ):
        with refused(RefusedError, code):
            read_heartbeat(blob)


def test_silence_begins_with_the_question_and_again_whenever_the_work_moves() -> None:
    clock = Clock()
    silence = SilenceTimer(["a", "b"], 5, clock)
    clock.now += 5
    assert silence.silent_sites() == []
    silence.record_progress("a")
    silence.record_progress("somebody else")
    clock.now += 1
    assert silence.silent_sites() == ["b"]
    clock.now += 100
    assert silence.silent_sites() == ["a", "b"]


class Flare:
    """Stand-in for the part of NVFlare that `FlareTransport` uses, with its own clock.

    A site's script lists its actions with their times in seconds after the request: ``beat`` (a heartbeat with
    progress), ``alive`` (a heartbeat without progress), ``answer``, or nothing at all.
    """

    def __init__(self, scripts: dict[str, list[tuple[float, str]]]) -> None:
        self.clock, self.scripts, self.tasks = Clock(), scripts, dict[str, Any]()
        self.handlers: dict[str, Callable[..., Any]] = {}

    # ---- the engine

    def get_engine(self) -> Flare:
        return self

    def get_clients(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.scripts]

    def register_aux_message_handler(self, topic: str, handler: Callable[..., Any]) -> None:
        self.handlers[topic] = handler

    @contextmanager
    def new_context(self) -> Iterator[None]:
        yield

    def send_aux_request(self, targets: list[str], topic: str, request: Any, timeout: float, **about: Any) -> None:
        self.request = request

    # ---- the controller

    def send(self, task: Any, fl_ctx: Any, targets: list[str], send_order: Any) -> None:
        self.tasks[targets[0]] = task
        self.begun = self.clock.now

    def cancel_task(self, task: Any, status: Any) -> None:
        task.completion_status = status

    # ---- time

    def sleep(self, seconds: float) -> None:
        before = self.clock.now
        self.clock.now += seconds
        for site, script in self.scripts.items():
            for at, what in script:
                if before - self.begun < at <= self.clock.now - self.begun:
                    self._act(site, what)

    def _act(self, site: str, what: str) -> None:
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.shareable import Shareable, make_reply

        from medfl_flare.backend.flare_server import (
            BYTES_KEY,
            HEARTBEAT_TOPIC,
            OFFSET_KEY,
            PART_TOPIC,
            RECEIVED_KEY,
            SIZE_KEY,
            TOKEN_KEY,
            TaskCompletionStatus,
        )

        peer = SimpleNamespace(get_identity_name=lambda: site)
        about = SimpleNamespace(get_peer_context=lambda: peer)
        if what == "answer":
            task, result = self.tasks[site], make_reply(ReturnCode.OK)
            result[SIZE_KEY] = len(b"an answer")
            part = Shareable({TOKEN_KEY: task.data[TOKEN_KEY], OFFSET_KEY: 0, BYTES_KEY: b"an answer"})
            self.handlers[PART_TOPIC](PART_TOPIC, part, about)
            if task.completion_status is None:
                assert self.request[RECEIVED_KEY] == len(b"an answer")
                task.result_received_cb(SimpleNamespace(result=result, client=SimpleNamespace(name=site)), None)
                task.completion_status = TaskCompletionStatus.OK
            return
        beat = Shareable({BYTES_KEY: pack_heartbeat(HeartbeatSignal("training", 5, 10, what == "beat"))})
        self.handlers[HEARTBEAT_TOPIC](HEARTBEAT_TOPIC, beat, about)


def test_a_slow_site_is_waited_for_as_long_as_its_work_moves_and_a_silent_one_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flare = pytest.importorskip("medfl_flare.backend.flare_server")
    nvflare = Flare(
        {
            "quick": [(1.0, "answer")],
            "slow": [*((float(at), "beat") for at in range(4, 100, 4)), (100.0, "answer")],
            "silent": [],
            "stuck": [*((float(at), "alive") for at in range(4, 200, 4)), (200.0, "answer")],
            "dies": [(4.0, "beat"), (8.0, "beat")],
        }
    )
    monkeypatch.setattr(flare, "SilenceTimer", partial(SilenceTimer, clock=nvflare.clock))
    monkeypatch.setattr(flare, "time", nvflare)
    transport = flare.FlareTransport(nvflare, nvflare, SimpleNamespace(triggered=False))
    beats: list[str] = []
    transport.listen(lambda site, blob: beats.append(site) is None and read_heartbeat(blob).moved, tmp_path, Limits())
    answers: dict[str, float] = {}

    def take(site: str, blob: bytes) -> None:
        assert bytes(blob) == b"an answer"
        answers[site] = nvflare.clock.now - nvflare.begun

    requests = dict.fromkeys([*nvflare.scripts, "nobody"], b"work")
    failed = transport.ask(requests, 5, take)
    assert not list(tmp_path.iterdir())
    assert set(answers) == {"quick", "slow"}
    assert answers["slow"] >= 100 > 20 * 5 - 1, "twenty times as long as it may be silent"
    assert failed.pop("nobody") == "is not connected"
    assert failed == dict.fromkeys(
        ["silent", "stuck", "dies"], "did not reply in time: its work has made no progress for 5 s"
    )
    assert beats.count("stuck") > 2


def test_a_heartbeat_is_small() -> None:
    assert len(pack_heartbeat(HeartbeatSignal("training", 10**12, 10**12, True))) < HEARTBEAT_LIMITS.max_bytes


@pytest.mark.parametrize(
    ("privacy", "described", "batches"),
    [
        (None, ["size", "labels"], 10),
        ({"epsilon": 1.0, "clip": 1.0}, ["size", "labels"], None),
        (None, ["labels"], None),
    ],
)
def test_numbers_of_batches_leave_a_site_only_where_the_number_of_its_images_may(
    privacy: dict[str, float] | None, described: list[str], batches: int | None
) -> None:
    sent: list[bytes] = []
    file: Any = SimpleNamespace(max_message_mb=1, threads=torch.get_num_threads(), disclose=described)
    service = SiteService(file, lambda to, blob, patience: False, sent.append)
    service._record_heartbeat(HeartbeatSignal("training", 5, 10, True))
    run: Any = SimpleNamespace(settings=Settings.model_validate({"rounds": 1, "privacy": privacy}))
    service._opened = run
    service._record_heartbeat(HeartbeatSignal("training", 5, 10, True))
    assert [read_heartbeat(blob) for blob in sent] == [
        HeartbeatSignal("training", None, None, True),
        HeartbeatSignal("training", batches and 5, batches, True),
    ]
