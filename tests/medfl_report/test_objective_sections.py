"""Test reports about findings, numbers, survival and masks: closed forms, directions, and the pages' content."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from objective_runs import run_objective
from read_page import Page, words
from refusals import refused

from medfl.engine.runs.records import common_output_names, read_run
from medfl.engine.runs.worst_cases import WORST_CASES_FILE, read_worst_cases, shrink_planes, widest_error
from medfl.errors import ContractError, SettingsError
from medfl.objectives import Binary, Multilabel, Objective, Regression, Segmentation, Survival
from medfl.utils.formats import metric_words
from medfl_report.compare import compare, to_markdown
from medfl_report.groups import Group, group_runs
from medfl_report.objectives.agreement import limits_of_agreement
from medfl_report.objectives.calibration import calibration
from medfl_report.objectives.masks import masks_section, shown_unit
from medfl_report.objectives.survival import at_risk, product_limit, risk_groups
from medfl_report.page import write_report
from medfl_report.patient_tests import PatientTest
from medfl_report.predictions import PredictionSet as Answers
from medfl_report.predictions import read_prediction_sets
from medfl_report.rasters import outline_layer
from medfl_report.site_comparison import BETTER, WORSE, Comparison, ComparisonRow, add_patient_test
from medfl_report.statistics import Interval

pytestmark = pytest.mark.usefixtures("undrawn")

KINDS: dict[str, Objective] = {
    "calibration": Binary(),
    "label_aucs": Multilabel(3),
    "agreement": Regression(2),
    "survival": Survival(),
    "masks": Segmentation(2),
}
"""Id of a section to the objective that has it."""

NAN = math.nan

Made = Callable[[str], list[Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Gives the runs of an objective, by its section, alone and together; made when they are wanted first."""
    folder = tmp_path_factory.mktemp("objectives")

    def runs(section: str) -> list[Path]:
        places = [folder / section / method for method in ("local", "fedavg")]
        for place in places:
            if not place.exists():
                pictures = place.name == "fedavg"
                run_objective(place, KINDS[section], place.name, tests=12, patients=3, worst_case_images=pictures)
        return places

    return runs


def answers(targets: list[list[float]], predictions: list[list[float]], objective: Objective) -> Answers:
    return Answers(
        torch.arange(len(targets)), torch.tensor(targets).double(), torch.tensor(predictions).double(), objective
    )


# ---- closed forms


def test_the_product_limit_of_a_textbook() -> None:
    """Remission under 6-mercaptopurine, Freireich et al. 1963, as in Collett's and Kleinbaum's books."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    cut = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    times, events = np.array(ended + cut, dtype=float), np.arange(21) < len(ended)
    instants, shares = product_limit(times, events)
    assert instants.tolist() == [0, 6, 7, 10, 13, 16, 22, 23, 35]
    assert shares.round(4).tolist() == [1, 0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482, 0.4482]
    assert at_risk(times, [0, 6, 7, 23, 36]) == [21, 21, 17, 6, 0]


def test_without_cut_times_the_product_limit_is_the_share_that_is_left() -> None:
    times = np.array([3.0, 1.0, 2.0, 2.0, 5.0])
    instants, shares = product_limit(times, np.ones(5, dtype=bool))
    assert [(times > instant).mean() for instant in instants] == pytest.approx(shares)
    assert product_limit(times, np.zeros(5, dtype=bool))[1].tolist() == [1, 1], "nobody has the event"


def test_risks_are_split_at_each_site() -> None:
    """The second site's risks are all above the first's: split together, groups would be the sites."""
    targets = [[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 1.0]]
    sets = [answers(targets, [[shift - time] for time, _ in targets], Survival()) for shift in (0.0, 100.0)]
    sets.append(answers(targets, [[NAN]] * 4, Survival()))
    (late, _), (early, events) = risk_groups(sets)
    assert sorted(late) == [3, 3, 4, 4]
    assert sorted(early) == [1, 1, 2, 2]
    assert events.sum() == 2


def test_other_cases_say_which_risks_are_high() -> None:
    """All test cases may be above the median of the validation cases."""
    risks = torch.tensor([[1.0], [2.0], [3.0]])
    assert Survival().groups(risks, torch.tensor([[0.0], [5.0], [2.0]])) == ("lower", "lower", "higher")
    targets = [[time, 1.0] for time in (3.0, 2.0, 1.0)]
    groups = Survival().groups(risks, risks - 5)
    assert groups == ("higher",) * 3
    late, early = risk_groups([replace(answers(targets, risks.tolist(), Survival()), groups=groups)])
    assert (len(late[0]), sorted(early[0])) == (0, [1, 2, 3])
    with refused(ContractError, "objective_not_supported", expected="groups"):
        Regression().groups(risks, risks)


def test_runs_about_survival_say_the_group_of_each_test_case(made: Made) -> None:
    """The threshold is the median of the validation or training cases; files of other objectives have no groups."""
    for folder in made("survival"):
        for test_set in read_prediction_sets(read_run(folder)).values():
            assert set(test_set.groups) <= {"higher", "lower"}
            risks = test_set.predictions[:, 0]
            high = torch.tensor([group == "higher" for group in test_set.groups])
            assert len(high) == len(risks)
            assert not (high.any() and (~high).any()) or risks[high].min() >= risks[~high].max()
    assert all(not test_set.groups for test_set in read_prediction_sets(read_run(made("agreement")[0])).values())


def test_limits_of_agreement() -> None:
    limits = limits_of_agreement(torch.tensor([1.0, 3.0]))
    expected = (2, 2 - 1.96 * 2**0.5, 2 + 1.96 * 2**0.5)
    assert (limits.difference, limits.low, limits.high) == pytest.approx(expected)
    assert math.isnan(limits_of_agreement(torch.tensor([1.0])).low)


def test_bins_of_a_calibration_curve() -> None:
    present = torch.tensor([0.0, 0.05, 0.1, 0.1, 0.95, 1.0]).double()
    truth = torch.tensor([0, 1, 0, 1, 1, 1])
    bins = calibration(Answers(torch.arange(6), truth, torch.stack([1 - present, present], 1), Binary()))
    assert [(each.start, each.images, each.share) for each in bins] == [(0.0, 2, 0.5), (0.1, 2, 0.5), (0.9, 2, 1.0)]
    assert [each.mean for each in bins] == pytest.approx([0.025, 0.1, 0.975])
    assert all(each.low <= each.share <= each.high for each in bins)
    assert sum(each.weight for each in bins) == pytest.approx(1)


@pytest.mark.parametrize("objective", [Regression(1), Survival()], ids=lambda objective: objective.name)
def test_an_interval_is_over_patients(objective: Objective) -> None:
    """With one image per patient the interval is the one over images; copies of a patient's images change nothing."""
    stream = torch.Generator().manual_seed(0)
    events = torch.arange(30) % 3 > 0
    truth = torch.rand(30, 1, generator=stream).double() + 1
    targets = torch.cat([truth, events[:, None].double()], 1) if objective.name == "survival" else truth
    predictions = -truth + torch.rand(30, 1, generator=stream)
    rows, metric = torch.arange(30), objective.metrics[0]
    plain = Answers(rows, targets, predictions, objective).interval(metric)
    assert Answers(rows, targets, predictions, objective, patients=rows).interval(metric) == plain
    twice = rows.repeat_interleave(2)
    copied = Answers(twice, targets[twice], predictions[twice], objective, patients=twice).interval(metric)
    assert copied is not None
    assert plain is not None
    if objective.name == "regression":  # a C-index has no pair of a case with its own copy, which count less the more
        assert (copied.low, copied.high) == pytest.approx((plain.low, plain.high))
    assert copied.difference == pytest.approx(plain.difference)
    naive = Answers(twice, targets[twice], predictions[twice], objective).interval(metric)
    assert naive is not None
    assert naive.high - naive.low < 0.85 * (copied.high - copied.low)


def test_the_slice_with_the_widest_error_and_small_planes() -> None:
    reference, prediction = torch.zeros(2, 1, 8, 8, 5, dtype=torch.bool)
    assert widest_error(prediction[..., 0], reference[..., 0]) is None
    reference[..., 1] = True
    prediction[..., 1] = True
    assert widest_error(prediction, reference) == 1, "all right: where the reference is"
    prediction[:, :2, :2, 2:5] = True
    assert widest_error(prediction, reference) == 3, "the middle of those with as many"
    assert shrink_planes(torch.linspace(3, 5, 9).reshape(1, 3, 3)).flatten().tolist() == [
        0,
        32,
        64,
        96,
        128,
        159,
        191,
        223,
        255,
    ]
    assert shrink_planes(torch.ones(1, 300, 40, dtype=torch.bool)).shape == (1, 96, 40)
    assert outline_layer(np.ones((2, 3), dtype=bool), "#000").count("M") == 10, "as many lines as the edge is long"
    assert outline_layer(np.zeros((2, 3), dtype=bool), "#000") == ""


def test_volumes_are_shown_in_millilitres() -> None:
    volume, area = (Segmentation(channels=2, spacing=spacing) for spacing in ((1.0, 2.0, 5.0), (1.0, 2.0)))
    mask = torch.ones(1, 1, 10, 10, 10, dtype=torch.int64)
    unit, factor = shown_unit(volume)
    assert (unit, float(volume.scoring_targets(mask)[0, 0]) * factor) == ("ml", 10.0)
    assert shown_unit(area) == ("mm²", 1.0)
    assert shown_unit(Segmentation(channels=2)) == ("voxels", 1.0)


# ---- runs


@pytest.mark.parametrize("section", KINDS)
def test_predictions_are_read_as_they_were_scored(made: Made, section: str) -> None:
    for folder in made(section):
        run = read_run(folder)
        assert run.objective == KINDS[section]
        sets = read_prediction_sets(run)
        assert list(sets) == ["north", "south", "west"]
        assert [test_set.patient_count for test_set in sets.values()] == [4, None, None]
        for site, test_set in sets.items():
            assert test_set.defined
            for metric in run.task_metrics:
                assert test_set.score(metric) == pytest.approx(run.score(site, metric), abs=1e-6), metric
            assert test_set.same_images(test_set)


def test_labels_that_no_one_looked_for_stay_so(made: Made) -> None:
    targets = read_prediction_sets(read_run(made("label_aucs")[0]))["south"].targets
    assert targets[:, 0].isnan().tolist() == [place % 4 == 3 for place in range(12)]
    assert not targets[:, 1:].isnan().any()


def test_gains_know_which_way_is_up() -> None:
    """A model that is off by 1 gains over one that is off by 2, though its error is lower."""
    truth = [[float(number)] for number in range(20)]
    near, far = (answers(truth, [[number + by] for (number,) in truth], Regression()) for by in (1.0, 2.0))
    interval = near.gain_over(far, "mae")
    assert interval == Interval(-1, -1, -1)
    for metric, effect in (("mae", BETTER), ("hd95", BETTER), ("brier", BETTER), ("c_index", WORSE), ("dice", WORSE)):
        row = ComparisonRow("a", 20, 2.0, 1.0, interval.difference)
        assert add_patient_test(metric, row, interval, PatientTest(0.01, 20)).effect == effect
    row = ComparisonRow("a", 20, 90.0, 50.0, -40, -50, -30)
    wide = Comparison("mae", "", [row], *[ComparisonRow("", 0, 0, 0)] * 2)
    assert wide.reach == 50, "an error may fall by more than 1"


def test_comparisons_follow_the_objective(made: Made) -> None:
    runs = [read_run(folder) for folder in made("agreement")]
    table = compare(runs, ["mae", "r2"])
    scores = [runs[0].score(site, "mae") for site in ("north", "south", "west")]
    assert table["worst"][0] == max(score for score in scores if score is not None)
    text = to_markdown(table)
    assert "### mae (lower is better)" in text
    assert "### r2 (larger is better)" in text
    assert compare(runs)["metric"].unique().tolist() == ["mae"], "the key metric of the task"
    with refused(SettingsError, "unknown_choice", what="metric", choice="auc"):
        compare(runs, ["auc"])


@pytest.mark.parametrize("section", KINDS)
def test_a_page_shows_what_its_objective_has(made: Made, section: str, tmp_path: Path) -> None:
    runs = made(section)
    out = write_report(runs, tmp_path / "page.html")
    text = out.read_text()
    page = Page(text)
    assert "could not be made" not in text
    assert KINDS.keys() & page.sections.keys() == {section}
    assert ("Confusion matrix" in page.sections["scores"]) == (section == "calibration")
    over = "test patients, each with all images, at north, and of the cases elsewhere"
    assert over in words(page.sections[section])
    names = {"label_aucs": "AUC of each finding", "agreement": "Errors of output 1", "survival": "C-index of each site"}
    label = names | {"masks": "Dice of each class", "calibration": "Scores of probabilities"}
    head, *rows = page.tables[label[section]]
    assert {"local", "fedavg"} <= {cell.strip() for cell in [*head, *(row[0] for row in rows)]}
    if section == "survival":
        assert [row[0] for row in rows] == ["north", "south", "west", "mean of sites", "all sites together"]
        drawn = page.tables["At risk, fedavg"]
        assert [row[0] for row in drawn[1:]] == ["lower risk", "higher risk"]
        groups = [group for test_set in read_prediction_sets(read_run(runs[1])).values() for group in test_set.groups]
        assert [int(row[1]) for row in drawn[1:]] == [groups.count("lower"), groups.count("higher")]
        assert len(groups) == 36
    if section == "masks":
        assert text.count('class="tile"') == 9, "three at each site of the run that keeps them"
        assert "images of patients" in page.sections["masks"]
    if section == "label_aucs":
        assert [row[1] for row in rows] == ["27", "36", "36"]


NAMES = ("<b>liver</b>", "left\n lung", "x" * 100, "$a_1$")
"""Names of outputs that a file may have."""

NAMES_ESCAPED = ("\\<b\\>liver\\<\\/b\\>", "left lung")
"""The same in Markdown."""


@pytest.mark.parametrize(
    ("section", "metrics", "shown"),
    [
        ("label_aucs", ("macro_auc", "auc_0"), ["<b>liver</b>", "left lung", "x" * 59 + "…"]),
        ("agreement", ("mae",), ["<b>liver</b>", "left lung"]),
        ("masks", ("dice", "dice_1"), ["left lung"]),
    ],
)
def test_names_are_in_place_of_numbers(
    section: str, metrics: tuple[str, ...], shown: list[str], tmp_path: Path
) -> None:
    objective = KINDS[section]
    folders = [
        run_objective(tmp_path / method, objective, method, 1, 6, metrics, names=NAMES[: objective.outputs])
        for method in ("local", "fedavg")
    ]
    text = write_report(folders, tmp_path / "page.html").read_text()
    assert "could not be made" not in text
    page = Page(text)
    assert "<b>liver" not in text
    assert all(name in words(page.sections[section]) for name in shown)
    for metric in metrics[1:]:
        assert f"{metric_words(metric.partition('_')[0])} of {shown[0]}" in words(page.sections["scores"])
        records = [read_run(folder) for folder in folders]
        line = to_markdown(compare(records, [metric]), common_output_names(records)).splitlines()[0]
        assert line == f"### {metric}, {metric_words(metric, NAMES_ESCAPED)} (larger is better)"


def test_cases_without_a_distance_are_left_out_and_counted(made: Made) -> None:
    """A class that is in one mask only has no distance and is left out of the mean."""
    run = read_run(made("masks")[1])
    test_set = read_prediction_sets(run)["south"]
    column = run.objective.columns(()).index("hd95_1")
    test_set.predictions[:, column] = torch.tensor([float(number) for number in range(11)] + [NAN])
    content = masks_section(group_runs([run]), {str(run.folder): {"south": test_set}})
    assert content is not None
    (row,) = next(table["rows"] for table in content["kinds"] if table["kind"] == "hd95")
    assert row["undefined"] == {"fedavg": "not defined in 1 of 12 cases"}
    twice = masks_section([Group("fedavg", (run, run))], {str(run.folder): {"south": test_set}})
    assert twice is not None
    (row,) = next(table["rows"] for table in twice["kinds"] if table["kind"] == "hd95")
    assert row["undefined"] == {"fedavg": "not defined in 2 of 24 cases of 2 runs"}
    assert row["scores"]["fedavg"].mean.difference == pytest.approx(5)
    assert [table["kind"] for table in content["kinds"]] == ["dice", "hd95"], "what no case has stands nowhere"


# ---- pictures of the worst cases


def test_a_site_that_is_not_asked_keeps_no_picture(made: Made, tmp_path: Path) -> None:
    alone, other = made("masks")
    assert not list(alone.rglob(WORST_CASES_FILE))
    cases = read_worst_cases(other / "sites" / "west")
    predictions = read_prediction_sets(read_run(other))["west"].predictions[:, 0]
    assert [case.dice for case in cases] == pytest.approx(predictions.sort().values[:3].tolist())
    assert [predictions[case.row] for case in cases] == pytest.approx([case.dice for case in cases])
    assert cases[0].image.shape == (6, 6)
    assert cases[0].slice is None
    overlap = (
        2 * (cases[0].reference & cases[0].prediction).sum() / (cases[0].reference.sum() + cases[0].prediction.sum())
    )
    assert float(overlap) == pytest.approx(cases[0].dice, abs=1e-6)


def test_attacks_refuse_what_has_no_classes(made: Made) -> None:
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.open_run import open_run

    for section in ("agreement", "calibration"):
        name = KINDS[section].name
        with refused(SettingsError, "objective_not_supported", objective=name):
            open_run(made(section)[0])
