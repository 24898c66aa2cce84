"""Sections that plugins bring: where they stand, what they say at the top, and what becomes of one that fails."""

from __future__ import annotations

import logging
import re
import sys
from html import unescape

import pytest
from make_runs import make_run
from read_page import Page

from medfl.hooks import SectionRecord
from medfl.plugins import load_plugins
from medfl_report.page import write_report
from medfl_report.section import Notice

pytestmark = pytest.mark.usefixtures("undrawn")

ORDER = {
    **{"glance": "At a glance", "methods": "Comparison of the methods", "gains": "Results by site"},
    **{"masks": "Segmentation", "survival": "Survival analysis", "agreement": "Agreement with reference values"},
    **{"label_aucs": "Discrimination by finding", "calibration": "Calibration"},
    **{"calibrated": "Calibrated models", "sweep": "Sensitivity to one setting"},
    **{"centres": "Discrimination by scanning centre", "classes": "Discrimination by class"},
    **{"matrix": "Cross-site evaluation", "external": "External validation", "fairness": "Discrimination by sex"},
    **{"clusters": "Clusters", "teachers": "Teachers of the student", "heads": "Assignment of heads"},
    **{"looks": "SHAP values of the teachers", "sharing": "Shared images", "privacy": "Differential privacy"},
    **{"scores": "Test performance"},
    **{"curves": "Performance by round", "forgetting": "Forgetting between rounds", "images": "Image counts by site"},
    **{"attendance": "Site participation by round", "costs": "Cost", "settings": "Settings"},
}
"""Maps each section of medfl_report and medfl_methods to its heading, in the order of the page."""

PLUGINS = ("medfl_report", "medfl_methods")

ALWAYS = ["glance", "gains", "scores", "images", "costs", "settings"]

PLUGIN = """
from markupsafe import Markup
from medfl.plugins import SectionRecord, hookimpl
from medfl_report.section import Notice, Section, TemplateSection

@hookimpl
def medfl_report_sections():
    return [SectionRecord("own", "Mine & yours", f"{__name__}:Own")]

class Own(Section):
    def render(self, data):
        return Markup("<p><b>{}</b> by {}</p>").format(data.groups[0].label, "<i>me")
"""


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", images=5, rounds=1, state=False)


@pytest.fixture(autouse=True)
def _modules_of_plugins_go():
    yield
    for name in [name for name in sys.modules if name.startswith("medfl_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def html(run, tmp_path):
    """Write the page with plugin files of these names and texts."""

    def write(**texts: str) -> str:
        files = [tmp_path / f"{name}.py" for name in texts]
        for file, text in zip(files, texts.values(), strict=True):
            file.write_text(text)
        return write_report([run], registry=load_plugins(files)).read_text()

    return write


def sections(html):
    return re.findall('<section id="([^"]*)">', html)


def notices(html):
    return re.findall('<p class="notice ([a-z]*)">(.*)</p>', html)


# ---- what comes with medfl


def test_the_sections_of_medfl_are_in_this_order():
    registry = load_plugins()
    owners = {name: registry.plugins_listing("report_section", name)[0] for name in registry.report_sections}
    own = [record for name, record in registry.report_sections.items() if owners[name] in PLUGINS]
    records = sorted(own, key=lambda record: (record.order, record.name))
    assert {record.name: record.title for record in records} == ORDER
    assert [record.name for record in records] == list(ORDER)


def test_a_section_brings_its_own_style_and_leaves_it_out_where_it_does_not_apply(html):
    styled = """
    stylesheet = None

    def style(self):
        return ".own > b { color: red; }"
"""
    page = html(mine=PLUGIN + styled)
    assert page.count(".own > b { color: red; }") == 1
    assert page.index(".own > b") < page.index("</style>") < page.index("<body>")
    hidden = html(mine=PLUGIN + styled + "    def applies(self, data):\n        return False\n")
    assert ".own" not in hidden


def test_every_class_that_only_a_method_uses_is_in_the_style_of_its_section(html):
    names = {"looks": ".looks td", "heads": ".held .names"}
    registry = load_plugins()
    styles = {name: registry.report_section(name)().style() for name in names}
    assert all(names[name] in style for name, style in styles.items())
    assert not any(rule in html() for rule in names.values())


def test_every_section_of_medfl_can_be_made():
    registry = load_plugins()
    for name in registry.report_sections:
        assert registry.report_section(name)().template.endswith(".html")


def test_without_the_plugin_of_methods_the_page_has_the_rest(run, caplog):
    page = write_report([run], registry=load_plugins(disabled=["medfl_methods"])).read_text()
    assert sections(page) == ALWAYS
    assert not caplog.records


# ---- a plugin's own


def test_a_plugin_file_shows_a_section_after_those_that_only_some_runs_have(html):
    page = html(mine=PLUGIN)
    assert sections(page) == ["glance", "gains", "own", *ALWAYS[2:]]
    assert '<li><a href="#own">Mine &amp; yours</a></li>' in page
    assert '<section id="own">\n<h2>Mine &amp; yours</h2>\n<p><b>fedavg</b> by &lt;i&gt;me</p></section>' in page
    Page(page)


def test_what_is_no_markup_is_escaped(html):
    assert "&lt;script&gt;</section>" in html(mine=PLUGIN + "        \n    render = lambda self, data: '<script>'\n")


def test_order_says_its_place_and_ids_settle_ties(html):
    first = PLUGIN.replace('Own")]', 'Own", order) for order in [-1]]')
    tied = PLUGIN.replace('"own", "Mine & yours"', '"also", "Also"')
    assert sections(html(mine=PLUGIN, tied=tied))[:4] == ["glance", "gains", "also", "own"]
    assert sections(html(mine=first))[:3] == ["glance", "own", "gains"]


def test_a_section_that_does_not_apply_is_not_asked_for_anything(html):
    page = html(mine=PLUGIN + "    applies = lambda self, data: False\n    notices = lambda self, data: 1 / 0\n")
    assert sections(page) == ALWAYS
    assert "Mine" not in page


def test_its_notices_stand_with_the_others_the_worst_first_and_its_sources_at_the_end(html):
    page = html(
        mine=PLUGIN
        + "    def notices(self, data): return [Notice('info', 'good & well'), Notice('bad', 'all is wrong')]\n"
        + "    sources = lambda self, data: ['a table of mine']\n"
    )
    levels, texts = zip(*notices(page), strict=True)
    assert list(levels) == ["bad", "info"]
    assert "all is wrong" in texts[0]
    assert texts[1] == "good &amp; well"
    assert "files of this run&#39;s folder, and from a table of mine. The page loads nothing" in page


def test_a_notice_about_the_privacy_of_a_group_says_it_instead_of_the_page(html):
    says = "    def notices(self, data): return [Notice('info', 'half of it', privacy_of=('fedavg',))]\n"
    assert notices(html(mine=PLUGIN)) == []
    assert [text for _, text in notices(html(mine=PLUGIN + says))] == ["half of it"]


def test_a_template_lies_beside_its_module_and_can_import_the_macros_of_medfl(html, tmp_path):
    (tmp_path / "own.html").write_text(
        '{% import "macros.html" as m %}\n<p>{{ label }} {{ 0.5 | score }}</p>\n{{ m.ruler(axis) }}'
    )
    page = html(
        mine=PLUGIN.split("class Own")[0]
        + "class Own(TemplateSection):\n    template = 'own.html'\n"
        + "    def content(self, data):\n"
        + "        return {'label': '<b>', 'axis': {'left': 'L', 'right': 'R'}}\n"
    )
    assert "<p>&lt;b&gt; 0.500</p>" in page
    assert 'text-anchor="end">R</text>' in page


def test_a_template_section_finds_its_content_once_for_a_page(html, tmp_path):
    (tmp_path / "own.html").write_text("{{ place }}")
    counted = "\nclass Own(TemplateSection):\n    template, calls = 'own.html', []\n"
    counted += "    def content(self, data):\n"
    counted += "        self.calls.append(data)\n        return {'place': str(data.folder)}\n"
    assert str(tmp_path / "run") in html(mine=PLUGIN.split("class Own")[0] + counted)
    assert len(sys.modules["medfl_plugin_mine"].Own.calls) == 1


# ---- one that fails

FAILURES = {
    "applies": "    def applies(self, data): raise OSError(2, 'gone', '/data/smith.dcm')\n",
    "render": "    def render(self, data): raise OSError(2, 'gone', '/data/smith.dcm')\n",
    "notices": "    def notices(self, data): raise OSError(2, 'gone', '/data/smith.dcm')\n",
    "sources": "    def sources(self, data): raise OSError(2, 'gone', '/data/smith.dcm')\n",
    "no notice": "    def notices(self, data): return ['smith.dcm']\n",
    "no level": "    def notices(self, data): return [Notice('terrible', 'smith.dcm')]\n",
    "exit": "    def render(self, data): raise SystemExit('/data/smith.dcm')\n",
    "argument": "    def __init__(self, file): pass\n",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_section_that_raises_is_named_without_its_words_and_the_rest_is_there(html, caplog, failure):
    page = html(mine=PLUGIN + FAILURES[failure])
    assert sections(page) == ALWAYS
    ((level, text), *_) = notices(page)
    assert level == "warn"
    assert re.search(r"The section 'Mine & yours' could not be made: \w+ in plugin 'mine'", unescape(text))
    assert "smith" not in page
    assert "#own" not in page
    assert "smith" not in "".join(record.getMessage() for record in caplog.records)


def test_the_traceback_of_a_section_that_raises_is_logged_for_those_who_debug(html, caplog):
    with caplog.at_level(logging.DEBUG, logger="medfl_report"):
        html(mine=PLUGIN + FAILURES["render"])
    (record,) = [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert "FileNotFoundError" in str(record.exc_info)


def test_a_target_that_is_not_there_is_named(html):
    page = html(mine=PLUGIN.replace('{__name__}:Own"', '{__name__}:Onw"'))
    assert "PluginError in plugin" in page
    assert sections(page) == ALWAYS


def test_an_id_that_two_plugins_claim_is_left_out_and_a_problem(run, tmp_path):
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text(PLUGIN)
    registry = load_plugins(files)
    assert registry.problems == [
        "Report section 'own' is listed by several plugins: 'one', 'two'. Disable all but one, for example with "
        "--no-plugin two or MEDFL_DISABLE=two."
    ]
    assert sections(write_report([run], registry=registry).read_text()) == ALWAYS
    assert "own" in sections(write_report([run], registry=load_plugins(files, disabled=["two"])).read_text())


# ---- records and notices


@pytest.mark.parametrize(("name", "order"), [("two words", 1), ('a"b', 1), ("", 1), ("own", "1"), ("own", None)])
def test_a_record_that_can_stand_nowhere_is_refused(name, order):
    with pytest.raises(ValueError, match="a name without spaces and a whole number as order"):
        SectionRecord(name, "Own", "a:B", order)


def test_a_notice_has_a_level():
    with pytest.raises(ValueError, match="expected a level of bad, warn, info, got 'worse'"):
        Notice("worse", "text")
