"""Comparisons: what makes a row, the numbers by hand, and what a table may say."""

import itertools
import math
from dataclasses import replace

import pytest
from make_runs import SITES, make_run
from refusals import refused

from medfl.engine.runs.records import read_run
from medfl.errors import SettingsError, StoreError
from medfl.records.summary import ConstantPrediction, MetricScores
from medfl_report.claims import check_claim
from medfl_report.compare import compare, notes, to_markdown
from medfl_report.groups import group_runs, name_runs


@pytest.fixture
def run(tmp_path):
    """Make a run and read it; `values` are the sites' accuracies."""
    count = itertools.count()

    def make(method="fedavg", seed=0, values=None, metric="accuracy", **options):
        if values is not None:
            options["scores"] = {metric: dict(zip(SITES, values, strict=True))}
        return read_run(make_run(tmp_path / str(next(count)), method, seed, bundles=False, state=False, **options))

    return make


def row(table, label):
    (record,) = table[table["label"] == label].to_dict("records")
    return record


# ---- what makes a row


def test_runs_that_differ_only_in_seed_and_data_make_one_row(run):
    runs = [run(seed=1, data="b"), run("local"), run(seed=0, data="a")]
    groups = group_runs(runs)
    assert [(group.label, [run_.seed for run_ in group.runs]) for group in groups] == [
        ("fedavg", [0, 1]),
        ("local", [0]),
    ]


def test_a_label_names_the_settings_in_which_a_method_is_there_twice(run):
    runs = [
        run("fedprox", method_args={"mu": 0.1, "warm": 2}, settings={"epochs": 1}),
        run("fedprox", method_args={"mu": 1.0, "warm": 2}, settings={"epochs": 1}),
        run("fedprox", method_args={"warm": 2}, settings={"epochs": 5}),
        run("fedavg", settings={"epochs": 5}),
    ]
    assert [group.label for group in group_runs(runs)] == [
        "fedprox (mu=0.1, epochs=1)",
        "fedprox (mu=1.0, epochs=1)",
        "fedprox (mu=default, epochs=5)",
        "fedavg",
    ]


def with_task(record, **changes):
    """The run with another task."""
    identity = record.run.identity
    task = identity.task.model_copy(update=changes)
    return replace(record, run=record.run.model_copy(update={"identity": identity.model_copy(update={"task": task})}))


def test_optimizers_rounds_and_networks_distinguish_rows(run):
    plain = run()
    fast = with_task(run(), optimizer='SGD{"lr": 0.5, "momentum": 0.9}')
    wide = with_task(run(rounds=9), networks={"wide": "00"})
    labels = [group.label for group in group_runs([plain, fast])]
    assert labels == ["fedavg (optimizer.lr=0.05)", "fedavg (optimizer.lr=0.5)"]
    labels = [group.label for group in group_runs([plain, wide])]
    assert labels == ["fedavg (rounds=3, network=cnn)", "fedavg (rounds=9, network=wide)"]
    wide = with_task(wide, networks={"cnn": "00"})
    names = [f"fedavg (rounds={rounds}, {run_.folder.name})" for rounds, run_ in ((3, plain), (9, wide))]
    assert [group.label for group in group_runs([plain, wide])] == names


def test_labels_say_what_makes_a_row(run):
    """Two rows with the same settings, and a row whose seeds have other ones."""
    runs = [run(seed=0), run(seed=1, settings={"epochs": 2}), run(seed=0), run(seed=1)]
    labels = ["mixed", "mixed", "b|2", "b|2"]
    table = compare(runs, labels=labels, baseline="b|2")
    assert list(table["label"]) == ["mixed", "b|2"]
    assert list(table["seeds"]) == ["0, 1", "0, 1"]
    assert row(table, "mixed")["pairs"] == 2
    assert set(table["baseline"]) == {"b|2"}
    with refused(SettingsError, "duplicate_run", label="same", seed=0):
        compare(runs, labels=["same"] * 4)


def test_a_run_that_is_there_twice_is_refused(run):
    record = run(seed=4)
    paths = [str(record.folder)] * 2
    with refused(SettingsError, "duplicate_run", label="fedavg", seed=4, fold=None, paths=paths):
        compare([run(seed=3), record, record])
    with refused(SettingsError, "duplicate_run", label="fedavg", seed=4) as caught:
        compare([record, run(seed=4, data="other")])
    assert "compare runs on other data separately" in str(caught.value)


# ---- numbers


def test_numbers_by_hand(run):
    runs = [
        run("local", 0, [0.5, 0.6, 0.7]),
        run("local", 1, [0.6, 0.7, 0.8]),
        run("fedavg", 0, [0.7, 0.7, 0.7], server_test={"accuracy": 0.5}),
        run("fedavg", 1, [0.7, 0.9, 0.8], server_test={"accuracy": 0.7}),
    ]
    table = compare(runs)
    local, fedavg = row(table, "local"), row(table, "fedavg")
    assert (local["mean"], local["std"]) == pytest.approx((0.65, 0.1 / math.sqrt(2)))
    assert (local["worst"], local["worst_std"]) == pytest.approx((0.55, 0.1 / math.sqrt(2)))
    assert (fedavg["mean"], fedavg["worst"], fedavg["worst_std"]) == pytest.approx((0.75, 0.7, 0.0))
    assert (fedavg["server_test"], fedavg["server_test_std"]) == pytest.approx((0.6, 0.2 / math.sqrt(2)))
    assert math.isnan(local["server_test"])
    assert (local["effect"], local["pairs"]) == ("-", 0)
    assert math.isnan(local["difference"])
    # both seeds gain 0.1: two alike differences say nothing of the spread
    assert (fedavg["pairs"], fedavg["effect"]) == (2, "-")
    assert fedavg["difference"] == pytest.approx(0.1)
    assert math.isnan(fedavg["low"])


def at_server(record, shared=None, **scores):
    """The run with final accuracies at the server, and of the sites' personal models on its test set."""
    all_scores = {model: dict(splits) for model, splits in record.summary.scores.items()}
    if scores:
        tests = all_scores.setdefault("global", {}).get("test", {})
        accuracy = tests.get("accuracy", MetricScores(mean=None, worst=None, sites={})).model_copy(update=scores)
        all_scores["global"]["test"] = tests | {"accuracy": accuracy}
    if shared is not None:
        all_scores["personal"]["shared"] = {"accuracy": MetricScores(mean=shared, worst=shared, sites={})}
    return replace(record, summary=record.summary.model_copy(update={"scores": all_scores}))


def test_what_the_server_holds_has_columns(run):
    """FedAvg's model is the one that sites take home; PFedCDP's sites have their own, and a student at the server."""
    runs = [
        *(at_server(run("fedavg", n, [0.7] * 3), server_test=0.6, public_test=0.5 + n / 10) for n in (0, 1)),
        *(
            at_server(run("pfedcdp", n, [0.7] * 3, model="personal"), 0.8, server_test=0.3, public_test=0.9)
            for n in (0, 1)
        ),
        run("local", 0, [0.7] * 3, model="personal"),
    ]
    table = compare(runs)
    fedavg, pfedcdp, local = (row(table, name) for name in ("fedavg", "pfedcdp", "local"))
    assert (fedavg["server_test"], fedavg["shared_test"]) == (0.6, 0.6)
    assert (fedavg["public_test"], fedavg["public_test_std"]) == pytest.approx((0.55, 0.1 / math.sqrt(2)))
    assert (pfedcdp["server_test"], pfedcdp["shared_test"], pfedcdp["public_test"]) == (0.3, 0.8, 0.9)
    assert all(math.isnan(local[name]) for name in ("server_test", "shared_test", "public_test"))
    text = to_markdown(table)
    assert "| worst site | server test | shared test | public test | difference" in text
    assert "| 0.600 ± 0.000 | 0.600 ± 0.000 | 0.550 ± 0.071 |" in text
    assert "- Public test: the global model on the public test set." in text
    alone = to_markdown(compare(runs[:2]))
    assert "shared test" not in alone, "it says what the server test says"
    claim = check_claim(group_runs(runs), "shared_test", "pfedcdp", "fedavg")
    assert (claim.metric, claim.pairs, claim.difference) == ("accuracy", 2, pytest.approx(0.2))
    assert check_claim(group_runs(runs), "public_test", "pfedcdp", "fedavg").difference == pytest.approx(0.35)
    assert check_claim(group_runs(runs), "shared_test", "pfedcdp", "local").pairs == 0


@pytest.mark.parametrize(
    ("gains", "metric", "effect"),
    [
        ([0.10, 0.11, 0.12], "accuracy", "better (seeds only)"),
        ([-0.10, -0.11, -0.12], "accuracy", "worse (seeds only)"),
        ([-0.1, 0.1, 0.2], "accuracy", "n.s."),
        ([0.0, 0.0], "accuracy", "-"),
        ([0.1, 0.1, 0.1], "accuracy", "-"),
        ([0.1], "accuracy", "-"),
        ([0.10, 0.11, 0.12], "ece", "worse (seeds only)"),
        ([-0.10, -0.11, -0.12], "ece", "better (seeds only)"),
    ],
)
def test_a_verdict_needs_an_interval_without_0(run, gains, metric, effect):
    runs = [run("local", seed, [0.5] * 3, metric) for seed in range(len(gains))]
    runs += [run("fedavg", seed, [0.5 + gain] * 3, metric) for seed, gain in enumerate(gains)]
    fedavg = row(compare(runs, [metric]), "fedavg")
    assert (fedavg["effect"], fedavg["pairs"]) == (effect, len(gains))
    assert fedavg["difference"] == pytest.approx(sum(gains) / len(gains))


def test_the_worst_calibration_is_the_largest(run):
    assert row(compare([run(values=[0.1, 0.3, 0.2], metric="ece")], ["ece"]), "fedavg")["worst"] == 0.3


def test_only_seeds_on_the_same_data_are_paired(run):
    runs = [run("local", seed, [0.5] * 3, data=f"draw {seed}") for seed in range(3)]
    runs += [run("fedavg", 0, [0.6] * 3, data="draw 0"), run("fedavg", 1, [0.9] * 3, data="another")]
    runs += [run("fedavg", 7, [0.9] * 3, data="draw 0")]
    fedavg = row(compare(runs), "fedavg")
    assert (fedavg["pairs"], fedavg["effect"]) == (1, "-")
    assert fedavg["difference"] == pytest.approx(0.1)
    assert fedavg["mean"] == pytest.approx(0.8)


def test_a_site_without_a_value_is_left_out_of_the_mean_and_of_the_pair(run):
    table = compare([run("local", values=[0.5, None, 0.9]), run("fedavg", values=[0.6, 0.1, 0.9])])
    local, fedavg = row(table, "local"), row(table, "fedavg")
    assert (local["mean"], local["worst"], local["sites"], local["of_sites"]) == pytest.approx((0.7, 0.5, 2, 3))
    assert fedavg["difference"] == pytest.approx((0.1 + 0.0) / 2)
    assert any("not defined" in note for note in notes(table))
    assert "| 2 of 3 |" in to_markdown(table)


def test_the_exported_model_is_the_one_that_counts(run):
    """A method with both: the personal one, also where the global one is better."""
    ditto = run("ditto", values=[0.5] * 3, model="personal")
    scores = ditto.summary.scores["personal"]["test"]["accuracy"]
    better = scores.model_copy(update={"mean": 0.9, "worst": 0.9, "sites": dict.fromkeys(scores.sites, 0.9)})
    both = ditto.summary.scores | {"global": {"test": {"accuracy": better}}}
    ditto = replace(ditto, summary=ditto.summary.model_copy(update={"scores": both}))
    assert row(compare([ditto]), "ditto")["mean"] == 0.5


def test_runs_that_did_not_finish_stay(run):
    runs = [
        run(seed=0, values=[0.8] * 3),
        run(seed=1, values=[0.2] * 3, status="diverged", done=2),
        run(seed=2, status="running", done=1),
    ]
    table = compare(runs)
    fedavg = row(table, "fedavg")
    assert (fedavg["status"], fedavg["seeds"]) == ("1 finished, 1 diverged, 1 running", "0, 1, 2")
    assert (fedavg["mean"], fedavg["rounds"]) == (pytest.approx(0.5), "2, 3")
    assert any("did not finish" in note and "counts in no mean" in note for note in notes(table))
    assert "round 2, 3" in to_markdown(table)


def test_the_default_metric_and_any_other(run):
    runs = [run(metrics=("auc", "accuracy"))]
    assert list(compare(runs)["metric"]) == ["auc"]
    table = compare(runs, ["accuracy", "auc"])
    assert list(table["metric"]) == ["accuracy", "auc"]
    scores = runs[0].summary.scores["global"]["test"]
    assert list(table["mean"]) == pytest.approx([scores["accuracy"].mean, scores["auc"].mean])


def test_another_split(run):
    runs = [run(values=[0.1, 0.2, 0.3], splits=("val",))]
    assert row(compare(runs, split="val"), "fedavg")["mean"] == pytest.approx(0.2)


# ---- the baseline


def test_the_baseline_is_the_first_row_or_the_one_that_is_named(run):
    runs = [run("local", values=[0.5] * 3), run("fedavg", values=[0.6] * 3)]
    assert row(compare(runs), "fedavg")["difference"] == pytest.approx(0.1)
    assert row(compare(runs, baseline="fedavg"), "local")["difference"] == pytest.approx(-0.1)


def test_a_baseline_that_is_not_one_row_is_refused(run):
    runs = [run("fedprox", method_args={"mu": mu}) for mu in (0.1, 1.0)]
    labels = ["fedprox (mu=0.1)", "fedprox (mu=1.0)"]
    with refused(SettingsError, "ambiguous_baseline", name="fedprox", labels=labels):
        compare(runs, baseline="fedprox")
    assert set(compare(runs, baseline="fedprox (mu=1.0)")["baseline"]) == {"fedprox (mu=1.0)"}
    with refused(SettingsError, "unknown_choice", what="baseline", choice="fedavg"):
        compare(runs, baseline="fedavg")
    with refused(SettingsError, "unknown_choice", what="baseline", choice="fedavgg") as caught:
        compare([run("fedavg")], baseline="fedavgg")
    assert "Did you mean 'fedavg'" in str(caught.value)


# ---- what is refused


def test_runs_without_scores_are_refused(run):
    with refused(StoreError, "no_score"):
        compare([run(seed=seed, status="running") for seed in (0, 1)])


def test_unknown_metrics_and_splits_are_refused(run):
    runs = [run(splits=("test", "val"))]
    for typed in ("acuracy", "acc"):  # 'acc' begins 'accuracy', though 'auc' has more letters in common with it
        with refused(SettingsError, "unknown_choice", what="metric", choice=typed, split="test") as caught:
            compare(runs, [typed])
        assert "Did you mean 'accuracy'? Known: accuracy, auc." in str(caught.value)
    with refused(SettingsError, "unknown_choice", what="metric", choice="f1", split="test"):
        compare(runs, ["f1"])
    with refused(SettingsError, "unknown_choice", what="split", choice="train"):
        compare(runs, split="train")


# ---- Markdown


def test_the_markdown(run):
    runs = [run("local", seed, [0.5, 0.6, 0.7]) for seed in range(2)]
    runs += [run("fedavg", seed, [0.7, 0.7, 0.7 + 0.1 * seed]) for seed in range(2)]
    lines = to_markdown(compare(runs)).splitlines()
    assert lines[:6] == [
        "### accuracy (larger is better)",
        "",
        "| method | seeds | status | sites | mean of sites | worst site | difference from local | p (patients) "
        "| effect |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| local | 0, 1 | 2 finished | 3 | 0.600 ± 0.000 | 0.500 ± 0.000 | - | - | - |",
        "| fedavg | 0, 1 | 2 finished | 3 | 0.717 ± 0.024 | 0.700 ± 0.000 | +0.117 [-0.095, +0.328] | - "
        "| too few runs |",
    ]
    assert lines[7] == "- Split: test. Scores after each run's last evaluated round (round 3), not after its best one."
    assert "**" not in "".join(lines)


def test_a_single_row_has_no_difference_and_a_bar_is_escaped(run):
    text = to_markdown(compare([run("a|b", values=[0.5] * 3, metric="ece")], ["ece"]))
    assert "### ece (lower is better)" in text
    assert "| method | seeds | status | sites | mean of sites | worst site |\n" in text
    assert "| a\\|b | 0 | 1 finished | 3 | 0.500 | 0.500 |\n" in text
    assert "Difference" not in text


def test_rows_whose_models_predict_the_same_for_every_image_share_a_line(run):
    entries = [
        ConstantPrediction(
            prediction="the class 'ill'", sites=(site,), all_sites=False, images=9, splits=("test",), has_classes=True
        )
        for site in SITES[:2]
    ]
    at = {("local", 0): entries[:1], ("local", 1): entries[:1], ("fedper", 0): entries[:1], ("fedper", 1): entries[:1]}
    at[("fedper_2", 1)] = entries[1:]
    runs = [run(method, seed) for method in ("fedavg", "local", "fedper", "fedper_2") for seed in (0, 1)]
    runs = [
        replace(
            each,
            summary=each.summary.model_copy(
                update={"constant_predictions": tuple(at.get((each.method, each.seed), []))}
            ),
        )
        for each in runs
    ]
    table = compare(runs, ["accuracy", "auc"])
    assert [note for note in notes(table) if "same prediction" in note] == [
        f"local and fedper, seeds 0, 1: {entries[0].sentence}",
        f"fedper_2, seed 1: {entries[1].sentence}",
    ]
    assert set(table["constant_predictions"]) == {
        "-",
        f"seeds 0, 1: {entries[0].sentence}",
        f"seed 1: {entries[1].sentence}",
    }


def test_runs_are_named_in_few_words(run):
    runs = {(method, seed): run(method, seed) for method in ("fedavg", "local", "fedper") for seed in (0, 1, 2)}
    runs["ditto", 0] = run("ditto")
    groups = group_runs([*runs.values()])
    every = [*runs.values()]
    assert name_runs(every, groups) == "all runs"
    assert name_runs(every[:1], groups) == "fedavg (seed 0)"
    some = [runs["local", seed] for seed in (0, 1, 2)] + [runs[m, s] for m in ("fedavg", "fedper") for s in (0, 2)]
    assert name_runs([*some, runs["ditto", 0]], groups) == "fedavg and fedper (seeds 0, 2); local and ditto"
    assert name_runs(every[:1], group_runs(every[:1])) == "fedavg"
