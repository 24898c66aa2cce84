"""Test files that changed after a partition: reported when a run starts, and accepted by name only."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from medfl.cli.main import main
from medfl.data.cohort import load_cohort
from medfl.data.datalists import DATALIST_FILE
from medfl.data.partition_file import check_unchanged
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass
from medfl.records.partition import Partition
from medfl.testing.synthetic import make_cohort

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
LIST, ARRAY = f"site-01/{DATALIST_FILE}", "images.npy"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "D"
    make_cohort(folder, sites=3, images_per_site=12, classes=4, size=12, seed=1)
    return folder


@pytest.fixture
def cohort(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "D"))


def other_label(cohort: Path) -> None:
    content = json.loads((cohort / LIST).read_text())
    content["training"][0]["label"] = (content["training"][0]["label"] + 1) % 4
    (cohort / LIST).write_text(json.dumps(content))


def other_pixel(cohort: Path) -> None:
    images = np.load(cohort / ARRAY)
    images[0] ^= 1
    np.save(cohort / ARRAY, images)


def other_array(cohort: Path) -> None:
    """Let the list name a copy of the array; the list is then the changed file."""
    shutil.copy(cohort / ARRAY, cohort / "copy.npy")
    (cohort / LIST).write_text((cohort / LIST).read_text().replace("images.npy", "copy.npy"))


def no_site(cohort: Path) -> None:
    shutil.rmtree(cohort / "site-01")


def changes(cohort: Path, allow: tuple[str, ...] = (), sites: list[str] | None = None) -> list[str]:
    parts = load_cohort(cohort, Multiclass(4), (0.5,), (0.5,), sites).parts
    return check_unchanged(cohort, parts, allow, every_site=sites is None)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ((other_label,), [LIST]),
        ((other_pixel,), [ARRAY]),
        ((other_array,), [LIST]),
        ((no_site,), [LIST]),
        ((other_label, other_pixel), [ARRAY, LIST]),
    ],
)
def test_what_changed_is_named_and_accepted_by_name(
    cohort: Path, change: tuple[Callable[[Path], None], ...], names: list[str]
) -> None:
    assert changes(cohort) == []
    for edit in change:
        edit(cohort)
    with refused(DataError, "changed_file", path=str(cohort), files=names) as error:
        changes(cohort)
    assert str(names) in str(error.value), "the message shows how to accept it"
    if len(names) > 1:
        with refused(DataError, "changed_file", path=str(cohort), files=names[1:]):
            changes(cohort, (names[0],))
    assert changes(cohort, tuple(names)) == names


def test_only_what_a_run_uses_is_compared(cohort: Path) -> None:
    other_label(cohort)
    assert changes(cohort, sites=["site-02"]) == []
    no_site(cohort)
    assert changes(cohort, sites=["site-02", "site-03"]) == []


def test_a_place_is_no_change_and_more_sites_are_none(cohort: Path, tmp_path: Path) -> None:
    moved = cohort.rename(tmp_path / "moved")
    assert changes(moved) == []
    shutil.move(moved / "site-01", tmp_path / "elsewhere")
    (moved / "site-01").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ARRAY).symlink_to(moved / ARRAY)
    assert changes(moved) == [], "links are followed as the lists are"
    shutil.copytree(moved / "site-02", moved / "site-04")
    assert changes(moved) == [], "a list that somebody else wrote"


def test_without_a_partition_nothing_is_compared(cohort: Path) -> None:
    other_label(cohort)
    (cohort / Partition.NAME).unlink()
    assert changes(cohort) == []
    with refused(SettingsError, "unknown_file", setting="allow_changes", name="images.npy"):
        changes(cohort, (ARRAY,))


def test_a_file_that_is_not_noted_can_not_be_accepted(cohort: Path) -> None:
    with refused(SettingsError, "unknown_file", setting="allow_changes", name="image.npy") as error:
        changes(cohort, ("image.npy",))
    assert f"Did you mean '{ARRAY}'?" in str(error.value)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"\xff"])
def test_a_damaged_record_is_named(cohort: Path, content: bytes) -> None:
    (cohort / Partition.NAME).write_bytes(content)
    with refused(DataError, "damaged_file", path=str(cohort / Partition.NAME)):
        changes(cohort)


def test_the_array_is_read_for_its_digest_once(cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading has computed the digest already, so the comparison reads nothing."""
    read = []
    take = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(file.name) or take(file, kind))
    assert changes(cohort) == []
    assert [os.path.basename(name) for name in read] == [ARRAY]


@pytest.mark.usefixtures("run_reports")
def test_a_run_says_what_it_accepted(cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", BUNDLE, "--dataset-dir", cohort, "--output-dir", cohort.parent / "run", "--rounds", 1, "--steps", 1]
    other_label(cohort)
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"\"['{LIST}']\"" in error
    assert not (cohort.parent / "run" / "run.json").exists()
    with pytest.raises(SystemExit) as accepted:
        main([str(word) for word in (*words, "--allow-changes", f"['{LIST}']")])
    assert accepted.value.code == 0, capsys.readouterr().err
    record = json.loads((cohort.parent / "run" / "run.json").read_text())
    assert record["provenance"]["data"]["allowed_changes"] == [LIST]
    pytest.importorskip("medfl_report")
    page = (cohort.parent / "run" / "report.html").read_text()
    assert f"&#39;{LIST}&#39; changed after the partition; the user allowed this change (fedavg)." in page
