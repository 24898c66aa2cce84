"""Test measures of forgetting of a real run against plain Python on the lines of its metrics file."""

import csv
from statistics import fmean, pstdev

import pytest

from medfl.engine.runs.records import read_run
from medfl.engine.site import Splits
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_data, make_site
from medfl_report.forgetting import measures, missing
from medfl_report.trajectory import read_trajectory

ROUNDS = range(1, 7)


def kept(series, losses_only=False, unfinished=False):
    """Consistency in plain Python: walk from peak to peak."""
    shares, peak = [], 0
    while peak < len(series):
        reached = next((t for t in range(peak + 1, len(series)) if series[t] > series[peak] - 1e-9), None)
        end = reached if reached is not None else len(series) - 1 if unfinished else peak
        if series[peak] > 0 and end - peak > (reached is not None):
            gaps = [series[peak] - score for score in series[peak : end + 1]]
            share = sum(max(gap, 0) if losses_only else abs(gap) for gap in gaps) / series[peak]
            shares.append(share / (end - peak))
        peak = len(series) if reached is None else reached
    return 1 - fmean(shares) if shares else 1, len(shares)


def plain_scores(folder, model):
    """Test scores: (round, site) after the round, round and site right after training, and round at the server."""
    with open(folder / "metrics.csv", newline="") as file:
        lines = [line | {"round": int(line["round"])} for line in csv.DictReader(file)]
    rows = [line for line in lines if (line["split"], line["metric"]) == ("test", "accuracy")]
    home, trained, server = {}, {round_: {} for round_ in ROUNDS}, {}
    for row in rows:
        value = float(row["value"])
        if row["moment"] == "trained":
            trained[row["round"]][row["site"]] = value
        elif row["site"] == "global":
            server[row["round"]] = value
        elif row["model"] == model:
            home[row["round"], row["site"]] = value
    return home, trained, server


def plain_measures(folder, model):
    """The measures in plain Python."""
    home, trained, server = plain_scores(folder, model)
    local = [fmean(trained[round_].values()) for round_ in ROUNDS]
    by_site = {site: [row[site] for row in trained.values() if site in row] for row in trained.values() for site in row}
    transfers = []
    for at in ROUNDS:
        changes = []
        for site in by_site:
            earlier = [round_ for round_ in ROUNDS if round_ < at and site in trained[round_]]
            if earlier:
                changes.append(home[at, site] - home[max(earlier), site])
        transfers.append(fmean(changes) if changes else 0)
    values = {"worst_mean": fmean(min(row.values()) for row in trained.values())}
    values |= {"worst_site": min(map(fmean, by_site.values()))}
    name = {"global": "bwt", "personal": "personal_change"}[model]
    values |= {f"{name}_mean": fmean(transfers), f"{name}_final": transfers[-1]}
    for name, series in {"local": local, "global": [server[round_] for round_ in ROUNDS if server]}.items():
        if series:
            values |= {f"{name}_mean": fmean(series), f"{name}_std": pstdev(series), f"{name}_final": series[-1]}
            values[f"consistency_{name}"], values[f"intervals_{name}"] = kept(series)
            values[f"consistency_{name}_open"] = kept(series, unfinished=True)[0]
            values[f"consistency_{name}_clipped"] = kept(series, losses_only=True)[0]
    return values | ({"balance": (values["global_mean"] + values["local_mean"]) / 2} if server else {})


@pytest.mark.parametrize(
    ("method", "model", "seed"), [("fedavg", "global", 4), ("fedavg", "global", 6), ("fedbn", "personal", 6)]
)
def test_a_real_run(tmp_path, method, model, seed):
    sites = {f"site-{number}": make_site(5 + number, f"site-{number}") for number in range(4)}
    sites["site-4"] = Splits(make_data(7, "untested"), make_data(3, "untested/val"), make_data(0, "untested/test"))
    options = {
        "rounds": len(ROUNDS),
        "fraction": 0.6,
        "moments": ("aggregated", "trained"),
        "cross_site_evaluation": True,
    }
    Case(load_plugins(), method).run(tmp_path, sites=sites, seed=seed, **options)
    run = read_run(tmp_path)
    values = measures(run, "accuracy")
    assert values == pytest.approx(plain_measures(tmp_path, model), abs=1e-12)
    assert values["bwt_mean" if model == "global" else "personal_change_mean"] != 0
    assert len(missing(run, "accuracy")) == 2 * (model == "personal")  # of the global measures and backward transfer
    assert {len(names) for names in read_trajectory(run, "accuracy").participants.values()} == {3}


def test_a_real_pooled_run_has_no_local_measures_and_no_transfer(tmp_path):
    Case(load_plugins(), "centralized").run(tmp_path, rounds=2, moments=("aggregated", "trained"))
    run = read_run(tmp_path)
    assert {name.rpartition("global")[1] for name in measures(run, "accuracy")} == {"global"}
    assert [sentence.split(" need")[0] for sentence in missing(run, "accuracy")] == [
        "Local measures",
        "Backward transfer",
    ]


def test_a_real_run_that_was_scored_every_second_round(tmp_path):
    Case(load_plugins(), "fedavg").run(tmp_path, rounds=4, evaluate_every=2, moments=("aggregated", "trained"))
    run = read_run(tmp_path)
    assert {"global_mean", "local_mean", "balance", "consistency_local"} <= measures(run, "accuracy").keys()
    assert not {"consistency_global", "bwt_mean"} & measures(run, "accuracy").keys()
    assert ["--evaluate_every 1" in sentence for sentence in missing(run, "accuracy")] == [True]
