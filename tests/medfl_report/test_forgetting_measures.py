"""Test measures of forgetting on metrics files made by hand. Real runs are in test_forgetting_runs.py."""

import pytest
from forgetting_rows import BY_HAND, HOME, SERVER, SITES, TRAINED, after, record, rows_of_a_run, training
from make_runs import make_run

from medfl.engine.runs.records import read_run
from medfl_report.forgetting import MEASURES, forgetting_metric, forgetting_table, measures, missing
from medfl_report.groups import group_runs
from medfl_report.trajectory import read_trajectory

NAN = float("nan")
BOTH = {"moments": ["aggregated", "trained"]}
EVERY_ROUND = "Global consistency and backward transfer need scores after every round: `--evaluate_every 1`."
NOT_DEFINED = (
    "Backward transfer is not defined: it needs the global model's scores on the sites' test images, and only personal "
    "models were scored there. Their change is under 'Further measures'."
)
NO_SERVER = "Without a global model and a test set at the server there are no global measures."
NO_TRAINED = "Local measures need scores right after training: `--moments \"['aggregated', 'trained']\"`."


def test_every_measure_by_hand(tmp_path):
    run = record(tmp_path / "run", rows_of_a_run(), settings=BOTH)
    values = measures(run, "accuracy")
    assert list(values) == list(BY_HAND) == [name for name in MEASURES if not name.startswith("personal_change")]
    assert values == pytest.approx(BY_HAND)
    assert missing(run, "accuracy") == []


def test_the_way_of_a_run(tmp_path):
    way = read_trajectory(record(tmp_path / "run", rows_of_a_run()), "accuracy")
    assert way.server.to_dict() == SERVER
    assert {round_: tuple(row) for round_, row in way.global_at_sites.iterrows()} == HOME
    assert way.personal_at_sites.empty
    assert {round_: row.dropna().to_dict() for round_, row in way.trained.iterrows()} == TRAINED
    assert way.participants == {round_: list(row) for round_, row in TRAINED.items()}
    assert way.seconds.to_dict() == {1: 3, 2: 4, 3: 7, 4: 10}  # 1 and 2 seconds of the first and second site
    assert way.every_round()


def test_the_balance_of_the_papers_first_row(tmp_path):
    rows = training(1, {"site-1": 0.775}) + after(1, {"global": 0.409, "site-1": 0.3})
    assert measures(record(tmp_path / "run", rows), "accuracy")["balance"] == pytest.approx(0.592)


# ---- which rows count


def test_rows_of_other_kinds_change_nothing(tmp_path):
    rows = rows_of_a_run()
    rows += [row._replace(model="personal@site-2", value=0.01) for row in rows if row.moment == "aggregated"]
    rows += [row._replace(model="global@site-3", value=0.99) for row in rows if row.moment == "aggregated"]
    rows += [row._replace(metric="auc", value=0.77) for row in rows if row.metric == "accuracy"]
    rows += [row._replace(split="val", value=0.02) for row in rows if row.split == "test"]
    rows += [row._replace(split="train", value=0.03) for row in rows if row.split == "test"]
    assert measures(record(tmp_path / "run", rows), "accuracy") == pytest.approx(BY_HAND)


def test_backward_transfer_is_of_the_global_model_where_sites_have_personal_ones_too(tmp_path):
    """The personal model of an absent site does not change, the global one does; this is the case of Ditto."""
    personal = {1: (0.8, 0.7, 0.1), 2: (0.8, 0.7, 0.5), 3: (0.9, 0.7, 0.6), 4: (0.9, 0.9, 0.8)}
    kept = [row for round_ in personal for row in after(round_, dict(zip(SITES, personal[round_])), "personal")]
    # round 3: .1 for site-1, 0, .1 for site-3: .2 / 3; 4: 0, .2 for site-2 and .2 for site-3: .4 / 3; 1 and 2: 0
    change = {"personal_change_mean": 0.05, "personal_change_final": 0.4 / 3}
    orders = {"after": rows_of_a_run() + kept, "before": kept + rows_of_a_run()}
    for name, rows in orders.items():
        run = record(tmp_path / name, rows, settings=BOTH)
        assert measures(run, "accuracy") == pytest.approx(BY_HAND | change), name
        assert missing(run, "accuracy") == []


def test_without_a_global_model_backward_transfer_is_not_defined(tmp_path):
    rows = [row for row in rows_of_a_run(model="personal") if row.site != "global"]
    run = record(tmp_path / "run", rows, settings=BOTH)
    values = measures(run, "accuracy")
    assert not [name for name in values if name.startswith("bwt")]
    assert values["personal_change_mean"] == pytest.approx(BY_HAND["bwt_mean"])
    assert values["personal_change_final"] == pytest.approx(BY_HAND["bwt_final"])
    assert missing(run, "accuracy") == [NO_SERVER, NOT_DEFINED]


def test_each_model_is_measured_at_the_sites_that_have_it(tmp_path):
    own = [row for row in rows_of_a_run(model="personal") if row.site != "site-2"]
    shared = [row for row in rows_of_a_run() if row.site == "site-2"]
    values = measures(record(tmp_path / "run", own + shared), "accuracy")
    # site-2, last in round 1 until it is in 4: 0, .5 - .2, .4 - .2, .6 - .2
    assert values["bwt_mean"] == pytest.approx(0.9 / 4)
    assert values["personal_change_final"] == pytest.approx(((0.5 - 0.7) + (0.6 - 0.8)) / 2)


def test_a_site_that_works_twice_in_a_round_is_one_participant(tmp_path):
    rows = (
        training(1, dict.fromkeys(SITES)) + training(1, {"site-2": 0.3, "site-1": 0.2}) + training(1, {"site-1": 0.6})
    )
    way = read_trajectory(record(tmp_path / "run", rows), "accuracy")
    assert way.participants == {1: list(SITES)}
    assert way.trained.loc[1].to_dict() == {"site-1": 0.6, "site-2": 0.3}
    assert way.seconds[1] == (1 + 2 + 3) + (1 + 2) + 1


def test_equal_means_of_unequal_scores_are_a_tie(tmp_path):
    rows = training(1, {"site-1": 0.4, "site-2": 0.4}) + training(2, {"site-1": 0.2, "site-2": 0.2})
    rows += training(3, {"site-1": 0.7, "site-2": 0.1})  # whose mean is below 0.4 by rounding
    values = measures(record(tmp_path / "run", rows), "accuracy")
    assert values["intervals_local"] == 1
    assert values["consistency_local"] == pytest.approx(0.75)  # (0 + .2 + 0) / .4 / 2


# ---- runs that do not tell all


def test_scores_of_every_second_round(tmp_path):
    rows = [row for row in rows_of_a_run() if row.moment == "trained" or row.round in (2, 4)]
    run = record(tmp_path / "run", rows, settings=BOTH)
    values = measures(run, "accuracy")
    lost = {"consistency_global", "consistency_global_open", "consistency_global_clipped", "intervals_global"}
    assert set(BY_HAND) - set(values) == lost | {"bwt_mean", "bwt_final"}
    local = {name: value for name, value in BY_HAND.items() if "local" in name or "worst" in name}
    assert {name: values[name] for name in local} == pytest.approx(local)
    assert values["global_mean"] == pytest.approx(0.5)  # (.4 + .6) / 2
    assert values["global_std"] == pytest.approx(0.1)
    assert values["balance"] == pytest.approx((0.5 + 0.725) / 2)
    assert missing(run, "accuracy") == [EVERY_ROUND]


def test_a_first_round_without_scores(tmp_path):
    """Scores of every second round (`evaluate_every` 2) are not scores of every round."""
    run = record(tmp_path / "run", [row for row in rows_of_a_run(2) if row.moment == "trained" or row.round == 2])
    assert not {"consistency_global", "intervals_global", "bwt_mean", "bwt_final"} & measures(run, "accuracy").keys()
    assert missing(run, "accuracy") == [EVERY_ROUND]


def test_a_hole_in_the_servers_scores_only(tmp_path):
    rows = [row for row in rows_of_a_run() if (row.round, row.site) != (2, "global")]
    run = record(tmp_path / "run", rows, settings=BOTH)
    values = measures(run, "accuracy")
    assert "consistency_global" not in values
    assert values["global_mean"] == pytest.approx(1.9 / 3)
    assert missing(run, "accuracy") == [EVERY_ROUND]


def test_without_scores_right_after_training(tmp_path):
    rows = [row for row in rows_of_a_run() if row.moment != "trained" or row.metric == "work_seconds"]
    run = record(tmp_path / "run", rows, settings={"moments": ["aggregated"]})
    wanted = {name: BY_HAND[name] for name in BY_HAND if "global" in name or name.startswith("bwt")}
    assert measures(run, "accuracy") == pytest.approx(wanted)
    assert missing(run, "accuracy") == [NO_TRAINED]
    assert missing(record(tmp_path / "old", rows), "accuracy") == [NO_TRAINED]  # the setting is not recorded


def test_without_a_test_set_at_the_server(tmp_path):
    run = record(tmp_path / "run", [row for row in rows_of_a_run() if row.site != "global"], settings=BOTH)
    wanted = {name: BY_HAND[name] for name in BY_HAND if "global" not in name and name != "balance"}
    assert measures(run, "accuracy") == pytest.approx(wanted)
    assert missing(run, "accuracy") == [NO_SERVER]


def test_where_no_site_both_trains_and_is_scored_there_is_no_backward_transfer(tmp_path):
    """Pooled training has no such score; 0 would mean that nothing was forgotten."""
    rows = [row for round_ in HOME for row in after(round_, dict(zip(SITES, HOME[round_])) | {"global": 0.5})]
    rows += [row for round_ in HOME for row in training(round_, {"pooled": None})]
    run = record(tmp_path / "run", rows, settings=BOTH)
    assert not [name for name in measures(run, "accuracy") if name.startswith(("bwt", "local", "worst"))]
    need = "sites that train and have test images of their own."
    assert missing(run, "accuracy") == [f"Local measures need {need}", f"Backward transfer needs {need}"]
    second = record(tmp_path / "second", [row for row in rows if row.round in (2, 4)], settings=BOTH)
    assert missing(second, "accuracy") == [
        f"Local measures need {need}",
        EVERY_ROUND,
        f"Backward transfer needs {need}",
    ]


def test_no_rows_at_all(tmp_path):
    run = record(tmp_path / "run", [], settings={"moments": ["aggregated"]}, status="running")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_bytes((tmp_path / "run" / "run.json").read_bytes())
    for empty in (run, read_run(tmp_path / "new")):  # with an empty metrics file, and with none yet
        assert measures(empty, "accuracy") == {}
        assert missing(empty, "accuracy") == [NO_SERVER, NO_TRAINED]
        assert not read_trajectory(empty, "accuracy").every_round()
        assert forgetting_table(group_runs([empty]), "accuracy").empty


def test_a_run_that_was_killed_between_training_and_scoring(tmp_path):
    rows = rows_of_a_run(3) + training(4, TRAINED[4])
    values = measures(record(tmp_path / "run", rows, status="running"), "accuracy")
    assert values["global_mean"] == pytest.approx(1.7 / 3)
    assert values["global_final"] == 0.8
    assert values["bwt_final"] == pytest.approx(0.7 / 3)  # of round 3, whatever trained in 4
    assert values["bwt_mean"] == pytest.approx(0.7 / 9)
    assert values["consistency_global_open"] == pytest.approx(0.6)
    local = {name: value for name, value in BY_HAND.items() if "local" in name or "worst" in name}
    assert {name: values[name] for name in local} == pytest.approx(local)
    assert values["balance"] == pytest.approx((1.7 / 3 + 0.725) / 2)


def test_a_run_that_was_killed_in_its_first_round(tmp_path):
    run = record(tmp_path / "run", training(1, TRAINED[1]), settings=BOTH, status="running")
    assert measures(run, "accuracy") == pytest.approx(
        {"local_mean": 0.8, "local_std": 0, "local_final": 0.8, "worst_mean": 0.7, "worst_site": 0.7}
        | {f"consistency_local{reading}": 1 for reading in ("", "_open", "_clipped")}
        | {"intervals_local": 0}
    )
    assert missing(run, "accuracy") == [NO_SERVER]


def test_a_round_in_which_no_site_replied(tmp_path):
    """The round has the model of the round before, no local score, and no participant."""
    rows = training(1, TRAINED[1]) + training(3, TRAINED[3])
    for round_, home, server in ((1, 1, 0.5), (2, 1, 0.5), (3, 3, 0.8)):
        rows += after(round_, dict(zip(SITES, HOME[home])) | {"global": server})
    values = measures(record(tmp_path / "run", rows, rounds=3), "accuracy")
    assert values["global_mean"] == pytest.approx(0.6)  # (.5 + .5 + .8) / 3
    assert values["local_mean"] == pytest.approx(0.85)  # (.8 + .9) / 2
    # 2: nothing has changed; 3: (.7 - .6) for site-1, (.4 - .2) for site-2
    assert values["bwt_final"] == pytest.approx(0.15)
    assert values["bwt_mean"] == pytest.approx(0.05)


def test_scores_that_are_not_defined_are_left_out(tmp_path):
    """AUC at a site whose test images are of one class."""
    rows = [row._replace(value=NAN) if row.site == "site-3" and row.split == "test" else row for row in rows_of_a_run()]
    values = measures(record(tmp_path / "run", rows), "accuracy")
    assert values["local_mean"] == pytest.approx((0.8 + 1.0 + 0.5) / 3)  # round 2 has no score
    assert values["worst_mean"] == pytest.approx((0.7 + 1.0 + 0.5) / 3)
    assert values["worst_site"] == pytest.approx(0.6)
    # 2: ((.3 - .6) + (.5 - .2)) / 2; 3: ((.7 - .6) + (.4 - .2)) / 2; 4: ((.5 - .7) + (.6 - .2)) / 2
    assert values["bwt_mean"] == pytest.approx((0 + 0.15 + 0.1) / 4)
    assert values["global_mean"] == BY_HAND["global_mean"]
    # without site-3 after round 3: it counts neither in round 3 nor, as it took part in 3, in round 4
    once = [row._replace(value=NAN) if row[:2] == (3, "site-3") and row[3:5] == ("test", "aggregated") else row
            for row in rows_of_a_run()]  # fmt: skip
    assert measures(record(tmp_path / "once", once), "accuracy")["bwt_mean"] == pytest.approx((0 + 0.15 + 0.1) / 4)
    nothing = [row._replace(value=NAN) for row in rows]
    assert measures(record(tmp_path / "nothing", nothing), "accuracy") == {}


# ---- several runs


def groups(tmp_path, *tasks):
    return group_runs(
        [
            read_run(make_run(tmp_path / str(number), seed=number, metrics=names, bundles=False, state=False))
            for number, names in enumerate(tasks)
        ],
        labels=[str(number) for number in range(len(tasks))],
    )


@pytest.mark.parametrize(
    ("tasks", "metric"),
    [
        ([("accuracy", "auc")], "accuracy"),
        ([("auc", "balanced_accuracy", "accuracy")], "accuracy"),
        ([("auc", "balanced_accuracy")], "auc"),
        ([("ece", "balanced_accuracy")], "balanced_accuracy"),
        ([("ece", "auc", "accuracy")], "accuracy"),
        ([("ece",)], None),
        ([("auc", "accuracy"), ("auc", "f1")], "auc"),
        ([("accuracy",), ("auc",)], None),
    ],
)
def test_the_metric_to_measure_in(tmp_path, tasks, metric):
    assert forgetting_metric(groups(tmp_path, *tasks)) == metric


def test_a_table_over_seeds(tmp_path):
    runs = []
    for seed, by in ((3, 0.1), (1, 0.0)):
        rows = [row._replace(value=row.value + by) if row.site == "global" else row for row in rows_of_a_run()]
        runs.append(record(tmp_path / str(seed), rows, seed=seed))
    single = record(tmp_path / "single", rows_of_a_run(), method="local", seed=8)
    table = forgetting_table(group_runs([*runs, single]), "accuracy")
    assert list(table.columns) == ["label", "seeds", "metric", "measure", "mean", "std"]
    assert set(table["metric"]) == {"accuracy"}
    assert [tuple(pair) for pair in table[["label", "measure"]].to_numpy()] == [
        (label, name) for label in ("fedavg", "local") for name in BY_HAND
    ]
    both = table[table["label"] == "fedavg"].set_index("measure")
    assert set(both["seeds"]) == {"1, 3"}
    assert both.loc["global_mean", "mean"] == pytest.approx(0.625)  # .575 and .675
    assert both.loc["global_mean", "std"] == pytest.approx(0.05 * 2**0.5)  # gaps of .05, / (2 - 1)
    assert both.loc["global_std", "std"] == pytest.approx(0, abs=1e-12)  # a shift leaves the spread over the rounds
    assert both.loc["global_std", "mean"] == pytest.approx(BY_HAND["global_std"])
    assert both.loc["balance", "mean"] == pytest.approx(0.675)
    local = table[table["label"] == "local"].set_index("measure")
    assert set(local["seeds"]) == {"8"}
    assert local["mean"].to_dict() == pytest.approx(BY_HAND)
    assert local["std"].isna().all()


def test_a_table_names_the_seeds_that_have_a_measure(tmp_path):
    partly = [row for row in rows_of_a_run() if row.site != "global"]
    runs = [
        record(tmp_path / str(seed), rows, seed=seed)
        for seed, rows in enumerate((partly, rows_of_a_run(), rows_of_a_run()))
    ]
    table = forgetting_table(group_runs(runs), "accuracy").set_index("measure")
    assert list(table.index) == list(BY_HAND)
    assert table.loc["global_mean", "seeds"] == table.loc["balance", "seeds"] == "1, 2"
    assert table.loc["global_mean", "mean"] == pytest.approx(BY_HAND["global_mean"])
    assert table.loc["local_mean", "seeds"] == table.loc["bwt_final", "seeds"] == "0, 1, 2"
