"""Cross-validation in studies: a run for each fold of each seed, and the tables over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused
from study_toys import PREPARED, Runs, contents

from medfl.cli.main import main
from medfl.cli.run import parse_overrides
from medfl.data.datalists import read_datalist
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition_file import drawn_fold
from medfl.data.sites import site_names
from medfl.errors import DataError, SettingsError, StoreError
from medfl.records.partition import Partition, TestFold
from medfl.records.run_file import RunFile
from medfl_studies.study import list_commands, run_study

pytestmark = pytest.mark.usefixtures("undrawn")

FOLDS: dict[str, Any] = copy.deepcopy(PREPARED)
FOLDS["breast"]["partition"] |= {"test": "k_fold", "folds": 3, "min_size": 6}


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the page, which needs a whole run; another test covers it."""
    monkeypatch.setattr("medfl_studies.study_tables.write_report", lambda *_, **__: None)


def cells(folds: int = 3, seeds: int = 2) -> list[tuple[int, int]]:
    return [(seed, fold) for seed in range(seeds) for fold in range(folds)]


def test_each_fold_of_each_seed_is_a_run(load, tmp_path: Path) -> None:
    prepared, out = load({"data": FOLDS}), tmp_path / "out"
    rows = [(seed, fold, row) for seed, fold in cells() for row in ("alone", "fedprox mu=0.1")]
    assert [(job.seed, job.fold, job.row) for job in prepared.jobs] == rows
    job = prepared.jobs[2]
    assert job.title == "breast / alone / seed 0, fold 1"
    assert job.folder == out / "runs" / "breast" / "alone" / "seed-0-fold-1"
    assert job.dataset_dir == out / "data" / "breast" / "sites-seed-0-fold-1"
    assert parse_overrides(job.command()[5:])["seed"] == 0
    assert len(set(list_commands(prepared))) == 12


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """Make the partitions of a study with two seeds and three folds."""
    import yaml
    from study_toys import SMALL

    from medfl_studies.study import load_study

    folder = tmp_path_factory.mktemp("dealt")
    (folder / "study.yaml").write_text(yaml.safe_dump(SMALL | {"data": FOLDS}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("medfl_studies.study_tables.write_report", lambda *_, **__: None)
        run_study(load_study(folder / "study.yaml", source, folder / "out"), Runs())
    return folder / "out"


def rows_of(place: Path, splits: tuple[str, ...]) -> Iterator[tuple[str, list[int]]]:
    """Map each site to the rows of the pooled array in some of its splits."""
    for name in site_names(place):
        by_split = read_datalist(place / name).splits
        yield name, sorted(record["image"] for split in splits for record in by_split[split])


@pytest.mark.slow
def test_the_folds_of_a_seed_share_the_dealing_and_test_each_image_once(dealt: Path) -> None:
    held = {}
    for seed in (0, 1):
        places = [dealt / "data" / "breast" / f"sites-seed-{seed}-fold-{fold}" for fold in range(3)]
        assert [drawn_fold(place) for place in places] == [TestFold(fold=fold, folds=3) for fold in range(3)]
        everything = [dict(rows_of(place, ("training", "validation", "test"))) for place in places]
        assert everything[0] == everything[1] == everything[2], "the same images at each site"
        tested = [dict(rows_of(place, ("test",))) for place in places]
        for site, images in everything[0].items():
            assert sorted(row for by_site in tested for row in by_site[site]) == images, "disjoint, and all of them"
        held[seed] = everything[0]
    assert held[0] != held[1], "each seed deals anew"


def test_the_tables_are_over_seeds_and_folds(dealt: Path) -> None:
    table = pd.read_csv(dealt / "results" / "breast.csv")
    assert set(table["seeds"]) == {"0 (folds 0, 1, 2), 1 (folds 0, 1, 2)"}
    assert table["mean"].tolist() == [0.5625, 0.6875]
    assert table["pairs"].tolist() == [0, 6]
    assert table["p_wilcoxon"].tolist()[1] == 0.03125, "six gains of the same sign"
    text = (dealt / "results" / "breast.md").read_text()
    assert "12 of 12 runs are finished." in text
    assert "one for each seed and fold" in text


@pytest.mark.slow
def test_what_is_finished_is_left_alone_and_a_fold_that_failed_is_named_and_run_again(load, tmp_path: Path) -> None:
    class SecondFoldFails(Runs):
        def __call__(self, command: list[str], log: Path) -> int:
            return 2 if log.name == "seed-0-fold-1.log" else super().__call__(command, log)

    for row in ("alone", "fedprox-mu-0.1"):
        log = tmp_path / "out" / "runs" / "breast" / row / "seed-0-fold-1.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("the last words")
    outcome = run_study(load({"data": FOLDS, "seeds": 1}), SecondFoldFails())
    assert [job.fold for job in outcome.unfinished()] == [1, 1]
    text = (tmp_path / "out" / "results" / "breast.md").read_text()
    assert "4 of 6 runs are finished.\n\n- alone, seed 0, fold 1: failed (2)\n" in text
    assert "| alone | 0 (folds 0, 2) |" in text
    before, again = contents(tmp_path / "out" / "data"), Runs()
    assert not run_study(load({"data": FOLDS, "seeds": 1}), again).unfinished()
    overrides = [parse_overrides(command[5:]) for command in again.commands]
    assert [Path(options["output_dir"]).name for options in overrides] == ["seed-0-fold-1"] * 2
    assert contents(tmp_path / "out" / "data") == before
    more = Runs()
    run_study(load({"data": FOLDS, "seeds": 2}), more, at_once=2)
    assert len(more.commands) == 6, "the folds of the second seed"


def test_another_number_of_folds_is_another_partition(load) -> None:
    run_study(load({"data": FOLDS, "seeds": 1}), Runs())
    with refused(StoreError, "other_partition", difference="folds was 3, now 2") as caught:
        load({"data": FOLDS, "seeds": 1, "data__breast__partition__folds": 2})
    assert Path(caught.value.fields["path"]).name == "sites-seed-0-fold-0"


def test_a_named_fold_is_one_run_and_other_test_sets_are_no_folds(load) -> None:
    prepared = load({"data": FOLDS, "data__breast__partition__fold": 2, "seeds": 1})
    assert [(job.fold, job.folder.name, job.dataset_dir.name) for job in prepared.jobs] == [
        (None, "seed-0", "sites-seed-0")
    ] * 2
    plain = load({"data": PREPARED, "data__breast__partition__folds": 3, "seeds": 1})
    assert [job.title for job in plain.jobs] == ["breast / alone / seed 0", "breast / fedprox mu=0.1 / seed 0"]


def test_seeds_share_the_folds_of_a_fixed_partition(load) -> None:
    fixed = load({"data": FOLDS, "data__breast__partition__seed": 5})
    assert [job.dataset_dir.name for job in fixed.jobs[::2]] == [f"sites-seed-5-fold-{fold}" for _, fold in cells()]
    assert len({job.folder for job in fixed.jobs}) == 12


def test_without_a_number_there_are_five_folds(load) -> None:
    changes = {"data": FOLDS, "data__breast__partition__folds": None, "seeds": 1}
    assert [job.fold for job in load(changes).jobs[::2]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("folds", [1, 0, "three", True, 2.5])
def test_less_than_two_folds_are_refused(load, folds: object) -> None:
    with refused(SettingsError, "invalid_setting", settings=["data.breast.partition"]) as caught:
        load({"data": FOLDS, "data__breast__partition__folds": folds})
    assert f"at least 2 'folds', got {folds!r}" in str(caught.value)


def test_a_site_with_fewer_images_than_folds_is_named(load) -> None:
    with refused(SettingsError, "too_few_images", folds=30) as caught:
        run_study(load({"data": FOLDS, "data__breast__partition__folds": 30}), Runs())
    assert caught.value.fields["site"] in ("site-01", "site-02", "site-03")
    assert caught.value.fields["found"] < 30


def test_a_real_run_knows_its_fold(load, source: Path, tmp_path: Path) -> None:
    """The fold is passed from the partition through the run's record to the table."""

    def here(command: list[str], log: Path) -> int:
        with pytest.raises(SystemExit) as end:
            main(command[3:])
        return int(end.value.code or 0)

    changes = {"data": FOLDS, "data__breast__partition__folds": 2, "seeds": 1, "settings__rounds": 1}
    changes |= {"rows": {"alone": {"method": "local"}}, "claims": []}
    assert not run_study(load(changes), here).unfinished()
    records = [tmp_path / "out" / "runs" / "breast" / "alone" / f"seed-0-fold-{fold}" / "run.json" for fold in (0, 1)]
    runs = [RunFile.read(path) for path in records]
    assert [run.provenance.data.fold for run in runs] == [TestFold(fold=0, folds=2), TestFold(fold=1, folds=2)]
    assert runs[0].identity.data != runs[1].identity.data
    (seeds,) = pd.read_csv(tmp_path / "out" / "results" / "breast.csv")["seeds"]
    assert seeds == "0 (folds 0, 1)"


def test_the_fold_of_a_partition_is_read(tmp_path: Path) -> None:
    assert drawn_fold(tmp_path) is None, "nobody made a partition"
    for plan, fold in (
        (PartitionPlan("iid", 2, test="k_fold", folds=3, fold=1), TestFold(fold=1, folds=3)),
        (PartitionPlan("iid", 2, fold=1), None),
    ):
        made = Partition(dataset="toy", settings=plan.effective_settings(2))
        made.write(tmp_path / Partition.NAME)
        assert drawn_fold(tmp_path) == fold
    (tmp_path / Partition.NAME).write_text("{")
    with refused(DataError, "damaged_file", path=str(tmp_path / Partition.NAME)):
        drawn_fold(tmp_path)
