"""Verification finds every change of a bundle with a card, even if the hashes were adapted to it."""

from __future__ import annotations

import random
import shutil

import pytest
from make_runs import make_run
from refusals import refused
from run_records import change_json, rewrite

from medfl.cli.clean import clean
from medfl.cli.main import main
from medfl.errors import StoreError
from medfl.plugins import load_plugins
from medfl.records.summary import Summary
from medfl_report.cards.bundle_hashes import digest_hashes, hash_files
from medfl_report.cards.card_markdown import CARD_MARK
from medfl_report.cards.card_scores import CardScores
from medfl_report.cards.evidence import CardFile, Evidence
from medfl_report.cards.verify import find_changed_files, verify, verify_bundle
from medfl_report.cards.write import write_cards


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("verify") / "run", images=12, metrics=("accuracy",))
    write_cards(folder, load_plugins())
    return folder


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def home(run):
    return run / "sites" / "site-1"


def reseal(home, **changes):
    """Write the evidence again with hashes that match the changed files."""
    hashes = hash_files(home)
    evidence = Evidence.read(home / Evidence.NAME)
    fitting = {"files": hashes, "files_digest": digest_hashes(hashes)}
    evidence.model_copy(update=fitting | changes).write(home / Evidence.NAME)


def read_scores(home):
    """Return the scores of the evidence as JSON, to change them."""
    return Evidence.read(home / Evidence.NAME).scores.to_json()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def first_number(home):
    """Return the first score in the card, as it is printed."""
    line = next(line for line in (home / "README.md").read_text().splitlines() if line.startswith("| all test images"))
    return line.split(" | ")[2].split(" ")[0]


def test_all_is_as_the_cards_say(run):
    results = verify(run)
    assert [checked.name for checked in results] == ["sites/site-1", "sites/site-2", "sites/site-3", "global"]
    assert all(not checked.problems and not checked.notes and checked.numbers for checked in results)


def test_a_bundle_alone_is_checked_wherever_it_lies(home, tmp_path):
    shutil.copytree(home, tmp_path / "elsewhere")
    (checked,) = verify(tmp_path / "elsewhere")
    assert checked.problems == []
    assert checked.numbers > 10


def test_the_global_bundle_alone_says_that_its_predictions_are_elsewhere(run, tmp_path):
    shutil.copytree(run / "global", tmp_path / "alone" / "global")
    (checked,) = verify(tmp_path / "alone" / "global")
    assert (checked.problems, checked.numbers) == ([], 0)
    assert "site-1, site-2, site-3 are in the run folder" in checked.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda home: edit(home / "README.md", first_number(home), "0.999"), "README.md: changed"),
        (lambda home: edit(home / "predictions.csv", "\n0,", "\n0,1"), "predictions.csv: changed"),
        (lambda home: (home / "models" / "model.pt").write_bytes(b"other"), "models/model.pt: changed"),
        (lambda home: (home / "configs" / "inference.json").unlink(), "configs/inference.json: missing"),
        (lambda home: (home / "README.md").unlink(), "README.md: missing"),
        (lambda home: (home / "models" / "more.pt").touch(), "models/more.pt: added"),
        (lambda home: (home / "link").symlink_to("README.md"), "link: added"),
        (
            lambda home: edit(home / Evidence.NAME, '"rounds": 3', '"rounds": 4'),
            "is damaged: it does not match its own checksum",
        ),
        (
            lambda home: edit(home / Evidence.NAME, "{\n", "{ \n"),
            "is damaged: its bytes differ from those that medfl writes",
        ),
    ],
)
def test_a_change_is_named(home, change, message):
    change(home)
    assert any(message in problem for problem in verify_bundle(home).problems)


def test_a_number_of_the_card_that_was_changed_is_found_though_all_hashes_fit(home):
    edit(home / "README.md", first_number(home), "0.999")
    reseal(home)
    assert find_changed_files(home) == []
    assert ["differs from the evidence" in problem for problem in verify_bundle(home).problems] == [True]


def test_a_number_that_was_changed_in_card_and_evidence_is_found_in_the_predictions(home):
    scores = read_scores(home)
    scores["tables"][0]["rows"][0]["scores"]["balanced_accuracy"]["value"] = 0.999
    edit(home / "README.md", first_number(home), "0.999")
    reseal(home, scores=CardScores.model_validate(scores))
    problems = verify_bundle(home).problems
    assert any("all test images balanced_accuracy: the card has 0.999" in problem for problem in problems)


def test_a_row_that_was_added_in_front_of_the_true_one_is_found(home):
    """Both rows have the same name; a comparison by name alone would miss the added row."""
    scores = read_scores(home)
    rows = scores["tables"][0]["rows"]
    scores["tables"][0]["rows"] = [rows[0] | {"cases": 99}, *rows]
    reseal(home, scores=CardScores.model_validate(scores))
    assert any("all rows: the card has" in problem for problem in verify_bundle(home).problems)


def test_a_prediction_that_was_changed_is_found_in_the_numbers_though_all_hashes_fit(home):
    lines = (home / "predictions.csv").read_text().splitlines()
    row, label, *others = lines[1].split(",")
    lines[1] = ",".join([row, str((int(label) + 1) % 3), *others])
    (home / "predictions.csv").write_text("\n".join(lines) + "\n")
    reseal(home)
    assert any("the predictions give" in problem for problem in verify_bundle(home).problems)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"predictions": {"../../a": ""}}, "predictions.../../a.[key]"),
        (
            {"card": CardFile(name="README.md", medfl_version="0").model_copy(update={"name": "/etc/hosts"})},
            "card.name",
        ),
        ({"files": None}, "files"),
    ],
)
def test_evidence_that_somebody_made_up_leads_nowhere(home, change, key):
    reseal(home, **change)
    with refused(StoreError, "damaged_file", key=key):
        Evidence.read(home / Evidence.NAME)
    (problem,) = verify_bundle(home).problems
    assert "is damaged: at" in problem


def test_evidence_of_a_run_that_never_was_is_no_traceback(home):
    identity = Evidence.read(home / Evidence.NAME).identity
    unknown = identity.task.model_copy(update={"objective": {"name": "none"}, "num_classes": None})
    reseal(home, identity=identity.model_copy(update={"task": unknown}))
    assert verify_bundle(home).problems == [
        "scores can't be computed again: the predictions can't be read",
    ]


def test_predictions_that_can_t_be_read_are_said_to_be(home):
    (home / "predictions.csv").write_text("row,label\n0,7\n")
    reseal(home)
    assert any("predictions can't be read" in problem for problem in verify_bundle(home).problems)


def test_a_card_of_another_version_is_compared_by_its_numbers(home):
    edit(home / "README.md", "For research only", "Research only")
    reseal(home, card=CardFile(name="README.md", medfl_version="0.0.1"))
    checked = verify_bundle(home)
    assert checked.problems == []
    assert checked.notes == ["text of the card: medfl 0.0.1 wrote it"]
    edit(home / "README.md", f"| {first_number(home)}", "| 0.999")
    reseal(home)
    assert verify_bundle(home).problems == ["README.md: a row of scores differs from the evidence"]


def test_one_thousand_flipped_bits_are_found(home):
    stream = random.Random(0)
    paths = [path for path in sorted(home.rglob("*")) if path.is_file() and path.stat().st_size]
    assert {path.name for path in paths} >= {"README.md", Evidence.NAME, "predictions.csv", "model.pt"}
    sizes, hits = [path.stat().st_size for path in paths], 0
    for _ in range(1000):
        (path,) = stream.choices(paths, sizes)
        content = path.read_bytes()
        place, bit = stream.randrange(len(content)), 1 << stream.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        hits += bool(find_changed_files(home))
        path.write_bytes(content)
    assert hits == 1000
    assert find_changed_files(home) == []


# ---- the run


def test_what_the_run_folder_says_now_is_compared(run):
    rewrite(Summary, run, rounds=2)
    for checked in verify(run):
        assert "summary.json of the run folder: changed" in checked.problems
        assert "the card differs from the run folder in: rounds" in checked.problems


def test_a_run_that_was_cleaned_is_what_its_cards_say(run):
    clean(run)
    assert not (run / "state").exists()
    assert all(not checked.problems for checked in verify(run))
    change_json(run / "run.json", lambda content: content["provenance"]["settings"]["seed"].update(value=7))
    assert "run.json of the run folder: changed" in verify(run)[0].problems


def test_a_changed_prediction_is_found_in_the_global_card_too(run):
    edit(run / "sites" / "site-2" / "predictions.csv", "\n1,", "\n3,")
    by_name = {checked.name: checked.problems for checked in verify(run)}
    assert "site-2 (predictions): changed" in by_name["global"]
    assert by_name["sites/site-1"] == []


def test_a_bundle_without_a_card_is_named(run):
    (run / "global" / Evidence.NAME).unlink()
    assert "evidence.json is missing" in verify(run)[-1].problems[0]


def test_a_place_that_is_neither_is_refused(tmp_path):
    with refused(StoreError, "missing_card", path=str(tmp_path)):
        verify(tmp_path)


def test_a_file_that_the_bundle_brought_is_never_replaced(tmp_path):
    folder = make_run(tmp_path / "run", images=10, metrics=("accuracy",))
    home = folder / "sites" / "site-1"
    (home / "README.md").write_text("# A stock bundle\n")
    write_cards(folder, load_plugins())
    assert (home / "README.md").read_text() == "# A stock bundle\n"
    assert CARD_MARK in (home / "MODEL_CARD.md").read_text()
    assert verify_bundle(home).problems == []
    (home / Evidence.NAME).write_text("{}")
    with refused(StoreError, "foreign_file", path=str(home / Evidence.NAME)):
        write_cards(folder, load_plugins())
    assert (home / Evidence.NAME).read_text() == "{}"


def test_both_commands(tmp_path, capsys):
    def medfl(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return int(end.value.code or 0), capsys.readouterr().out

    folder = make_run(tmp_path / "run", images=10, metrics=("accuracy",))
    status, out = medfl("card", folder)
    assert (status, out.count("wrote ")) == (0, 4)
    status, out = medfl("verify", folder)
    assert (status, out.count("matches its card")) == (0, 4)
    (folder / "global" / "models" / "model.pt").write_bytes(b"other")
    status, out = medfl("verify", folder)
    assert (status, "global: DIFFERS" in out, "  models/model.pt: changed" in out) == (1, True, True)
    assert medfl("verify", tmp_path)[0] == 2


def test_predictions_that_were_damaged_beyond_reading_are_named_in_a_run(run):
    (run / "sites" / "site-1" / "predictions.csv").write_bytes(b'row,label\n"\x00')
    by_name = {checked.name: checked.problems for checked in verify(run)}
    assert "predictions.csv: changed" in by_name["sites/site-1"]
    assert by_name["sites/site-2"] == []
