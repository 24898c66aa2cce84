"""Poisoning attacks against closed forms: changed data, replies, limits and error messages."""

import logging
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from refusals import refused

from medfl.engine.adversaries.adversary import AttackerKnowledge, DataAdversary, ReplyAdversary, root_mean_square
from medfl.engine.adversaries.simulation import AttackedData, AttackedReplies, Attackers, read_attackers
from medfl.errors import PluginError, SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import CLASSES, make_data, make_task
from medfl.utils.wire import tensors_equal
from medfl_attacks.adversaries.alie import supporter_quantile

REGISTRY = load_plugins()
PAGE = Path(__file__).parents[3] / "docs" / "robustness.md"
POINTS = ((1, 0), (1.2, 0.1), (0.8, -0.2), (1.1, 0.3), (0.9, 0.1), (0.6, 0.4), (10, -10))
"""Six honest replies, and an attacker's."""

LAST = {"a": torch.tensor([3.0, 4.0], dtype=torch.float64)}
"""Last change of the server's model; its root mean square is sqrt(12.5)."""


class Sent:
    """Replies in memory, with a counter beside the update."""

    missing: ClassVar[list[str]] = []

    def __init__(self, points=POINTS, sizes=None):
        self.replies = {
            f"site-{number}": {"model/a": torch.tensor(point, dtype=torch.float64), "model/count": torch.tensor(3)}
            for number, point in enumerate(points, 1)
        }
        self.meta = {name: {"size": size} for name, size in zip(self.replies, sizes or [1] * len(points), strict=True)}

    def __iter__(self):
        return iter(self.replies.items())

    def __len__(self):
        return len(self.replies)


def attackers(attack, *sites, **options) -> Attackers:
    made = read_attackers({"attack": attack, "sites": list(sites) or ["site-7"], **options}, REGISTRY)
    assert made is not None
    return made


def replies(attack, *sites, sent=None, last=None, **options):
    """Return the replies that the server receives, by site."""
    seen = AttackedReplies(sent or Sent(), attackers(attack, *sites, **options), 0, 1, last)
    return {site: tensors["model/a"].tolist() for site, tensors in seen}


# ---- replies


@pytest.mark.parametrize(
    ("attack", "options", "expected"),
    [
        ("sign_flip", {"scale": 2}, (-20, 20)),
        ("scaling", {"scale": 7}, (70, -70)),
        ("scaling", {}, (70, -70)),  # seven sites of one size
        ("free_rider", {}, (0, 0)),
        ("alie", {"z": 1.5}, (0.6092962984, -0.2038797418)),
        ("ipm", {"epsilon": 0.5}, (-0.4666666667, -0.0583333333)),
    ],
)
def test_an_attacker_replies_with_something_else_and_no_one_else_does(attack, options, expected):
    sent = Sent()
    seen = AttackedReplies(sent, attackers(attack, **options), 0, 1)
    came = dict(seen)
    assert came["site-7"]["model/a"].tolist() == pytest.approx(expected, abs=1e-9)
    assert came["site-7"]["model/count"] == 3
    assert all(tensors_equal(came[name], sent.replies[name]) for name in list(came)[:6])
    assert (len(seen), seen.meta) == (7, sent.meta)


def test_with_ipm_the_mean_of_seven_is_as_worked_out():
    """The mean is zero for epsilon = (n - m) / m."""
    total = torch.tensor(list(replies("ipm", epsilon=0.5).values())).double().mean(dim=0)
    assert total.tolist() == pytest.approx((0.7333333333, 0.0916666667), abs=1e-6)
    still = torch.tensor(list(replies("ipm", epsilon=6).values())).double().mean(dim=0)
    assert still.tolist() == pytest.approx((0, 0), abs=1e-6)


def test_a_scaled_update_makes_up_for_the_sizes_of_the_others():
    """If the other sites reply with zero updates, the weighted mean is the attackers' own model."""
    still = Sent([(0, 0), (0, 0), (1, 2), (1, 2)], sizes=[5, 3, 1, 1])
    seen = replies("scaling", "site-3", "site-4", sent=still)
    mean = sum(size / 10 * torch.tensor(value) for size, value in zip((5, 3, 1, 1), seen.values(), strict=True))
    assert mean.tolist() == pytest.approx((1, 2))


def test_noise_is_as_long_as_the_update_and_the_same_whenever_replies_are_read():
    long = Sent([torch.full((20000,), value).tolist() for value in (1.0, 3.0)])
    seen = AttackedReplies(long, attackers("gaussian", "site-2", scale=0.5), 0, 1)
    first, again = (dict(seen)["site-2"]["model/a"] for _ in range(2))
    assert torch.equal(first, again)
    assert root_mean_square({"a": first}) == pytest.approx(1.5, rel=0.03)
    assert float(first.mean()) == pytest.approx(0, abs=0.05)
    other = dict(AttackedReplies(long, attackers("gaussian", "site-2", scale=0.5), 0, 2))["site-2"]["model/a"]
    assert not torch.equal(first, other), "each round draws anew"


def test_attackers_share_one_stream():
    """Attackers draw one after the other from the stream, so their replies differ."""
    seen = replies("gaussian", "site-1", "site-2", sent=Sent([(1, 1), (1, 1), (1, 1)]))
    assert seen["site-1"] != seen["site-2"]


def test_a_free_rider_in_disguise_says_what_changed_last():
    assert replies("free_rider", disguise=True, last=LAST)["site-7"] == [3, 4]
    assert replies("free_rider", disguise=True)["site-7"] == [0, 0]
    noisy = torch.tensor(replies("free_rider", noise=2.0, last=LAST)["site-7"])
    louder = torch.tensor(replies("free_rider", noise=4.0, last=LAST)["site-7"])
    assert bool(noisy.all())
    torch.testing.assert_close(louder, 2 * noisy)
    assert replies("free_rider", noise=2.0)["site-7"] == [0, 0], "as long as nobody knows how large a change is"


def test_where_no_honest_site_replies_those_who_know_them_all_know_nothing():
    seen = replies("alie", "site-1", sent=Sent([(1, 2)]), z=1.0)
    assert seen == {"site-1": [1, 2]}
    assert replies("ipm", "site-1", sent=Sent([(1, 2)])) == {"site-1": [1, 2]}


def test_what_attackers_know():
    known = AttackerKnowledge(Sent([(1, 0), (3, 4), (9, 9)], sizes=[4, 5, 6]), ("site-3",))
    assert known.honest == ("site-1", "site-2")
    assert known.sizes == {"site-1": 4, "site-2": 5, "site-3": 6}
    assert known.honest_mean["a"].tolist() == [2, 2]
    assert known.honest_deviation["a"].tolist() == pytest.approx([2**0.5, 8**0.5])
    assert sorted(known.honest_mean) == ["a"], "no counter"


@pytest.mark.parametrize(("sites", "bad", "z"), [(50, 24, 1.4260768723), (10, 2, 0), (20, 4, 0.1573106846)])
def test_the_reach_of_alie(sites, bad, z):
    assert supporter_quantile(sites, bad) == pytest.approx(z, abs=1e-9)


def test_a_majority_reaches_as_far_as_it_likes():
    assert supporter_quantile(3, 2) == pytest.approx(6, abs=0.01)


def test_alie_among_few_sites_is_no_attack_and_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        attackers("alie").adversary.check(10, 2)
        assert "z = 0.00" in caplog.text
        caplog.clear()
        attackers("alie").adversary.check(50, 24)
        attackers("alie", z=1.0).adversary.check(10, 2)
    assert caplog.text == ""


# ---- data


def poisoned(attack, **options):
    data, adversary = make_data(12, "adversaries"), attackers(attack, **options).adversary
    return data, AttackedData(data, adversary, CLASSES, make_task().scale, torch.Generator().manual_seed(0))


def test_labels_are_flipped():
    data, wrong = poisoned("label_flip")
    assert torch.equal(wrong.class_labels, CLASSES - 1 - data.class_labels)
    inputs, targets = wrong.batch(torch.tensor([3, 1]))
    assert torch.equal(inputs, data.batch(torch.tensor([3, 1]))[0])
    assert torch.equal(targets, CLASSES - 1 - data.class_labels[[3, 1]])


def test_labels_of_one_class_are_flipped_to_another():
    data, wrong = poisoned("label_flip", source=1, target=2)
    expected = torch.where(data.class_labels == 1, 2, data.class_labels)
    assert torch.equal(wrong.class_labels, expected)
    assert not torch.equal(wrong.class_labels, data.class_labels)


def test_the_rate_is_of_the_images_of_the_source():
    data, wrong = poisoned("label_flip", source=1, target=2, rate=0.5)
    assert int((wrong.class_labels != data.class_labels).sum()) == round(0.5 * int((data.class_labels == 1).sum()))


def test_a_backdoor_is_the_brightest_square_on_a_share_of_the_images():
    data, wrong = poisoned("backdoor", rate=0.5, target=1, patch=2)
    rows = torch.arange(12)
    clean, (inputs, targets) = data.batch(rows)[0].clone(), wrong.batch(rows)
    stamped = (inputs != clean).flatten(1).any(dim=1)
    assert int(stamped.sum()) == 6
    assert (inputs[stamped][..., -2:, -2:] == 1).all()  # (1 - 0.5) / 0.5
    assert (targets[stamped] == 1).all()
    assert torch.equal(targets[~stamped], data.class_labels[~stamped])
    assert torch.equal(inputs[..., :-2, :], clean[..., :-2, :])
    assert torch.equal(data.batch(rows)[0], clean), "the images themselves stay"


# ---- the setting


LABEL_FLIP = {"where": "the attack 'label_flip' (setting 'adversaries')", "settings": [""]}


@pytest.mark.parametrize(
    ("setting", "code", "fields"),
    [
        ({"sites": ["a"]}, "missing_setting", {"settings": ["attack"]}),
        ({"attack": "alie", "sites": []}, "invalid_setting", {"settings": ["sites"]}),
        (
            {"attack": "alie", "sites": ["a"], "patch": 3},
            "unknown_setting",
            {"where": "the attack 'alie' (setting 'adversaries')", "settings": ["patch"]},
        ),
        ({"attack": "label_flip", "sites": ["a"], "target": 1}, "invalid_setting", LABEL_FLIP),
        ({"attack": "label_flip", "sites": ["a"], "target": 1, "source": 1}, "invalid_setting", LABEL_FLIP),
    ],
)
def test_a_setting_that_is_not_valid_is_refused(setting, code, fields):
    with refused(SettingsError, code, **fields):
        read_attackers(setting, REGISTRY)


def test_an_unknown_attack_is_refused_with_the_nearest_name():
    setting = {"attack": "sign_flp", "sites": ["a"]}
    with refused(PluginError, "unknown_choice", what="adversary", choice="sign_flp") as caught:
        read_attackers(setting, REGISTRY)
    assert "Did you mean 'sign_flip'" in str(caught.value)


def test_without_a_setting_no_one_attacks():
    assert read_attackers({}, REGISTRY) is None


def test_records_say_what_the_classes_are():
    for name, record in REGISTRY.adversaries.items():
        kind = REGISTRY.adversary(name)
        assert issubclass(kind, DataAdversary if record.on == "data" else ReplyAdversary), name
        assert "Source: " in (kind.__doc__ or ""), name
        for option in kind.model_fields:
            assert option in record.summary, f"'{option}' of {name} is not in its line of `medfl list adversaries`"


def test_anybody_adds_one(tmp_path):
    """The documentation's example works, and a class that is no attack is refused by name."""
    (block,) = re.findall(r"```python\n# half_hearted.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "half_hearted.py").write_text(block)
    (tmp_path / "odd.py").write_text(
        "from medfl.plugins import AdversaryRecord, hookimpl\n\n"
        "@hookimpl\n"
        "def medfl_adversaries():\n"
        "    return [AdversaryRecord('root', 'math:sqrt', '', 'reply', '')]\n"
    )
    registry = load_plugins(files=[tmp_path / "half_hearted.py", tmp_path / "odd.py"])
    made = read_attackers({"attack": "half_hearted", "sites": ["site-7"], "share": 0.25}, registry)
    assert made is not None
    assert dict(AttackedReplies(Sent(), made, 0, 1))["site-7"]["model/a"].tolist() == [2.5, -2.5]
    with refused(PluginError, "wrong_type", name="root"):
        read_attackers({"attack": "root", "sites": ["site-7"]}, registry)


def test_the_page_names_all_attacks_and_rules():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in REGISTRY.adversaries if f"| `{name}` |" not in text] == []
    assert [rule for rule in REGISTRY.robust_rules if f"| `{rule}` |" not in text] == []
