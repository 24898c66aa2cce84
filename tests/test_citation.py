"""CITATION.cff names the paper of every method, with the authors that the method's own page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from medfl.cli.docs import read_docstring
from medfl.plugins import load_plugins

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def methods():
    """Name to what is cited, of the methods that come with medfl and have a paper."""
    registry = load_plugins()
    own = [name for name in sorted(registry.methods) if registry.plugins_listing("method", name) == ["medfl_methods"]]
    papers = {name: registry.methods[name].paper for name in own}
    return {name: read_docstring(registry.method_class(name)).source for name in own if papers[name]}


def test_every_method_with_a_paper_is_cited_once(citation, methods):
    cited = [name for reference in citation["references"] for name in reference["keywords"]]
    assert sorted(cited) == sorted(methods)


def test_authors_and_years_are_those_of_the_methods_pages(citation, methods):
    sources = {name: source.replace(" and ", ", ") for name, source in methods.items()}
    for reference in citation["references"]:
        families = [author["family-names"] for author in reference["authors"] if "family-names" in author]
        assert families or reference["keywords"] == ["fedtpf"], reference["title"]
        assert any(sources[name].startswith(", ".join(families)) for name in reference["keywords"]), reference["title"]
        for name in reference["keywords"]:
            years = re.findall(r"\b20\d\d\b(?!\.\d)", sources[name])  # no number of arXiv
            assert not years or "year" not in reference or str(reference["year"]) in years, name


def test_a_reference_has_what_the_format_wants(citation):
    assert citation["cff-version"] == "1.2.0"
    for reference in citation["references"]:
        assert {"type", "title", "authors", "keywords"} <= set(reference)
        assert reference["type"] in ("article", "conference-paper")


def test_its_version_is_that_of_the_package(citation):
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version
    assert citation["version"] == version[1]
