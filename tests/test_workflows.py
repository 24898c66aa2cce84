"""Workflows and forms of the repository's host: they parse, call what there is, and get torch from the CPU's index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}, "a job that needs more says so itself"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for name, job in workflow["jobs"].items():
        assert set(job) >= {"runs-on", "steps"}, name
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(workflow["jobs"]), name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), (name, step)
            assert re.search(r"@(v\d+|release/v\d+)$", step.get("uses", "x@v1")), step
            for target, options in re.findall(r"\bmake ([\w-]+)(.*)", step.get("run", "")):
                assert target in targets
                assert "download.pytorch.org/whl/cpu" in options or "macos" in job["runs-on"], step


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name != "config.yml":
        assert set(form) == {"name", "description", "labels", "body"}
        fields = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(fields) == len(set(fields)) > 0


def test_only_the_publishing_jobs_get_an_identity_and_nothing_has_a_token() -> None:
    text = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"] for path in WORKFLOWS}
    trusted = {(stem, name) for stem, jobs in text.items() for name, job in jobs.items() if "permissions" in job}
    assert trusted == {("docs", "publish"), ("release", "publish")}
    assert not [path for path in WORKFLOWS if "secrets." in path.read_text(encoding="utf-8")]


def test_the_slow_tests_have_a_real_pacs() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]["slow"]
    assert any("apt-get install" in step.get("run", "") and "orthanc-dicomweb" in step["run"] for step in job["steps"])
