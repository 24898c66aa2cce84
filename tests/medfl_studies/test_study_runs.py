"""Runs of a study: their number, skipped runs, and failures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from refusals import refused
from study_toys import PREPARED, Runs, contents

from medfl.cli.run import parse_overrides
from medfl.errors import StoreError
from medfl.plugins import Registry
from medfl.records.partition import Partition
from medfl_studies.study import run_study
from medfl_studies.study_tables import SCORE_COLUMNS

pytestmark = pytest.mark.usefixtures("undrawn")


def _no_page(
    runs: list[Path], out: Path, labels: list[str], baseline: str | None, registry: Registry, **options: object
) -> None:
    out.write_text(f"{len(runs)} runs: {', '.join(dict.fromkeys(labels))}")


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the page, which needs a whole run; another test covers it."""
    monkeypatch.setattr("medfl_studies.study_tables.write_report", _no_page)


def test_methods_times_seeds_with_the_strongest_setting_last(load, source: Path, tmp_path: Path) -> None:
    prepared = load(
        {
            "rows__alone__settings": {"epochs": 7, "precision": "fp32"},
            "data__demo__options": {"batch_size": 8, "epochs": 5},
            "settings__epochs": 3,
            "settings__sites": ["site-01"],
        },
        workers=2,
    )
    out = tmp_path / "out"
    overrides = [parse_overrides(job.command()[5:]) for job in prepared.jobs]
    assert [(options["method"], options["seed"], options["epochs"]) for options in overrides] == [
        ("local", 0, 7),
        ("fedprox", 0, 5),
        ("local", 1, 7),
        ("fedprox", 1, 5),
    ]
    assert overrides[1]["output_dir"] == str(out / "runs" / "demo" / "fedprox-mu-0.1" / "seed-0")
    assert overrides[1]["method_args#mu"] == 0.1
    common = {"rounds": 4, "optimizer#lr": 0.125, "batch_size": 8, "workers": 2, "sites": ["site-01"]}
    common |= {"dataset_dir": str(source / "cohort"), "metrics": ["accuracy"], "given_by": "study small"}
    assert [{name: options[name] for name in common} for options in overrides] == [common] * 4
    assert not out.exists(), "a look writes nothing"


def test_each_seed_draws_its_own_partition_unless_it_is_fixed(load, tmp_path: Path) -> None:
    prepared = load({"data": PREPARED})
    run_study(prepared, Runs())
    places = [tmp_path / "out" / "data" / "breast" / f"sites-seed-{seed}" for seed in (0, 1)]
    assert sorted({job.dataset_dir for job in prepared.jobs}) == places
    partitions = [Partition.read(place / Partition.NAME) for place in places]
    assert [made.settings.seed for made in partitions] == [0, 1]
    assert partitions[0].sha256_by_file != partitions[1].sha256_by_file
    fixed = load({"data": PREPARED, "data__breast__partition__seed": 5}, out=tmp_path / "fixed")
    assert {job.dataset_dir.name for job in fixed.jobs} == {"sites-seed-5"}


def test_a_pooled_folder_of_ones_own_is_partitioned(load, source: Path, tmp_path: Path) -> None:
    run_study(load({"data": PREPARED, "seeds": 1}), Runs())
    shutil.copytree(tmp_path / "out" / "data" / "breast" / "pooled", tmp_path / "own" / "pool")
    data = {"own": {"folder": "pool", "partition": {"scheme": "iid", "sites": 2}}}
    prepared = load({"data": data, "seeds": 1}, source=tmp_path / "own", out=tmp_path / "second")
    run_study(prepared, Runs())
    sites = sorted(path.name for path in (tmp_path / "second" / "data" / "own" / "sites-seed-0").glob("site-*"))
    assert sites == ["site-01", "site-02"]


def test_a_partition_that_was_made_in_another_way_is_not_used(load) -> None:
    run_study(load({"data": PREPARED}), Runs())
    with refused(StoreError, "other_partition") as caught:
        load({"data": PREPARED, "data__breast__partition__alpha": 2.0})
    assert re.fullmatch("options was .*1.0.*, now .*2.0.*", caught.value.fields["difference"])


def test_the_table_names_the_rows_and_counts_the_seeds(load, tmp_path: Path) -> None:
    outcome = run_study(load(), Runs())
    assert not outcome.unfinished()
    table = pd.read_csv(tmp_path / "out" / "results" / "demo.csv")
    assert table["label"].tolist() == ["alone", "fedprox mu=0.1"]
    assert table["mean"].tolist() == [0.5625, 0.6875]
    assert table["difference"].tolist()[1] == 0.125
    assert set(table["baseline"]) == {"alone"}
    text = (tmp_path / "out" / "results" / "demo.md").read_text()
    assert text.startswith("# small: demo\n\nNothing but a test.\n\n4 of 4 runs are finished.\n")
    assert "fedprox mu=0.1" in text
    assert (tmp_path / "out" / "results" / "demo.html").read_text() == "4 runs: alone, fedprox mu=0.1"


def test_the_table_of_means_follows_from_the_final_scores(load, tmp_path: Path) -> None:
    run_study(load(), Runs())
    scores = pd.read_csv(tmp_path / "out" / "results" / "demo-scores.csv")
    assert list(scores.columns) == list(SCORE_COLUMNS)
    assert len(scores) == 2 * 2 * 2, "two rows, seeds and sites"
    own = scores[scores["exported"] & (scores["split"] == "test") & (scores["metric"] == "accuracy")]
    each = own.groupby(["row", "seed"])["value"].agg(["mean", "min"]).groupby("row")
    table = pd.read_csv(tmp_path / "out" / "results" / "demo.csv").set_index("label")
    assert each["mean"].mean().to_dict() == pytest.approx(table["mean"].to_dict())
    assert each["mean"].std().to_dict() == pytest.approx(table["std"].to_dict())
    assert each["min"].mean().to_dict() == pytest.approx(table["worst"].to_dict())
    assert set(scores["study"]) == {"small"}


def test_scores_of_all_rounds_make_tables_and_check_claims(load, tmp_path: Path) -> None:
    claims = [
        {"measure": "local_mean", "better": "fedprox mu=0.1", "than": "alone"},
        {"measure": "balance", "better": "alone", "than": "fedprox mu=0.1"},
    ]
    run_study(load({"settings__moments": ["aggregated", "trained"], "claims": claims}), Runs())
    table = pd.read_csv(tmp_path / "out" / "results" / "demo-rounds.csv").set_index(["label", "measure"])["mean"]
    assert table["alone", "local_mean"] == 0.5625
    assert table["fedprox mu=0.1", "worst_mean"] == 0.6875
    assert ("alone", "global_mean") not in table
    text = (tmp_path / "out" / "results" / "demo.md").read_text()
    assert "| fedprox mu=0.1 | 0, 1 | 0.688 ± 0.088 | 0.688 ± 0.088 | 1.000 ± 0.000 |" in text
    # the same gain with both seeds tells nothing of its spread, and without a server test there is no balance
    assert "| fedprox mu=0.1 > alone | local_mean | 2 | 0.688 ± 0.088 | 0.562 ± 0.088 | +0.125 | - |" in text
    assert "| alone > fedprox mu=0.1 | balance | 0 | - | - | - | - |" in text


def test_rows_with_the_same_settings_stay_two_rows(load, tmp_path: Path) -> None:
    run_study(load({"rows__again": {"method": "local"}, "seeds": 1}), Runs())
    table = pd.read_csv(tmp_path / "out" / "results" / "demo.csv")
    assert table["label"].tolist() == ["alone", "fedprox mu=0.1", "again"]
    assert table["baseline"].tolist() == ["alone"] * 3


def test_tables_are_written_after_each_run_that_took_long_enough(load, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("medfl_studies.study.TABLES_SHARE", 1.0)
    seen: list[str] = []

    class Watching(Runs):
        def __call__(self, command: list[str], log: Path) -> int:
            path = tmp_path / "out" / "results" / "demo.md"
            seen.append(path.read_text().splitlines()[4] if path.exists() else "none")
            return super().__call__(command, log)

    run_study(load(), Watching())
    assert seen == ["none", *(f"{number} of 4 runs are finished." for number in (1, 2, 3))]


def test_a_row_that_fails_is_named_and_the_others_finish(load, tmp_path: Path, capfd) -> None:
    outcome = run_study(load(), Runs(failing="fedprox"))
    assert [job.title for job in outcome.unfinished()] == [
        "demo / fedprox mu=0.1 / seed 0",
        "demo / fedprox mu=0.1 / seed 1",
    ]
    text = (tmp_path / "out" / "results" / "demo.md").read_text()
    assert (
        "2 of 4 runs are finished.\n\n- fedprox mu=0.1, seed 0: failed (2)\n- fedprox mu=0.1, seed 1: failed (2)"
        in text
    )
    assert pd.read_csv(tmp_path / "out" / "results" / "demo.csv")["label"].tolist() == ["alone"]
    assert "the last lines" in capfd.readouterr().err
    again = Runs()
    assert not run_study(load(), again).unfinished()
    assert ["fedprox" in command for command in again.commands] == [True, True], "only what had failed"


def test_a_finished_run_with_other_inputs_is_named(load, capfd) -> None:
    run_study(load(), Runs())
    capfd.readouterr()
    prepared = load({"settings__rounds": 5})
    assert {tuple(job.changed_inputs() or ()) for job in prepared.jobs} == {("options",)}
    again = Runs(failing="fedprox")
    run_study(prepared, again)
    assert len(again.commands) == 4
    assert capfd.readouterr().err.count("differs from the study in: options") == 4
    assert [job.changed_inputs() for job in prepared.jobs] == [[], ["options"], [], ["options"]]


def test_if_all_fail_there_is_a_reason_in_place_of_the_table(load, tmp_path: Path) -> None:
    run_study(load({"rows__alone": {"method": "fedprox"}}), Runs(failing="fedprox"))
    text = (tmp_path / "out" / "results" / "demo.md").read_text()
    assert "0 of 4 runs are finished." in text
    assert not (tmp_path / "out" / "results" / "demo.csv").exists()


def test_the_baseline_may_be_missing(load, tmp_path: Path) -> None:
    run_study(load(), Runs(failing="local"))
    assert pd.read_csv(tmp_path / "out" / "results" / "demo.csv")["label"].tolist() == ["fedprox mu=0.1"]


def test_a_diverged_run_stays_in_the_table(load, tmp_path: Path) -> None:
    outcome = run_study(load(), Runs(status="diverged"))
    assert len(outcome.unfinished()) == 4
    table = pd.read_csv(tmp_path / "out" / "results" / "demo.csv")
    assert table["status"].tolist() == ["2 diverged", "2 diverged"]
    assert "- alone, seed 0: diverged" in (tmp_path / "out" / "results" / "demo.md").read_text()


def test_what_is_finished_is_left_alone_until_its_settings_change(load, tmp_path: Path) -> None:
    first = Runs()
    run_study(load(), first)
    assert len(first.commands) == 4
    before = contents(tmp_path / "out" / "runs")
    same, seeds, changed = Runs(), Runs(), Runs()
    run_study(load(), same)
    assert same.commands == []
    assert contents(tmp_path / "out" / "runs") == before
    run_study(load(seeds=3), seeds)
    assert [parse_overrides(command[5:])["seed"] for command in seeds.commands] == [2, 2]
    assert before.items() <= contents(tmp_path / "out" / "runs").items()
    run_study(load({"rows__alone__settings": {"epochs": 2}}), changed)
    assert [parse_overrides(command[5:])["method"] for command in changed.commands] == ["local", "local"]


def test_more_workers_are_no_other_run(load) -> None:
    run_study(load(), Runs())
    again = Runs()
    run_study(load(workers=2), again)
    assert again.commands == []
