"""The section about what is forgotten: its numbers against a few lines of arithmetic, and what it says without them."""

from __future__ import annotations

from statistics import fmean, pstdev, stdev

import pytest
from make_runs import SITES, make_run
from markupsafe import Markup
from read_page import Page, render_section, words

from medfl.engine.runs.records import read_run
from medfl.utils.formats import commands
from medfl_report.curves import score_curve, trained_curve, work_curve
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.sections import forgetting as forgetting_section
from medfl_report.trajectory import read_trajectory

SERVER = (0.4, 0.2, 0.4, 0.6, 0.3)
"""A fall from the first round that is made good in the third, and one from the fourth that is not."""

TRAINED = (
    {"site-1": 0.9, "site-2": 0.7},
    {"site-2": 0.5, "site-3": 0.6},
    {"site-1": 1.0, "site-3": 0.8},
    {"site-1": 0.8, "site-2": 0.8},
    {"site-2": 0.9, "site-3": 0.5},
)
MEANS = (0.8, 0.55, 0.9, 0.8, 0.7)
WORST = (0.7, 0.5, 0.8, 0.8, 0.5)
FULL = {
    "rounds": 5,
    "server": SERVER,
    "trained": TRAINED,
    "scores": {"accuracy": dict.fromkeys(SITES, 0.5)},
    "metrics": ("accuracy",),
    "bundles": False,
    "state": False,
}
MAIN, MORE = "Forgetting", "Forgetting, further measures"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Make runs in folders named after them, and take the section about them apart; its pictures are not drawn."""

    def undrawn(figure, name: str, description: str) -> Markup:
        return Markup('<svg role="img" aria-label="{}"></svg>').format(description)

    monkeypatch.setattr(forgetting_section, "svg", undrawn)

    def write(*runs: tuple[str, dict]) -> Page:
        folders = [make_run(tmp_path / name, name.split("-")[0], **options) for name, options in runs]
        groups = group_runs([read_run(folder) for folder in folders])
        html = render_section("forgetting", forgetting_section.forgetting(groups))
        return Page(f'<section id="forgetting">{html}</section>')

    return write


def rows_of(document: Page, label: str) -> dict[str, dict[str, str]]:
    """Return the cells of a table by row and column."""
    head, *rows = ([words(cell) for cell in row] for row in document.tables[label])
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def said(document: Page) -> str:
    """The text of the section."""
    return words(document.sections["forgetting"])


def pictures(document: Page) -> dict[str, list[str]]:
    """The descriptions of the section's pictures of each kind."""
    inside = [
        attributes["aria-label"]
        for tag, attributes in document.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]
    return {
        "falls": [text for text in inside if "recovery interval" in text],
        "trained": [text for text in inside if "right after training" in text],
        "work": [text for text in inside if "seconds of work" in text],
    }


# ---- numbers


def test_the_table_says_what_the_definitions_say(page):
    row = rows_of(page(("fedavg", FULL)), MAIN)["fedavg"]
    transfers = (0, 0.1, 0.4 / 3, 0.4 / 3, 0.4 / 3)  # scores at the sites grow by 0.1 a round
    assert row == {
        "server test mean ± SD over rounds": f"{fmean(SERVER):.3f} ± {pstdev(SERVER):.3f}",
        "backward transfer global model, mean over rounds": f"+{fmean(transfers):.3f}",
        "backward transfer global model, last round": f"+{transfers[-1]:.3f}",
        "global consistency literal": "0.750",  # 1 - 0.2 / 0.4 / 2
        "global consistency open": "0.625",  # 1 - (0.2 / 0.4 / 2 + 0.3 / 0.6) / 2
        "right after training mean ± SD over rounds": f"{fmean(MEANS):.3f} ± {pstdev(MEANS):.3f}",
        "worst participant mean over rounds": f"{fmean(WORST):.3f}",
        "local consistency literal": "0.781",  # 1 - (0.25 + 0.1) / 0.8 / 2: the gain counts
        "balance of both means": f"{(fmean(SERVER) + fmean(MEANS)) / 2:.3f}",
        "server test last round": "0.300",
    }


def test_other_readings_are_in_a_table_of_their_own(page):
    row = rows_of(page(("fedavg", FULL)), MORE)["fedavg"]
    assert row == {
        "global consistency losses only": "0.750",
        "global intervals literal": "1",
        "right after training last round": "0.700",
        "worst site mean over its rounds": f"{(0.6 + 0.8 + 0.5) / 3:.3f}",
        "local consistency open": "0.807",  # 1 - ((0.25 + 0.1) / 0.8 / 2 + (0.1 + 0.2) / 0.9 / 2) / 2
        "local consistency losses only": "0.844",  # 1 - 0.25 / 0.8 / 2
        "local intervals literal": "1",
    }


def test_a_negative_backward_transfer_has_its_sign(page):
    falling = FULL | {"scores": {"accuracy": dict.fromkeys(SITES, -0.5)}}  # by 0.1 in each round
    row = rows_of(page(("fedavg", falling)), MAIN)["fedavg"]
    assert row["backward transfer global model, last round"] == f"−{0.4 / 3:.3f}"


def test_spreads_over_rounds_and_over_seeds_are_kept_apart(page):
    other = tuple(score / 2 for score in SERVER)
    document = page(("fedavg-0", FULL), ("fedavg-1", FULL | {"seed": 1, "server": other}), ("fedprox", FULL))
    rows = rows_of(document, MAIN)
    both = [fmean(SERVER), fmean(other)]
    over_rounds = fmean([pstdev(SERVER), pstdev(other)])
    assert rows["fedavg"]["server test mean ± SD over rounds"] == (
        f"{fmean(both):.3f} ± {over_rounds:.3f}seed SD {stdev(both):.3f}"
    )
    assert rows["fedavg"]["worst participant mean over rounds"] == f"{fmean(WORST):.3f}seed SD 0.000"
    assert "seed SD" not in "".join(rows["fedprox"].values())
    assert "seed SD is the standard deviation over the seeds" in said(document)
    assert "seed SD" not in said(page(("fedkper", FULL)))


def test_a_score_that_only_grows_has_no_interval(page):
    grows = FULL | {"server": (0.1, 0.2, 0.3, 0.4, 0.5)}
    document = page(("fedavg-0", FULL), ("fedavg-1", grows | {"seed": 1}), ("fedprox", grows))
    rows = rows_of(document, MAIN)
    assert rows["fedprox"]["global consistency literal"] == "1.000no interval"
    assert rows["fedavg"]["global consistency literal"].startswith("0.875seed SD")
    assert rows["fedavg"]["global consistency literal"].endswith("no intervalin 1 of 2 seeds")
    assert "No interval: the score never fell below a peak, or never recovered." in said(document)
    assert "no interval" not in said(page(("fedkper", FULL))).lower()


def test_a_score_that_never_recovers_is_perfect_in_the_literal_reading_only(page):
    row = rows_of(page(("fedavg", FULL | {"server": (0.2, 0.8, 0.4, 0.4, 0.4)})), MAIN)["fedavg"]
    assert row["global consistency literal"] == "1.000no interval"
    assert row["global consistency open"] == "0.500"


# ---- which model


def test_the_page_says_which_model_and_where_backward_transfer_is_not_defined(page):
    document = page(("fedavg", FULL), ("fedbn", FULL | {"model": "personal", "server": ()}))
    columns = ("backward transfer global model, mean over rounds", "backward transfer global model, last round")
    assert [rows_of(document, MAIN)["fedbn"][name] for name in columns] == ["not defined"] * 2
    change = "personal models' change last round"
    assert rows_of(document, MORE)["fedbn"][change] == f"+{0.4 / 3:.3f}"
    assert rows_of(document, MORE)["fedavg"][change] == "–"
    assert "fedbn: Backward transfer is not defined" in said(document)


# ---- what is missing


NO_SERVER = "Without a global model and a test set at the server there are no global measures."
NO_TRAINED = "Local measures need scores right after training: --moments \"['aggregated', 'trained']\"."
NOT_EVERY = "Global consistency and backward transfer need scores after every round: --evaluate_every 1."


def test_what_is_missing_is_said_once_and_of_whom(page):
    document = page(("fedavg", FULL), ("local", FULL | {"server": ()}), ("fedbn", FULL | {"server": ()}))
    assert f"local and fedbn: {NO_SERVER}" in said(document)
    assert said(document).count(NO_SERVER) == 1
    rows = rows_of(document, MAIN)
    assert rows["local"]["server test mean ± SD over rounds"] == "–"
    assert rows["local"]["balance of both means"] == "–"
    assert "–" not in rows["fedavg"].values()


def test_of_all_runs_it_is_said_without_names_and_without_columns(page):
    document = page(*((name, FULL | {"server": (), "trained": ()}) for name in ("fedavg", "fedprox")))
    assert f"{NO_SERVER} {NO_TRAINED}" in said(document)
    assert f": {NO_SERVER}" not in said(document)
    assert set(rows_of(document, MAIN)["fedavg"]) == {
        "backward transfer global model, mean over rounds",
        "backward transfer global model, last round",
    }
    assert MORE not in document.tables


def test_scores_after_every_second_round(page):
    document = page(("fedavg", FULL | {"evaluate_every": 2}))
    row = rows_of(document, MAIN)["fedavg"]
    assert NOT_EVERY in said(document)
    assert row["server test mean ± SD over rounds"] == "0.400 ± 0.200", "rounds 2 and 4"
    assert "global consistency literal" not in row
    assert "local consistency literal" in row, "it is scored in every round"
    assert not pictures(document)["falls"]
    assert len(pictures(document)["work"]) == 1


def test_pooled_data_have_no_site_that_trains(page):
    pooled = FULL | {"trained": [{"pooled": None}] * 5, "settings": {"moments": ["aggregated", "trained"]}}
    document = page(("centralized", pooled))
    row = rows_of(document, MAIN)["centralized"]
    assert row["server test last round"] == "0.300"
    assert not {name for name in row if name.startswith(("backward", "right", "worst", "local", "balance"))}
    assert "Backward transfer needs sites that train and have test images of their own." in said(document)
    assert "--moments" not in said(document), "it is set already"


@pytest.mark.parametrize(
    "options", [{"status": "running", "done": 0}, {"splits": ("val",)}, {"scores": {"accuracy": {}}}]
)
def test_nothing_to_show_is_one_sentence(page, options):
    document = page(("fedavg", {"metrics": ("accuracy",), "bundles": False, "state": False} | options))
    assert said(document) == "There are no test scores in accuracy."
    assert MAIN not in document.tables


def test_runs_without_a_common_metric(page):
    document = page(("local", {"metrics": ("accuracy",)}), ("fedavg", {"metrics": ("f1",)}))
    assert "The runs have no common metric in which larger is better" in said(document)


def test_a_run_without_scores_is_named_beside_others(page):
    document = page(("fedavg-0", FULL), ("fedavg-1", FULL | {"seed": 1, "status": "running", "done": 0}))
    assert "fedavg, seed 1: no accuracy on test images." in said(document)
    assert NO_SERVER not in said(document), "that is not why"
    assert "seed SD" not in said(document)


def test_runs_over_unlike_many_rounds_are_named(page):
    document = page(("fedavg-0", FULL), ("fedavg-1", FULL | {"seed": 1, "done": 4}), ("fedprox", FULL))
    assert "which limits comparisons: fedavg has 4 and 5 and fedprox has 5." in said(document)
    assert "limits comparisons" not in said(page(("fedkper", FULL), ("fedbn", FULL)))


def test_one_round_is_no_curve(page):
    document = page(("fedavg", FULL | {"rounds": 1}))
    assert rows_of(document, MAIN)["fedavg"]["server test last round"] == "0.400"
    assert not any(pictures(document).values())


def test_a_sentence_shows_commands_as_code_and_escapes_the_rest():
    assert commands("<b>: use `--x '1'`.") == "&lt;b&gt;: use <code>--x &#39;1&#39;</code>."


# ---- pictures


def test_the_falls_of_one_seed_of_each_group_are_drawn_and_described(page):
    document = page(("fedavg-0", FULL), ("fedavg-1", FULL | {"seed": 1}), ("fedprox", FULL | {"server": (0.1,) * 5}))
    assert pictures(document)["falls"] == [
        "accuracy, server test. fedavg, seed 0: 1 recovery interval, the longest from round 1 to 3; the peak of round "
        "4 is not reached again.",
        "accuracy, server test. fedprox, seed 0: no recovery interval.",
    ]
    assert "Not drawn" not in said(document)


def test_four_groups_are_drawn_and_the_others_named(page):
    document = page(*((f"m{number}", FULL) for number in range(6)))
    assert len(pictures(document)["falls"]) == 4
    assert "Not drawn: m4 and m5." in said(document)


def test_curves_are_means_over_seeds_of_the_rounds_that_all_have(page, tmp_path):
    half = [{site: score / 2 for site, score in row.items()} for row in TRAINED]
    later = FULL | {"seed": 1, "done": 4, "status": "running", "trained": half, "server": (0.2,) * 5}
    document = page(("fedavg-0", FULL), ("fedavg-1", later))
    ways = [read_trajectory(read_run(tmp_path / name), "accuracy") for name in ("fedavg-0", "fedavg-1")]
    local, work = trained_curve("fedavg", ways), work_curve("fedavg", ways)
    assert list(local.rounds) == [1, 2, 3, 4]
    assert list(local.middle) == pytest.approx([0.75 * mean for mean in MEANS[:4]])
    assert list(work.rounds) == [5, 10, 15, 20], "two sites work 2 and 3 seconds in each round"
    assert list(work.middle) == pytest.approx([(score + 0.2) / 2 for score in SERVER[:4]])
    assert "fedavg: 0.600 after round 4." in pictures(document)["trained"][0]
    assert "fedavg: 0.400 after 20 seconds of work." in pictures(document)["work"][0]
    assert "Mean over the seeds, for the rounds that all runs have." in said(document)
    assert "The seconds depend on the machine and its load." in said(document)


def test_the_whole_page_has_the_section_and_draws_its_pictures(tmp_path):
    runs = [make_run(tmp_path / name, name, **FULL) for name in ("fedavg", "fedprox")]
    html = write_report(runs).read_text()
    document = Page(html)
    names = list(document.sections)
    assert names[names.index("curves") + 1] == "forgetting"
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {name: len(texts) for name, texts in pictures(document).items()} == {"falls": 2, "trained": 1, "work": 1}
    assert ">seconds of work</text>" in html
    assert "<pattern" in html, "what is not recovered is hatched"


def test_curves_of_a_group_with_a_seed_that_has_just_begun(tmp_path):
    """Its metrics file has a head and no rows, so no type either."""
    begun = FULL | {"seed": 1, "status": "running", "done": 0}
    (group,) = group_runs(
        [read_run(make_run(tmp_path / name, **options)) for name, options in (("a", FULL), ("b", begun))]
    )
    curve = score_curve(group, "accuracy", band=True)
    assert curve.low.dtype == curve.high.dtype == float
    assert curve.middle.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
