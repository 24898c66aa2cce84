"""Curves of the global model on public test images, for all scores that the runs have there."""

import pandas as pd
from make_runs import make_run

from medfl.engine.evaluation import MetricRow, rows_to_csv
from medfl.engine.runs.records import read_run
from medfl_report.curves import epoch_curve, global_curve, public_metrics
from medfl_report.groups import group_runs
from medfl_report.sections.standard import curves

VALUES = {"accuracy": [0.5, 0.75, 0.25], "auc": [0.6, 0.7, 0.9], "f1": [0.4]}


def groups(folder):
    """A run whose global model is scored on public images: twice in three rounds, once in the last one only."""
    make_run(folder)
    rows = [
        MetricRow(round_ if len(values) > 1 else 3, "public", "global", "test", "aggregated", metric, value)
        for metric, values in VALUES.items()
        for round_, value in enumerate(values, start=1)
    ]
    with (folder / "metrics.csv").open("a") as file:
        file.write(rows_to_csv(rows))
    return group_runs([read_run(folder)])


def test_scores_of_several_rounds_are_drawn(tmp_path):
    (group,) = groups(tmp_path / "run")
    assert public_metrics([group]) == ["accuracy", "auc"]
    for metric in ("accuracy", "auc"):
        curve = global_curve(group, metric, "public")
        assert list(curve.rounds) == [1, 2, 3]
        assert list(curve.middle) == VALUES[metric]
    assert global_curve(group, "f1", "public") is None


def test_public_images_are_no_sites(tmp_path):
    (group,) = groups(tmp_path / "run")
    table = pd.concat([run.metrics for run in group.runs])
    assert "public" in set(table["site"])
    assert "public" not in group.runs[0].summary.scores["global"]["test"]["accuracy"].sites


def test_a_student_is_drawn_over_its_epochs_beside_the_others_rounds(tmp_path):
    (fedavg,) = groups(tmp_path / "fedavg")
    make_run(tmp_path / "pfedcdp", "pfedcdp", seed=1)
    values = [0.3, 0.6, 0.8, 0.7]
    rows = [
        MetricRow(3, site, "global", "test", f"epoch {epoch}", "auc", value + shift)
        for epoch, value in enumerate(values, start=1)
        for site, shift in (("public", 0.0), ("global", 0.1))
    ]
    rows.append(MetricRow(2, "public", "global", "test", "epoch 1", "auc", 0.99))  # of a run that had ended and went on
    with (tmp_path / "pfedcdp" / "metrics.csv").open("a") as file:
        file.write(rows_to_csv(rows))
    (pfedcdp,) = group_runs([read_run(tmp_path / "pfedcdp")])
    curve = epoch_curve(pfedcdp, "auc", "public")
    assert (curve.name, list(curve.rounds), list(curve.middle)) == ("pfedcdp, student by epoch", [1, 2, 3, 4], values)
    assert global_curve(pfedcdp, "auc", "public") is None
    assert epoch_curve(fedavg, "auc", "public") is None
    assert public_metrics([pfedcdp]) == ["auc"]
    drawn = {drawing["caption"]: str(drawing["svg"]) for drawing in curves([fedavg, pfedcdp])["pictures"]}
    picture = drawn["AUC, public test on public test images."]
    assert "fedavg: 0.900 after round 3. pfedcdp, student by epoch: 0.700 after epoch 4." in picture
    assert "round (student model: epoch)" in picture
