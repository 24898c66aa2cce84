"""Pages about folds say folds where pages about seeds say seeds, and stay short."""

from __future__ import annotations

from statistics import stdev

import pytest
from make_runs import make_run
from read_page import Page, words

from medfl_report.page import write_report

pytestmark = pytest.mark.usefixtures("undrawn")

SERVER = (0.6, 0.5, 0.7)
"""The server test after each round; a fall from which it recovers."""

TRAINED = ({"site-1": 0.5, "site-2": 0.7, "site-3": 0.6},) * 3


def make(folder, cells, **options):
    """The page about a run for each seed and fold."""
    runs = [
        make_run(
            folder / f"{seed} {fold}",
            seed=seed,
            fold=fold,
            data=f"{seed} {fold}",
            server=[value + place / 10 for value in SERVER],
            trained=TRAINED,
            metrics=("accuracy",),
            bundles=False,
            state=False,
            **options,
        )
        for place, (seed, fold) in enumerate(cells)
    ]
    return write_report(runs, folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("cells", "many", "single", "first"),
    [
        ([(0, None), (1, None)], "seeds", "seed", "seed 0"),
        ([(0, 0), (0, 1)], "folds", "fold", "seed 0, fold 0"),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], "runs", "run", "seed 0, fold 0"),
    ],
)
def test_what_is_forgotten_says_what_a_spread_is_over(tmp_path, cells, many, single, first):
    text = words(Page(make(tmp_path, cells)).sections["forgetting"])
    assert f"{single} SD {stdev(0.7 + place / 10 for place in range(len(cells))):.3f}" in text
    assert f"With several {many} a number is the mean over them, ± as well; {single} SD is the standard" in text
    assert f"Server test after each round, of one {single}." in text
    assert f"fedavg, {first}: 1 recovery interval" in text
    assert f"Mean over the {many}, for the rounds that all runs have." in text


def test_many_runs_are_folded_away(tmp_path):
    html = make(tmp_path, [(0, fold) for fold in range(9)], folds=9)
    page = Page(html)
    assert "<summary>The 9 runs of this page</summary>" in html
    assert len(page.tables["The runs of this page"]) == 10
    assert "<h3>Data of seed 0, fold 0</h3>" in html
    assert html.count("<summary>Data of seed 0, fold ") == 8
