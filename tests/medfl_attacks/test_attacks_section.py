"""Attacks in reports and model cards: measures, means over seeds, links, and unreadable files."""

from __future__ import annotations

import re

import pytest
from make_runs import make_run
from read_page import Page, section, words
from synthetic_results import INVERSION, MEMBERSHIP, POISON, write

from medfl.engine.runs.records import read_run
from medfl.plugins import load_plugins
from medfl_attacks.attacks_section import attacks_section
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards
from medfl_report.groups import group_runs
from medfl_report.page import write_report


def like(result, **changes):
    return result.model_copy(update=changes)


QUICK = {"bundles": False, "state": False, "metrics": ("accuracy",), "images": 5}


@pytest.fixture
def run(tmp_path):
    """Return a function that makes a run with attack results."""

    def make(name, results=(), kind="membership", method="fedavg", **options):
        folder = make_run(tmp_path / name, method, **QUICK | options)
        if results:
            write(folder, kind, {"seed": 0}, results)
        return folder

    return make


def page(*folders, where=None):
    return section("attacks", attacks_section(group_runs([read_run(folder) for folder in folders]), where))


def test_membership_is_shown_with_its_interval(run):
    document = page(run("a", [MEMBERSHIP]))
    head, row = document.tables["Membership attacks"]
    assert [words(cell) for cell in head] == [
        "run",
        "target",
        "attack",
        "members and non-members",
        "AUC guessing: 0.5",
        "TPR at 1 % FPR guessing: 0.01",
        "balanced recall guessing: 0.5",
        "recall attack's threshold",
        "false positive rate attack's threshold",
    ]
    assert row == [
        *("fedavg", "global model", "shadow model", "1\u202f200 and 300"),
        *("0.6100.580 to 0.640", "0.025", "0.570", "0.654", "0.440"),
    ]
    assert "An AUC of 0.5 is guessing" in words(document.sections["attacks"])
    assert "Inversion attacks" not in document.tables


def test_models_of_earlier_rounds_stand_apart_and_make_a_curve(run):
    """Figure 8 of FedTPF: recall over the rounds of one run."""
    rows = [like(MEMBERSHIP, round=number, recall=0.5 + number / 100, auc=0.5) for number in (10, 20)]
    document = page(run("a", rows), run("b", [MEMBERSHIP], method="fedprox"))
    assert [row[:2] for row in document.tables["Membership attacks"][1:]] == [
        ["fedavg", "global model, round 10"],
        ["fedavg", "global model, round 20"],
        ["fedprox", "global model"],
    ]
    drawn = [attributes["aria-label"] for tag, attributes in document.tags if tag == "svg"]
    assert drawn[0] == "recall of the membership attack by round. fedavg: 0.700 after round 20."
    assert len(drawn) == 2


def test_inversion_names_what_the_image_came_back_from(run):
    document = page(run("a", [INVERSION, like(INVERSION, item="raw", mse=0.00042)], "inversion"))
    head, part, raw = document.tables["Inversion attacks"]
    assert [words(cell) for cell in head[3:6]] == ["from", "images", "MSE 0: identical image"]
    assert part == [
        "fedavg",
        "shared images",
        "fixed point",
        "shared part as sent (x_p)",
        "16",
        "0.0314",
        "15.0",
        "0.250",
    ]
    assert raw[3:6] == ["original image", "16", "0.0004"]
    assert "Membership attacks" not in document.tables


def test_attackers_stand_with_what_they_reached(run):
    row = like(POISON, worst_site="b", worst_accuracy=0.7, success=0.25, success_interval=(0.2, 0.3))
    turned = like(row, attack="sign_flip", success=None, success_interval=None)
    (head, flipped, turned) = page(run("a", [row, turned], "poisoning")).tables["Poisoning attacks"]
    assert [words(cell) for cell in head[3:]] == [
        *("images", "accuracy honest sites and server", "worst honest site accuracy"),
        "attack success rate wanted class predicted",
    ]
    assert flipped == [
        *("fedavg", "global model", "backdoor", "400", "0.8000.750 to 0.840", "0.700", "0.2500.200 to 0.300")
    ]
    assert turned[-1] == "–"


def test_a_number_that_is_not_finite_is_no_crash(run):
    odd = like(MEMBERSHIP, auc=float("nan"), auc_interval=(0.1, float("inf")), recall=float("-inf"))
    (_, row) = page(run("a", [odd])).tables["Membership attacks"]
    assert row[4:] == ["–", "0.025", "0.570", "–", "0.440"]


def test_seeds_are_averaged_without_an_interval(run):
    runs = [run(f"{seed}", [like(MEMBERSHIP, auc=auc)], seed=seed) for seed, auc in enumerate((0.5, 0.7))]
    document = page(*runs)
    (_, row) = document.tables["Membership attacks"]
    assert row[4] == "0.600 ± 0.141"
    assert "± is the standard deviation over the runs" in document.sections["attacks"]


def test_the_sites_of_a_run_count_as_one_result(run):
    sites = [like(MEMBERSHIP, target="sites", site=site, auc=auc) for site, auc in (("a", 0.5), ("b", 0.8))]
    document = page(run("a", sites))
    (_, row) = document.tables["Membership attacks"]
    assert row[4] == "0.650"
    assert "standard deviation" not in document.sections["attacks"]


def test_runs_of_other_settings_have_rows_of_their_own(run):
    runs = [run(name, [MEMBERSHIP], method=name) for name in ("fedavg", "fedprox")]
    assert [row[0] for row in page(*runs).tables["Membership attacks"][1:]] == ["fedavg", "fedprox"]


# ---- files that can't be used


@pytest.mark.parametrize(
    "content",
    [
        "{nope",
        "\udcff",
        "[]",
        "7",
        '{"attack": "inversion", "version": 1, "results": []}',
        '{"attack": "membership", "version": 99, "results": []}',
        '{"attack": "membership", "version": 1}',
        '{"attack": "membership", "version": 1, "results": {"auc": 1}}',
        '{"attack": "membership", "version": 1, "results": [0.7]}',
    ],
)
def test_a_damaged_or_foreign_file_is_named_and_left_out(run, content, tmp_path):
    bad, good = run("a", [MEMBERSHIP]), run("b", [MEMBERSHIP], method="fedprox")
    (bad / "attacks" / "membership.json").write_text(content, errors="surrogateescape")
    document = page(bad, good)
    assert [row[0] for row in document.tables["Membership attacks"][1:]] == ["fedprox"]
    text = words(document.sections["attacks"])
    assert "membership attack on fedavg are left out: attacks/membership.json in its run folder" in text
    assert str(tmp_path) not in text


def test_an_attack_without_results_says_so(run):
    folder = run("a")
    write(folder, "membership", {}, [])
    assert "The attacks on these runs produced no results." in page(folder).sections["attacks"]


def test_a_run_that_no_one_attacked_has_no_section(run):
    assert not page(run("a")).sections["attacks"]


def test_what_a_file_says_is_escaped(run):
    document = page(run("a", [like(INVERSION, item='<i>"&')], "inversion"))
    assert document.tables["Inversion attacks"][1][3] == '<i>"&'
    assert "i" not in {tag for tag, _ in document.tags}


# ---- links


def links(document):
    return [
        attributes["href"] for tag, attributes in document.tags if tag == "a" and not attributes["href"].startswith("#")
    ]


def test_links_lead_from_the_page_to_the_pages_of_attacks(run, tmp_path):
    fedavg, other = run("odd name", [MEMBERSHIP]), run("b", [INVERSION], "inversion", method="fedprox")
    pages = [fedavg / "attacks" / "membership.html", other / "attacks" / "inversion.html"]
    for target in pages:
        target.write_text("<p>")
    for where in (fedavg, tmp_path, tmp_path.parent):
        hrefs = links(page(fedavg, other, where=where))
        assert [(where / re.sub("%20", " ", link)).resolve() for link in hrefs] == [path.resolve() for path in pages]
        assert not any(link.startswith("/") for link in hrefs)


def test_there_is_no_link_without_a_page_or_through_folders_of_the_machine(run, tmp_path):
    folder = run("runs/a", [MEMBERSHIP])
    assert links(page(folder, where=tmp_path)) == []
    (folder / "attacks" / "membership.html").write_text("<p>")
    assert links(page(folder, where=tmp_path / "elsewhere")) == []
    assert links(page(folder, where=None)) == []


def test_the_report_beside_its_run_has_section_and_link(run):
    folder = run("a", [MEMBERSHIP], rounds=1)
    (folder / "attacks" / "membership.html").write_text("<p>")
    html = write_report([folder]).read_text()
    assert "<h2>Attack results</h2>" in html
    assert links(Page(html)) == ["attacks/membership.html"]


# ---- cards


def card(folder):
    write_cards(folder, load_plugins())
    assert all(not checked.problems for checked in verify(folder))
    return (folder / "global" / "README.md").read_text()


def test_the_card_has_the_tables_of_the_section(run):
    row = like(MEMBERSHIP, attack="loss_threshold", members=12, non_members=9, tpr_at_1_fpr=0.02)
    folder = run("a", [row], bundles=True)
    text = card(folder)
    assert "\n## Attack results\n\nMembership:\n\n| target | attack | images | AUC (guessing: 0.5) |" in text
    assert "| global model | loss threshold | 12 and 9 | 0.610 \\[0.580, 0.640\\] | 0.020 | 0.570 |" in text
    assert "\n\nA failed attack doesn't prove that the model reveals nothing.\n\n## " in text
    write(folder, "membership", {}, [like(row, auc=0.5)])
    problems = [problem for checked in verify(folder) for problem in checked.problems]
    assert "attacks/membership.json of the run folder: changed" in problems
    assert "the card differs from the run folder in: sections" in problems


def test_the_card_of_a_run_that_no_one_attacked_says_so(run):
    text = card(run("a", bundles=True))
    assert "\n## Attack results\n\nUnknown: no attack was run on this model (medfl attack).\n\n## " in text


def test_the_section_is_behind_privacy():
    sections = load_plugins().report_sections
    assert sections["privacy"].order < sections["attacks"].order < sections["atlas"].order
