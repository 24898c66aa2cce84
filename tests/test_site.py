"""The documentation as a site: every page is in the navigation, and every link has a page; nothing is built here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site_hooks():
    """The module of the site's hooks, which imports nothing of mkdocs until that calls it."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def config():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation_once_and_nothing_else_is(site_hooks, config):
    pages = sorted(DOCS.rglob("*.md"))
    nav = site_hooks.pages_in_nav(site_hooks.expand_patterns(config["nav"]))
    assert sorted(nav) == sorted(site_hooks.site_path(path) for path in [*pages, *site_hooks.files_outside_docs(pages)])


def test_every_link_of_the_site_leads_to_a_file_of_the_project(site_hooks):
    pages = sorted(DOCS.rglob("*.md"))
    for page in [*pages, *(path for path in site_hooks.files_outside_docs(pages) if path.suffix == ".md")]:
        for target in site_hooks.linked_files(page):
            assert target.is_file(), f"{page.relative_to(ROOT)}: {target}"
            assert target.is_relative_to(ROOT), page


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("docs/README.md", "[a](../README.md)", "[a](project/README.md)"),
        ("docs/results/fedsdc.md", "[a](../../benchmarks/README.md#b)", "[a](../project/benchmarks/README.md#b)"),
        ("docs/README.md", "[a](../medfl/contract.py)", "[a](project/medfl/contract.py.md)"),
        ("docs/README.md", "[a](monitor.md) [b](#c) [d](https://e.f)", "[a](monitor.md) [b](#c) [d](https://e.f)"),
        ("README.md", "![a](docs/request.svg) [b](docs/methods)", "![a](../request.svg) [b](../methods/README.md)"),
        (
            "bundles/lesion_segmentation/docs/README.md",
            "[a](../../lesion_classification/docs/README.md)",
            "[a](../../lesion_classification/docs/README.md)",
        ),
        ("docs/README.md", "`[a](../README.md)`\n```\n[a](../README.md)\n```\n", None),
        ("docs/README.md", "`x\n[a](../README.md)` and a list\n\n    ```sh\n    [a](../README.md)\n    ```\n", None),
        ("docs/README.md", "a ` alone\n\n[a](../README.md) `", "a ` alone\n\n[a](project/README.md) `"),
    ],
)
def test_links_to_files_outside_docs_are_bent_and_code_stays(site_hooks, page, text, expected):
    assert site_hooks.rewrite_links(text, ROOT / page) == (expected or text)


def test_options_and_paths_in_code_stay_on_one_line_and_keep_their_text(site_hooks):
    html = '<p>a-b</p><code id="x-y">run <span class="c-d">--lr-decay</span> data/blood 3</code> e-f <code>x</code>'
    whole = site_hooks.keep_words_whole(html)
    assert whole == (
        '<p>a-b</p><code id="x-y">run <span class="c-d"><span class="whole">--lr-decay</span></span> '
        '<span class="whole">data/blood</span> 3</code> e-f <code>x</code>'
    )
    long = f"<code>{'a/' * site_hooks.MAX_UNBROKEN}</code>"
    assert site_hooks.keep_words_whole(long) == long


@pytest.mark.parametrize(
    ("text", "fetched"),
    [
        ('<a href="https://a.b">', None),
        ('<script src="https://a.b/c.js">', "https://a.b/c.js"),
        ("<link rel=stylesheet href=//a.b/c.css>", "//a.b/c.css"),
        ('<img alt="x" src="report.png">', None),
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere_is_noticed(site_hooks, text, fetched):
    loads = site_hooks.EXTERNAL_LINK.search(text)
    assert (loads and loads[1]) == fetched
