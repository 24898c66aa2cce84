"""The view of a run shows the last scores, all sent bytes, and the largest epsilon."""

from __future__ import annotations

from medfl.settings import Privacy
from medfl_report.monitor.run_state import RunState, SiteState
from medfl_report.monitor.run_view import RunView, make_run_view


def view_of_falling_scores() -> RunView:
    """Return the view of a run whose scores fall from round 1 to round 2."""
    by_site = {"a": {1: 0.9, 2: 0.6}, "b": {1: 0.8, 2: 0.5}}
    state = RunState(
        method="fedavg",
        rounds=3,
        rounds_done=2,
        metric="auc",
        privacy=Privacy(epsilon=8.0, clip=1.0),
        sites={"a": SiteState(bytes_up=3e6, bytes_to_peers=4e6, bytes_down=5e6), "b": SiteState()},
        mean_scores={"global test auc": {1: 0.85, 2: 0.55}},
        site_scores={"global test": by_site},
    )
    return make_run_view("run", state, now=0.0, has_writer=True, epsilons={"a": 2.5, "b": 4.5})


def test_scores_are_those_of_the_last_round() -> None:
    view = view_of_falling_scores()
    assert [site.score for site in view.sites] == [0.6, 0.5]
    assert "0.550 after round 2 (mean of 2, from 0.500 to 0.600)" in view.score


def test_bytes_to_other_sites_count_as_sent() -> None:
    first, _ = view_of_falling_scores().sites
    assert first.sent == "7.0 MB"
    assert first.received == "5.0 MB"


def test_the_largest_epsilon_is_shown_where_sites_differ() -> None:
    assert "at most 4.5 of 8" in view_of_falling_scores().privacy
