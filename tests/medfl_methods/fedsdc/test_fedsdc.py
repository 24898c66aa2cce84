"""FedSDC's numbers (O-SD-2, O-SD-4, O-SD-5): assignment of heads, widths, ensemble, momentum."""

import dataclasses
import math
from collections import Counter

import pandas as pd
import pytest
import torch
from fedsdc_toys import FEATURES, PLAIN, body_at, dealing_server, heads_at, run, said_by, vote
from pfedcdp_toys import NAMES
from torch import nn

from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.networks.heads import TwoLayerHead
from medfl.testing.cohort import CLASSES, SmallNet, make_data, make_sites, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal
from medfl_methods.fedavg import FedAvg
from medfl_methods.fedsdc.head_evaluation import count_ensemble_heads, evaluate_heads, rank_heads, sum_counts
from medfl_methods.fedsdc.method import FedSDC

# ---- assignment of heads (O-SD-2)


def deals(rounds, sites, shuffle=True, **settings):
    """Return the assignment of heads in each round: a mapping from site to head."""
    server = dealing_server(sites, **settings)
    return [
        FedSDC(shuffle=shuffle).assign_heads(dataclasses.replace(server, round=number))
        for number in range(1, rounds + 1)
    ]


def test_sd_2_every_head_goes_to_every_site_equally_often():
    dealt = deals(3000, 4)
    assert all(sorted(held.values()) == [0, 1, 2, 3] for held in dealt)
    pairs = Counter(pair for held in dealt for pair in held.items())
    assert len(pairs) == 16
    bound = 4 * math.sqrt(0.25 * 0.75 / 3000)
    assert all(abs(count / 3000 - 0.25) < bound for count in pairs.values())
    at_home = sum(held == {f"site-{k}": k for k in range(4)} for held in dealt) / 3000
    assert at_home == pytest.approx(1 / 24, abs=4 * math.sqrt(1 / 24 * 23 / 24 / 3000))  # no derangement


def test_sd_2_who_takes_part_is_as_in_all_methods_and_no_head_is_idle():
    server, dealt = dealing_server(5, fraction=0.6), deals(60, 5, fraction=0.6)
    server.state.tensors = make_task("plain").initial(7)
    for number, held in enumerate(dealt, start=1):
        plan = FedAvg().plan(dataclasses.replace(server, round=number))
        assert list(held) == [request.to for request in plan.requests]
        assert sorted(held.values()) == [0, 1, 2]
    assert deals(9, 5, fraction=0.6, seed=1) != dealt[:9]


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_sd_2_without_shuffling_each_site_keeps_its_head(fraction):
    dealt = deals(40, 5, shuffle=False, fraction=fraction)
    assert {pair for held in dealt for pair in held.items()} == {(f"site-{k}", k) for k in range(5)}


# ---- widths (O-SD-5)


@pytest.mark.parametrize("seed", range(5))
def test_sd_5_one_width_in_each_part_of_the_range(tmp_path, seed):
    """A head of width r on a body with d = 512 features has d r + r + r C + C parameters."""
    server = dealing_server(4, seed=seed)
    wide = make_task("plain").with_network("plain", lambda: SmallNet(norm=False, width=128))
    server.task, server.round = wide, 0
    heads = FedSDC().initial_heads(server, 4)
    widths = [len(head["hidden.weight"]) for head in heads]
    for width, low in zip(widths, (0.4, 0.55, 0.7, 0.85), strict=True):
        assert int(low * 512) <= width <= (low + 0.15) * 512
    assert len(set(widths)) == 4
    for head, width in zip(heads, widths, strict=True):
        assert sum(t.numel() for t in head.values()) == 512 * width + width + width * CLASSES + CLASSES
        for layer, fan in (("hidden", 512 + width), ("out", width + CLASSES)):  # Xavier's normal weights
            assert torch.count_nonzero(head[layer + ".bias"]) == 0
            assert float(head[layer + ".weight"].std()) == pytest.approx(math.sqrt(2 / fan), rel=0.1)
    assert len({float(head["out.weight"][0, 0]) for head in heads}) == 4


def test_without_diversity_all_heads_begin_as_the_networks_own():
    server = dealing_server(3)
    heads = FedSDC(diversity=False).initial_heads(server, 3)
    own = server.task.initial(0)
    assert all(tensors_equal(head, {"weight": own["head.weight"], "bias": own["head.bias"]}) for head in heads)


# ---- momentum (SD-01)


class Told:
    """Replies with tensors and metadata by site."""

    def __init__(self, replies, sizes):
        self._replies, self.meta, self.missing = replies, {name: {"size": n} for name, n in sizes.items()}, []

    def __iter__(self):
        return iter(sorted(self._replies.items()))

    def __len__(self):
        return len(self._replies)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.5, (0.9213975, 1.9261722598, 2.5611703376)), (0.0, (0.9213975, 1.4654735098, 1.7867449528))],
)
def test_sd_1_the_body_moves_to_the_sites_with_momentum(beta, expected):
    """Three sites train part of the way to 0, 1 and 4: the rows FedAvgM and FedAvg of O-G1.

    The update of each head is the number of its site.
    """
    server, method = dealing_server(3), FedSDC(beta=beta)
    zero = torch.zeros((), dtype=torch.float64)
    server.state.tensors = {"w": zero} | {f"kept/heads/{slot:06d}/weight": zero for slot in range(3)}
    server.state.meta["parameters"] = ["w"]
    centres, sizes = {"site-0": 0, "site-1": 1, "site-2": 4}, {"site-0": 1, "site-1": 1, "site-2": 2}
    heads = [0.0, 0.0, 0.0]
    for number, value in enumerate(expected, start=1):
        server.round, server.site_info = number, {name: {"trainable": True} for name in server.sites}
        w, kept = server.state.tensors["w"], 0.9**5
        moved = {name: {"model/w": (1 - kept) * (c - w), "head/weight": zero + c} for name, c in centres.items()}
        method.aggregate(server, Told(moved, sizes))
        assert float(server.state.tensors["w"]) == pytest.approx(value, abs=1e-9)
        for name, slot in method.assign_heads(server).items():
            heads[slot] += centres[name]
        assert [float(server.state.tensors[f"kept/heads/{slot:06d}/weight"]) for slot in range(3)] == heads


# ---- ensemble (O-SD-4)


@pytest.mark.parametrize(
    ("gamma", "heads", "count"),
    [
        (0.3, 10, 3),
        (0.01, 10, 1),
        (0.25, 10, 3),
        (1, 10, 10),
        (0.55, 100, 55),
        (0.07, 100, 7),
        (1e-9, 1, 1),
        (0.5, 3, 2),
    ],
)
def test_sd_4_how_many_heads_answer(gamma, heads, count):
    assert count_ensemble_heads(gamma, heads) == count


def test_heads_are_ranked_by_hits_then_by_number():
    assert rank_heads([3, 7, 3, 9, 7]) == [3, 1, 4, 0, 2]
    assert rank_heads([2]) == [0]


@pytest.mark.parametrize("ranking", [None, [2, 0, 3, 1]])
def test_what_a_site_finds_out_about_heads(ranking):
    opinions = torch.rand(4, 30, 3, generator=make_generator("opinions"), dtype=torch.float64).softmax(2)
    labels = torch.arange(30) % 3
    judged = evaluate_heads(opinions, labels, ranking)
    chosen, order = opinions.argmax(2).tolist(), ranking or [0, 1, 2, 3]
    assert judged["images"] == 30
    assert judged["right"] == [sum(c == y for c, y in zip(choices, labels.tolist(), strict=True)) for choices in chosen]
    agree = [[sum(a == b for a, b in zip(choices, two, strict=True)) for two in chosen] for choices in chosen]
    assert judged["agree"] == agree
    votes = [[vote(opinions[order[:n], i].tolist()) for i in range(30)] for n in (1, 2, 3, 4)]
    assert judged["votes"] == [sum(c == y for c, y in zip(choices, labels.tolist(), strict=True)) for choices in votes]
    assert sum_counts([judged, judged]) == {
        "images": 60,
        "right": [2 * n for n in judged["right"]],
        "agree": [[2 * n for n in row] for row in agree],
        "votes": [2 * n for n in judged["votes"]],
    }


def poisoned(sites, split):
    """Return the sites with the labels of a split reversed."""

    def turn(data):
        return TensorData(data.images, (data.class_labels + 1) % CLASSES)

    return {name: dataclasses.replace(data, **{split: turn(getattr(data, split))}) for name, data in sites.items()}


def bigger():
    """Return the small federation with more validation images."""
    return {name: dataclasses.replace(s, val=make_data(20, name + "/many")) for name, s in make_sites().items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Map each name to run folder and result: all heads, two of three, one; with reversed test or validation labels."""
    cases = {
        "all": ({}, bigger()),
        "two": ({"gamma": 0.5}, bigger()),
        "two, test poisoned": ({"gamma": 0.5}, poisoned(bigger(), "test")),
        "two, val poisoned": ({"gamma": 0.5}, poisoned(bigger(), "val")),
        "best": ({"ensemble": "single_best"}, bigger()),
        "mean": ({"ensemble": "prob_mean"}, bigger()),
        "training": ({"gamma": 0.5, "select_on": "training"}, bigger()),
    }
    by_name = {}
    for name, (args, sites) in cases.items():
        folder = tmp_path_factory.mktemp("run")
        by_name[name] = folder, run(folder, args, sites=sites), FedSDC(**args)
    return by_name


def facts(case):
    _, result, _ = case
    return result.outcome.findings.meta["heads"]


@pytest.mark.slow
def test_sd_4_choosing_heads_changes_no_training(runs):
    for folder, _, _ in runs.values():
        assert tensors_equal(body_at(folder), body_at(runs["all"][0]))
        for first, two in zip(heads_at(folder), heads_at(runs["all"][0]), strict=True):
            assert tensors_equal(first, two)
    assert facts(runs["all"])["ensemble_heads"] == [0, 1, 2]


@pytest.mark.parametrize(("name", "count"), [("two", 2), ("best", 1), ("training", 2)])
def test_the_heads_that_are_right_most_often_answer(runs, name, count):
    """Count on the union of the sites' validation images, or of their training images, by hand."""
    folder, result, _ = runs[name]
    data = [site.train if name == "training" else site.val for site in bigger().values()]
    images, labels = (
        torch.cat([data_set.images for data_set in data]),
        torch.cat([data_set.class_labels for data_set in data]),
    )
    opinions = said_by(body_at(folder), heads_at(folder), images)
    right = (opinions.argmax(2) == labels).sum(1).tolist()
    ranking = sorted(range(3), key=lambda k: (-right[k], k))
    heads_facts = facts(runs[name])
    assert (heads_facts["evaluation"]["right"], heads_facts["evaluation"]["images"]) == (right, len(labels))
    assert (heads_facts["ranking"], heads_facts["ensemble_heads"]) == (ranking, sorted(ranking[:count]))
    best = [[vote(opinions[ranking[:n], i].tolist()) for i in range(len(labels))] for n in (1, 2, 3)]
    assert heads_facts["evaluation"]["votes"] == [int((torch.tensor(choices) == labels).sum()) for choices in best]
    assert len(result.outcome.models["global"].tensors) == len(body_at(folder)) + 4 * count


def test_sd_4_choosing_never_looks_at_the_test_set(runs):
    assert facts(runs["two, test poisoned"]) == facts(runs["two"])
    assert facts(runs["two, val poisoned"])["evaluation"]["right"] != facts(runs["two"])["evaluation"]["right"]


@pytest.mark.parametrize("name", ["all", "two", "best", "mean"])
def test_the_global_model_answers_for_its_heads(runs, name):
    folder, result, method = runs[name]
    images = make_data(200, "asked").images
    heads = [heads_at(folder)[slot] for slot in facts(runs[name])["ensemble_heads"]]
    opinions = said_by(body_at(folder), heads, images)
    with torch.no_grad():
        output = method.predictor(make_task(), [result.outcome.models["global"]])(images)
    expected = (
        opinions.mean(0).argmax(1).tolist() if name == "mean" else [vote(opinions[:, i].tolist()) for i in range(200)]
    )
    assert output.argmax(1).tolist() == expected
    if name == "all":
        assert expected != opinions.mean(0).argmax(1).tolist(), "a vote is no mean here"


def test_what_judging_costs(runs):
    """Each evaluating site receives the body and all heads twice in the last round."""
    folder, _, _ = runs["two"]
    table = pd.read_csv(folder / "metrics.csv").query("metric == 'bytes_down' and site == 'site-2'")
    first, last = (table[table["round"] == number]["value"].tolist() for number in (1, 2))
    body = sum(tensor.numel() * tensor.element_size() for tensor in body_at(folder).values())
    pool = [sum(4 * tensor.numel() for tensor in head.values()) for head in heads_at(folder)]
    assert (len(first), len(last)) == (1, 3)
    assert last[1:] == [body + sum(pool)] * 2
    assert first[0] - body in pool


# ---- privacy


def test_under_privacy_heads_are_clipped_with_the_body_and_nothing_is_disclosed(tmp_path):
    """All heads form the ensemble, without evaluation."""
    result = run(tmp_path, task=make_task("plain"), epochs=6, privacy={"epsilon": 1e7, "clip": 0.05})
    assert result.outcome.status == "finished"
    for name in NAMES:
        store = Store(tmp_path / "state" / name)
        update = store.read(2, "reply/")
        assert store.load(2).meta["reply"] == {}
        assert {"head/hidden.weight", "head/out.bias", "model/body.0.weight"} <= update.keys()
        assert float(torch.cat([t.double().flatten() for t in update.values()]).norm()) == pytest.approx(0.05, rel=0.05)
    heads_facts = result.outcome.findings.meta["heads"]
    assert heads_facts["ensemble_heads"] == [0, 1, 2]
    assert "evaluation" not in heads_facts


class OddHead(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Deep(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = TwoLayerHead(FEATURES, 7, CLASSES, 0.1, "relu")


def odd_task(kind):
    task = make_task().with_network("odd", kind)
    return dataclasses.replace(task, network="odd")


def test_a_count_of_heads_that_fits_is_accepted():
    """It is the number of participants with shuffling, and the number of sites without."""
    for shuffle, count in ((True, 3), (False, 5)):
        server = dealing_server(5, fraction=0.6)
        FedSDC(heads=count, shuffle=shuffle).setup(server)
        assert len({name.split("/")[2] for name in server.state.tensors if "heads/" in name}) == count


@pytest.mark.parametrize(("args", "kind"), [({}, OddHead), (PLAIN, Deep)], ids=["replaced", "as it is"])
def test_heads_of_the_network_that_are_welcome(tmp_path, args, kind):
    """Any head with a linear layer is replaced with `diversity`; without it, heads of two layers are accepted, too."""
    result = run(tmp_path, args, task=odd_task(kind))
    assert result.outcome.status == "finished"
    widths = result.outcome.findings.meta["heads"]["widths"]
    assert widths == [7, 7, 7] if kind is Deep else widths == sorted(set(widths))
