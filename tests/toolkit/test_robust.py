"""Tests of robust rules: closed forms, limit cases bit by bit, breakdown, and refusals."""

import math
from typing import ClassVar

import pytest
import torch
from refusals import refused

from medfl.contract import Capability, Server, State
from medfl.engine.checks import check_robust
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Robust, Settings
from medfl.testing.cohort import Case, bits, make_task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.personal import PersonalModels
from medfl.toolkit.robust.krum import bulyan_selection, krum_scores
from medfl.toolkit.robust.rule import check_rule, least_replies, probability_of_more_attackers, robust_mean
from medfl.toolkit.robust.updates import squared_distances, stacked_updates
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
POINTS = ((1, 0), (1.2, 0.1), (0.8, -0.2), (1.1, 0.3), (0.9, 0.1), (0.6, 0.4), (10, -10))
"""Six honest replies and a malicious one."""

EXPECTED = {
    "median": ({}, (1, 0.1)),
    "trimmed 1": ({"rule": "trimmed_mean"}, (1, 0.06)),
    "trimmed 2": ({"rule": "trimmed_mean", "f": 2}, (1, 0.0666666667)),
    "krum": ({}, (1, 0)),
    "multi_krum": ({}, (1.05, 0.125)),
    "bulyan": ({}, (1, 0.0666666667)),
    "geometric_median": ({}, (0.9952240677, 0.0338346696)),
    "limit": ({"rule": "geometric_median", "iterations": 300}, (0.9933975360, 0.0335790139)),
    "centred_clip": ({"radius": 1}, (0.8526309087, -0.0087062708)),
    "three times": ({"rule": "centred_clip", "radius": 1, "iterations": 3}, (1.0409613655, -0.0071944108)),
    "norm_clip": ({"radius": 1}, (0.8526309087, -0.0087062708)),
}


class Sent:
    """Replies in memory by site."""

    missing: ClassVar[list[str]] = []

    def __init__(self, replies):
        self.replies = dict(sorted(replies.items()))
        self.meta = {name: {} for name in self.replies}

    def __iter__(self):
        return iter(self.replies.items())

    def __len__(self):
        return len(self.replies)


def sent(points=POINTS):
    """Return replies with each point as two parameters, a float buffer outside the distances, and a counter."""
    return Sent(
        {
            f"site-{number}": {
                "model/a": torch.tensor([float(point[0])], dtype=torch.float64),
                "model/b": torch.tensor(float(point[1]), dtype=torch.float64),
                "model/mean": torch.tensor([100.0 * number]),
                "model/count": torch.tensor(number),
            }
            for number, point in enumerate(points, 1)
        }
    )


def make_server(**tensors):
    first = {"a": torch.zeros(1).double(), "b": torch.zeros(()).double(), "mean": torch.zeros(1)}
    state = State(first | {"count": torch.tensor(0)} | tensors, {"parameters": ["a", "b"]})
    return Server("server", 1, state, None, Settings(rounds=1))


def value_of(robust, points=POINTS, server=None):
    value = robust_mean(server or make_server(), sent(points), robust)
    return value["a"].item(), value["b"].item()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_rule_has_the_value_that_was_worked_out(name):
    options, expected = EXPECTED[name]
    assert value_of(Robust(**{"rule": name} | options)) == pytest.approx(expected, abs=1e-9)


def test_krum_and_bulyan_choose_as_worked_out():
    parameters = {name: make_server().state.tensors[name] for name in ("a", "b")}
    squares = squared_distances(sent(), sorted(sent().meta), parameters, {})[:-1, :-1]
    assert krum_scores(squares, 1).tolist() == pytest.approx((0.25, 0.44, 0.77, 0.49, 0.29, 1.16, 725.95))
    assert [index + 1 for index in bulyan_selection(squares, 1)] == [1, 5, 2, 4, 3]


def test_bulyan_scores_the_remaining_replies_again():
    """Compare with a plain loop as in the paper, on twenty clouds of nine points."""
    for seed in range(20):
        points = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        left, chosen = list(range(9)), []
        while len(chosen) < 7:
            nearest = max(1, len(left) - 3)
            others = {i: [float((points[i] - points[j]).square().sum()) for j in left if j != i] for i in left}
            best = min(left, key=lambda i: sum(sorted(others[i])[:nearest]))
            chosen.append(best)
            left.remove(best)
        squares = torch.cdist(points, points).square()
        assert bulyan_selection(squares, 1) == chosen


@pytest.mark.parametrize(
    ("robust", "mean", "count"),
    [
        (Robust(rule="krum"), 100, 1),
        (Robust(rule="multi_krum"), 300, 4),
        (Robust(rule="median"), 400, 4),
        (Robust(rule="trimmed_mean"), 400, 4),
    ],
)
def test_buffers_follow_the_choice_and_counters_take_the_lower_median(robust, mean, count):
    value = robust_mean(make_server(), sent(), robust)
    assert value["mean"].item() == pytest.approx(mean)
    assert value["count"].item() == 4
    assert value["count"].dtype is torch.int64
    even = robust_mean(make_server(), sent(POINTS[:6]), Robust(rule="median"))
    assert (even["count"].item(), even["mean"].item()) == (3, 350)


def test_a_tensor_that_a_reply_lacks_counts_as_zeros():
    replies = sent()
    replies.replies["site-7"] = {}
    value = robust_mean(make_server(), replies, Robust(rule="median"))
    assert (value["a"].item(), value["b"].item()) == pytest.approx((0.9, 0.1))


def test_centred_clip_continues_from_its_last_value():
    server, robust = make_server(), Robust(rule="centred_clip", radius=1)
    values = [value_of(robust, server=server) for _ in range(3)]
    assert values[2] == pytest.approx(value_of(Robust(rule="centred_clip", radius=1, iterations=3)), abs=1e-9)
    assert sorted(name for name in server.state.tensors if name.startswith("kept/")) == [
        f"kept/robust/{name}" for name in ("a", "b", "mean")
    ]


def test_without_a_radius_it_is_the_median_norm():
    radius = sorted(math.hypot(*point) for point in POINTS)[3]
    for rule in ("norm_clip", "centred_clip"):
        assert value_of(Robust(rule=rule)) == pytest.approx(value_of(Robust(rule=rule, radius=radius)))


def test_what_is_read_in_pieces_is_what_is_read_at_once(monkeypatch):
    whole = {name: value_of(Robust(**{"rule": name} | EXPECTED[name][0])) for name in ("median", "krum", "bulyan")}
    monkeypatch.setattr("medfl.toolkit.robust.updates.MAX_STACK_BYTES", 1)
    for name, value in whole.items():
        assert value_of(Robust(**{"rule": name} | EXPECTED[name][0])) == value


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"])
@pytest.mark.parametrize("far", [1e3, 1e9])
def test_one_reply_moves_no_rule_out_of_the_others(rule, far):
    a, b = value_of(
        Robust(rule=rule, iterations=300 if rule == "geometric_median" else None), (*POINTS[:6], (far, -far))
    )
    assert 0.6 <= a <= 1.2
    assert -0.2 <= b <= 0.4


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"rule": "median", "f": 2}, 5),
        ({"rule": "trimmed_mean", "f": 2}, 5),
        ({"rule": "geometric_median", "f": 2}, 5),
        ({"rule": "krum"}, 5),
        ({"rule": "multi_krum", "f": 2}, 7),
        ({"rule": "bulyan"}, 7),
        ({"rule": "norm_clip", "f": 9}, 1),
    ],
)
def test_a_rule_needs_so_many_replies(options, least):
    robust = Robust(**options)
    assert least_replies(robust) == least
    check_rule(robust, least)
    if least > 1:
        with refused(SettingsError, "too_few_replies", rule=robust.rule, minimum=least, found=least - 1):
            check_rule(robust, least - 1)


@pytest.mark.parametrize("options", [{"iterations": 2}, {"radius": 2.0}])
def test_a_setting_of_another_rule_is_refused(options):
    with refused(SettingsError, "unsupported_setting", setting=f"robust.{next(iter(options))}", rule="median"):
        check_rule(Robust(rule="median", **options), 9)


def test_how_likely_too_many_attackers_are_drawn():
    assert probability_of_more_attackers(10, 2, 5, 1) == pytest.approx(0.2222222222)
    assert probability_of_more_attackers(10, 2, 10, 2) == 0
    assert probability_of_more_attackers(10, 3, 10, 2) == 1


# ---- in a run


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "trimmed_mean", "f": 0},
        {"rule": "geometric_median", "iterations": 0},
        {"rule": "norm_clip", "radius": 1e9},
        {"rule": "centred_clip", "radius": 1e9},
    ],
    ids=lambda options: options["rule"],
)
def test_where_it_leaves_out_nothing_a_rule_is_uniform_fedavg_bit_by_bit(tmp_path, options):
    task = make_task("plain")
    robust = Case(REGISTRY, "fedavg").run(tmp_path / "robust", task=task, rounds=2, robust=options)
    plain = Case(REGISTRY, "fedavg", {"weights": "uniform"}).run(tmp_path / "plain", task=task, rounds=2)
    mine, other = bits(robust), bits(plain)
    assert all(tensors_equal(mine[name], other[name]) for name in other)


@pytest.mark.parametrize(("name", "tolerance"), [("feddyn", 0.0), ("scaffold", 1e-5)])
def test_what_a_server_keeps_beside_the_model_follows_the_rule(tmp_path, name, tolerance):
    """A rule that excludes nothing equals the method; SCAFFOLD computes c from updates instead of sent tensors."""
    settings = {"rounds": 3, "steps": 4, "lr_decay": 0.9, "task": make_task("plain"), "fraction": 0.7}
    robust = Case(REGISTRY, name).run(tmp_path / "robust", robust={"rule": "trimmed_mean", "f": 0}, **settings)
    plain = Case(REGISTRY, name).run(tmp_path / "plain", **settings)
    mine, other = bits(robust)["server/global"], bits(plain)["server/global"]
    for tensor, expected in zip(mine.values(), other.values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=tolerance)


def test_scaffold_needs_equal_steps_under_a_rule(tmp_path):
    with refused(SettingsError, "incompatible_settings", settings=["robust", "steps"], method="scaffold"):
        Case(REGISTRY, "scaffold").run(tmp_path, robust={"rule": "median"})


def test_a_rule_runs_with_batch_norm_noise_bits_and_a_server_optimiser(tmp_path):
    settings = {"rounds": 2, "robust": {"rule": "median"}, "compression": {"bits": 8}, "norm_sync": "params"}
    private = {"privacy": {"epsilon": 50, "delta": 0.1, "clip": 1}}
    result = Case(REGISTRY, "fedavgm").run(tmp_path, **settings, **private)
    assert result.outcome.status == "finished"


def test_no_run_begins_with_too_few_sites(tmp_path):
    with refused(SettingsError, "too_few_replies", rule="krum", f=1, minimum=5, found=3):
        Case(REGISTRY, "fedavg").run(tmp_path, robust={"rule": "krum"})


def test_a_round_with_too_few_replies_ends_the_run(tmp_path):
    result = Case(REGISTRY, "fedavg").run(
        tmp_path, robust={"rule": "median"}, unavailable=lambda site, step: site == "site-2" and step == 2
    )
    assert (result.outcome.status, result.outcome.rounds) == ("incomplete", 1)
    assert "2 of 3 needed replies came" in result.outcome.reason


SAFE = {
    *("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "fedbn", "fedper", "fedrep", "fedbabu"),
    *("lg_fedavg", "ditto", "moon", "fedntd", "fedala", "feddr_plus", "mr_mtl", "apfl", "per_fedavg", "pfedme"),
    *("fedrod", "flash", "fenda", "perfcl", "fedkd", "feddyn", "scaffold", "gpfl"),
}

REASONS = {
    "centralized": ("pooled_data", set()),
    "fedcross": ("no_mean", set()),
    "local": ("no_updates", set()),
    "fedproto": ("no_updates", {("proto/", "statistic")}),
    "fedcurv": ("other_payloads", {("fisher/", "statistic"), ("pull/", "statistic")}),
    "pfedcdp": ("several_means", {("model/", "update"), ("teacher/", "update")}),
    "fednova": ("own_weights", set()),
}
"""Maps methods to the reason why they don't support robust rules, and to payloads that they send."""


def test_what_makes_something_else_of_replies_is_refused_by_name():
    methods = {name: REGISTRY.make_method(name, {}) for name in REGISTRY.methods}
    assert {name for name, method in methods.items() if Capability.ROBUST in method.active_supports} == SAFE
    assert Capability.ROBUST not in REGISTRY.make_method("fedper", {"global_head": "average"}).active_supports
    for name, (cause, sends) in REASONS.items():
        fields = {"feature": "robust", "rule": "median", "method": name, "cause": cause}
        with refused(SettingsError, "method_not_supported", **fields) as caught:
            check_robust(name, methods[name], Settings(rounds=1, robust={"rule": "median"}))
        assert sends <= set(caught.value.fields["sends"].items())


def test_each_class_declares_itself_that_a_robust_rule_can_replace_its_mean():
    class Inherits(Averaging):
        pass

    class Declares(Inherits):
        supports: ClassVar[frozenset[Capability]] = frozenset({Capability.ROBUST})

    kinds = (Averaging, Inherits, Declares)
    assert [Capability.ROBUST in kind().active_supports for kind in kinds] == [True, False, True]


def test_a_subclass_keeps_capabilities_that_are_no_promises():
    class Child(PersonalModels):
        pass

    assert Child().active_supports == {Capability.DIFFERENT_NETWORKS}


@pytest.mark.parametrize(("room", "reads"), [(1, 3), (7 * 8, 3), (2 * 7 * 8, 2), (3 * 7 * 8 - 1, 2), (3 * 7 * 8, 1)])
def test_no_more_than_the_limit_is_held_at_a_time(monkeypatch, room, reads):
    """Three one-element tensors of seven sites take 56 bytes each in float64. Count how often the replies are read."""
    monkeypatch.setattr("medfl.toolkit.robust.updates.MAX_STACK_BYTES", room)
    replies = sent()
    floats = {name: make_server().state.tensors[name] for name in ("a", "b", "mean")}
    read = []
    monkeypatch.setattr(Sent, "__iter__", lambda self: read.append(1) or iter(self.replies.items()))
    stacks = dict(stacked_updates(replies, sorted(replies.meta), floats))
    assert len(read) == reads
    assert {name: rows.shape for name, rows in stacks.items()} == dict.fromkeys(floats, (7, 1))


def test_of_equal_replies_the_first_names_are_chosen():
    """All updates are equal. The buffer of a reply is 100 times its number and shows which replies the rule chose."""
    alike = [(1, 0)] * 7
    for rule, mean in (("krum", 100), ("multi_krum", (100 + 200 + 300 + 400) / 4), ("bulyan", (200 + 300 + 400) / 3)):
        assert robust_mean(make_server(), sent(alike), Robust(rule=rule))["mean"].item() == pytest.approx(mean), rule
