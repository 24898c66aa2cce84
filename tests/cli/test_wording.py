"""Wording of the most important messages, compared with one file.

Other tests compare the codes and fields of errors. ``WRITE_WORDING=1 pytest tests/cli/test_wording.py`` writes the file
again; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from feature_commands import PACKAGES

from medfl.cli.main import all_commands
from medfl.testing.synthetic import make_cohort

WORDING = Path(__file__).with_name("wording.txt")

RUN = "run medmnist_classification --dataset-dir cohort"

PREP = "prep folder images --image-column image --size 64 --out x"

COMMANDS = (
    "lst",
    "run",
    "run --dataset-dir cohort --method fedavg",
    "run nobundle --dataset-dir cohort",
    "run medmnist_clasification --dataset-dir cohort",
    "run medmnist_classification",
    "run medmnist_classification --dataset-dir empty",
    "run medmnist_classification --dataset-dir nowhere",
    "run medmnist_classification --dataset-dir images",
    "run medmnist_classification --dataset-dir cohort/site-01",
    "run tabular --dataset-dir cohort",
    "run lesion_segmentation --dataset-dir cohort",
    f"{RUN} --method fedprx",
    f"{RUN} --rounds 0",
    f"{RUN} --rounds three",
    f"{RUN} --rounds",
    f"{RUN} fedprox",
    f"{RUN} --epochz 3",
    f"{RUN} --lr 0.1",
    f"{RUN} --optimizer.lrr 0.1",
    f"{RUN} --optimizer.lr -0.1",
    f"{RUN} --method fedprox --method-args.mu -1",
    f"{RUN} --method fedprox --method-args.mu big",
    f"{RUN} --method fedprox --method-args.nu 1",
    f"{RUN} --method fedprox --method-args mu=1",
    f"{RUN} --network-name resnet99",
    f"{RUN} --network-name cnn44",
    f"{RUN} --metrics acc",
    f"{RUN} --precision fp16",
    f"{RUN} --device gpu",
    f"{RUN} --privacy 5",
    f"{RUN} --privacy \"{{'epsilon': 5}}\"",
    f"{RUN} --privacy \"{{'epsilon': -5, 'clip': 1}}\"",
    f"{RUN} --compression 8",
    f"{RUN} --sites site-01",
    f"{RUN} --seed 1 --method fedavg --seed=2",
    f"{RUN} --dataset-dir images",
    f"{RUN} --output_dir x",
    f"{RUN} --optimizer#lr 1",
    f"{RUN} --optimizer::weight_decay 1",
    f"{RUN} --settings#lr_decay 1",
    f"{RUN} --networks_by_site#site-01 1",
    "partition empty --scheme iid --sites 3 --out parts",
    "partition nowhere --out parts",
    "partition cohort --out parts --shceme iid",
    "partition cohort/site-01 --scheme idd --sites 3 --out parts",
    "partition cohort/site-01 --scheme iid --sites 0 --out parts",
    "partition cohort/site-01 --sites 50 --out parts",
    "prep folder nowhere --table table.csv --image-column image --target class:diagnosis --size 64 --out x",
    f"{PREP} --table table.csv --target class:diagnoses",
    f"{PREP} --table nowhere.csv --target diagnosis",
    f"{PREP} --table table.csv --target diagnosis --target kind",
    f"{PREP} --table table.csv --target diagnosis --keep-column age --keep-column sex",
    f"{PREP} --table gaps.csv --target diagnosis",
    "prep medmnist --flag bloodmnst --source empty --out x",
    "report empty",
    "report nowhere",
    "report out --out a.html --out b.html",
    "verify empty",
    "study missing.yaml --source empty",
    "study list.yaml --source empty",
    "study empty.yaml --source empty",
    "study broken.yaml --source empty",
    "study row.yaml --source empty",
    "federate start kit --patience 1 --patience 2",
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
    files = {
        "table.csv": "image,diagnosis\na.png,benign\n",
        "gaps.csv": "image,diagnosis\na.png,benign\nb.png,\n",
        "list.yaml": "- a\n- b\n",
        "empty.yaml": "",
        "broken.yaml": "name: [x",
        "row.yaml": "name: x\nrow: {}\n",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    make_cohort(Path("cohort"), images_per_site=12, size=8)
    return tmp_path


def shortened(text: str) -> str:
    """Return the text without long lists of known names, which often change."""
    return re.sub(r"(Known|these): (?:[\w-]+, ){4}[\w, -]+", r"\1: ...", text)


def test_messages_are_worded_as_in_the_file(folder, medfl):
    parts = []
    absent = PACKAGES.keys() - all_commands().keys()
    commands = [command for command in COMMANDS if command.split()[0] not in absent]
    for command in commands:
        status, _, error = medfl(*shlex.split(command))
        assert status == 2, f"{command}: {error}"
        assert str(folder) not in error, command
        assert "Traceback" not in error, command
        parts.append(f"$ medfl {command}\n{shortened(error).strip()}\n")
    if os.environ.get("WRITE_WORDING"):
        WORDING.write_text("\n".join(parts), encoding="utf-8")
    expected = re.split(r"\n(?=\$ medfl )", WORDING.read_text(encoding="utf-8"))
    assert parts == [part for part in expected if part.splitlines()[0].removeprefix("$ medfl ") in commands]
