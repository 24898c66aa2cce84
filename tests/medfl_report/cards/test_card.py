"""Model cards: each number equals an independent computation, and fields without a source are marked unknown."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from make_runs import CLASSES, SITES, make_run
from objective_runs import run_objective
from refusals import refused
from run_records import change_json
from scipy.stats import binomtest
from sklearn.dummy import DummyClassifier
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score

from medfl.data.datalists import Datalist, write_datalist
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_site
from medfl.errors import SettingsError, StoreError
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.records.partition import LocatedExclusion, Partition
from medfl.records.site_card import SiteCard
from medfl.testing.tasks import OTHER_OBJECTIVES
from medfl_report.cards.card_markdown import escape_markdown, make_markdown_table
from medfl_report.cards.card_scores import CardRow
from medfl_report.cards.checklist_answers import read_answers
from medfl_report.cards.checklists import CLAIM, TRIPOD_AI
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.score_computation import compute_card_scores
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards
from medfl_report.predictions import PredictionSet as SiteTestSet

SEXES, CENTRES = ("male", "female", "male", ""), ("A", "B", "B")
METRICS = ("accuracy", "balanced_accuracy", "auc", "recall", "ece")


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


@pytest.fixture(scope="module")
def run(tmp_path_factory, registry):
    """Write a run with cards whose predictions contain sex and centre."""
    folder = make_run(
        tmp_path_factory.mktemp("card") / "run",
        images=40,
        sex=SEXES,
        centre=CENTRES,
        metrics=METRICS,
        data_name="cells",
    )
    write_cards(folder, registry)
    return folder


def tables(card):
    """Return the cells of a card by heading, first cell of the row, and column; later tables of a heading count."""
    by_heading, heading, before = {}, "", ""
    for line in card.splitlines():
        before, last = line, before
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("| ") and not last:
            by_heading[heading] = []
        if line.startswith("| ") and not line.startswith("| :--"):
            by_heading[heading].append([cell.strip() for cell in line.strip("|").split(" | ")])
    return {
        name: {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}
        for name, rows in by_heading.items()
    }


def predictions(run, sites):
    return pd.concat([pd.read_csv(run / "sites" / site / "predictions.csv") for site in sites], ignore_index=True)


def scores(rows):
    """Return scores by scikit-learn, by metric; AUC is the mean over the classes."""
    probabilities, label = rows[["p0", "p1", "p2"]].to_numpy(), rows["label"].to_numpy()
    return {
        "accuracy": float((probabilities.argmax(1) == label).mean()),
        "balanced accuracy": balanced_accuracy_score(label, probabilities.argmax(1)),
        "AUC": np.mean([roc_auc_score(label == number, probabilities[:, number]) for number in range(3)]),
        "recall": recall_score(label, probabilities.argmax(1), average="macro"),
        "calibration error": calibration_error(probabilities, label),
    }


def calibration_error(probabilities, label, bins=15):
    sure, right = probabilities.max(1), probabilities.argmax(1) == label
    places = np.minimum((sure * bins).astype(int), bins - 1)
    return sum(
        abs(sure[places == place].mean() - right[places == place].mean()) * (places == place).mean()
        for place in np.unique(places)
    )


def numbers(cell):
    return [float(value) for value in re.findall(r"\d+\.\d{3}", cell)]


def check(row, expected, images):
    """Check each cell of a row against the expected value, and the interval of accuracy against SciPy."""
    assert row.pop("images") == str(images)
    for metric, cell in row.items():
        value, low, high = numbers(cell)
        assert value == pytest.approx(expected[metric], abs=0.00051), metric
        assert low <= high
        if metric == "accuracy":
            interval = binomtest(round(expected[metric] * images), images).proportion_ci(method="wilson")
            assert (low, high) == pytest.approx((interval.low, interval.high), abs=0.00051)
    return len(row)


def subsets(rows):
    sexes = {"male": rows["sex"] == "male", "female": rows["sex"] == "female", "unknown": rows["sex"].isna()}
    return {"By sex": sexes, "By centre": {name: rows["centre"] == name for name in "AB"}}


@pytest.mark.parametrize("site", [*SITES, None])
def test_each_number_is_what_scikit_learn_and_scipy_make_of_the_predictions(run, site):
    home = run / "global" if site is None else run / "sites" / site
    rows = predictions(run, SITES if site is None else [site])
    parts = tables((home / "README.md").read_text())
    count = check(parts["Performance"]["all test images"], scores(rows), len(rows))
    if site is None:
        for name in SITES:
            count += check(parts["By site"][name], scores(predictions(run, [name])), 40)
        mean = parts["Performance"]["mean of sites"]
        assert mean.pop("images") == "–"
        for metric, cell in mean.items():
            own = [scores(predictions(run, [name]))[metric] for name in SITES]
            assert numbers(cell)[0] == pytest.approx(np.mean(own), abs=0.00051)
    for heading, chosen in subsets(rows).items():
        assert parts[heading].keys() == chosen.keys()
        for name, mask in chosen.items():
            count += check(parts[heading][name], scores(rows[mask]), mask.sum())
    assert count == (5 + 3 * 3 + 3 * 5 if site is None else 5 + 3 * 5)
    probabilities, label = rows[["p0", "p1", "p2"]].to_numpy(), rows["label"].to_numpy()
    for number, name in enumerate(CLASSES):
        row, own, taken = parts["By class"][name], label == number, probabilities.argmax(1) == number
        assert row["images"] == str(own.sum())
        for metric, chosen in (("recall", own), ("precision", taken)):
            share = binomtest(int((own & taken).sum()), int(chosen.sum()))
            interval = share.proportion_ci(method="wilson")
            assert numbers(row[metric]) == pytest.approx([share.statistic, interval.low, interval.high], abs=0.00051)
        assert numbers(row["AUC"])[0] == pytest.approx(roc_auc_score(own, probabilities[:, number]), abs=0.00051)


def test_an_interval_is_that_of_a_bootstrap_over_images(run):
    """A separate bootstrap with other random numbers gives the same interval, up to its noise."""
    rows = predictions(run, SITES)
    label = rows["label"].to_numpy()
    right = rows[["p0", "p1", "p2"]].to_numpy().argmax(1) == label
    drawn = np.random.default_rng(5).integers(len(rows), size=(2000, len(rows)))
    recalls = [
        (right[drawn] & (label[drawn] == number)).sum(1) / (label[drawn] == number).sum(1) for number in range(3)
    ]
    expected = np.quantile(np.mean(recalls, axis=0), [0.025, 0.975])
    cell = tables((run / "global" / "README.md").read_text())["Performance"]["all test images"]["balanced accuracy"]
    assert numbers(cell)[1:] == pytest.approx(expected, abs=0.015)


def test_the_front_matter_has_known_keys_and_the_same_scores(run):
    text = (run / "sites" / "site-1" / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert set(head) <= {"license", "library_name", "pipeline_tag", "tags", "metrics", "model-index"}
    assert head["license"] == "unknown"
    assert head["library_name"] == "monai"
    (result,) = head["model-index"][0]["results"]
    assert result["dataset"] == {"type": "cells", "name": "cells", "split": "test"}
    stated = {metric["name"]: metric["value"] for metric in result["metrics"]}
    row = tables(text)["Performance"]["all test images"]
    assert stated == {metric: numbers(row[metric])[0] for metric in stated}
    assert len(stated) == len(METRICS)


def test_the_first_score_says_of_how_many_images_and_patients_it_is(run):
    rows = predictions(run, ["site-1"])
    head = (run / "sites" / "site-1" / "README.md").read_text().split("## Intended use")[0]
    assert f" on {len(rows)} test images" in head
    assert "patients test images" not in head


def test_the_majority_class_baseline_is_that_of_scikit_learn(run):
    rows = predictions(run, SITES)
    dummy = DummyClassifier().fit(np.zeros((len(rows), 1)), rows["label"])
    constant = dummy.predict(np.zeros((len(rows), 1)))
    scores = Evidence.read(run / "global" / Evidence.NAME).scores
    assert scores.baseline is not None
    assert scores.baseline.class_name == CLASSES[constant[0]]
    assert scores.baseline.accuracy == pytest.approx((constant == rows["label"]).mean())
    assert scores.baseline.balanced_accuracy == pytest.approx(balanced_accuracy_score(rows["label"], constant))
    assert "- **Majority-class baseline**: always predicting " in (run / "global" / "README.md").read_text()


@pytest.mark.parametrize(
    ("labels", "metrics", "expected"),
    [
        ([0, 0, 0, 1, 1, 1], ("accuracy", "auc"), ("accuracy", "auc")),
        ([0, 0, 0, 0, 1, 1], ("accuracy", "auc"), ("auc", "accuracy")),
        ([0, 0, 0, 0, 1, 1], ("accuracy",), ("balanced_accuracy", "accuracy")),
        ([0, 0, 0, 0, 1, 1], ("recall", "accuracy"), ("recall", "accuracy")),
    ],
)
def test_accuracy_does_not_lead_if_class_sizes_are_unequal(labels, metrics, expected):
    targets = torch.tensor(labels)
    probabilities = torch.full((len(labels), 2), 0.5, dtype=torch.float64)
    tested = {"site-1": SiteTestSet(torch.arange(len(labels)), targets, probabilities, Multiclass(2))}
    overall = compute_card_scores(tested, ("a", "b"), metrics).tables[0]
    assert overall.metrics[: len(expected)] == expected


def test_the_same_run_gives_the_same_bytes(run, registry):
    card = run / "sites" / "site-1" / "README.md"
    before = card.read_bytes(), (card.parent / Evidence.NAME).read_bytes()
    write_cards(run, registry)
    assert (card.read_bytes(), (card.parent / Evidence.NAME).read_bytes()) == before
    assert str(run.parent).encode() not in before[0] + before[1]


def test_missing_information_is_unknown(run):
    text = (run / "sites" / "site-1" / "README.md").read_text()
    assert "licence: unknown" in text
    assert "Intended use: unknown." in text
    items = tables(text)
    assert items["CLAIM 2024"].keys() == CLAIM.keys()
    assert items["TRIPOD+AI"].keys() == TRIPOD_AI.keys()
    states = {row["state"] for title in ("CLAIM 2024", "TRIPOD+AI") for row in items[title].values()}
    assert states == {"answered", "not applicable", "unknown"}
    for row in (*items["CLAIM 2024"].values(), *items["TRIPOD+AI"].values()):
        assert bool(row["answer"]) == (row["state"] != "unknown")
    assert items["CLAIM 2024"]["44"] == {"topic": CLAIM["44"].about, "state": "unknown", "answer": ""}
    assert items["TRIPOD+AI"]["17"]["state"] == "unknown"


def test_what_people_answer_is_in_the_card(tmp_path, registry):
    folder = make_run(tmp_path / "run", images=10, metrics=("accuracy",))
    file = tmp_path / "answers.yaml"
    file.write_text(
        "license: mit\nintended_use: Teaching.\nclaim: {5: Retrospective.}\ntripod_ai: {6c: Not applicable.}\n"
    )
    write_cards(folder, registry, answers=file)
    text = (folder / "global" / "README.md").read_text()
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "mit"
    items = tables(text)
    assert items["CLAIM 2024"]["5"] == {"topic": CLAIM["5"].about, "state": "answered", "answer": "Retrospective."}
    assert items["TRIPOD+AI"]["6c"]["state"] == "not applicable"
    assert items["CLAIM 2024"]["3"]["answer"] == "Teaching."
    assert all(not checked.problems for checked in verify(folder))


@pytest.mark.parametrize(
    ("text", "code", "fields", "hint"),
    [
        ("licence: mit", "unknown_setting", {"name": "licence"}, "Did you mean 'license'"),
        ("claim: {99: x}", "unknown_choice", {"what": "claim", "choice": "99"}, ""),
        ("claim: yes", "wrong_type", {"place": "claim"}, ""),
        ("license: 3", "wrong_type", {"place": "license", "expected": "text", "found": "int"}, ""),
        ("[", "unreadable_file", {}, ""),
        ("- a", "wrong_type", {"place": None, "found": "list"}, ""),
    ],
)
def test_replies_that_can_t_be_used_are_refused(tmp_path, text, code, fields, hint):
    file = tmp_path / "answers.yaml"
    file.write_text(text)
    with refused(SettingsError, code, path=str(file), **fields) as caught:
        read_answers(file)
    assert hint in str(caught.value)


# ---- data


@pytest.fixture
def with_data(tmp_path, registry):
    """Return a function that writes a card over data lists with patients, and returns its text and evidence."""

    def make(changed=False):
        folder = make_run(tmp_path / "runs" / "run", images=10, metrics=("accuracy",), data_folder="../../data")
        np.save(tmp_path / "images.npy", np.zeros((8, 4, 4), np.uint8))
        digests = {}
        settings = PartitionPlan("iid", seed=7).effective_settings(len(SITES))
        for site in SITES:
            home = tmp_path / "data" / site
            home.mkdir(parents=True)
            records = [
                {
                    "image": row,
                    "label": row % 3,
                    "subject_id": f"Jane Doe {row // 2}",
                    "sex": "female",
                    "study_date": "2021-03-04",
                }
                for row in range(8)
            ]
            datalist = Datalist(
                "cells",
                "../../images.npy",
                3,
                modality="microscope",
                licence="CC BY 4.0",
                splits={"training": records[:4], "test": records[4:]},
            )
            write_datalist(home, datalist)
            digests[site] = load_site(home, Multiclass(3), (0.5,), (0.5,)).digest
            card = SiteCard(
                site=site,
                dataset="cells",
                licence="CC BY 4.0",
                labels={},
                counts=datalist.counts(),
                class_balance={},
                array_sha256="",
                exclusions=(LocatedExclusion(reason="damaged file", count=3, where="pooled data set"),),
                settings=settings,
                versions={},
            )
            card.write(home / SiteCard.NAME)
        Partition(dataset="cells", settings=settings).write(tmp_path / "data" / Partition.NAME)
        change_json(folder / "run.json", lambda content: content["provenance"]["data"].update(sites=digests))
        if changed:
            path = tmp_path / "data" / "site-1" / "datalist.json"
            path.write_text(path.read_text().replace("CC BY 4.0", "CC BY 9.9"))
        write_cards(folder, registry)
        return [(folder / "sites" / "site-1" / name).read_text() for name in ("README.md", Evidence.NAME)]

    return make


def test_data_facts_are_those_of_the_lists_and_no_patient_is_named(with_data):
    card, evidence = with_data()
    for text in (
        "| licence | CC BY 4.0 |",
        "| modality | microscope |",
        "3 x damaged file",
        "| scheme | iid |",
        "| patients (all splits) | 4 patients |",
        "| patient and centre fields | sex |",
    ):
        assert text in card
    assert "CC BY 4.0" in tables(card)["CLAIM 2024"]["7"]["answer"]
    for secret in ("Jane", "Doe", "2021"):
        assert secret not in card + evidence
    assert len(json.loads(evidence)["facts"]["data"]["list_hashes"]["site-1"]) == 64


def test_lists_of_other_runs_reveal_nothing(with_data):
    card, _ = with_data(changed=True)
    assert "CC BY 9.9" not in card
    assert "the data in the run's data folder have changed since (at site-1)" in card


# ---- subgroups, promises, parts of sections, kinds of tasks


def test_a_subgroup_of_few_is_not_scored_and_not_counted(tmp_path, registry):
    folder = make_run(tmp_path / "run", images=10, sex=("male",) * 8 + ("female",) * 2, metrics=("accuracy",))
    write_cards(folder, registry)
    home = folder / "sites" / "site-1"
    female = tables((home / "README.md").read_text())["By sex"]["female"]
    assert female == {"images": "fewer than 5", "balanced accuracy": "–", "accuracy": "–"}
    tables_by_part = {table.part: table for table in Evidence.read(home / Evidence.NAME).scores.tables}
    assert tables_by_part["sex"].rows[0] == CardRow(name="female", cases=None, patients=None, scores={})


def test_personal_models_leave_the_global_one_without_predictions(tmp_path, registry):
    folder = make_run(
        tmp_path / "run", model="personal", images=10, metrics=("accuracy",), server_test={"accuracy": 0.5}
    )
    (folder / "global" / "models").mkdir(parents=True)
    write_cards(folder, registry)
    text = (folder / "global" / "README.md").read_text()
    assert "Unknown: the sites exported personal models" in text
    assert "| accuracy | 0.500 | – |" in text
    assert "Test performance" not in text.split("## Intended use")[0]
    assert all(not checked.problems for checked in verify(folder))


def test_a_promise_is_in_the_card(tmp_path, registry):
    privacy = {
        "unit": "site",
        "adjacency": "replace",
        "epsilon": 5.0,
        "delta": 1e-5,
        "clip": 2.5,
        "accountant": "gaussian",
    }
    folder = make_run(tmp_path / "run", images=10, metrics=("accuracy",), settings={"privacy": privacy})
    write_cards(folder, registry)
    text = (folder / "global" / "README.md").read_text()
    assert "epsilon 5 and delta 1e-05 for a site that is replaced by any other" in text


SECTION = """
from medfl.plugins import SectionRecord, hookimpl
from medfl_report.cards.section_content import SectionContent, SectionTable
from medfl_report.section import Section

@hookimpl
def medfl_report_sections():
    return [SectionRecord("own", "Mine & <yours>", f"{__name__}:Own")]

class Own(Section):
    def render(self, data):
        return ""

    def card(self, data):
        ((name, run),) = data.runs
        table = SectionTable(title="counts", head=("run", "sites"), rows=((name, str(len(run.sites))),))
        return SectionContent(tables=(table,), texts=("It `says` this.",))
"""


def test_a_section_of_a_plugin_has_a_part_in_the_card(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SECTION)
    registry, folder = load_plugins([file]), make_run(tmp_path / "run", images=10, metrics=("accuracy",))
    write_cards(folder, registry)
    text = (folder / "global" / "README.md").read_text()
    rows = "| run | sites |\n| :-- | --: |\n| fedavg | 3 |"
    assert f"## Mine & \\<yours\\>\n\nCounts:\n\n{rows}\n\nIt \\`says\\` this.\n\n## " in text
    assert all(not checked.problems for checked in verify(folder, registry))
    problems = ["the card differs from the run folder in: sections"]
    assert all(checked.problems == problems for checked in verify(folder))


KINDS = [
    pytest.param(kind, id=kind.name, marks=[] if kind.name == "segmentation" else pytest.mark.slow)
    for kind in OTHER_OBJECTIVES
]


@pytest.mark.parametrize("objective", KINDS)
def test_each_kind_of_task_has_a_card_that_holds(tmp_path, registry, objective):
    folder = run_objective(tmp_path / "run", objective, rounds=1)
    write_cards(folder, registry)
    for checked in verify(folder):
        assert checked.problems == []
        assert checked.numbers > 0
    parts = tables((folder / "global" / "README.md").read_text())
    assert len(parts["By site"]) == 3


def test_a_run_that_is_not_over_has_no_card(tmp_path, registry):
    folder = make_run(tmp_path / "run", status="running")
    with refused(StoreError, "unfinished_run", path=str(folder)):
        write_cards(folder, registry)


def test_a_text_from_a_file_means_nothing_in_markdown():
    assert escape_markdown("a|b\n# <c> *d* `e` [f](g)") == r"a\|b \# \<c\> \*d\* \`e\` \[f\](g)"
    assert make_markdown_table([["x", "n"], ["a|b", 1]]) == "| x | n |\n| :-- | --: |\n| a\\|b | 1 |"


def test_a_simulated_attack_is_reported_at_once_and_its_attackers_count_nowhere(tmp_path, registry):
    """An attacker's test images are excluded from the scores of the run, and so from the global card."""
    poison = {"attack": "label_flip", "sites": ["site-3"]}
    scores = {"accuracy": {"site-1": 0.5, "site-2": 0.4}}
    folder = make_run(
        tmp_path / "run",
        images=10,
        metrics=("accuracy",),
        settings={"adversaries": poison},
        scores=scores,
        leaks=["A leak"],
    )
    write_cards(folder, registry)
    text = (folder / "global" / "README.md").read_text()
    head = text.split("## Intended use")[0]
    assert head.count("**Attention.**") == 2
    assert "(label_flip at site-3)" in head
    assert "leak" in head
    assert list(tables(text)["By site"]) == ["site-1", "site-2"]
    assert "on 20 test images" in head
    assert all(not checked.problems for checked in verify(folder))
