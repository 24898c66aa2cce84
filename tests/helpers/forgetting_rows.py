"""Metrics files of small runs, with measures of forgetting that are computed by hand."""

from make_runs import make_run

from medfl.engine.evaluation import MetricRow, rows_to_csv
from medfl.engine.runs.records import read_run


def after(round_, scores, model="global", metric="accuracy"):
    """Rows of the scores after a round; `global` is the server's test set."""
    return [MetricRow(round_, site, model, "test", "aggregated", metric, value) for site, value in scores.items()]


def training(round_, scores, metric="accuracy"):
    """Rows of the participants of a round, with the scores right after their training; None is not scored."""
    rows = []
    for number, (site, value) in enumerate(scores.items(), 1):
        rows.append(MetricRow(round_, site, "personal", "train", "trained", "work_seconds", float(number)))
        rows.append(MetricRow(round_, site, "personal", "train", "aggregated", "evaluate_seconds", 50.0))
        if value is not None:
            rows.append(MetricRow(round_, site, "personal", "val", "trained", metric, 0.01))  # never to be used
            rows.append(MetricRow(round_, site, "personal", "test", "trained", metric, value))
    return rows


def record(folder, rows, **options):
    """A run with these rows as its metrics file, read."""
    make_run(folder, **({"bundles": False, "state": False} | options))
    (folder / "metrics.csv").write_text(rows_to_csv(rows, header=True))
    return read_run(folder)


SITES = ("site-1", "site-2", "site-3")
SERVER = {1: 0.5, 2: 0.4, 3: 0.8, 4: 0.6}
HOME = {1: (0.6, 0.2, 0.4), 2: (0.3, 0.5, 0.4), 3: (0.7, 0.4, 0.8), 4: (0.5, 0.6, 0.6)}
"""Each site's score after a round."""

TRAINED = {
    1: {"site-1": 0.9, "site-2": 0.7},
    2: {"site-3": 0.6},
    3: {"site-1": 1.0, "site-3": 0.8},
    4: {"site-2": 0.5, "site-3": 0.7},
}

BY_HAND = {
    "global_mean": 0.575,  # (.5 + .4 + .8 + .6) / 4
    "global_std": 0.0875**0.5 / 2,  # gaps -.075, -.175, .225, .025; squares sum to .0875; / 4
    "global_final": 0.6,
    "local_mean": 0.725,  # participants' means .8, .6, .9, .6
    "local_std": 0.0675**0.5 / 2,  # gaps .075, -.125, .175, -.125; squares sum to .0675; / 4
    "local_final": 0.6,
    "worst_mean": 0.65,  # (.7 + .6 + .8 + .5) / 4
    "worst_site": 0.6,  # means of the sites: (.9 + 1) / 2, (.7 + .5) / 2, (.6 + .8 + .7) / 3
    "balance": 0.65,  # (.575 + .725) / 2
    # round 1: 0; 2: ((.3 - .6) + (.5 - .2)) / 2 = 0; 3: (.7 - .6, .4 - .2, .8 - .4) / 3 = .7 / 3;
    # 4: (.5 - .7) for site-1, (.6 - .2) for site-2 (last in 1), (.6 - .8) for site-3: 0 / 3
    "bwt_mean": 0.7 / 12,
    "bwt_final": 0.0,
    "consistency_global": 0.6,  # 1 to 3: (.1 + .3) / .5 / 2 = .4
    "consistency_global_open": 0.675,  # and 3 to 4: .2 / .8 = .25; (.4 + .25) / 2 = .325
    "consistency_global_clipped": 0.9,  # .1 / .5 / 2
    "intervals_global": 1,
    "consistency_local": 0.8125,  # .8, .6, .9, .6: 1 to 3: (.2 + .1) / .8 / 2 = .1875
    "consistency_local_open": 1 - (0.1875 + 1 / 3) / 2,  # and 3 to 4: .3 / .9
    "consistency_local_clipped": 0.875,  # .2 / .8 / 2
    "intervals_local": 1,
}


def rows_of_a_run(rounds=4, model="global"):
    """The rows in the order in which a run writes them: a round is scored while the next one trains."""
    rows = []
    for round_ in range(1, rounds + 1):
        rows += training(round_, TRAINED[round_])
        rows += after(round_, {"global": SERVER[round_]}) + after(round_, dict(zip(SITES, HOME[round_])), model)
    return rows
