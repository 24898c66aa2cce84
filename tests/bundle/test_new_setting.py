"""A new setting needs one edit only: a field with its docstring in medfl/settings.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from medfl.testing.synthetic import make_cohort

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

FIELDS = {
    "Settings": '    patter: Annotated[int, Remote] = Field(3, ge=1)\n    """How often the rain falls."""\n\n',
    "Execution": '    puddles: int = Field(0, ge=0)\n    """What the rain leaves at a machine."""\n\n',
}
"""Maps each class to a field to insert after the class docstring."""

SCRIPT = """
import sys
from medfl.bundle.bundle_folders import shipped_bundles
from medfl.cli.main import main
from medfl_flare.overrides import check_overrides
from medfl.errors import RefusedError
from medfl.engine.runs.provenance import bundle_values

def medfl(*words):
    try:
        main(list(words))
    except SystemExit as ended:
        print("exit", ended.code)

cohort, out = sys.argv[1:]
run = ("run", "medmnist_classification", "--dataset-dir", cohort, "--rounds", "1", "--steps", "1", "--output-dir")
medfl("run", "--help-settings")
for name in ("patter", "puddles"):
    try:
        check_overrides({name: 3}, bundle_values(shipped_bundles()["medmnist_classification"]))
        print("a server may set", name)
    except RefusedError as error:
        print(error)
medfl(*run, out, "--pater", "5")
medfl(*run, out, "--patter", "0")
medfl(*run, out, "--patter", "5", "--settings.puddles", "2")
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Run commands in a copy of medfl with two more settings. Return their output and the run folder."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "medfl", folder / "medfl", ignore=shutil.ignore_patterns("models", "eval"))
    path = folder / "medfl" / "settings.py"
    text = path.read_text()
    for kind, field in FIELDS.items():
        head, line, rest = text.partition(f"class {kind}(StrictModel):\n")
        docstring, end, rest = rest.partition('"""\n\n')
        text = head + line + docstring + end + field + rest
    path.write_text(text)
    make_cohort(folder / "cohort", sites=2, images_per_site=20, classes=4, size=8, seed=1)
    paths = [str(folder), str(ROOT / "plugins")]
    command = [sys.executable, "-c", SCRIPT, str(folder / "cohort"), str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr, folder / "run"


def test_it_is_in_the_help(done: tuple[str, Path]) -> None:
    assert "- `--patter`: How often the rain falls. (whole number, >= 1; default `3`; *remote*)\n" in done[0]
    assert "- `--puddles`: What the rain leaves at a machine. (whole number, >= 0; default `0`)\n" in done[0]


def test_a_server_may_set_it_only_where_it_is_marked(done: tuple[str, Path]) -> None:
    assert "a server may set patter\n" in done[0]
    assert "a server may set puddles" not in done[0]
    assert "each participant decides 'puddles' itself" in done[0]


def test_it_is_an_option_that_is_checked(done: tuple[str, Path]) -> None:
    assert "Unknown option '--pater'. Did you mean '--patter'?" in done[0]
    assert "'patter': expected a whole number, >= 1; got 0" in done[0]


def test_the_run_has_it(done: tuple[str, Path]) -> None:
    record = json.loads((done[1] / "run.json").read_text())
    assert record["provenance"]["settings"]["patter"] == {"value": 5, "origin": "command line"}
    assert record["provenance"]["settings"]["puddles"] == {"value": 2, "origin": "command line"}
    assert record["provenance"]["settings"]["fraction"] == {"value": 1.0, "origin": "default of medfl"}
    assert record["identity"]["settings"]["patter"] == 5
    assert record["execution"]["puddles"] == 2
