"""Stored distillers of frozen sites and the change of accuracies (equation 9), on synthetic replies."""

from dataclasses import dataclass, field

import pytest
import torch

from medfl.contract import Server, State
from medfl.engine.store import Store
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.aggregation import mean_update
from medfl_methods.fedtpf.early_stop import RepliesWithFrozen, freeze, last_change, validating_sites


@dataclass
class Replies:
    """Replies in memory."""

    tensors: dict
    meta: dict = field(default_factory=dict)
    missing: list = field(default_factory=list)

    def __iter__(self):
        return iter({name: dict(tensors) for name, tensors in self.tensors.items()}.items())

    def __len__(self):
        return len(self.tensors)


def make_server(folder, facts=None):
    return Server("server", 4, State(), make_task(), Settings(rounds=9), Store(folder), ["a", "b"], facts or {})


def test_the_last_part_is_what_the_site_had_and_stands_for_its_update_later(tmp_path):
    """The server's distiller plus the substitute update is the stored distiller, also later. Counters are summed."""
    server = make_server(tmp_path)
    before = {"w": torch.tensor([1.0, 2.0]), "seen": torch.tensor(10)}
    freeze(server, "a", before, {"w": torch.tensor([0.5, -1.0]), "seen": torch.tensor(3)})
    assert server.state.meta["frozen"] == {"a": 4}
    assert server.state.tensors == {}, "it is written once, not with every step"
    now = {"w": torch.tensor([5.0, 5.0]), "seen": torch.tensor(20)}
    sent = {"a": {"model/v": torch.ones(1)}, "b": {"part/w": torch.tensor([1.0, 1.0]), "part/seen": torch.tensor(2)}}
    replies = RepliesWithFrozen(Replies(sent), server, ["a"], now, "part/")
    for _ in range(2):  # replies may be read twice
        read = dict(replies)
        assert list(read) == ["a", "b"]
        assert (now["w"] + read["a"]["part/w"]).tolist() == [1.5, 1.0]
        assert int(now["seen"] + read["a"]["part/seen"]) == 13
        assert read["a"]["model/v"].tolist() == [1.0]
        assert read["b"].keys() == sent["b"].keys()
    mean = mean_update(replies, {"a": 0.25, "b": 0.75}, "part/")
    assert (now["w"] + mean["w"]).tolist() == [0.25 * 1.5 + 0.75 * 6.0, 0.25 * 1.0 + 0.75 * 6.0]
    assert int(now["seen"] + mean["seen"]) == 22, "counters take the largest"


def test_who_does_not_take_part_does_not_count(tmp_path):
    server = make_server(tmp_path)
    freeze(server, "a", {"w": torch.zeros(1)}, {"w": torch.ones(1)})
    replies = RepliesWithFrozen(Replies({"b": {"part/w": torch.ones(1)}}), server, [], {"w": torch.zeros(1)}, "part/")
    assert [name for name, _ in replies] == ["b"]
    assert len(replies) == 1


def test_what_is_kept_does_not_follow_the_common_part(tmp_path):
    server = make_server(tmp_path)
    before = {"w": torch.zeros(2)}
    freeze(server, "a", before, {"w": torch.ones(2)})
    before["w"] += 7
    ((_, update),) = RepliesWithFrozen(Replies({"a": {}}), server, ["a"], {"w": torch.zeros(2)}, "part/")
    assert update["part/w"].tolist() == [1.0, 1.0]


# ---- equation 9


def history(*rounds):
    return [{"round": number, "accuracy": accuracy} for number, accuracy in enumerate(rounds, start=1)]


def test_the_change_is_the_mean_over_active_sites_of_the_last_two_rounds():
    known = history({"a": 0.9, "b": 0.9}, {"a": 0.1, "b": 0.5, "c": 0.3}, {"a": 0.4, "b": 0.4, "c": 0.9})
    assert last_change(known, ["a", "b"]) == pytest.approx((0.3 - 0.1) / 2)
    assert last_change(known, ["c"]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("known", "active"),
    [
        (history(), ["a"]),
        (history({"a": 0.5}), ["a"]),
        (history({"a": 0.1}, {"a": 0.5}), []),
        (history({"a": 0.1}, {"b": 0.5}), ["a", "b"]),
    ],
    ids=["nothing yet", "one round", "nobody is active", "nobody was assessed twice"],
)
def test_an_unknown_change_is_none(known, active):
    assert last_change(known, active) == 0.0


def test_a_site_that_was_assessed_once_is_left_out_of_the_mean():
    assert last_change(history({"a": 0.1}, {"a": 0.5, "b": 0.9}), ["a", "b"]) == pytest.approx(0.4)


def test_sites_with_validation_images_judge(tmp_path):
    """A site without training images may assess, too. A site that reports nothing has no validation images."""
    facts = {"a": {"trainable": False, "validates": True}, "b": {"trainable": True, "validates": False}}
    assert validating_sites(make_server(tmp_path, facts)) == ["a"]
    assert validating_sites(make_server(tmp_path, {"b": {"validates": True}})) == ["b"]
