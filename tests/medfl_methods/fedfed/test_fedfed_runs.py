"""Whole runs of FedFed (B29): both stages, three passes, two copies, limit cases, resumption."""

from dataclasses import astuple

import pytest
import torch
from fedtpf_toys import (
    Log,
    nothing_learned,
    recorded,
    run,
    server_of,
    shared_at,
    site_of,
    state_of,
)
from torch.nn import functional as F

from medfl.contract import Request
from medfl.testing.cohort import bits, make_data, make_site, make_task
from medfl.toolkit.averaging import Averaging
from medfl.training.loop import Batch
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedfed.method import FedFed, skew_weights

QUICK = {"width": 2, "latent": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run one round of stage 1 and two of stage 2."""
    log, folder = Log(), tmp_path_factory.mktemp("whole")
    return log, run(folder, "fedfed", QUICK, make_method=recorded(log, FedFed, **QUICK), rounds=3), folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Run the same without sharing."""
    folder = tmp_path_factory.mktemp("alone")
    return run(folder, "fedfed", QUICK | {"share_fraction": 0.0}, rounds=3), folder


def test_only_generator_and_classifier_are_trained_first(whole):
    """The task's network is not sent before stage 2, and then has its initial values. There is no critic."""
    log, result, folder = whole
    moved = {
        "distil": ({"distiller"}, {"distiller"}),
        "share": ({"distiller"}, {"shared"}),
        "train": ({"model", "shared"}, {"model"}),
    }
    for work in log.work:
        received, sent = ({name.split("/")[0] for name in names} for names in (work.received, work.sent))
        assert received == (moved[work.op][0] if (work.op, work.round) != ("train", 3) else {"model"})
        reply_facts = {"size"} | ({"generator_error", "mean_image_error"} if work.op == "share" else set())
        assert (sent, work.peer_messages, set(work.meta)) == (moved[work.op][1], 0, reply_facts)
        assert not any("critic" in name for name in work.kept)
    first = select(log.of("train", 2)["site-1"].received, "model/")
    assert tensors_equal(first, make_task().initial(7))
    assert [(fold.round, fold.stage) for fold in log.folds] == [(1, "distil"), (2, "share"), (2, "train"), (3, "train")]
    facts = result.outcome.findings.meta["sharing"]
    assert facts["stage1"] == {"rounds": 1, "ended": "round limit", "threshold": None}
    assert (facts["history"], facts["frozen"], facts["items"]) == ([], {}, {"site-1": 7, "site-2": 6})
    assert "no differential privacy" in facts["statement"][0]
    assert state_of(folder).meta["holders"] == ["site-1", "site-2"]


class Late(Averaging):
    """FedAvg that starts in the second round."""

    def execute(self, site, request):
        return nothing_learned(site, request) if site.round == 1 else super().execute(site, request)


def test_tp_10_where_nothing_is_shared_the_second_stage_is_fedavg(alone, tmp_path):
    """Stage 2 with an empty shared set equals FedAvg bit by bit, although it starts later."""
    bits_ = bits(alone[0])
    expected = bits(run(tmp_path / "late", make_method=Late, rounds=3))
    plain = bits(run(tmp_path / "plain", "fedavg", rounds=1))
    assert bits_.keys() == expected.keys()
    assert all(tensors_equal(bits_[key], tensors) for key, tensors in expected.items())
    assert not tensors_equal(bits_["server/global"], plain["server/global"])


# ---- the passes of stage 1


def steps_of(method, folder):
    """Return the optimiser steps of generator and classifier in a round of 3 batches."""
    site, server = site_of(make_data(13, "own")), server_of(method, folder)
    method.execute(site, Request("site-1", "distil", method.distiller(server)))
    kept = select(site.state.tensors, "kept/optimizer/")
    steps = {}
    for name, tensor in kept.items():
        if name.endswith("/step"):
            steps.setdefault(name.split(".")[0], set()).add(int(tensor))
    return steps


@pytest.mark.parametrize(
    ("args", "generator", "classifier"),
    [
        ({"distil_epochs": 2}, 12, 12),
        ({"mixup": 0.0}, 6, 3),
        ({"mosaic": False}, 3, 6),
        ({"mixup": 0.0, "mosaic": False, "distil_epochs": 2}, 6, 6),
        ({"distil_steps": 5}, 10, 10),
    ],
)
def test_a_pass_over_the_images_is_three(tmp_path, args, generator, classifier):
    """An epoch has three passes: classifier on mixed images, generator on mosaics, both networks.

    Two can be omitted.
    """
    steps = steps_of(FedFed(**QUICK, **args), tmp_path)
    assert steps == {"generator": {generator}, "classifier": {classifier}}


def test_mixed_images_are_priced_by_their_shares(tmp_path, monkeypatch):
    """The loss of this pass is share CE(first) + (1 - share) CE(other), computed from the outputs of `mixup`."""
    method, site = FedFed(**QUICK), site_of(make_data(6, "own"))
    server, passes = server_of(method, tmp_path), []
    distilling = method.start_distiller_training(site, Request("site-1", "distil", method.distiller(server)))

    def mixing(images, labels, alpha, generator):
        assert alpha == 2.0
        assert torch.equal(images, site.task.scale.to_images(site.train.images[: len(images)]))
        return 0.25 * images + 0.75 * images.flip(0), labels, labels.flip(0), 0.25

    def passing(loss, label):
        passes.append((label, loss))
        return 0.0

    monkeypatch.setattr("medfl_methods.fedfed.method.mixup", mixing)
    monkeypatch.setattr(distilling, "train_pass", passing)
    method.train_epoch(site, distilling, 0, "none")
    assert len({label for label, _ in passes}) == 3, "three passes, each with batches of its own"
    x, y = site.train.images, site.train.class_labels
    logits = distilling.model.classifier(0.25 * x + 0.75 * x.flip(0))
    expected = 0.25 * F.cross_entropy(logits, y) + 0.75 * F.cross_entropy(logits, y.flip(0))
    price = passes[0][1](Batch(x, y, torch.arange(6)))
    assert float(price.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


# ---- rules of the released code that the paper lacks


@pytest.mark.parametrize(
    ("mean", "labels", "kind"),
    [
        (40, [0, 1] * 20, "none"),
        (201, [0] * 40, "few"),  # below a fifth, with any classes
        (200, [0] * 40, "none"),  # a fifth exactly: no rule applies
        (199, [0] * 29 + [1] * 11, "one class"),
        (40, [0] * 28 + [1] * 12, "none"),  # 70 %
        (0, [0] * 40, "one class"),  # no site reported its size
    ],
)
def test_the_codes_two_kinds_of_unlike_sites(mean, labels, kind):
    site = site_of(make_data(40, "own", torch.tensor(labels)))
    request = Request("site-1", "distil", {}, {"mean_size": mean})
    assert FedFed().classify_skew(site, request) == kind
    assert FedFed(site_weights=False).classify_skew(site, request) == "none"


def test_all_sites_take_part_in_the_first_stage_and_learn_the_mean_size(tmp_path):
    method = FedFed(**QUICK)
    server = server_of(method, tmp_path, ("a", "b", "c", "d"), fraction=0.25)
    for name, size in (("a", 40), ("b", 10), ("d", 100)):
        server.site_info[name]["size"] = size
    requests = method.plan(server).requests
    assert [(request.to, request.meta) for request in requests] == [(name, {"mean_size": 50.0}) for name in "abcd"]
    server.state.meta |= {"ended": {"rounds": 1, "ended": "round limit"}, "items": {}}
    assert len(method.plan(server).requests) == 1


def test_weights_of_unlike_sites_and_early_epochs():
    """B29: 5 MSE, 0.005 KL, 2 CE and 0.4 CE of the whole image, with the factors of the released code."""
    method = FedFed()
    weights = {kind: astuple(skew_weights(method.weights, kind)) for kind in ("none", "few", "one class")}
    assert weights["none"] == (5, 0.005, 2, 0.4)
    assert weights["few"] == (25, 0.0025, 2, 0.4)
    assert weights["one class"] == (5, 0.025, 10, 2)
    early = [method.curriculum_weights(epoch, 10).reconstruction for epoch in (0, 8, 9, 18, 19, 500)]
    assert early == [50, 50, 25, 25, 5, 5], "the code counts epochs from 1"
    assert FedFed(curriculum=False).curriculum_weights(0, 10) == method.weights


def test_a_site_of_one_class_glues_no_images(tmp_path, monkeypatch):
    """The loss of the site has the weights for a site of one class, too."""
    method, site = FedFed(**QUICK), site_of(make_data(6, "own"))
    distilling = method.start_distiller_training(
        site, Request("site-1", "distil", method.distiller(server_of(method, tmp_path)))
    )
    passes, prices = [], []
    monkeypatch.setattr(distilling, "train_pass", lambda loss, label: passes.append((label, loss)) or 0.0)
    monkeypatch.setattr(FedFed, "distil_loss", lambda *args: prices.append(args[-1]))
    monkeypatch.setattr(FedFed, "reconstruction_loss", lambda *args: prices.append(args[-1]))
    for kind, labels in (("few", ["mixup", "mosaic", "0"]), ("one class", ["mixup", "0"])):
        passes.clear()
        method.train_epoch(site, distilling, 9, kind)
        assert [label.split()[-1].replace("9", "0") for label, _ in passes] == labels
        for _, loss in passes[1:]:
            loss(Batch(site.train.images, site.train.class_labels, torch.arange(6)))
    assert [(weights.reconstruction, weights.ce) for weights in prices] == [(50, 2), (125, 2), (25, 10)]


# ---- other settings


def test_one_class_sites_laplace_noise_and_three_copies(tmp_path):
    """Each of 3 sites has one class. For Laplace noise the clip bounds the L1 norm, and all copies are used."""
    args = QUICK | {"noise": "laplace", "clip": 2.0, "noise_std": (0.3, 0.3, 0.6), "norm": "group"}
    data = {f"site-{c}": make_site(3, str(c), torch.full((3,), c)) for c in range(3)}
    result = run(tmp_path, "fedfed", args, sites=data, compression={"bits": 8}, fraction=0.67)
    facts = result.outcome.findings.meta["sharing"]
    assert (result.outcome.status, facts["classes"]) == ("finished", [3, 3, 3])
    assert len(select(shared_at(tmp_path), "images/")) == 3
    epsilon = 2 * 2.0 / (0.3 / 2**0.5) + 2.0 / (0.6 / 2**0.5)
    assert f"epsilon {epsilon:.4g}" in " ".join(facts["statement"])
    assert len(result.outcome.findings.tensors["sharing/labels"]) == 6
