"""``medfl new-method``: the written file or package works without changes."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from medfl.cli.main import main
from medfl.plugins import MethodRecord, load_plugins
from medfl.testing.method_index import check_index
from medfl.version import DISTRIBUTION


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv("MEDFL_DISABLE", raising=False)


@pytest.fixture
def new_method(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["new-method", *map(str, arguments)])
        return ended.value.code, *capsys.readouterr()

    return run


def pytest_passes(test: Path, **environment: str) -> None:
    # From the test's own folder, so that it is found as its author would find it.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, cwd=test.parent, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def written_tests(path: Path) -> list[Callable[[], None]]:
    """Return the written tests, to run them without a new process that imports torch."""
    return [test for name, test in runpy.run_path(str(path)).items() if name.startswith("test_")]


def test_a_plugin_file_and_its_test_are_written(new_method, tmp_path):
    folder = tmp_path / "not" / "there"
    code, out, err = new_method("my_prox2", "--out", folder)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == ["my_prox2.py", "test_my_prox2.py"]
    for path in folder.iterdir():
        assert f"wrote {path}" in out
    assert f"medfl list methods --plugin {folder / 'my_prox2.py'}" in out
    registry = load_plugins([folder / "my_prox2.py"])
    assert registry.problems == []
    method = registry.make_method("my_prox2", {"mu": 0.5})
    assert type(method).__name__ == "MyProx2"
    assert registry.methods["my_prox2"] == MethodRecord.of(type(method))


@pytest.mark.slow  # README's commands do the same
def test_the_written_method_keeps_the_contract(new_method, tmp_path):
    assert new_method("my_prox", "--out", tmp_path)[0] == 0
    (test,) = written_tests(tmp_path / "test_my_prox.py")
    test()


@pytest.mark.slow
def test_a_written_package_installs_and_keeps_the_contract(new_method, tmp_path):
    code, out, _ = new_method("my_prox", "--package", "--out", tmp_path)
    assert code == 0
    assert f"pip install -e {tmp_path / 'my_prox'}" in out
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--quiet"]
    subprocess.run(
        [*install, "--disable-pip-version-check", "--target", str(target), str(tmp_path / "my_prox")],
        check=True,
        capture_output=True,
    )
    assert (target / "medfl_my_prox-0.1.0.dist-info").is_dir()
    tests = tmp_path / "elsewhere"  # away from the sources, so that only what was installed can be found
    shutil.copytree(tmp_path / "my_prox" / "tests", tests)
    pytest_passes(tests / "test_my_prox.py", PYTHONPATH=str(target))


def test_a_written_package_requires_medfl_by_the_name_of_its_distribution(new_method, tmp_path):
    assert new_method("my_prox", "--package", "--out", tmp_path)[0] == 0
    project = tomllib.loads((tmp_path / "my_prox" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [DISTRIBUTION]


def test_a_written_package_is_listed_without_importing_torch(new_method, tmp_path):
    assert new_method("my_prox", "--package", "--out", tmp_path)[0] == 0
    code = "import sys, medfl_my_prox as p; print(p.medfl_methods()[0].target, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "my_prox", capture_output=True, text=True)
    assert done.stdout.strip() == "medfl_my_prox.method:MyProx False", done.stderr


def test_the_index_of_a_written_package_is_up_to_date(new_method, tmp_path, monkeypatch):
    assert new_method("my_prox", "--package", "--out", tmp_path)[0] == 0
    monkeypatch.syspath_prepend(tmp_path / "my_prox")
    try:
        check_index("medfl_my_prox")
    finally:
        for name in ("medfl_my_prox", "medfl_my_prox.method"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("options", [[], ["--package"]])
def test_what_is_written_satisfies_the_linter(new_method, tmp_path, options):
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed beside this Python")
    new_method("a_method_with_a_rather_long_name", "--out", tmp_path, *options)
    common = ["--isolated", "--no-cache", "--line-length", "120", str(tmp_path)]
    for command in (["check", "--select", "E,F,W,I,UP,B,D1", "--ignore", "D103"], ["format", "--check"]):
        done = subprocess.run([str(ruff), *command, *common], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["--package"]])
def test_nothing_is_overwritten_and_nothing_else_is_written_then(new_method, tmp_path, options):
    last = "my_prox/tests/test_my_prox.py" if options else "test_my_prox.py"
    (tmp_path / last).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / last).write_text("mine")
    code, _, err = new_method("my_prox", "--out", tmp_path, *options)
    assert code == 2
    assert str(tmp_path / last) in err
    assert "exists already" in err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / last]
    assert (tmp_path / last).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MyProx", "lower-case letters.*got 'MyProx'"),
        ("my-prox", "got 'my-prox'"),
        ("2prox", "got '2prox'"),
        ("my__prox", "single underscores"),
        ("../prox", "got '../prox'"),
        ("lambda", "got 'lambda'"),
        ("fedavg", "plugin 'medfl_methods' already has a method"),
        ("medfl_builtin", "plugin 'medfl_builtin' is already installed"),
        ("random", "installed Python module"),
        ("torch", "installed Python module"),
    ],
)
def test_a_name_that_can_not_be_is_refused(new_method, tmp_path, name, message):
    code, _, err = new_method(name, "--out", tmp_path)
    assert code == 2
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []
