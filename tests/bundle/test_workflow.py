"""Federations from a bundle: MONAI's command, medfl's workflow, `medfl run`, and exported bundles."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from refusals import refused

from medfl.cli.main import main
from medfl.cli.run import parse_overrides
from medfl.data.sites import load_site
from medfl.engine.evaluation import score_dataset
from medfl.engine.runs.provenance import setting_origins
from medfl.engine.runs.records import read_run
from medfl.errors import PluginError, SettingsError
from medfl.metrics import METRICS
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.records.run_file import RunFile, SettingOrigin
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.testing.cohort import make_task
from medfl.testing.synthetic import make_cohort
from medfl.training.devices import pick_device
from medfl.workflow import FederatedWorkflow

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
CONFIGS = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "sites"
    make_cohort(out, sites=3, images_per_site=20, classes=4, size=12, seed=1)
    return out


def run_here(capsys: pytest.CaptureFixture[str], *options: object) -> SimpleNamespace:
    """Run `medfl run` over the bundle in this process, which has imported torch and MONAI already."""
    with pytest.raises(SystemExit) as ended:
        main(["run", str(BUNDLE), *map(str, options)])
    captured = capsys.readouterr()
    return SimpleNamespace(code=ended.value.code, out=captured.out, err=captured.err)


@pytest.fixture(scope="module")
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "fedavg"
    words = (
        *("run", BUNDLE, "--dataset-dir", cohort, "--output-dir", folder, "--method", "fedavg"),
        *("--rounds", 2, "--optimizer.lr", 0.125, "--workers", 2),
        *("--lr-decay", 0.5),
    )
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code
    return folder


def test_a_run_ends_with_scores_summary_and_a_model_per_site(finished: Path) -> None:
    header = (finished / "metrics.csv").read_text().splitlines()[0]
    assert header == "round,site,model,split,moment,metric,value"
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["rounds"] == summary["evaluated_round"] == 2
    assert sorted(path.name for path in (finished / "sites").iterdir()) == ["site-01", "site-02", "site-03"]


def test_overrides_reach_the_sites(finished: Path) -> None:
    task = RunFile.read(finished / "run.json").identity.task
    assert '"lr": 0.125' in task.optimizer
    assert task.num_classes == 4


def test_each_setting_says_where_it_comes_from(finished: Path, cohort: Path) -> None:
    provenance = RunFile.read(finished / "run.json").provenance
    expected = {
        "rounds": (2, "command line"),
        "workers": (2, "command line"),
        "lr_decay": (0.5, "command line"),
        "fraction": (1.0, "default of medfl"),
        "optimizer.lr": (0.125, "command line"),
        "optimizer.momentum": (0.9, "bundle"),
        "optimizer.nesterov": (False, "default of torch"),
        "batch_size": (32, "bundle"),
        "method_args.weights": ("size", "default of the method"),
    }
    origins = {name: (provenance.settings[name].value, provenance.settings[name].origin) for name in expected}
    assert origins == expected
    assert set(Settings.model_fields) <= set(provenance.settings)
    sites = provenance.data.sites
    assert set(sites) == {"site-01", "site-02", "site-03", "global"}
    assert sites["site-02"] == load_site(cohort / "site-02", Multiclass(4), (0.5,), (0.5,)).digest
    assert "medfl_methods" in provenance.plugins


def test_presets_and_further_files_are_named_as_origins() -> None:
    registry, task = load_plugins(), make_task()
    args = {"preset": "paper", "weights": "uniform"}
    facts = {
        "settings": Settings(rounds=4, seed=3),
        "execution": Execution(),
        "method": registry.make_method("fedprox", args),
        "method_args": args,
    }
    own = {"rounds": 4, "seed": "$computed", "method_args": {}}
    table = setting_origins(task, own, "study x", **facts)
    assert {name: table[name].origin for name in ("rounds", "seed", "epochs")} == {
        "rounds": "bundle",
        "seed": "default of medfl",
        "epochs": "default of medfl",
    }
    assert table["method_args.mu"] == SettingOrigin(value=1.0, origin="preset paper")
    assert table["method_args.weights"] == SettingOrigin(value="uniform", origin="study x")
    again = setting_origins(task, own | {"rounds": 5}, "study x", **facts)
    assert again["rounds"] == SettingOrigin(value=4, origin="study x")


def test_the_predictions_give_the_scores(finished: Path, cohort: Path) -> None:
    scores = json.loads((finished / "summary.json").read_text())["scores"]["global"]["test"]
    run = read_run(finished)
    for site in ("site-01", "site-02", "site-03"):
        table = run.predictions(site)
        assert (
            table["label"].tolist()
            == load_site(cohort / site, Multiclass(4), (0.5,), (0.5,)).test.class_labels.tolist()
        )
        probabilities = torch.tensor(table[["p0", "p1", "p2", "p3"]].to_numpy())
        for metric in ("accuracy", "auc", "ece"):
            computed = METRICS[metric](probabilities, torch.tensor(table["label"].to_numpy()), 4)
            assert computed == pytest.approx(scores[metric]["sites"][site], abs=1e-6)
    assert run.predictions("site-99") is None


def test_a_leak_stops_the_run_unless_it_is_allowed_by_name(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leaky = Path(shutil.copytree(cohort, tmp_path / "leaky"))
    (leaky / "partition.json").unlink()
    path = leaky / "site-01" / "datalist.json"
    values = json.loads(path.read_text())
    values["test"].append(values["training"][0])
    path.write_text(json.dumps(values))
    options = ("--dataset-dir", leaky, "--output-dir", tmp_path / "run", "--rounds", 1)
    done = run_here(capsys, *options)
    assert done.code == 2
    assert "site-01/training" in done.err
    assert not (tmp_path / "run").exists()
    done = run_here(capsys, *options, "--allow-leaks", "['subjects', 'pixels']")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["leaks"]
    assert RunFile.read(tmp_path / "run" / "run.json").provenance.data.allowed_leaks == ("subjects", "pixels")


def test_sites_with_images_of_unlike_shapes_are_refused(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Path(shutil.copytree(cohort, tmp_path / "both"))
    make_cohort(tmp_path / "small", sites=1, images_per_site=20, classes=4, size=16)
    path = both / "site-03" / "datalist.json"
    values = json.loads((tmp_path / "small" / "site-01" / "datalist.json").read_text())
    path.write_text(json.dumps(values | {"image_array": str(tmp_path / "small" / "images.npy")}))
    done = run_here(capsys, "--dataset-dir", both, "--output-dir", tmp_path / "run", "--rounds", 1)
    assert done.code == 2
    assert "(3, 12, 12), (3, 16, 16)" in done.err


def test_a_site_exports_a_bundle_that_scores_as_the_summary_says(finished: Path, cohort: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    for site, accuracy in summary["scores"]["global"]["test"]["accuracy"]["sites"].items():
        home = finished / "sites" / site
        parser = ConfigParser()
        parser.read_config(str(home / "configs" / "train.json"))
        parser["dataset_dir"] = str(cohort)
        network = parser.get_parsed_content("network_def")
        network.load_state_dict(torch.load(home / "models" / "model.pt", weights_only=True))
        test = load_site(cohort / site, Multiclass(4), (0.5,), (0.5,)).test
        task: Task = parser.get_parsed_content("task")
        assert score_dataset(network, test, task, Settings(rounds=1))["accuracy"] == pytest.approx(accuracy, abs=1e-9)


@pytest.mark.slow
def test_stock_monai_runs_the_same_federation(finished: Path, cohort: Path, tmp_path: Path) -> None:
    words = (
        *("run", "--config_file", CONFIGS, "--bundle_root", BUNDLE, "--dataset_dir", cohort, "--num_classes", 4),
        *("--output_dir", tmp_path / "stock", "--method", "fedavg", "--rounds", 2, "--optimizer#lr", 0.125),
        *("--settings#lr_decay", 0.5, "--settings#workers", 2),
    )
    command = [sys.executable, "-m", "monai.bundle", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        torch.load(folder / "global" / "models" / "model.pt", weights_only=True)
        for folder in (finished, tmp_path / "stock")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-classes", 3), "expected labels in 0..2"),
        (("--sites", "['site-01', 'site-99']"), "no site 'site-99'"),
        (("--networks-by-site", "{'site-99': 'cnn4'}"), "site-99"),
        (("--device", "cuda:0"), "no GPU"),
    ],
)
def test_bad_options_end_in_one_message(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple, message: str
) -> None:
    if "cuda:0" in options and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run_here(capsys, "--dataset-dir", cohort, "--output-dir", tmp_path / "run", "--rounds", 1, *options)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run" / "state").exists()


def test_debug_shows_the_traceback(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDFL_DEBUG", "0")  # put back afterwards
    done = run_here(capsys, "--dataset-dir", cohort, "--output-dir", tmp_path / "run", "--method", "nope", "--debug")
    assert done.code != 0
    assert "Traceback" in done.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--method", "fedavgg"), "Did you mean 'fedavg'?"),
        (("--settings#fractoin", 0.1), "unknown option 'fractoin'. Did you mean 'fraction'?"),
        (("--settings#fraction", 1.5), "'fraction': expected a number, > 0, <= 1; got 1.5"),
    ],
)
def test_stock_monai_shows_no_traceback_either(
    cohort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, object],
    message: str,
) -> None:
    words = (
        *("run", "--config_file", CONFIGS, "--bundle_root", BUNDLE, "--dataset_dir", cohort),
        *("--output_dir", tmp_path / "run", *option),
    )
    monkeypatch.setattr(sys, "argv", ["monai.bundle", *map(str, words)])
    with pytest.raises(SystemExit) as ended:  # any other exception would be shown with its traceback
        runpy.run_module("monai.bundle", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_plugin_file_is_found_by_a_run(cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from medfl.toolkit.averaging import Averaging\n"
        "from medfl.plugins import MethodRecord, hookimpl\n\n\n"
        "class Mine(Averaging):\n    'FedAvg under another name.'\n\n    supports = frozenset()\n\n\n"
        "@hookimpl\n"
        "def medfl_methods():\n"
        "    return [MethodRecord('mine', f'{__name__}:Mine', 'averaging', 'none')]\n"
    )
    done = run_here(
        capsys,
        *("--dataset-dir", cohort, "--output-dir", tmp_path / "run", "--num-classes", 4, "--rounds", 1),
        *("--method", "mine", "--plugins", [str(plugin)], "--workers", 2),
    )
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "mine"


@pytest.mark.usefixtures("run_reports")
def test_a_section_of_a_plugin_file_is_on_the_page_of_a_run(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("medfl_report")
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from medfl.plugins import SectionRecord, hookimpl\n"
        "from medfl_report.section import Section\n\n\n"
        "@hookimpl\ndef medfl_report_sections():\n"
        "    return [SectionRecord('own', 'My own section', f'{__name__}:Own')]\n\n\n"
        "class Own(Section):\n    def render(self, data):\n        return 'mine'\n"
    )
    done = run_here(
        capsys,
        *("--dataset-dir", cohort, "--output-dir", tmp_path / "run", "--num-classes", 4, "--rounds", 1),
        *("--steps", 1, "--plugins", [str(plugin)]),
    )
    assert done.code == 0, done.err
    assert "<h2>My own section</h2>\nmine</section>" in (tmp_path / "run" / "report.html").read_text()


def test_the_workflow_lists_known_options() -> None:
    with refused(SettingsError, "unknown_option", option="roundz") as caught:
        FederatedWorkflow(CONFIGS, logging_file=False, roundz=3)
    assert "Did you mean '--rounds'? `medfl run BUNDLE --help` lists all" in str(caught.value)


def test_from_python_a_mistake_is_an_exception(cohort: Path, tmp_path: Path) -> None:
    """Check also a mistake that is found when the run begins. MONAI's own command would exit the process."""
    options = {"bundle_root": str(BUNDLE), "dataset_dir": str(cohort), "output_dir": str(tmp_path / "run")}
    workflow = FederatedWorkflow(CONFIGS, logging_file=False, method="fedavgg", **options)
    workflow.initialize()
    with refused(PluginError, "unknown_choice", what="method", choice="fedavgg"):
        workflow.run()
    stock = ConfigWorkflow(CONFIGS, workflow_type="train", method="fedavgg", **options)
    stock.initialize()
    with pytest.raises(RuntimeError) as wrapped:  # by MONAI, which evaluates the call
        stock.run()
    assert isinstance(wrapped.value.__cause__, PluginError)


def test_a_folder_that_is_no_bundle_is_refused(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path), "--dataset-dir", str(cohort)])
    assert ended.value.code == 2
    assert "is not a bundle that medfl can run" in capsys.readouterr().err


def test_overrides_are_parsed_as_pairs() -> None:
    words = ["--rounds", "3", "--method=fedprox", "--method-args.mu", "1e-3", "--sites", "['a']", "--note", "a b"]
    expected = {"rounds": 3, "method": "fedprox", "method_args#mu": 1e-3, "sites": ["a"], "note": "a b"}
    assert parse_overrides(words) == expected
    with refused(SettingsError, "invalid_option", text="rounds"):
        parse_overrides(["rounds", "3"])
    with refused(SettingsError, "missing_option_value", name="rounds"):
        parse_overrides(["--rounds"])
    with refused(SettingsError, "wrong_spelling", option="--lr_decay", expected="--lr-decay"):
        parse_overrides(["--lr_decay", "0.5"])


def test_devices() -> None:
    assert pick_device("cpu") == "cpu"
    if not torch.cuda.is_available():
        assert pick_device("auto") == "cpu"
        with refused(SettingsError, "missing_gpu", device="cuda:1"):
            pick_device("cuda:1")
