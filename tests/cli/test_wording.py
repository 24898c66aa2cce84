"""Wording of the most important messages, compared with one file.

Other tests compare the codes and fields of errors. ``WRITE_WORDING=1 pytest tests/cli/test_wording.py`` writes the file
again; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from feature_commands import PACKAGES

from medfl.cli.main import all_commands
from medfl.testing.synthetic import make_cohort

WORDING = Path(__file__).with_name("wording.txt")

RUN = "run medmnist_classification --dataset-dir cohort"

COMMANDS = (
    "lst",
    "run nobundle --dataset-dir cohort",
    "run medmnist_classification",
    "run medmnist_classification --dataset-dir empty",
    f"{RUN} --method fedprx",
    f"{RUN} --rounds 0",
    f"{RUN} --epochz 3",
    f"{RUN} --lr 0.1",
    f"{RUN} --optimizer.lrr 0.1",
    f"{RUN} --method fedprox --method-args.mu -1",
    f"{RUN} --method fedprox --method-args.nu 1",
    f"{RUN} --network-name resnet99",
    f"{RUN} --metrics acc",
    "partition empty --scheme iid --sites 3 --out parts",
    "partition cohort/site-01 --scheme idd --sites 3 --out parts",
    "partition cohort/site-01 --scheme iid --sites 0 --out parts",
    "prep folder nowhere --table table.csv --image-column image --target class:diagnosis --size 64 --out x",
    "prep folder images --table table.csv --image-column image --target class:diagnoses --size 64 --out x",
    "prep medmnist --flag bloodmnst --source empty --out x",
    "report empty",
    "verify empty",
    "study missing.yaml --source empty",
    "study list.yaml --source empty",
    "adopt empty --out y",
    "check-bundle empty",
    "new-method fedavg",
)
"""Mistakes of users, as they type them in the working directory of the tests."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a working directory with data and wrong files, and return it."""
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "images"):
        Path(name).mkdir()
    Path("images/a.png").touch()
    Path("table.csv").write_text("image,diagnosis\na.png,benign\n")
    Path("list.yaml").write_text("- a\n- b\n")
    make_cohort(Path("cohort"), images_per_site=12, size=8)
    return tmp_path


def shortened(text: str) -> str:
    """Return the text without long lists of known names, which often change."""
    return re.sub(r"Known: (?:[\w-]+, ){4}[\w, -]+", "Known: ...", text)


def test_messages_are_worded_as_in_the_file(folder, medfl):
    parts = []
    absent = PACKAGES.keys() - all_commands().keys()
    commands = [command for command in COMMANDS if command.split()[0] not in absent]
    for command in commands:
        status, _, error = medfl(*command.split())
        assert status == 2, f"{command}: {error}"
        assert str(folder) not in error, command
        parts.append(f"$ medfl {command}\n{shortened(error).strip()}\n")
    if os.environ.get("WRITE_WORDING"):
        WORDING.write_text("\n".join(parts), encoding="utf-8")
    expected = re.split(r"\n(?=\$ medfl )", WORDING.read_text(encoding="utf-8"))
    assert parts == [part for part in expected if part.splitlines()[0].removeprefix("$ medfl ") in commands]
