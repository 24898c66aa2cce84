"""Tables of papers by scanning centre and by sex, from predictions of two methods."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from make_runs import make_run
from sklearn.metrics import roc_auc_score

from medfl.engine.runs.records import read_run
from medfl_report.groups import Group
from medfl_studies.records.paper_items import Paper, PaperItem
from medfl_studies.results.paper_groups import group_table
from medfl_studies.results.paper_orders import ItemResult

ITEM = {
    "item": "figure 5",
    "shows": "Gains.",
    "data": "brains",
    "raw": "small",
    "rows": {"Ours": "ours", "Local": "local"},
}


def make_result(folder: Path, kind: str, **facts: tuple[str, ...]) -> ItemResult:
    """Return an item with two methods at two sites, whose test images have a sex and a centre."""
    groups = {}
    for row, skill in (("ours", 1.5), ("local", 0.3)):
        path = make_run(
            folder / row, row, skill=skill, classes=("control", "autism"), metrics=("auc",), sites=("a", "b"), **facts
        )
        groups[row] = Group(row, (read_run(path),))
    item = PaperItem.model_validate(ITEM | {"groups": {"kind": kind, "data": "demo"}})
    results = SimpleNamespace(groups=lambda data: groups if data == "demo" else {})
    return ItemResult(Paper(name="P", source="A.", others="", items=()), item, results, (), 0)  # type: ignore[arg-type]


def read_cells(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def expected_auc(result: ItemResult, row: str, column: str, value: str, site: str | None = None) -> float:
    """Return the AUC of some images from ranks within each site, by scikit-learn."""
    (run,) = result.results.groups("demo")[row].runs  # type: ignore[union-attr]
    tables = [run.predictions(name) for name in ("a", "b") if site in (None, name)]
    ranked = pd.concat([table.assign(rank=table["p1"].rank()) for table in tables])
    own = ranked[ranked[column] == value]
    return float(roc_auc_score(own["label"], own["rank"]))


def test_each_centre_has_both_aucs_and_their_difference(tmp_path: Path) -> None:
    result = make_result(tmp_path, "centre", centre=("NYU", "NYU", "YALE", "NYU", "YALE"))
    assert result.data == ("demo",)
    assert len(result.runs) == 2
    assert result.item.groups is not None
    cells = read_cells(group_table(result, result.item.groups))
    assert [line[0] for line in cells][:2] == ["NYU", "YALE"]
    for name, _, local, ours, difference, *_ in cells[:2]:
        expected = [expected_auc(result, row, "centre", name) for row in ("local", "ours")]
        assert [float(local), float(ours)] == pytest.approx(expected, abs=5e-4)
        assert float(difference) == pytest.approx(expected[1] - expected[0], abs=1e-3)


def test_men_and_women_have_the_mean_over_the_sites(tmp_path: Path) -> None:
    result = make_result(tmp_path, "sex", sex=("male", "female", "female", "male", "male"))
    assert result.item.groups is not None
    cells = read_cells(group_table(result, result.item.groups))
    assert [line[0] for line in cells] == ["Ours", "Local"]
    for line, row in zip(cells, ("ours", "local"), strict=True):
        men, women = (
            sum(expected_auc(result, row, "sex", sex, site) for site in ("a", "b")) / 2 for sex in ("male", "female")
        )
        expected = [men, women, (men + women) / 2, abs(men - women)]
        assert [float(value) for value in line[1:]] == pytest.approx(expected, abs=5e-4)


def test_predictions_without_the_group_give_no_table(tmp_path: Path) -> None:
    result = make_result(tmp_path, "sex")
    assert result.item.groups is not None
    assert group_table(result, result.item.groups) == ""
