"""Whole runs of FedSKD against an independent plain loop, and the transferred tensors (O-SK-6)."""

import copy
import dataclasses
import functools

import pandas as pd
import torch
from peer_toys import (
    NAMES,
    REGIONS,
    REGISTRY,
    WIDTHS,
    atlas_task,
    host_to_owner,
    record_of,
    run,
    tensors_of,
)
from torch import nn
from torch.nn import functional as F

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.networks.resnet import ResNet
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import Case, TensorData, bits, make_sites, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import payload_bytes, tensors_equal
from medfl_methods.fedskd.method import FedSKD


def plain_similarity(h, other):
    """Compute equations 3 to 6 with full matrices in float64."""

    def s(rows):
        gram = rows.double() @ rows.double().T
        return gram / gram.norm(dim=1, keepdim=True) * len(rows) ** 0.5

    return (s(h) - s(other)).square().sum() / len(h) ** 2


def plain_rows(feature, form):
    if form == "batch":
        return feature.reshape(len(feature), -1)
    if form == "pixel":
        return torch.stack([feature[:, :, i, j].reshape(-1) for i in range(6) for j in range(6)])
    return torch.stack([feature[:, :, k == REGIONS].mean(-1).reshape(-1) for k in (1, 2, 3)])


def staged(model, images):
    """Return the logits and the feature map of the first stage."""
    feature = model.body[:-2](images)
    return model.head(model.body[-2:](feature)), feature


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain_site(own, optimizer, visiting, data, key, gamma):
    visiting_optimizer = None
    if visiting is not None:
        visiting_optimizer = momentum(p for n, p in visiting.named_parameters() if "head" not in n)
        visiting.train()
    own.train()
    generator = make_generator(7, *key, "batches")
    for _ in range(2):
        for rows in torch.randperm(len(data), generator=generator).split(5):
            if len(rows) == 1 and any(isinstance(m, nn.BatchNorm2d) for m in own.modules()):
                continue
            images, labels = data.images[rows], data.class_labels[rows]
            logits, mine = staged(own, images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            both = visiting is not None and not (len(rows) == 1 and isinstance(visiting.body[1], nn.BatchNorm2d))
            if both:
                visiting_optimizer.zero_grad()
                visiting_logits, theirs = staged(visiting, images)
                forms = [
                    plain_similarity(plain_rows(mine, f), plain_rows(theirs, f)) for f in ("batch", "pixel", "region")
                ]
                loss = loss + F.cross_entropy(visiting_logits, labels) + gamma * sum(forms)
            loss.backward()
            optimizer.step()
            if both:
                visiting_optimizer.step()


def test_fedskd_is_a_plain_loop_over_unlike_networks(tmp_path):
    torch.set_num_threads(1)  # as in a run
    task, sites, gamma = dataclasses.replace(atlas_task(), optimizer=momentum), make_sites(), 0.7
    models = {name: task.load(task.initial(7, WIDTHS[name]), WIDTHS[name]) for name in NAMES}
    optimizers = {name: task.optimizer(model.parameters()) for name, model in models.items()}
    met = set()
    for round_ in (1, 2, 3):
        before = copy.deepcopy(models)
        for host, owner in host_to_owner(round_).items():
            visiting = copy.deepcopy(before[owner]) if owner != host else None
            met.add(visiting is None)
            plain_site(models[host], optimizers[host], visiting, sites[host].train, (host, round_), gamma)
    assert met == {True, False}, "there is a self visit, too"
    args = {"gamma": gamma, "skd": ("batch", "pixel", "region"), "layers": (1,), "p2p_scale": 2}
    result = run(tmp_path, "fedskd", args, task=task, networks_by_site=WIDTHS)
    for name, model in models.items():
        trained = result.models[name]["personal"]
        assert trained.network == WIDTHS[name]
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(
                trained.tensors[key], tensor, atol=2e-5, rtol=1e-4, msg=lambda m, k=f"{name}/{key}": f"{k}: {m}"
            )


def test_a_visiting_model_that_came_too_late_is_not_trained(tmp_path):
    """site-2 is unavailable when it should train in round 1. In round 2 it uses the visiting model of round 2."""
    run(tmp_path, "fedskd", rounds=2, unavailable=lambda site, step: (site, step) == ("site-2", 2))
    table = pd.read_csv(tmp_path / "metrics.csv").query("metric == 'visiting_models' and site == 'site-2'")
    assert table["round"].tolist() == [2]
    assert record_of(tmp_path, "site-2", 4).meta["reply"] == {"visiting_owner": host_to_owner(2)["site-2"]}


def test_a_visiting_model_of_an_earlier_round_is_not_taken_for_this_ones(tmp_path):
    """site-2 was unavailable when its visiting model came. When it returns, the model's owner is unavailable."""
    gone = {("site-2", 2), ("site-2", 3), ("site-1", 3)}
    sites = make_sites({"site-1": 9, "site-2": 8})
    options = {"sites": sites, "rounds": 2, "unavailable": lambda site, step: (site, step) in gone}
    run(tmp_path, "fedskd", {"route": "derangement"}, **options)
    assert record_of(tmp_path, "site-2", 4).meta["reply"] == {"visiting_owner": ""}
    assert record_of(tmp_path, "site-1", 2).meta["reply"] == {"visiting_owner": "site-2"}


SEEN = []


class Watched(FedSKD):
    """FedSKD that records each visiting model before and after training."""

    def before_fit(self, fit):
        super().before_fit(fit)
        if "pair" in fit.extra:
            fit.extra["came"] = copy.deepcopy(fit.extra["pair"].visiting.model.state_dict())

    def after_fit(self, fit):
        if "pair" in fit.extra:
            went = copy.deepcopy(fit.extra["pair"].visiting.model.state_dict())
            SEEN.append((fit.site.round, fit.extra["visiting_model"].owner, fit.extra["came"], went))
        super().after_fit(fit)


def test_sk_6_a_visiting_model_is_what_its_owner_sent_and_its_head_stays(tmp_path):
    SEEN.clear()
    case = Case(REGISTRY, "fedskd")
    starts = []
    for rounds in (1, 2, 3):
        before = tensors_of(tmp_path) if rounds > 1 else dict.fromkeys(NAMES, make_task().initial(7))
        starts.append({name: {k: t for k, t in model.items() if "/" not in k} for name, model in before.items()})
        case.run(tmp_path, rounds=rounds, make_method=Watched)
    assert len(SEEN) == sum(host != owner for round_ in (1, 2, 3) for host, owner in host_to_owner(round_).items())
    for round_, owner, came, went in SEEN:
        assert tensors_equal(came, starts[round_ - 1][owner]), "as it was at the end of the round before"
        assert torch.equal(came["head.weight"], went["head.weight"])
        assert torch.equal(came["head.bias"], went["head.bias"])
        assert not torch.equal(came["body.0.weight"], went["body.0.weight"])
        assert not torch.equal(came["body.1.running_var"], went["body.1.running_var"]), "in training mode"


def test_a_peer_message_is_the_model_with_its_buffers_and_nothing_else(tmp_path):
    """A message has four bytes for each number of the owner's network; the optimiser's state stays at the owner."""
    run(tmp_path, "fedskd", task=atlas_task(), networks_by_site=WIDTHS)
    table = pd.read_csv(tmp_path / "metrics.csv").query("metric == 'bytes_to_peers'")
    for round_ in (1, 2, 3):
        sent = {owner for host, owner in host_to_owner(round_).items() if host != owner}
        for name in NAMES:
            size = payload_bytes(atlas_task().initial(7, WIDTHS[name]))
            spent = table[(table["round"] == round_) & (table["site"] == name)]["value"].sum()
            assert spent == (size if name in sent else 0)
    inbox = next(iter((tmp_path / "state" / "site-1" / "inbox").iterdir()))
    assert b"model/body.0.weight" in inbox.read_bytes()
    assert b"optimizer/" not in inbox.read_bytes()


def test_partial_participation_permutes_those_who_take_part(tmp_path):
    sites = make_sites({f"site-{index}": 6 for index in range(5)})
    result = run(tmp_path, "fedskd", sites=sites, fraction=0.6, rounds=3)
    assert result.outcome.status == "finished"
    table = pd.read_csv(tmp_path / "metrics.csv")
    worked = table.query("metric == 'visiting_models'").groupby("round")["site"].agg(set)
    posted = table.query("metric == 'bytes_to_peers' and value > 0").groupby("round")["site"].agg(set)
    assert all(len(hosts) == 3 for hosts in worked)
    assert all(posted[round_] <= worked[round_] for round_ in posted.index)


def test_half_precision_is_close(tmp_path):
    task = dataclasses.replace(atlas_task(), regions=REGIONS)
    args = {"skd": ("batch", "pixel", "region"), "p2p_scale": 1}
    rough, fine = (bits(run(tmp_path / p, "fedskd", args, task=task, rounds=1, precision=p)) for p in ("bf16", "fp32"))
    apart = max((rough[k][n] - t).abs().max() for k in fine for n, t in fine[k].items() if t.is_floating_point())
    assert 0 < float(apart) < 0.1


def test_volumes_residual_networks_of_unlike_widths_and_an_atlas(tmp_path):
    """The loss compares all four stages with all three kinds; it is logged and trains the models."""
    size = (16, 16, 16)
    rng = torch.Generator().manual_seed(0)
    atlas = torch.zeros(size, dtype=torch.int64)
    atlas[:8], atlas[8:, :8], atlas[15, 15, 15] = 1, 2, 3  # the third is a single voxel

    def split(n):
        return TensorData(torch.randn(n, 2, *size, generator=rng), torch.arange(n) % 2)

    networks = {f"width{w}": functools.partial(ResNet, 10, 2, 2, 3, w, stem_kernel=3) for w in (4, 3)}
    loss, metrics = nn.CrossEntropyLoss(), ("accuracy",)
    task = Task(networks, "width4", loss, lambda p: torch.optim.Adam(p, 1e-3), Multiclass(2), metrics, regions=atlas)
    sites = {name: Splits(split(4), split(0), split(2)) for name in ("a", "b")}
    settings = Settings(rounds=1, steps=2, batch_size=2, networks_by_site={"b": "width3"})

    def result_of(name, **args):
        make_method = functools.partial(REGISTRY.make_method, name, args | {"init": "own"})
        return simulate(
            SimulatedRun(
                method=MethodChoice(name=name, make=make_method),
                task=task,
                settings=settings,
                data=RunData(sites=sites),
                folder=tmp_path / name,
            )
        )

    result = result_of("fedskd", preset="paper_asd", route="derangement", p2p_scale=1)
    local = result_of("local", optimizer_state="persistent")
    table = pd.read_csv(tmp_path / "fedskd" / "metrics.csv").query("metric == 'similarity'")["value"]
    assert len(table) == 2
    assert all(0 < value < 3 * 4 for value in table)
    for name, models in result.models.items():
        tensors, alone = models["personal"].tensors, local.models[name]["personal"].tensors
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
        assert not torch.equal(tensors["conv1.weight"], alone["conv1.weight"])
