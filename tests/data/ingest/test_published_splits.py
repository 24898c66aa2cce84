"""Test published tables of splits: their locations and the errors of wrong tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.data.ingest.published_splits import find_table, read_splits, unlike_published
from medfl.errors import DataError

TABLE = "case,centre,fold\nsecret-a,0,train\nsecret-b,1,test\nsecret-c,1,train\n"


def read(path: Path, text: str):
    path.write_text(text)
    return read_splits(path, "case", "centre", "fold", ("north", "south"))


def test_sites_and_splits(tmp_path):
    published = read(tmp_path / "t.csv", TABLE)
    assert published.names == ["secret-a", "secret-b", "secret-c"]
    assert published.sites == ["north", "south", "south"]
    assert published.splits == ["training", "test", "training"]
    official = {"north": (1, 0), "south": (1, 2)}
    assert unlike_published(published.sites, published.splits, official, "cases") == [
        "south: 1 training and 1 test cases, published are 1 and 2"
    ]


@pytest.mark.parametrize(
    ("before", "after", "code", "fields"),
    [
        ("secret-b", "secret-a", "duplicate_row", {"column": "case", "rows": [3]}),
        ("secret-b,1", "secret-b,2", "unknown_site", {"column": "centre", "rows": [3]}),
        ("test", "validation", "invalid_value", {"column": "fold", "rows": [3]}),
        ("fold", "split", "missing_column", {"columns": ["fold"]}),
    ],
)
def test_a_wrong_table_is_refused_without_naming_a_case(tmp_path, before, after, code, fields):
    with refused(DataError, code, path=str(tmp_path / "t.csv"), **fields) as error:
        read(tmp_path / "t.csv", TABLE.replace(before, after))
    assert "secret" not in str(error.value)


def test_the_table_may_lie_in_a_folder_of_the_release_or_elsewhere(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with refused(DataError, "missing_file", file="t.csv", folder=str(tmp_path)) as caught:
        find_table(tmp_path, "t.csv", whose=" from X")
    assert "Copy it there from X" in str(caught.value)
    (tmp_path / "deep" / "er" / "t.csv").write_text(TABLE)
    assert find_table(tmp_path, "t.csv").parent.name == "er"
    (tmp_path / "t.csv").write_text(TABLE)
    with refused(DataError, "ambiguous_file", file="t.csv", count=2):
        find_table(tmp_path, "t.csv")
    assert find_table(tmp_path, "t.csv", tmp_path / "t.csv") == tmp_path / "t.csv"
    with refused(DataError, "missing_file", file=str(tmp_path / "other.csv")):
        find_table(tmp_path, "t.csv", tmp_path / "other.csv")
