"""Tests that the conformance suite detects methods that violate the contract."""

import logging
import textwrap

import pytest

from medfl.testing import CHECKS, check_method, suite


def test_an_unknown_check_is_named():
    with pytest.raises(ValueError, match=r"unknown checks \['it_remembers'\], there are \['different_networks"):
        check_method("fedavg", checks=["it_remembers"])


HEAD = """
import itertools, os, time
from typing import ClassVar
import torch
from pydantic import PrivateAttr
from medfl.toolkit.averaging import Averaging
from medfl.contract import Capability, ReducesTo, Reply
from medfl.plugins import MethodRecord, hookimpl

KNOWN = {}

@hookimpl
def medfl_methods():
    return [MethodRecord("toy", f"{__name__}:Toy", "averaging", "", {"model/": "update"}, summary="a toy")]

def scaled(mean, factor):
    return {k: m * factor if m.is_floating_point() else m for k, m in mean.items()}

def moved(reply, by):
    tensors = {k: t + by if t.is_floating_point() else t for k, t in reply.tensors.items()}
    return Reply(tensors, reply.meta, reply.peer_messages, reply.log, reply.trained)

class Toy(Averaging):
    '''A method for tests.'''

    supports: ClassVar = frozenset()
"""

SOUND = "weights: str = 'size'"

BROKEN = {
    "memory on the object": (
        "method_object_has_no_state",
        "one object for all steps: other bits",
        """
        _seen: list = PrivateAttr(default_factory=list)

        def execute(self, site, request):
            self._seen.append(site.name)
            return moved(super().execute(site, request), 1e-3 * len(self._seen))
        """,
    ),
    "memory in the module": (
        "run_is_deterministic",
        "the same run twice: other bits",
        """
        def execute(self, site, request):
            KNOWN[site.name] = KNOWN.get(site.name, 0) + 1
            return moved(super().execute(site, request), 1e-3 * KNOWN[site.name])
        """,
    ),
    "a counter of steps in this process": (
        "run_resumes_at_every_step",
        "stopped in work of step 1: other bits",
        """
        def setup(self, server):
            super().setup(server)
            KNOWN["steps"] = itertools.count()

        def plan(self, server):
            plan = super().plan(server)
            step = next(KNOWN.setdefault("steps", itertools.count()))
            for request in plan.requests if plan else []:
                request.meta["step"] = step
            return plan

        def execute(self, site, request):
            return moved(super().execute(site, request), 1e-3 * request.meta["step"])
        """,
    ),
    "momentum of the server in the module": (
        "two_methods_can_alternate",
        "other bits",
        """
        def setup(self, server):
            super().setup(server)
            KNOWN.clear()

        def server_update(self, server, old, mean):
            for name in server.state.meta["parameters"]:
                KNOWN[name] = mean[name] + 0.5 * KNOWN.get(name, 0.0)
            return super().server_update(server, old, mean | KNOWN)
        """,
    ),
    "randomness without a seed": (
        "run_is_deterministic",
        "the same run twice: other bits",
        """
        def execute(self, site, request):
            return moved(super().execute(site, request), 1e-3 * os.urandom(1)[0])
        """,
    ),
    "the time of day": (
        "run_is_deterministic",
        "the same run twice: other bits",
        """
        def server_update(self, server, old, mean):
            return super().server_update(server, old, scaled(mean, 1 + 1e-3 * (time.perf_counter() % 1)))
        """,
    ),
    "no use of the seed": (
        "run_is_deterministic",
        "the seed has no effect",
        """
        def setup(self, server):
            super().setup(server)
            server.state.tensors = {k: torch.zeros_like(t) for k, t in server.state.tensors.items()}

        def execute(self, site, request):
            return Reply({k: torch.ones_like(t) for k, t in request.tensors.items()}, {"size": len(site.train)})
        """,
    ),
    "who worked before in this process": (
        "site_order_and_workers_have_no_effect",
        "two workers: other bits",
        """
        def plan(self, server):
            KNOWN["order"] = 0
            return super().plan(server)

        def execute(self, site, request):
            KNOWN["order"] = KNOWN.get("order", 0) + 1
            return moved(super().execute(site, request), 1e-3 * KNOWN["order"])
        """,
    ),
    "a size of zero": (
        "different_sites_are_supported",
        "odd sites: ended as diverged",
        """
        def server_update(self, server, old, mean):
            smallest = min(info["size"] for info in server.site_info.values())
            return super().server_update(server, old, scaled(mean, torch.tensor(float(smallest)) / smallest))
        """,
    ),
    "all sites are waited for": (
        "sites_may_be_unavailable",
        "absent sites: ended as incomplete",
        """
        def plan(self, server):
            plan = super().plan(server)
            if plan:
                plan.quorum = None
            return plan
        """,
    ),
    "an undeclared tensor": (
        "only_declared_values_leave_sites",
        "may not send the tensor 'images/0'",
        """
        def execute(self, site, request):
            reply = super().execute(site, request)
            reply.tensors["images/0"] = site.train.batch(torch.tensor([0]))[0]
            return reply
        """,
    ),
    "an undeclared fact": (
        "only_declared_values_leave_sites",
        "may not send the metadata key 'labels'",
        """
        def execute(self, site, request):
            reply = super().execute(site, request)
            reply.meta["labels"] = site.train.class_labels.tolist()
            return reply
        """,
    ),
    "a limit case that is none": (
        "limit_cases_hold",
        "{'mu': 0.0} against fedavg on 'norm': other bits",
        """
        reduces_to: ClassVar = (ReducesTo("fedavg", {"mu": 0.0}),)
        mu: float = 0.5

        def loss(self, fit, batch):
            return (1.1 + self.mu) * super().loss(fit, batch)
        """,
    ),
    "a record that hides what is sent": (
        "metadata_is_complete",
        "the record's sends is {'model/': 'update'}, the class's {'model/': 'update', 'images/': 'samples'}",
        """sends: ClassVar = {"model/": "update", "images/": "samples"}""",
    ),
    "a preset that is not valid": (
        "metadata_is_complete",
        "unknown option 'gradent_clip'. Did you mean 'gradient_clip'",
        """presets: ClassVar = {"paper": {"gradent_clip": "uniform"}}""",
    ),
    "an object that can be changed": (
        "metadata_is_complete",
        "the method object can be changed",
        """model_config = {"frozen": False, "extra": "allow"}""",
    ),
    "an average that moves": (
        "equal_models_average_to_themselves",
        "no local training: other bits in ['server/global']",
        """
        def weight(self, meta):
            return 1.0

        def server_update(self, server, old, mean):
            return {k: t + mean[k].to(t.dtype) + (1 if "running_mean" in k else 0) for k, t in old.items()}
        """,
    ),
    "an empty reply that counts": (
        "dishonest_site_does_not_stop_run",
        "a reply without tensors counts: refuse it",
        """
        def check_tensors(self, task, order, tensors):
            if tensors:
                super().check_tensors(task, order, tensors)
        """,
    ),
    "an exported bundle with another network": (
        "exported_networks_predict_alike",
        "Error(s) in loading state_dict for SmallNet",
        """
        def network_config(self, model, network_def):
            return network_def | {"norm": False}
        """,
    ),
    "adapters whose mean the server exaggerates": (
        "low_rank_adapters_are_merged",
        "one site with exact adapters: the server's model differs from the site's by",
        """
        supports: ClassVar = frozenset({Capability.EXACT_ADAPTERS})

        def server_update(self, server, old, mean):
            return super().server_update(server, old, scaled(mean, 1.5))
        """,
    ),
    "an exported network that answers otherwise": (
        "exported_networks_predict_alike",
        "the exported global model has other predictions",
        """
        def predictor(self, task, models):
            network = super().predictor(task, models)
            network.load_state_dict({n: t + 1 for n, t in network.state_dict().items()})
            return network
        """,
    ),
    "an own start of the body": (
        "exported_networks_predict_alike",
        "the body's first weights: other bits",
        """
        def task_of(self, task):
            return task.with_network("norm", lambda: (torch.rand(1), task.build("norm"))[1])
        """,
    ),
    "a claim to train unlike networks": (
        "different_networks_are_refused_or_work",
        "different_networks_are_refused_or_work: ",
        "supports: ClassVar = frozenset({Capability.DIFFERENT_NETWORKS})",
    ),
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    def toy(body, only=None):
        path = tmp_path / "toy.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")
        if only:
            monkeypatch.setattr(suite, "CHECKS", {only: CHECKS[only]})
        check_method("toy", plugins=[path])

    return toy


@pytest.mark.parametrize("promise", ["metadata_is_complete", "run_is_deterministic", "run_resumes_at_every_step"])
def test_a_sound_toy_passes(toy, promise):
    toy(SOUND, promise)


@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_a_broken_toy_is_noticed(toy, fault):
    promise, shows_as, body = BROKEN[fault]
    with pytest.raises(AssertionError) as caught:
        toy(body, promise)
    text = str(caught.value)
    assert text.startswith(f"Method 'toy' fails 1 of 1 checks:\n- {promise}: ")
    assert shows_as in text


def test_the_whole_suite_names_every_broken_promise(toy):
    level = logging.getLogger("medfl").level
    with pytest.raises(AssertionError, match="Method 'toy' fails") as caught:
        toy(BROKEN["randomness without a seed"][2])
    for promise in ("run_is_deterministic", "run_resumes_at_every_step", "site_order_and_workers_have_no_effect"):
        assert f"\n- {promise}: AssertionError: " in str(caught.value)
    assert logging.getLogger("medfl").level == level
