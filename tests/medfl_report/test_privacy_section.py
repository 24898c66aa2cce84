"""Privacy on the page: both adjacencies against the oracle, what was spent, and what the ledgers hold."""

from __future__ import annotations

import re

import pytest
from make_runs import SITES, make_run
from read_page import section, words

from medfl.engine.runs.records import read_run
from medfl.records.privacy_account import PrivacyAccount
from medfl_report.groups import group_runs
from medfl_report.sections.privacy import privacy_section

ADDED = {"epsilon": 5.0, "delta": 1e-5, "clip": 2.5, "adjacency": "add_remove"}
REPLACED = ADDED | {"adjacency": "replace"}
SAMPLES = ADDED | {"unit": "sample"}


def account(**facts):
    """Return a site's account of a run that made all its releases, as it is in the run's summary."""
    plain = {"unit": "site", "adjacency": "add_remove", "delta": 1e-5, "sigma": 3.98856, "rate": 1.0, "steps": 1}
    plain |= {"planned": 20, "releases": 20, "stated_epsilon": 5.0, "epsilon": 5.0, "composed": 5.0, "runs": 1}
    plain |= {"total_epsilon": None, "ledger": False, "threshold": None}
    return PrivacyAccount(**(plain | facts)).to_json()


def accounts(**facts):
    return {site: account(**facts) for site in SITES}


@pytest.fixture
def page(tmp_path):
    def write(*runs):
        options = {"rounds": 20, "bundles": False, "state": False}
        folders = [make_run(tmp_path / name, name.split("-")[0], **(options | facts)) for name, facts in runs]
        return section("privacy", privacy_section(group_runs([read_run(folder) for folder in folders])))

    return write


def table(document):
    head, *rows = document.tables["Privacy guarantees"]
    return [[words(cell) for cell in row] for row in rows]


def private(setting, **facts):
    return {"settings": {"privacy": setting}, **facts}


def test_both_adjacencies_stand_beside_each_other(page):
    """The paper's numbers: sigma 3.98856 is epsilon 5 for added or removed and 11.52 for replaced sites."""
    document = page(
        ("fedavg-a", private(ADDED, accounts=accounts())),
        ("fedavg-b", private(REPLACED, accounts=accounts(adjacency="replace", sigma=7.97711))),
    )
    row, other = table(document)
    assert row[1:6] == ["site", "1e-05", "3.9886clipped to 2.5", "20 of 20", "5added or removed"]
    assert row[6:] == ["11.52replaced by any other", "5"]
    assert (other[3], other[5]) == ("7.9771clipped to 2.5", "5replaced by any other")
    adds = float(re.match(r"[\d.]+", other[6])[0])
    assert adds < 2.5, "twice the noise more than halves epsilon"
    full = words(document.sections["privacy"])
    for fact in ("Unit site", "20 releases together", "accountant 'gaussian'", "Each site released at most 20 of 20"):
        assert fact in full


def test_what_was_not_released_was_not_spent(page):
    spent = zip(SITES, (3, 5, 5), (1.4, 2, 2), strict=True)
    few = {site: account(releases=n, epsilon=used) for site, n, used in spent}
    document = page(("fedavg", private(ADDED, accounts=few)))
    (row,) = table(document)
    assert (row[4], row[7]) == ("3 to 5 of 20", "2")
    lines = document.tables["Privacy accounts of fedavg"][1:]
    assert [line[:4] for line in lines] == [
        ["site-1", "3.9886", "3 of 20", "1.4"],
        ["site-2 and site-3", "3.9886", "5 of 20", "2"],
    ]


@pytest.mark.parametrize(("composed", "shown"), [(9.25, "9.25"), (None, "no bound")])
def test_the_ledger_composes_runs(page, composed, shown):
    held = accounts(composed=composed, runs=3, total_epsilon=12.0, ledger=True)
    document = page(("fedavg", private(ADDED, accounts=held)), ("fedprox", private(ADDED, accounts=accounts())))
    row, other = table(document)
    assert row[8] == f"{shown}3 runs, of a total of 12"
    assert other[8] == "–"


def test_without_a_ledger_there_is_no_column_for_it(page):
    document = page(("fedavg", private(ADDED, accounts=accounts())))
    assert "composed in the ledger" not in words(document.sections["privacy"])


def test_single_images_have_bounds_for_the_other_adjacency(page):
    noise = dict(zip(SITES, (1.0, 1.5, 1.25), strict=True))
    held = {site: account(unit="sample", sigma=sigma, rate=0.1) for site, sigma in noise.items()}
    (row,) = table(page(("fedavg", private(SAMPLES, accounts=held))))
    widened = 1e-5 * (1 + 2.718281828**5)
    assert (row[1], row[3]) == ("image", "1 to 1.5clipped to 2.5")
    assert row[6] == f"at most 10replaced by any otherwith delta {widened:.3g}"


def test_a_run_that_is_not_over_says_what_it_promises(page):
    (row,) = table(page(("fedavg", private(ADDED, status="running", done=3))))
    assert row[3:6] == ["3.9886clipped to 2.5", "– of 20", "5added or removed"]
    assert row[7] == "–"


def test_seeds_that_promise_and_spent_the_same_share_a_line(page):
    runs = [(f"fedavg-{seed}", private(ADDED, accounts=accounts(), seed=seed)) for seed in range(3)]
    assert [row[0] for row in table(page(*runs))] == ["fedavg"]


def test_a_seed_that_spent_less_has_a_line_of_its_own(page):
    runs = [
        (f"fedavg-{n}", private(ADDED, accounts=accounts(releases=20 - n, epsilon=5 - n), seed=n)) for n in range(2)
    ]
    assert [row[0] for row in table(page(*runs))] == ["fedavg, seed 0", "fedavg, seed 1"]


def test_without_privacy_there_is_no_section(page):
    assert not page(("fedavg", {})).sections["privacy"]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([None, ADDED], ["fedavg", "fedavg (privacy)"]),
        ([None, ADDED, REPLACED], ["fedavg", *(f"fedavg (privacy.adjacency={a})" for a in ("add_remove", "replace"))]),
    ],
)
def test_private_runs_are_distinguished_by_few_words(tmp_path, settings, labels):
    runs = [
        read_run(make_run(tmp_path / str(n), **private(setting), state=False)) for n, setting in enumerate(settings)
    ]
    assert [group.label for group in group_runs(runs)] == labels
