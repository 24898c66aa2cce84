"""The state and view of a run are a function of its recorded events alone."""

from __future__ import annotations

from typing import Any

import pytest
from run_events import SITES, beat, commit, done, end, missing, start, stop, work

from medfl.engine.attendance import MISSED, TOOK_PART
from medfl.records.progress import ProgressLine
from medfl.settings import Privacy
from medfl_report.monitor.run_state import SILENT_SECONDS, RunState
from medfl_report.monitor.run_view import QUIET_SECONDS, RunView, make_run_view

ROUND = [work(10, *SITES), done(12, "site-1"), done(13, "site-2"), done(14, "site-3"), commit(15, 1)]


def state_of(*lines: ProgressLine) -> RunState:
    state = RunState()
    for line in lines:
        state.apply(line.time, line.event)
    return state


def view_of(*events: ProgressLine, now: float | None = None, writing: bool | None = True, **more: Any) -> RunView:
    state = state_of(*events)
    return make_run_view("one", state, state.last_event_at if now is None else now, writing, **more)


def test_who_trains_and_who_waits() -> None:
    view = view_of(start(9), work(10, "site-1", "site-2"), beat(11, "site-1", 2, 8), done(12, "site-2"), now=13)
    assert [(site.activity, site.level, site.share) for site in view.sites] == [
        ("training for 3.0 s: batch 2 of 8", "work", 0.25),
        ("waiting", "idle", None),
        ("waiting", "idle", None),
    ]
    assert (view.status, view.level, view.is_over) == ("running, round 1 of 3", "work", False)
    assert view.summary == "1 of 3 at work"


@pytest.mark.parametrize(
    ("batch", "batches", "now", "activity"),
    [
        (40, 90, 13, "training for 3.0 s: round 2, step 3, batch 40 of 90"),
        (40, None, 13, "training for 3.0 s: round 2, step 3, batch 40"),
        (None, None, 13, "training for 3.0 s: round 2, step 3"),
        (40, 90, 100, "silent for 89.0 s, while training: round 2, step 3, batch 40 of 90"),
    ],
)
def test_the_position_of_a_site_is_named(batch: int | None, batches: int | None, now: float, activity: str) -> None:
    view = view_of(start(9), work(10, "site-1", round=2, step=3), beat(11, "site-1", batch, batches), now=now)
    assert view.sites[0].activity == activity


def test_more_batches_than_were_planned_are_the_whole() -> None:
    assert view_of(start(9), work(10, "site-1"), beat(11, "site-1", 5, 2)).sites[0].share == 1.0


def test_a_site_that_is_scored_while_it_trains_continues_to_train() -> None:
    """Several workers on one machine train and score a site at the same time."""
    events = [start(9), work(10, "site-1"), work(11, "site-1", job="evaluate", activity="scoring")]
    events += [beat(12, "site-1", 9, 10, "scoring", "evaluate")]
    for more in ([], [done(13, "site-1", job="evaluate")]):
        site = view_of(*events, *more, now=14).sites[0]
        assert (site.activity, site.share) == ("training for 4.0 s", None)
    assert view_of(*events, done(13, "site-1"), now=14).sites[0].activity == "scoring for 3.0 s: batch 9 of 10"


def test_a_round_is_there_with_its_commit() -> None:
    view = view_of(start(9), *ROUND, commit(21, 2), now=22)
    assert (view.rounds_done, view.rounds) == (2, 3)
    assert view.time == "about 6.0 s a round, 12.0 s since the start; about 6.0 s left"
    assert view.score == "auc, global model, test images: 0.110 after round 1 (mean of 3, from 0.100 to 0.120)"
    assert view.costs == "6.0 kB to the server, 3.0 kB from it; 12.0 s of work at the sites"
    assert [(curve.title, curve.rounds, curve.mean) for curve in view.curves] == [
        ("auc, global model, test images", [1], [pytest.approx(0.11)]),
        ("training loss, mean of the sites", [1, 2], [1.0, 0.5]),
    ]
    assert [site.rounds for site in view.sites] == ["2 of 2"] * 3
    assert [site.score for site in view.sites] == pytest.approx([0.10, 0.11, 0.12])
    assert view.log[-1][1:] == ("Round 2 of 3 completed after 6.0 s", "info")


def test_a_step_within_a_round_ends_no_round() -> None:
    view = view_of(start(9), commit(12, 1, ends=False), commit(15, 1), now=15)
    assert view.rounds_done == 1
    assert [text for _, text, _ in view.log if "completed after" in text] == ["Round 1 of 3 completed after 6.0 s"]
    assert [site.rounds for site in view.sites] == ["1 of 1"] * 3


@pytest.mark.parametrize(("quiet", "silent"), [(SILENT_SECONDS - 1, False), (SILENT_SECONDS + 1, True)])
def test_a_site_without_heartbeats_is_named_within_a_minute(quiet: float, silent: bool) -> None:
    events = start(0), work(10, *SITES), done(12, "site-1"), beat(40, "site-2")
    view = view_of(*events, beat(40, "site-3"), beat(40 + quiet, "site-3"), now=40 + quiet)
    assert SILENT_SECONDS + 5 < 60, "with a page that is made anew every five seconds"
    assert view.sites[1].activity.startswith("silent for" if silent else "training for")
    assert view.sites[1].level == ("bad" if silent else "work")
    assert view.sites[2].level == "work", "it was heard of"
    assert view.sites[0].level == "idle", "nobody waits for it"
    assert ("site-2 silent" in view.summary) == silent


def test_a_slow_site_that_sends_heartbeats_is_at_work_however_long_it_takes() -> None:
    beats = [beat(float(at), "site-1", at, 4000) for at in range(30, 3600, 30)]
    view = view_of(start(0), work(1, "site-1"), *beats, now=3600)
    assert view.sites[0].level == "work"
    assert view.sites[0].share == pytest.approx(3570 / 4000)


def test_a_killed_run_is_stopped_and_no_one_is_silent_in_it() -> None:
    view = view_of(start(0), work(1, *SITES), now=4000, writing=False)
    assert view.status == "stopped: no process works on it; run the same command again to resume it"
    assert view.is_over
    assert [site.level for site in view.sites] == ["idle"] * 3


def test_a_run_elsewhere_that_is_quiet_for_long_may_be_gone() -> None:
    events = start(0), work(1, *SITES), beat(9, "site-1")
    assert view_of(*events, now=9 + QUIET_SECONDS - 1, writing=None).status.startswith("running")
    gone = view_of(*events, now=9 + QUIET_SECONDS + 1, writing=None)
    assert (gone.status.startswith("no event for"), gone.is_over) == (True, False)


def test_an_error_and_an_interruption_end_it_for_now() -> None:
    view = view_of(start(0), *ROUND, work(16, *SITES), stop(17, "DataError"), writing=False)
    assert view.status == "stopped by an error (DataError); see the output of its command"
    assert (view.level, view.is_over, [site.level for site in view.sites]) == ("bad", True, ["idle"] * 3)
    assert view_of(start(0), stop(17, "KeyboardInterrupt"), writing=False).status == "stopped by the user"


def test_a_resumed_run_is_one_run() -> None:
    events = [start(0), *ROUND, commit(20, 2, ["site-3"]), stop(21, "KeyboardInterrupt"), start(100)]
    view = view_of(*events, work(101, *SITES), now=102)
    assert view.status == "running, round 3 of 3"
    assert [text for _, text, _ in view.log][-1] == "Resumed after round 2"
    assert [site.level for site in view.sites] == ["work"] * 3
    assert state_of(*events).attendance["site-3"] == {1: TOOK_PART, 2: MISSED}
    more = state_of(*events, commit(110, 3))
    assert more.seconds_by_round[3] == 10, "the pause is no part of a round"
    assert sorted(more.mean_scores["global test auc"]) == [1, 2]


def test_a_round_that_is_tried_again_counts_as_it_ends() -> None:
    failed = [start(0), *ROUND, commit(20, 2, ["site-3"], ends=False), end(20, 1, "incomplete", ["site-3"], "2 of 3.")]
    view = view_of(*failed)
    assert (view.status, view.level) == ("incomplete on 2 of 3 sites: 2 of 3.", "bad")
    assert view.sites[2].activity == "unavailable at the end"
    state = state_of(*failed, start(30), commit(40, 2))
    assert state.attendance["site-3"] == {1: TOOK_PART, 2: TOOK_PART}
    assert state.status == ""


def test_missing_sites_are_named_with_the_reason_and_those_it_ended_without() -> None:
    why = "did not answer in time"
    events = [
        start(0),
        work(1, *SITES),
        missing(9, "site-2", why),
        commit(10, 1, ["site-2"]),
        missing(19, "site-2", why),
    ]
    view = view_of(*events)
    assert (view.sites[1].activity, view.sites[1].level) == (f"unavailable: {why}", "bad")
    assert [text for _, text, _ in view.log].count(f"Site-2 is unavailable: {why}") == 1
    assert view.attendance["site-2"] == {1: MISSED}
    over = view_of(*events, end(20, 1, unavailable=["site-2"]), writing=False)
    assert (over.status, over.level) == ("finished on 2 of 3 sites", "warn")
    back = view_of(*events, work(21, "site-2"), done(22, "site-2"), commit(23, 2))
    assert back.sites[1].activity == "waiting"
    assert back.sites[1].rounds == "1 of 2"


def test_sites_that_do_not_take_part_from_the_start_are_named() -> None:
    view = view_of(start(0, unavailable={"site-3": "refuses the run"}))
    assert view.sites[2].activity == "unavailable: refuses the run"
    assert view.log[-1][1] == "Site-3 is unavailable: refuses the run"


def test_events_of_sites_that_are_not_in_the_run_change_nothing() -> None:
    events = [start(0), *ROUND]
    others = [work(15, "who"), beat(15, "who"), done(15, "who"), missing(15, "who", "why")]
    assert view_of(*events, *others, now=20) == view_of(*events, now=20)


def test_texts_from_elsewhere_are_one_plain_line() -> None:
    evil = "\x1b[31mred\x07\n" + "x" * 5000
    view = view_of(start(0), missing(1, "site-1", evil))
    text = view.sites[0].activity
    assert text.startswith("unavailable: [31mred")
    assert text.isprintable()
    assert len(text) < 400


def test_a_promise_of_privacy_is_shown_with_what_is_spent() -> None:
    privacy = Privacy(epsilon=8.0, clip=1.0)
    view = view_of(start(0, privacy=privacy), epsilons={"site-1": 1.5, "site-2": 2.0})
    assert view.privacy == "epsilon at most 2 of 8 for a site is spent"
    assert [site.epsilon for site in view.sites] == [1.5, 2.0, None]
    assert view_of(start(0)).privacy == ""
