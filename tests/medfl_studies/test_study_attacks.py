"""Attacks on the finished runs of a study, and the tables of their results and of released images."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import toy_attacks
from refusals import refused
from study_toys import SMALL, Runs, contents
from toy_attacks import Guess, Harm, Rebuilt, write

from medfl.contract import Findings
from medfl.engine.runs.findings import write_findings
from medfl.errors import MedflError, PluginError, SettingsError
from medfl.plugins import load_plugins
from medfl.privacy.release import ImageRelease
from medfl_studies.attacks import attack_table, attack_values, attacks_markdown
from medfl_studies.study import list_commands, run_study
from medfl_studies.study_reader import read_study

pytestmark = pytest.mark.usefixtures("undrawn")

ATTACKS = {
    "guess": {"options": {"images": 500}},
    "rebuild": {"rows": ["fedprox mu=0.1"], "options": {"target": "shared", "smoothness": 0.5}},
}


@pytest.fixture(autouse=True)
def _attacks_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the attacks of a plugin file to the installed attacks."""
    file = Path(toy_attacks.__file__)
    monkeypatch.setattr("medfl_studies.study.load_plugins", lambda *_: load_plugins([file]))


@pytest.fixture(autouse=True)
def _no_pages_and_no_courses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the page, which needs a whole run, and the slow tables over rounds; other tests cover both."""
    monkeypatch.setattr("medfl_studies.study_tables.forgetting_metric", lambda groups: None)
    monkeypatch.setattr("medfl_studies.study_tables.write_report", lambda *_, **__: None)


class Attacked(Runs):
    """Replacement for the processes of runs and attacks. The n-th seed has the AUC 0.5 + n / 4 and the MSE n."""

    def __init__(self, failing_attack: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.failing_attack = failing_attack
        self.attacks: list[str] = []

    def __call__(self, command: list[str], log: Path) -> int:
        if command[3] == "run":
            return super().__call__(command, log)
        assert command[:4] == [sys.executable, "-m", "medfl", "attack"]
        kind, folder, options = command[4], Path(command[5]), command[6:]
        self.attacks.append(" / ".join([kind, *folder.parts[-2:], *options]))
        if kind == self.failing_attack:
            log.write_text("no such target")
            return 3
        seed = int(folder.name.partition("-")[2])
        used: dict[str, Any] = {"images": 500, "seed": 0}
        results: list[Any] = [Guess(auc=0.5 + seed / 4)]
        if kind == "rebuild":
            used = {"target": "shared", "smoothness": 0.5, "steps": 9}
            results = [Rebuilt(mse=value) for value in (seed - 0.5, seed + 0.5)]
        write(folder, kind, used, *results)
        return 0


def text(tmp_path: Path) -> str:
    return (tmp_path / "out" / "results" / "demo.md").read_text()


def test_the_runs_of_the_named_rows_are_attacked_once_they_are_finished(load, tmp_path: Path) -> None:
    prepared, runs = load({"attacks": ATTACKS}), Attacked()
    lines = [shlex.split(line)[3:5] for line in list_commands(prepared)]
    assert [words[0] for words in lines] == ["run"] * 4 + ["attack"] * 6
    assert not run_study(prepared, runs).unfinished()
    assert runs.attacks == [
        "guess / alone / seed-0 / --images / 500",
        "guess / fedprox-mu-0.1 / seed-0 / --images / 500",
        "rebuild / fedprox-mu-0.1 / seed-0 / --target / shared / --smoothness / 0.5",
        "guess / alone / seed-1 / --images / 500",
        "guess / fedprox-mu-0.1 / seed-1 / --images / 500",
        "rebuild / fedprox-mu-0.1 / seed-1 / --target / shared / --smoothness / 0.5",
    ]


def test_a_run_may_be_cleaned_after_its_last_attack(load) -> None:
    class Watched(Attacked):
        def __call__(self, command: list[str], log: Path) -> int:
            assert not cleaned & {command[5]}, "no attack on a run that was cleaned"
            return super().__call__(command, log)

    cleaned: set[str] = set()
    prepared = load({"attacks": ATTACKS})
    start = Watched()
    run_study(prepared, start, clean=lambda folder: cleaned.add(str(folder)))
    assert cleaned == {str(job.folder) for job in prepared.jobs}
    assert len(start.attacks) == 6
    cleaned.clear()
    run_study(prepared, Watched(), clean=lambda folder: cleaned.add(str(folder)))
    assert cleaned == set(), "what was finished before is left alone"


def test_a_run_whose_attack_failed_is_not_cleaned(load, capfd) -> None:
    cleaned: set[str] = set()
    prepared = load({"attacks": ATTACKS})
    run_study(prepared, Attacked(failing_attack="rebuild"), clean=lambda folder: cleaned.add(folder.parent.name))
    assert cleaned == {"alone"}


def test_models_of_earlier_rounds_have_rows_of_their_own(load, tmp_path: Path) -> None:
    changes = {"settings__keep_rounds": [1], "attacks": {"guess": {"options": {"round": "kept"}}}, "seeds": 1}
    prepared = load(changes)
    assert shlex.split(list_commands(prepared)[-1])[-2:] == ["--round", "kept"]
    for job in prepared.jobs:
        Runs()(job.command(), job.log)
        write(job.folder, "guess", {"round": "kept"}, *(Guess(auc=number / 10, round=number) for number in (5, 6)))
    table = attack_table(attack_values(prepared.attacks))
    areas = table.loc[table["measure"] == "auc", ["label", "round", "mean"]]
    assert areas.to_numpy().tolist()[:2] == [["alone", "5", 0.5], ["alone", "6", 0.6]]
    assert "| alone | 1 | global | 5 | loss | 0.500 |" in attacks_markdown(table, prepared.registry.attacks)


def test_data_may_have_rows_of_their_own_and_attacks_data(load) -> None:
    """A data set has only the rows that it names, and an attack only the data sets that it names."""
    changes = {"data__other": SMALL["data"]["demo"] | {"rows": ["alone"]}, "seeds": 1}
    prepared = load(changes | {"attacks": {"guess": {"data": ["demo"]}}})
    assert [(job.data, job.row) for job in prepared.jobs] == [
        ("demo", "alone"),
        ("demo", "fedprox mu=0.1"),
        ("other", "alone"),
    ]
    assert [attack.run.data for attack in prepared.attacks] == ["demo", "demo"]
    assert load(changes | {"attacks": {"guess": {"data": ["demo"]}}}, data=["other"]).attacks == []


def test_the_tables_hold_mean_and_spread_over_the_seeds(load, tmp_path: Path) -> None:
    run_study(load({"attacks": ATTACKS}), Attacked())
    table = pd.read_csv(tmp_path / "out" / "results" / "demo-attacks.csv").set_index(["kind", "label", "measure"])
    assert table.loc[("guess", "alone", "auc"), "mean"] == 0.625
    assert table.loc[("guess", "alone", "auc"), "std"] == pytest.approx(0.25 / 2**0.5)
    row = table.loc[("rebuild", "fedprox mu=0.1", "mse")]
    # both sites of a run count as one number, 0 and 1
    assert (row["mean"], row["std"], row["seeds"]) == (0.5, pytest.approx(1 / 2**0.5), 2)
    assert (row["target"], row["attack"], row["item"]) == ("shared", "decoder", "x_p")
    assert len(table) == 2 * 2 + 2, "what is not finite has no row"
    assert "### Attack: guess" in text(tmp_path)
    assert "| alone | 2 | global | loss | 0.625 ± 0.177 | - | 0.654 ± 0.000 |\n" in text(tmp_path)
    assert "- Chance is 0.5.\n" in text(tmp_path)
    assert "| fedprox mu=0.1 | 2 | shared | decoder | x_p | 0.5000 ± 0.7071 | - | 0.250 ± 0.000 |" in text(tmp_path)


def test_an_attack_is_made_again_only_if_its_options_or_the_run_changed(load, tmp_path: Path) -> None:
    run_study(load({"attacks": ATTACKS}), Attacked())
    before, again = contents(tmp_path / "out" / "runs"), Attacked()
    run_study(load({"attacks": ATTACKS}), again)
    assert (again.commands, again.attacks) == ([], [])
    assert contents(tmp_path / "out" / "runs") == before
    other = Attacked()
    outcome = run_study(load({"attacks": ATTACKS, "attacks__guess__options": {"images": 20}}), other)
    assert [attack.endswith("--images / 20") for attack in other.attacks] == [True] * 4
    assert [work.title for work in outcome.unfinished()][0] == "guess of demo / alone / seed 0", "made with 500"
    assert "Attack: guess" not in text(tmp_path)
    summary = tmp_path / "out" / "runs" / "demo" / "fedprox-mu-0.1" / "seed-1" / "summary.json"
    os.utime(summary, ns=(summary.stat().st_atime_ns, summary.stat().st_mtime_ns + 10**10))
    newer = Attacked()
    run_study(load({"attacks": ATTACKS}), newer)
    assert sorted({attack.split(" / ")[2] for attack in newer.attacks}) == ["seed-1"]


def test_a_damaged_result_is_no_result(load, tmp_path: Path) -> None:
    run_study(load({"attacks": ATTACKS}), Attacked())
    (tmp_path / "out" / "runs" / "demo" / "alone" / "seed-0" / "attacks" / "guess.json").write_text("{")
    again = Attacked()
    run_study(load({"attacks": ATTACKS}), again)
    assert again.attacks == ["guess / alone / seed-0 / --images / 500"]


def test_a_failed_attack_is_named_and_leaves_the_others(load, tmp_path: Path, capfd) -> None:
    outcome = run_study(load({"attacks": ATTACKS}), Attacked(failing_attack="rebuild"))
    assert [work.title for work in outcome.unfinished()] == [
        f"rebuild of demo / fedprox mu=0.1 / seed {seed}" for seed in (0, 1)
    ]
    log = tmp_path / "out" / "runs" / "demo" / "fedprox-mu-0.1" / "seed-0-rebuild.log"
    assert f"- rebuild of fedprox mu=0.1, seed 0: failed (3); see {log}" in text(tmp_path)
    assert "no such target" in capfd.readouterr().err
    assert "Attack: guess" in text(tmp_path)
    assert "Attack: rebuild" not in text(tmp_path)


def test_a_run_that_failed_is_not_attacked(load) -> None:
    runs = Attacked(failing="fedprox")
    outcome = run_study(load({"attacks": ATTACKS}), runs)
    assert {attack.split(" / ")[1] for attack in runs.attacks} == {"alone"}
    assert [work.title for work in outcome.unfinished()] == [f"demo / fedprox mu=0.1 / seed {seed}" for seed in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "kind", "code", "fields", "hint"),
    [
        ({"attacks": {"gues": {}}}, PluginError, "unknown_choice", {"what": "attack", "choice": "gues"}, "'guess'"),
        (
            {"attacks": {"guess": {"rows": ["alon"]}}},
            SettingsError,
            "unknown_choice",
            {"place": "attacks.guess", "what": "row", "choice": "alon"},
            "'alone'",
        ),
        (
            {"attacks": {"guess": {"data": ["demos"]}}},
            SettingsError,
            "unknown_choice",
            {"place": "attacks.guess", "what": "data set", "choice": "demos"},
            "'demo'",
        ),
        (
            {"data__demo__rows": ["alon"]},
            SettingsError,
            "unknown_choice",
            {"place": "data.demo", "what": "row", "choice": "alon"},
            "'alone'",
        ),
        (
            {"attacks": {"guess": {"option": {}}}},
            SettingsError,
            "unknown_setting",
            {"settings": ["attacks.guess.option"]},
            "",
        ),
        (
            {"attacks": {"guess": {"options": {"imags": 5}}}},
            SettingsError,
            "unknown_setting",
            {"place": "attacks.guess.options", "name": "imags"},
            "'images'",
        ),
        (
            {"attacks": {"guess": {"options": {"images": 1}}}},
            SettingsError,
            "setting_out_of_range",
            {"attack": "guess", "setting": "images", "minimum": 2, "found": 1},
            "",
        ),
        (
            {"scales__cpu__methods": {"fedprx": {}}},
            SettingsError,
            "unknown_choice",
            {"place": "scales", "what": "method", "choice": "fedprx"},
            "Did you mean 'fedprox'",
        ),
    ],
)
def test_mistakes_are_found_before_any_run(
    load, changes: dict, kind: type[MedflError], code: str, fields: dict, hint: str
) -> None:
    with refused(kind, code, **fields) as caught:
        load(changes, scale="cpu")
    assert hint in str(caught.value)


def test_a_scale_changes_the_rows_of_a_method(write) -> None:
    change = {"fedprox": {"method_args": {"mu": 0.5}, "settings": {"epochs": 2}}}
    file = write(scales__cpu__methods=change, rows__alone__settings={"epochs": 7})
    full, small = read_study(file).rows, read_study(file, "cpu").rows
    assert (full["fedprox mu=0.1"].method_args, full["fedprox mu=0.1"].settings) == ({"mu": 0.1}, {})
    assert (small["fedprox mu=0.1"].method_args, small["fedprox mu=0.1"].settings) == ({"mu": 0.5}, {"epochs": 2})
    assert small["alone"] == full["alone"]


def test_the_privacy_of_released_images_is_reported(load, tmp_path: Path) -> None:
    """The table has the epsilons of the analytic Gaussian mechanism at delta 1e-5, which another test checks."""
    clipped = ImageRelease("gaussian", 0.15, 1.0)
    copies = [clipped, ImageRelease("gaussian", 0.25, 1.0)]
    cases = {
        ("alone", 0): {"releases": [ImageRelease("gaussian", 0.15, None).meta()]},
        ("fedprox-mu-0.1", 0): {"releases": [clipped.meta()]},
        ("fedprox-mu-0.1", 1): {"releases": [release.meta() for release in copies]},
        ("alone", 1): {"releases": [clipped.meta()], "items": {}},
    }

    class Releasing(Runs):
        def __call__(self, command: list[str], log: Path) -> int:
            code = super().__call__(command, log)
            folder = Path(command[command.index("--output-dir") + 1])
            sharing = {"items": {"site-01": 3}} | cases[folder.parent.name, int(folder.name[-1])]
            write_findings(folder, Findings({"sharing": sharing}, {"sharing/labels": torch.zeros(1)}))
            return code

    run_study(load(), Releasing())
    lines = [line for line in text(tmp_path).splitlines() if "gaussian" in line]
    assert lines == [
        "| alone | gaussian | 0.15 | none | no differential privacy | no differential privacy |",
        "| fedprox mu=0.1 | gaussian | 0.15 | L2 1 | 13.76 | 34.63 |",
        "| fedprox mu=0.1 | gaussian | 0.15 and 0.25 | L2 1 | 18.63 | 48.42 |",
    ]
    (tmp_path / "out" / "runs" / "demo" / "alone" / "seed-0" / "findings.safetensors").write_text("damaged")
    run_study(load(), Releasing())
    assert "No table: expected the findings of the run" in text(tmp_path)
    assert "gaussian" not in text(tmp_path)


def test_a_table_may_have_intervals_over_the_seeds(load, tmp_path: Path) -> None:
    """Student's t over two seeds gives 12.7 times half their distance on both sides of the mean."""
    wanted = '{"attack": "backdoor", "sites": ["site-1"]}'
    prepared = load({"attacks": {"harm": {"rows": ["alone"], "options": {"wanted": wanted}}}})
    assert shlex.split(list_commands(prepared)[-1])[-4:] == [
        "harm",
        str(prepared.attacks[-1].folder),
        "--wanted",
        wanted,
    ]
    for job in prepared.attacks:
        Runs()(job.run.command(), job.run.log)
        seed = int(job.folder.name.partition("-")[2])
        write(job.folder, "harm", {"wanted": wanted, "device": "cpu"}, Harm(accuracy=0.8 + seed / 100))
    table = attack_table(attack_values(prepared.attacks)).set_index("measure")
    assert table.loc["accuracy", ["low", "high"]].tolist() == pytest.approx([0.805 - 0.0635, 0.805 + 0.0635], abs=1e-4)
    assert table.loc["success", ["low", "high"]].isna().all(), "no spread, no interval"
    text = attacks_markdown(table.reset_index(), prepared.registry.attacks)
    assert "| alone | 2 | global | backdoor | 0.805 (0.741 to 0.869) | - | 0.500 ± 0.000 |" in text
    assert "In brackets: 95 % interval over the seeds." in text
