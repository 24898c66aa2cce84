"""Attackers in a simulation: what they train on and reply, that runs and pages say so, and that a rule withstands."""

from typing import ClassVar

import pytest
import torch
from make_runs import make_run

from medfl.deploy.overrides import check_overrides
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.report.page import write_report
from medfl.runs.poison import Poison, PoisonedData, PoisonedReplies, alie_z
from medfl.runs.records import read_run
from medfl.testing.cohort import CLASSES, Case, bits, make_data, make_task
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
POINTS = ((1, 0), (1.2, 0.1), (0.8, -0.2), (1.1, 0.3), (0.9, 0.1), (0.6, 0.4), (10, -10))
"""Six honest replies, and an attacker's."""


class Sent:
    """Replies from memory, with a counter beside the update."""

    missing: ClassVar[list[str]] = []

    def __init__(self):
        self.replies = {
            f"site-{number}": {"model/a": torch.tensor(point, dtype=torch.float64), "model/count": torch.tensor(3)}
            for number, point in enumerate(POINTS, 1)
        }
        self.meta = {name: {} for name in self.replies}

    def __iter__(self):
        return iter(self.replies.items())

    def __len__(self):
        return len(self.replies)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"attack": "sign_flip", "scale": 2}, (-20, 20)),
        ({"attack": "scaling", "scale": 7}, (70, -70)),
        ({"attack": "free_rider"}, (0, 0)),
        ({"attack": "alie", "z": 1.5}, (0.6092962984, -0.2038797418)),
    ],
)
def test_an_attacker_replies_with_something_else_and_nobody_else_does(options, expected):
    sent = Sent()
    came = dict(PoisonedReplies(sent, Poison(sites=("site-7",), **options)))
    assert came["site-7"]["model/a"].tolist() == pytest.approx(expected, abs=1e-9)
    assert came["site-7"]["model/count"] == 3
    assert all(tensors_equal(came[name], sent.replies[name]) for name in list(came)[:6])


@pytest.mark.parametrize(("sites", "attackers", "z"), [(50, 24, 1.4260768723), (10, 2, 0), (20, 4, 0.1573106846)])
def test_the_reach_of_alie(sites, attackers, z):
    assert alie_z(sites, attackers) == pytest.approx(z, abs=1e-9)


def poisoned(**options):
    poison = Poison(sites=("site-1",), **options)
    data = make_data(12, "poison")
    return data, PoisonedData(data, poison, make_task(), torch.Generator().manual_seed(0))


def test_labels_are_flipped():
    data, wrong = poisoned(attack="label_flip")
    assert torch.equal(wrong.class_labels, CLASSES - 1 - data.class_labels)
    inputs, targets = wrong.batch(torch.tensor([3, 1]))
    assert torch.equal(inputs, data.batch(torch.tensor([3, 1]))[0])
    assert torch.equal(targets, CLASSES - 1 - data.class_labels[[3, 1]])


def test_labels_of_one_class_are_flipped_to_another():
    data, wrong = poisoned(attack="label_flip", source=1, target=2)
    expected = torch.where(data.class_labels == 1, 2, data.class_labels)
    assert torch.equal(wrong.class_labels, expected)
    assert not torch.equal(wrong.class_labels, data.class_labels)


def test_a_backdoor_is_the_brightest_square_on_a_share_of_the_images():
    data, wrong = poisoned(attack="backdoor", rate=0.5, target=1, patch=2)
    rows = torch.arange(12)
    clean, (inputs, targets) = data.batch(rows)[0], wrong.batch(rows)
    stamped = (inputs != clean).flatten(1).any(dim=1)
    assert int(stamped.sum()) == 6
    assert (inputs[stamped][..., -2:, -2:] == 1).all()  # (1 - 0.5) / 0.5
    assert (targets[stamped] == 1).all()
    assert torch.equal(targets[~stamped], data.class_labels[~stamped])
    assert torch.equal(inputs[..., :-2, :], clean[..., :-2, :])


def test_a_median_withstands_what_a_mean_does_not(tmp_path):
    poison = {"attack": "sign_flip", "sites": ["site-2"], "scale": 50}
    task = make_task("plain")

    def distance(name, **settings):
        run = Case(REGISTRY, "fedavg", {"weights": "uniform"}).run(tmp_path / name, task=task, rounds=1, **settings)
        assert run.outcome.status == "finished"
        model = run.outcome.models["global"].tensors
        return sum(float((model[key] - start).square().sum()) for key, start in task.initial(7).items()) ** 0.5

    honest = distance("honest")
    assert distance("mean", poison=poison) > 5 * honest
    assert distance("median", poison=poison, robust={"rule": "median"}) < 2 * honest
    assert read_run(tmp_path / "mean").run["identity"]["settings"]["poison"] == poison


@pytest.mark.parametrize("attack", ["label_flip", "backdoor"])
def test_attackers_train_on_wrong_data_and_are_scored_on_their_own(tmp_path, attack):
    poison = {"attack": attack, "sites": ["site-2"]}
    result = Case(REGISTRY, "local").run(tmp_path / "bad", rounds=1, poison=poison)
    honest = Case(REGISTRY, "local").run(tmp_path / "good", rounds=1)
    mine, other = bits(result), bits(honest)
    assert [name for name in other if not tensors_equal(mine[name], other[name])] == ["site-2/personal"]
    assert result.summary["holdings"] == honest.summary["holdings"]


@pytest.mark.parametrize(
    ("method", "poison", "words"),
    [
        ("fedavg", {"attack": "sign_flip", "sites": ["site-9"]}, "'poison.sites' names sites that are not there"),
        ("fedavg", {"attack": "sign_flp", "sites": ["site-1"]}, "Settings of the setting 'poison' are not valid"),
        ("fedavg", {"attack": "label_flip", "sites": ["site-1"], "target": 9}, "are classes from 0 to 2"),
        ("fedavg", {"attack": "backdoor", "sites": ["site-1"], "patch": 9}, "a square of 9 pixels"),
        ("local", {"attack": "sign_flip", "sites": ["site-1"]}, "is on updates of a model"),
        ("centralized", {"attack": "label_flip", "sites": ["site-1"]}, "pools their data"),
    ],
)
def test_an_attack_that_is_not_possible_is_refused(tmp_path, method, poison, words):
    with pytest.raises(SettingsError, match=words):
        Case(REGISTRY, method).run(tmp_path, poison=poison)


def test_no_server_poisons_a_site():
    with pytest.raises(RefusedError, match="'poison' is each participant's own affair"):
        check_overrides({"poison": {"attack": "free_rider", "sites": ["site-1"]}}, {})


def test_a_page_says_first_that_a_run_is_an_attack(tmp_path):
    run = make_run(tmp_path / "run", settings={"poison": {"attack": "alie", "sites": ["site-1", "site-2"]}})
    text = write_report([run]).read_text()
    assert "is a simulated attack (alie at site-1 and site-2), no honest run." in text
    assert "simulated attack" not in write_report([make_run(tmp_path / "other")]).read_text()
