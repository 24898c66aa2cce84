"""Tests of heartbeats: progress of counted batches, without an effect on results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from medfl.testing.cohort import make_data
from medfl.training.batches import load_batches
from medfl.utils.heartbeat import HeartbeatSender, HeartbeatSignal, HeartbeatThread, count_batches


def never(beat: HeartbeatSignal) -> None:
    raise AssertionError("no heartbeat is due in an hour")


@contextmanager
def heartbeats(send: Callable[[HeartbeatSignal], None], every: float) -> Iterator[HeartbeatSender]:
    with HeartbeatThread(every) as thread, HeartbeatSender(send, thread) as pulse:
        yield pulse


def test_without_anybody_around_batches_pass_as_they_are() -> None:
    assert list(count_batches([3, 1, 2], "training", 3)) == [3, 1, 2]


def test_a_heartbeat_says_what_is_done_and_whether_it_moved() -> None:
    with heartbeats(never, 3600) as pulse:
        assert pulse.beat() == HeartbeatSignal("", None, None, False)
        batches = count_batches(range(8), "training", 8)
        next(batches)
        assert pulse.beat() == HeartbeatSignal("training", 0, 8, False)
        next(batches), next(batches)
        assert pulse.beat() == HeartbeatSignal("training", 2, 8, True)
        assert pulse.beat() == HeartbeatSignal("training", 2, 8, False)
        assert list(batches) == [3, 4, 5, 6, 7]
        assert pulse.beat() == HeartbeatSignal("training", 8, 8, True)


def test_a_continued_loop_counts_the_batches_before_it() -> None:
    with heartbeats(never, 3600) as pulse:
        batches = count_batches(range(5, 8), "training", 8, done=5)
        next(batches)
        assert pulse.beat() == HeartbeatSignal("training", 5, 8, False)
        assert len(list(batches)) == 2
        assert pulse.beat() == HeartbeatSignal("training", 8, 8, True)


def test_only_the_outer_of_two_loops_has_a_position_and_both_move() -> None:
    with heartbeats(never, 3600) as pulse:
        outer = count_batches("ab", "training", 2)
        next(outer)
        for _ in count_batches(range(10), "scoring", 10):
            pass
        assert pulse.beat() == HeartbeatSignal("training", 0, 2, True)
        next(outer)
        assert pulse.beat() == HeartbeatSignal("training", 1, 2, True)


@pytest.mark.parametrize("total", [None, 0])
def test_without_a_known_number_of_batches_they_are_only_counted(total: int | None) -> None:
    with heartbeats(never, 3600) as pulse:
        assert list(count_batches("abc", "scoring", total)) == ["a", "b", "c"]
        assert pulse.beat() == HeartbeatSignal("scoring", 3, None, True)


def test_more_batches_than_were_planned_are_counted() -> None:
    with heartbeats(never, 3600) as pulse:
        list(count_batches(range(5), "training", 2))
        assert pulse.beat() == HeartbeatSignal("training", 5, 2, True)


def test_heartbeats_come_again_and_again_and_none_after_the_block() -> None:
    beats: list[HeartbeatSignal] = []
    enough = threading.Event()

    def hear(beat: HeartbeatSignal) -> None:
        beats.append(beat)
        if len(beats) == 3:
            enough.set()

    with HeartbeatThread(0.001) as thread:
        with HeartbeatSender(hear, thread):
            assert enough.wait(60)
        count = len(beats)
        time.sleep(0.05)
        assert count == len(beats) >= 3
    assert not thread._thread.is_alive()


def test_computations_after_each_other_share_a_thread_and_keep_their_heartbeats_apart() -> None:
    beats: dict[str, list[HeartbeatSignal]] = {"a": [], "b": []}
    heard = {"a": threading.Event(), "b": threading.Event()}

    def hear(name: str, beat: HeartbeatSignal) -> None:
        beats[name].append(beat)
        heard[name].set()

    with HeartbeatThread(0.001) as thread:
        for name in ("a", "b"):
            with HeartbeatSender(partial(hear, name), thread):
                next(count_batches("xyz", name, 3))  # an abandoned loop does not count in the next computation
                assert heard[name].wait(60)
    assert {beat.doing for beat in beats["a"]} <= {"", "a"}
    assert {beat.doing for beat in beats["b"]} <= {"", "b"}
    assert beats["b"][-1].batch in (None, 0)


def test_the_first_heartbeat_of_each_computation_is_due_after_the_interval() -> None:
    beats: list[HeartbeatSignal] = []
    with HeartbeatThread(0.5) as thread:
        for _ in range(8):
            with HeartbeatSender(beats.append, thread):
                time.sleep(0.1)
    assert not beats


def test_a_thread_without_a_computation_ends_at_once() -> None:
    started = time.monotonic()
    with HeartbeatThread(3600):
        pass
    assert time.monotonic() - started < 60


def test_the_work_of_another_thread_is_not_counted() -> None:
    with heartbeats(never, 3600) as pulse:
        thread = threading.Thread(target=lambda: list(count_batches("ab", "training", 2)))
        thread.start()
        thread.join()
        assert pulse.beat() == HeartbeatSignal()


def test_batches_of_a_data_set_are_the_same_with_and_without_heartbeats() -> None:
    data = make_data(9, "pulse")
    rows = torch.arange(9).split(4)
    plain = [loaded.inputs for loaded in load_batches(data, rows)]
    with heartbeats(never, 3600) as pulse:
        watched = [loaded.inputs for loaded in load_batches(data, rows, total=len(rows))]
        assert pulse.beat() == HeartbeatSignal("training", 3, 3, True)
    assert all(map(torch.equal, plain, watched))
