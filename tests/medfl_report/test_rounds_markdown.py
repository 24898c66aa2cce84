"""The tables of a study over all rounds, in Markdown."""

from __future__ import annotations

import pandas as pd

from medfl_report.rounds_markdown import rounds_markdown

COLUMNS = ["label", "seeds", "metric", "measure", "mean", "std"]


def test_a_cell_of_fewer_seeds_names_them() -> None:
    rows = [
        ("fedavg", "0, 1", "accuracy", "global_mean", 0.25, 0.0125),
        ("fedavg", "1", "accuracy", "bwt_mean", -0.5, float("nan")),
        ("a|b", "0, 1", "accuracy", "bwt_mean", -0.25, 0.125),
        ("a|b", "0, 1", "accuracy", "global_final", 0.75, 0.0),
    ]
    text = rounds_markdown(pd.DataFrame(rows, columns=COLUMNS))
    mean, last = text.split("### accuracy, ")[1:]
    assert mean.splitlines()[2:6] == [
        "| method | seeds | global_mean | bwt_mean |",
        "| --- | --- | --- | --- |",
        "| fedavg | 0, 1 | 0.250 ± 0.013 | -0.500 (seeds 1) |",
        "| a\\|b | 0, 1 | - | -0.250 ± 0.125 |",
    ]
    assert last.splitlines()[4] == "| a\\|b | 0, 1 | 0.750 ± 0.000 |"
    assert "spread over the rounds" not in text, "a table without any number"
    assert "- global_final: " in text
    assert "- global_std: " not in text


def test_nothing_measured_is_no_table() -> None:
    assert rounds_markdown(pd.DataFrame(columns=COLUMNS)) == ""
