"""Limit cases of FedTPF (O-TP-10), invalid input, and other data and settings."""

import math

import pytest
import torch
from fedtpf_toys import (
    TINY,
    Log,
    distiller_at,
    recorded,
    run,
    server_of,
    shared_at,
    site_of,
    small_sites,
    state_of,
)
from refusals import refused
from torch import nn
from toys import Forgetful

from medfl.contract import Request
from medfl.data.pooled import TensorData
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.errors import RefusedError
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import ImageScale
from medfl.testing.cohort import make_data, make_task
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedfed.method import FedFed
from medfl_methods.fedtpf.method import FedTPF

# ---- limit cases (O-TP-10)

PLAIN = {"freeze": False, "decay": "none", "noise": "none", "clip": None, "prototype": "none", "adversarial": 0.0}
FEDFED = {
    "curriculum": False,
    "site_weights": False,
    "noise_std": (0.15,),
    "noise": "none",
    "mixup": 0.0,
    "mosaic": False,
    "distil_decay": 0.0,
}


def test_tp_10_without_what_is_its_own_the_first_stage_is_fedfeds(tmp_path):
    """Over two rounds the distiller is equal bit by bit; FedTPF also trains the task's network."""
    for name, args in (("fedtpf", PLAIN), ("fedfed", FEDFED)):
        run(tmp_path / name, name, args | {"distil_rounds": 2}, rounds=2)
    expected, part = distiller_at(tmp_path / "fedfed"), distiller_at(tmp_path / "fedtpf")
    assert len(part) > 40
    assert tensors_equal(part, expected)
    begun = server_of(FedTPF(width=2, **PLAIN), tmp_path / "begun", task=make_task())
    assert not tensors_equal(part, select(begun.state.tensors, "kept/distiller/"))


def test_tp_10_also_where_the_tasks_network_draws_numbers(tmp_path):
    """The generator's draws must not depend on the training before it; both use torch's global generator."""
    task, parts = make_task().with_network("norm", Forgetful), []
    for method in (FedTPF(width=2, **PLAIN), FedFed(width=2, **FEDFED)):
        server = server_of(method, tmp_path / str(len(parts)), task=task)
        site = site_of(make_data(12, "own"), task=task)
        torch.manual_seed(1)
        reply = method.execute(site, Request("site-1", "distil", method.publish(server) | method.distiller(server)))
        parts.append(select(reply.tensors, "distiller/"))
    assert tensors_equal(*parts)


def test_tp_10_each_of_its_parts_makes_a_difference(tmp_path):
    """Critic, prototypes and noise each change the generator; otherwise the previous test would prove nothing."""
    runs = {
        "none": {},
        "critic": {"adversarial": 0.5},
        "prototypes": {"prototype": "mean"},
        "noise": {"noise": "laplace"},
    }
    generators = {}
    for name, args in runs.items():
        made = FedTPF(**({"width": 2} | PLAIN | args))
        site = site_of(make_data(7, "own"))
        site.task = make_task()
        server = server_of(made, tmp_path / name, task=site.task)
        reply = made.execute(site, Request("site-1", "distil", made.publish(server) | made.distiller(server)))
        generators[name] = select(reply.tensors, "distiller/generator")
    assert all(not tensors_equal(generators["none"], generators[name]) for name in runs if name != "none")


# ---- bad input


class Wild(FedTPF):
    """FedTPF in which the critic of site 2 diverges."""

    def adversary(self, site):
        wild = self.model_copy(update={"critic_lr": 1e30 if site.name == "site-2" else self.critic_lr})
        return FedTPF.adversary(wild, site)


def test_a_diverging_critic_is_refused_where_it_is_and_others_continue(tmp_path, caplog):
    result = run(tmp_path, make_method=lambda: Wild(width=2, distil_rounds=1), rounds=1)
    assert result.outcome.status == "finished"
    (warning,) = [line for line in caplog.messages if "diverged" in line]
    assert "site-2" in warning
    assert "critic_lr" in warning
    assert result.outcome.findings.meta["sharing"]["history"][0]["active"] == ["site-1"]
    assert state_of(tmp_path, "site-2").tensors == {}, "it goes on from where it was"
    assert all(t.isfinite().all() for t in distiller_at(tmp_path).values() if t.is_floating_point())


def test_a_generator_that_diverges_is_refused_with_what_to_do(tmp_path):
    method = FedTPF(width=2, distil_lr=1e30)
    server = server_of(method, tmp_path)
    site = site_of(make_data(12, "own"))
    with refused(RefusedError, "diverged_training", site="site-1"):
        method.execute(site, Request("site-1", "distil", method.publish(server) | method.distiller(server)))


# ---- other data, other settings, together


class Volumes(nn.Module):
    """Small network for volumes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
        self.head = nn.Linear(2, 2)

    def forward(self, images):
        return self.head(self.body(images))


def volumes(labels, key):
    """Return volumes 1 x 8 x 8 x 8 whose brightness grows with the class."""
    generator = torch.Generator().manual_seed(key)
    data = [
        TensorData(torch.rand(len(some), 1, 8, 8, 8, generator=generator) / 2 + some.view(-1, 1, 1, 1, 1) / 2, some)
        for some in (labels, labels, labels)
    ]
    return Splits(*data)


def volume_task():
    return type(make_task())(
        **{
            **vars(make_task()),
            "networks": {"volumes": Volumes},
            "network": "volumes",
            "objective": Multiclass(2),
            "scale": ImageScale((1, 8, 8, 8)),
            "_names": {},
        }
    )


def test_volumes_of_two_classes_at_sites_of_one_class_each(tmp_path):
    """Each site of a two-round run in 3-D has one class; the shared set has both."""
    labels = {"site-1": torch.zeros(4, dtype=torch.int64), "site-2": torch.ones(3, dtype=torch.int64)}
    data = {name: volumes(some, key) for key, (name, some) in enumerate(labels.items())}
    settings, args = Settings(rounds=2, batch_size=4, evaluate_every=9), {"norm": "group", "prototype": "scaled"}
    run_ = SimulatedRun(
        method=MethodChoice(name="fedtpf", make=lambda: FedTPF(**(TINY | args))),
        task=volume_task(),
        settings=settings,
        data=RunData(sites=data),
        folder=tmp_path,
    )
    result = simulate(run_)
    assert (result.outcome.status, result.outcome.rounds) == ("finished", 2)
    facts = result.outcome.findings
    assert facts.meta["sharing"]["classes"] == [4, 3]
    assert facts.tensors["sharing/images"].shape == (4, 1, 8, 8, 8)
    assert "epsilon 13.76" in " ".join(facts.meta["sharing"]["statement"])
    assert shared_at(tmp_path)["images/0"].flatten(1).float().std() == pytest.approx(math.sqrt(0.15), rel=0.1)


def test_a_site_with_one_image_and_one_with_none(tmp_path):
    """A single image is no batch for batch norm, but it is shared. A site without images gets no request to train."""
    log, data = Log(), small_sites(site_1=1, site_2=6, site_3=0)
    result = run(tmp_path, make_method=recorded(log, FedTPF, clip=None), sites=data)
    facts = result.outcome.findings.meta["sharing"]
    assert (result.outcome.status, facts["items"]) == ("finished", {"site-1": 1, "site-2": 6})
    assert {work.op for work in log.work if work.site == "site-3"} == {"assess"}
    assert all(not t.any() for t in log.of("distil")["site-1"].sent.values())
