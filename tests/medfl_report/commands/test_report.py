"""``medfl report`` as a user types it."""

from __future__ import annotations

import pytest
from make_runs import make_run

from medfl.cli.main import main

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def report(capsys):
    """Run the command; gives its status, and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["report", *(str(argument) for argument in arguments)])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def runs(tmp_path):
    return [make_run(tmp_path / name, name, rounds=2, images=10) for name in ("fedavg", "local")]


def test_it_writes_into_the_first_folder_and_says_so(report, runs):
    status, out, err = report(*runs)
    assert (status, err) == (0, "")
    assert out.split() == ["wrote", str(runs[0] / "report.html")]
    assert "fedavg against local" in (runs[0] / "report.html").read_text()
    assert not (runs[1] / "report.html").exists()


def test_out_names_the_file(report, runs, tmp_path):
    status, out, _ = report(runs[0], "--out", tmp_path / "page.html")
    assert status == 0
    assert (tmp_path / "page.html").is_file()
    assert not (runs[0] / "report.html").exists()


def test_a_plugin_file_brings_a_section_and_can_be_left_out(report, runs, tmp_path):
    plugin = tmp_path / "broken_section.py"
    plugin.write_text(
        "from medfl.plugins import SectionRecord, hookimpl\n"
        "@hookimpl\ndef medfl_report_sections(): return [SectionRecord('own', 'Own', 'no_such_module_at_all:Own')]\n"
    )
    out = tmp_path / "page.html"
    assert report(runs[0], "--plugin", plugin, "--out", out)[0] == 0
    assert "The section &#39;Own&#39; could not be made: PluginError" in out.read_text()
    assert report(runs[0], "--plugin", plugin, "--no-plugin", "broken_section", "--out", out)[0] == 0
    assert "Own" not in out.read_text()


def test_a_folder_without_a_run_ends_with_a_message_and_status_2(report, tmp_path):
    status, out, err = report(tmp_path)
    assert (status, out) == (2, "")
    assert f"expected a run folder at '{tmp_path}'" in err
    assert "Traceback" not in err


def test_without_a_run_the_usage_is_shown(report):
    status, _, err = report()
    assert status == 2
    assert "Missing argument 'RUN'" in err
