"""The wheel works in a clean environment; an editable install works in the folder above the clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "medfl", "plugins", "data_prep", "bundles")


def call(command: list[object], folder: Path, **more: object) -> str:
    """Run a command far from the clone, with more in its environment; gives what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MEDFL_DISABLE")}
    environment |= {name: str(value) for name, value in more.items()}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built without a network from a copy, so that neither an old ``build/`` nor ignored files get in."""
    copy = tmp_path_factory.mktemp("sources") / "medfl"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    models = copy / "bundles" / "medmnist_classification" / "models"
    models.mkdir(exist_ok=True)
    (models / "model.pt").write_text("trained here; it does not belong into a wheel")
    call([*PIP, "wheel", copy, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", copy / "out"], copy)
    (built,) = (copy / "out").glob("medfl_monai-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A fresh environment that has medfl from the wheel, and what medfl needs from this Python's packages."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    install_into(folder, wheel)
    return folder


def install_into(folder: Path, *what: object) -> None:
    """Make an environment, install one thing into it, and give it what medfl needs from this Python's packages."""
    call([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    install = [*PIP, "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index"]
    call([*install, "--no-build-isolation", *what], folder.parent)


def test_the_wheel_holds_bundles_templates_and_plugins(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, pattern in (("bundles", "*/LICENSE"), ("bundles", "*/configs/*"), ("bundles", "*/docs/*")):
        paths = list((ROOT / folder).glob(pattern))
        assert paths
        assert {f"medfl/{path.relative_to(ROOT).as_posix()}" for path in paths} <= names
    templates = [*(ROOT / "medfl/cli/templates").iterdir(), *(ROOT / "plugins/medfl_report/templates").glob("*")]
    modules = [*(ROOT / "medfl").rglob("*.py"), *(ROOT / "plugins").rglob("*.py"), ROOT / "medfl/py.typed"]
    wanted = {path.relative_to(ROOT).as_posix().removeprefix("plugins/") for path in [*templates, *modules]}
    files = [path for ending in ("html", "css", "json") for path in (ROOT / "plugins").rglob(f"*.{ending}")]
    wanted |= {path.relative_to(ROOT / "plugins").as_posix() for path in files}
    prep = ROOT / "data_prep"
    parts = [*prep.rglob("*.py"), *prep.rglob("*.yaml")]
    wanted |= {f"medfl_datasets/{path.relative_to(prep).as_posix()}" for path in parts}
    assert wanted <= names
    assert not [name for name in names if "model.pt" in name or "__pycache__" in name]


@pytest.mark.slow
def test_the_wheel_of_the_sdist_is_the_wheel_of_the_sources_and_has_all_files(wheel, tmp_path):
    sources = wheel.parents[1]
    build = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    call([sys.executable, "-c", build, tmp_path], sources)
    (sdist,) = tmp_path.glob("medfl_monai-*.tar.gz")
    call([*PIP, "wheel", sdist, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path], tmp_path)
    (again,) = tmp_path.glob("medfl_monai-*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        contents = {name: first.read(name) for name in first.namelist()}
        assert contents == {name: second.read(name) for name in second.namelist()}
    places = {"medfl": "medfl", "plugins": ".", "data_prep": "medfl_datasets", "bundles": "medfl/bundles"}
    for top, place in places.items():
        listed = subprocess.run(["git", "ls-files", top], cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [Path(name) for name in listed.stdout.splitlines() if not (ROOT / name).is_symlink()]
        assert paths
        assert [path for path in paths if (Path(place) / path.relative_to(top)).as_posix() not in contents] == []


@pytest.mark.slow
def test_medfl_comes_from_the_wheel_and_lists_what_it_brings(environment, tmp_path):
    where = call([environment / "bin" / "python", "-c", "import medfl; print(medfl.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
    medfl = environment / "bin" / "medfl"
    assert all(name in call([medfl, "list", "methods"], tmp_path) for name in ("centralized", "fedavg", "fedbn"))
    output = "".join(line.strip() for line in call([medfl, "list", "bundles"], tmp_path).splitlines())
    assert "medmnist_classification" in output
    assert str(environment) in output
    assert "wrote my_prox.py" in call([medfl, "new-method", "my_prox"], tmp_path)


def test_an_editable_install_is_imported_from_the_folder_above_the_clone_called_medfl(wheel, tmp_path):
    clone = wheel.parents[1]
    assert clone.name == "medfl"
    install_into(tmp_path / "venv", "-e", clone)  # the command of the Makefile, without options for the build
    code = """
import importlib.metadata, json
from medfl.plugins import Registry, load_plugins
import medfl, medfl_datasets.medmnist, medfl_methods
names = {point.name: point.dist.name for point in importlib.metadata.entry_points(group="medfl")}
found = load_plugins()
files = [medfl.__file__, medfl_datasets.__file__, medfl_methods.__file__]
print(json.dumps([names, found.problems, sorted(found.plugins), type(found).__name__, files]))
"""
    python = tmp_path / "venv" / "bin" / "python"
    names, problems, plugins, kind, files = json.loads(call([python, "-c", code], clone.parent))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert names == dict.fromkeys(project["entry-points"]["medfl"], project["name"])
    assert (problems, plugins, kind) == ([], sorted(names), "Registry")
    assert all(Path(file).is_relative_to(clone) for file in files)
    assert "medmnist_classification" in call([tmp_path / "venv" / "bin" / "medfl", "list", "bundles"], clone.parent)


@pytest.mark.slow
def test_make_demo_runs_from_the_wheel_in_its_smallest_size(environment, tmp_path):
    pytest.importorskip("medfl_studies")
    options = [f"VENV={environment}", "DEMO=demo", "DEMO_OPTIONS=--rounds 1 --images 24"]
    words = ["make", "-f", ROOT / "Makefile", "demo", "-o", environment / ".ready", *options]
    output = call(words, tmp_path)
    demo = tmp_path / "demo"
    page = (demo / "report.html").read_text()
    summary = json.loads((demo / "runs" / "fedavg" / "summary.json").read_text())
    assert f"{summary['scores']['global']['test']['accuracy']['mean']:.3f}" in page
    for method in ("local", "fedavg"):
        assert len(list((demo / "runs" / method / "sites").glob("*/models/model.pt"))) == 6
    assert "open demo/report.html" in output
    assert "open demo/brains/report.html" in output
    assert "Every model at every site" in (demo / "brains" / "report.html").read_text()
    models = (demo / "brains").glob("runs/fedskd/sites/*/*/model.pt")
    assert {len(torch.load(path, weights_only=True)["conv1.weight"]) for path in models} == {12, 10, 8, 6}
