"""Whole runs of FedSDC against an independent plain loop, limit cases (O-SD-6), interruptions."""

import pytest
import torch
from fedsdc_toys import PLAIN, body_at, heads_at, plain_loop, run
from pfedcdp_toys import NAMES, personal, server_tensors
from toys import Forgetful

from medfl.errors import RefusedError
from medfl.testing.cohort import make_site, make_sites, make_task, scores
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedsdc.method import FedSDC


class Refusing(FedSDC):
    """FedSDC in which site 2 does not reply to the training request of round 2."""

    def execute(self, site, request):
        if (site.name, site.round, request.op) == ("site-2", 2, "fit"):
            raise RefusedError("not_today", "not today")
        return super().execute(site, request)


def dealt(result):
    """Return the assignment of heads in each round, from the findings."""
    held = result.outcome.findings.tensors["held"].tolist()
    return [{name: slot for name, slot in zip(NAMES, row, strict=True) if slot >= 0} for row in held]


# ---- against a plain loop


@pytest.mark.parametrize(
    ("options", "norm", "missing"),
    [
        ({}, True, ()),
        ({"make_method": Refusing}, True, [(2, "site-2")]),
        ({"fraction": 0.67, "make_method": lambda: FedSDC(beta=0.9, diversity=False)}, False, ()),
    ],
    ids=["all", "one refuses", "two of three"],
)
def test_a_run_is_a_plain_loop(tmp_path, options, norm, missing):
    """Body, velocity and heads are equal bit by bit after three rounds. A head that is not returned keeps its value."""
    options = {"task": make_task("norm" if norm else "plain")} | options
    method = options.get("make_method", FedSDC)()
    run(tmp_path / "start", **(options | {"rounds": 1, "epochs": 0}))
    first = heads_at(tmp_path / "start")
    result = run(tmp_path / "run", rounds=3, **options)
    body, velocity, heads = plain_loop(make_sites(), first, dealt(result), method.beta, norm, missing)
    assert len(heads) == len(first) == (2 if "fraction" in options else 3)
    assert tensors_equal(body_at(tmp_path / "run"), body)
    assert tensors_equal(select(server_tensors(tmp_path / "run"), "kept/velocity/"), velocity)
    for head, expected in zip(heads_at(tmp_path / "run"), heads, strict=True):
        assert tensors_equal(head, expected)


# ---- limit cases (O-SD-6)


@pytest.mark.parametrize("network", ["norm", "forgetful"])
def test_sd_6_with_one_participant_a_round_it_is_fedavg(tmp_path, network):
    """The models are equal bit by bit, even with dropout."""
    task = make_task().with_network("forgetful", Forgetful)
    options = {"task": type(task)(**{**vars(task), "network": network}), "fraction": 0.34, "rounds": 4}
    run(tmp_path / "avg", name="fedavg", **options)
    result = run(tmp_path / "sdc", PLAIN, **options)
    expected = server_tensors(tmp_path / "avg")
    (head,) = heads_at(tmp_path / "sdc")
    assert tensors_equal(body_at(tmp_path / "sdc") | {"head." + key: tensor for key, tensor in head.items()}, expected)
    assert not tensors_equal(expected, options["task"].initial(7))
    assert {tuple(held) for held in dealt(result)} == {("site-1",), ("site-2",), ("site-3",)}
    accuracy = [[line for line in scores(tmp_path / name) if "accuracy" in line] for name in ("avg", "sdc")]
    assert accuracy[0] == accuracy[1] != []


# ---- personal normalisation layers


@pytest.mark.parametrize("norm_sync", ["none", "params"])
def test_with_personal_norms_models_are_personal(tmp_path, norm_sync):
    """A site's model has the shared body, all heads and the site's norms. Untrained sites have the initial norms."""
    unavailable = {"unavailable": lambda site, step: site == "site-3"}
    result = run(tmp_path, {"gamma": 0.5}, norm_sync=norm_sync, **unavailable)
    assert result.outcome.models == {}
    assert [set(result.models[name]) for name in NAMES] == [{"personal"}] * 3
    kept = result.outcome.findings.meta["heads"]["ensemble_heads"]
    heads = heads_at(tmp_path)
    task, images = make_task(), make_sites()["site-1"].test.images
    for name in NAMES:
        tensors = personal(result, name)
        for place, slot in enumerate(kept):
            assert tensors_equal(select(tensors, f"head.heads.{place}."), heads[slot])
        assert tensors_equal({key: tensors[key] for key in body_at(tmp_path)}, body_at(tmp_path))
        assert FedSDC(gamma=0.5).predictor(task, [result.models[name]["personal"]])(images).shape == (9, 3)
    means = [personal(result, name)["body.1.running_mean"] for name in NAMES]
    assert not torch.equal(means[0], means[1])
    assert torch.equal(means[2], torch.zeros(6))


def test_a_body_without_norms_is_shared_whole(tmp_path):
    """There is a global model for any `norm_sync`, as in FedAvg."""
    task = make_task("plain")
    results = [run(tmp_path / name, name=name, task=task, norm_sync="params") for name in ("fedavg", "fedsdc")]
    for result in results:
        assert set(result.outcome.models) == {"global"}
        assert [set(result.models[name]) for name in NAMES] == [{"global"}] * 3


# ---- interruptions


def test_without_a_choice_no_one_needs_to_judge(tmp_path):
    """All heads form the ensemble. The last round is evaluated, but not the heads."""
    result = run(tmp_path, rounds=1, unavailable=lambda site, step: step > 1)
    assert (result.outcome.status, result.outcome.rounds) == ("finished", 1)
    heads = result.outcome.findings.meta["heads"]
    assert heads["ensemble_heads"] == [0, 1, 2]
    assert "evaluation" not in heads
    assert any("aggregated,accuracy" in line for line in scores(tmp_path))


def test_sites_without_images_of_one_kind(tmp_path):
    """A site without training images gets no head; a site without validation images evaluates no head."""
    sites = make_sites() | {"site-1": make_site(0, "empty")}
    sites["site-2"].val = type(sites["site-2"].val)(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))
    result = run(tmp_path, {"gamma": 0.5}, sites=sites)
    heads = result.outcome.findings.meta["heads"]
    assert result.outcome.status == "finished"
    assert (len(heads["widths"]), len(heads["ensemble_heads"]), heads["evaluation"]["images"]) == (2, 1, 6 + 6)
    assert [set(held) for held in dealt(result)] == [{"site-2", "site-3"}] * 2
    assert tensors_equal(result.models["site-1"]["global"].tensors, result.outcome.models["global"].tensors)
