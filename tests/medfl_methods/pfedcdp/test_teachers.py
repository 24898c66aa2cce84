"""Report section on teachers: Shapley values and weights of the teachers, and the student's scores."""

from __future__ import annotations

import re

import pytest
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import section, words

from medfl.contract import Findings
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import read_run
from medfl_methods.pfedcdp.teachers_report import teachers_section
from medfl_report.groups import group_runs

WORTH = {"": 0.5, "a": 0.9, "b": 0.7, "a+b": 0.8}
VALUES = {"a": 0.25, "b": 0.05}
"""Shapley values of that worth: a adds 0.4 first and 0.1 after b, b adds 0.2 first and -0.1 after a."""


def findings(values=None, how="shapley"):
    values = values or VALUES
    total = sum(max(value, 0) for value in values.values())
    teachers = {name: {"value": value, "weight": max(value, 0) / total} for name, value in values.items()}
    return Findings({"teachers": teachers, "groups": WORTH, "weighed_on": 18, "how": how, "losses": {}})


@pytest.fixture
def page(tmp_path):
    def write(*runs):
        folders = [make_run(tmp_path / name, re.split("[-/]", name)[0], **options) for name, options in runs]
        findings = {str(folder): read_findings(folder).meta for folder in folders}
        return section("teachers", teachers_section(group_runs([read_run(folder) for folder in folders]), findings))

    return write


def test_values_weights_and_groups_are_shown(page):
    document = page(("pfedcdp", {"findings": findings()}))
    head, group, *rows = document.tables["Values and weights of the teachers"]
    assert words(group[0]) == "pfedcdp 18 images; weights proportional to the Shapley values, 0 for negative values"
    assert rows == [["a", "0.900", "+0.250", "0.833"], ["b", "0.700", "+0.050", "0.167"]]
    worth = dict(document.tables["Groups of teachers of pfedcdp"][1:])
    assert worth == {"no teacher (guessing)": "0.500", "a": "0.900", "b": "0.700", "a and b": "0.800"}
    shown = sum(float(row[2]) for row in rows)
    assert shown == pytest.approx(float(worth["a and b"]) - float(worth["no teacher (guessing)"]))


def test_the_picture_is_described_in_words(page):
    document = page(("pfedcdp", {"findings": findings({"a": 0.25, "b": -0.05})}))
    labels = [
        attributes["aria-label"]
        for tag, attributes in document.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]
    assert "Shapley values of the teachers. pfedcdp: a +0.250 and b −0.050." in labels


def test_seeds_are_averaged_with_their_spread(page):
    runs = [
        (f"pfedcdp-{seed}", {"seed": seed, "findings": findings({"a": value, "b": 0.1})})
        for seed, value in enumerate((0.1, 0.3))
    ]
    document = page(*runs)
    rows = document.tables["Values and weights of the teachers"]
    assert rows[2] == ["a", "0.900 ± 0.000", "+0.200 ± 0.141", "0.625 ± 0.177"]
    assert "± is the standard deviation over the seeds" in document.sections["teachers"]


def test_the_student_is_the_global_model(page):
    options = {"findings": findings(), "server_test": {"accuracy": 0.61}, "metrics": ("accuracy",)}
    scores = {"accuracy": {"site-1": 0.5, "site-2": 0.75, "site-3": 0.25}}
    document = page(("pfedcdp", options | {"scores": scores, "bundles": False}))
    assert document.tables["Scores of the student"] == [
        ["metric", "run", "mean of sites", "server test"],
        ["accuracy", "pfedcdp", "0.500", "0.610"],
    ]


def test_personal_models_are_no_student(page):
    document = page(("pfedcdp", {"findings": findings(), "model": "personal"}))
    assert "The student has no scores yet." in document.sections["teachers"]


def test_a_run_without_a_student_has_no_section(page):
    assert not page(("fedavg", {})).sections["teachers"]


def test_how_teachers_are_weighed_is_named(page):
    document = page(("pfedcdp", {"findings": findings(how="equal")}))
    assert "18 images; equal weights" in words(document.sections["teachers"])
