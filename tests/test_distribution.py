"""The distribution's name: `medfl` on the package index is another project, so no text may say to install that."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import medfl
from medfl.errors import pip_install
from medfl.version import DISTRIBUTION

ROOT = Path(__file__).parents[1]

TAKEN = r"(?<![\w./-])medfl(?![\w./-])"
"""The taken name as a word of its own: no part of another name, of a path or of a module."""

WRONG = re.compile(
    r"\b(?:pip3?|pipx|uv|poetry|conda)\s+(?:install|download|add)\b"  # pip install -U "medfl"
    rf"(?:[^\n`;&|\"']|[\"'](?=medfl))*?{TAKEN}"
    r"|(?<![\w./-])medfl\\*\[\\*[a-z]"  # medfl[extra], also in a regular expression
    rf"|{TAKEN}\s*(?:[=~!<>]=|[<>])\s*\d"  # medfl>=1
    r"|\b(?:version|distribution|requires)\(['\"]medfl['\"]"  # importlib.metadata.version('medfl')
    r"|dependencies\s*=\s*\[[^\]]*['\"]medfl['\"]"
)
EXEMPT = {"tests/test_distribution.py", "CHANGELOG.md"}


@pytest.mark.parametrize(
    "text",
    [
        "pip install medfl",
        "`pip install medfl`",
        'pip install "medfl[flare]"',
        "pip3 install -U 'medfl'",
        "python -m pip install --upgrade medfl==0.1.0",
        "pip download --no-deps medfl",
        "uv add medfl",
        "needs `medfl[test]`",
        r"pip install 'medfl\[dicom\]'",
        '"medfl>=0.1"',
        'dependencies = ["torch", "medfl"]',
        "importlib.metadata.version('medfl')",
    ],
)
def test_the_search_finds_every_way_to_require_the_taken_name(text):
    assert WRONG.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install medfl-monai",
        "pip install 'medfl-monai[flare]'",
        "`pip install .` and `medfl demo`",
        "pip install -e . && medfl demo",
        "pip uninstall medfl",
        "/opt/medfl/bin/python -m pip install .",
        "pip install -e path/medfl_my_prox",
    ],
)
def test_the_search_lets_other_texts_pass(text):
    assert not WRONG.search(text)


def test_no_text_of_the_project_requires_the_taken_name():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wrong, read = [], 0
    for name in listed.split("\0"):
        path = ROOT / name
        if not name or name in EXEMPT or path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        read += 1
        wrong += [f"{name}:{text[: match.start()].count(chr(10)) + 1}: {match[0]}" for match in WRONG.finditer(text)]
    assert read > 1000
    assert "\n".join(wrong) == ""


def test_the_name_is_the_same_in_metadata_messages_and_citation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"medfl": "medfl.cli.main:main"}
    extras = project["optional-dependencies"]
    required = [re.match(r"medfl[\w-]*\[(.+)\]$", need) for needs in extras.values() for need in needs]
    own = [match for match in required if match]
    assert {match.string.partition("[")[0] for match in own} == {DISTRIBUTION}
    assert {extra for match in own for extra in match[1].split(",")} <= set(extras)
    assert pip_install("privacy") == f"pip install '{DISTRIBUTION}[privacy]'"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    bibtex = dict(re.findall(r"(\w+) += \{([^{}]+)\}", readme))
    assert bibtex["title"] == citation["title"]
    assert bibtex["version"] == citation["version"] == medfl.__version__ == project["version"]
    assert bibtex["note"].endswith(DISTRIBUTION)


def test_every_extra_that_code_names_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folders = (ROOT / "medfl", ROOT / "plugins", ROOT / "data_prep")
    code = "".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))
    named = set(re.findall(r"pip_install\(['\"](\w+)['\"]\)", code))
    assert len(named) > 5
    assert named <= set(project["optional-dependencies"])
