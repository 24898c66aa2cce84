"""FedSKD in whole runs: against a plain loop that shares no code with it, and what it must become (O-SK-5, 6, 11)."""

import copy
import dataclasses
import functools

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from medfl import streams
from medfl.networks.resnet import ResNet
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.simulation import Run, simulate
from medfl.siteside import Splits
from medfl.store import Store
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, SmallNet, TensorData, bits, make_sites, make_task, states
from medfl.wire import payload_bytes, tensors_equal
from medfl_methods.fedskd import FedSKD

REGISTRY = load_plugins()
NAMES = ["site-1", "site-2", "site-3"]
WIDTHS = {"site-1": "wide", "site-2": "norm", "site-3": "plain"}
REGIONS = torch.tensor([[1] * 6, [1] * 6, [2] * 6, [2] * 3 + [0] * 3, [3] * 6, [0] * 6])


class Dropping(SmallNet):
    """With dropout before the head."""

    def forward(self, images):
        return self.head(nn.functional.dropout(self.body(images), 0.3, self.training))


def task_of(**networks):
    return Task(
        networks or make_task().networks,
        next(iter(networks), "norm"),
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        CLASSES,
        ("accuracy",),
        regions=REGIONS,
    )


def run(folder, name="fedskd", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def permutation(round_):
    order = torch.randperm(3, generator=streams.generator(7, "route", round_)).tolist()
    return dict(zip(NAMES, (NAMES[index] for index in order), strict=True))


def record_of(folder, name, step):
    return Store(folder / "state" / name).load(step)


def same(left, right):
    assert left.keys() == right.keys()
    return all(tensors_equal(left[key], right[key]) for key in left)


# ---- against a plain loop


def plain_similarity(h, other):
    """Equations 3 to 6, with the matrices written out, in float64."""

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
    """Logits, and the map of the first stage."""
    feature = model.body[:-2](images)
    return model.head(model.body[-2:](feature)), feature


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain_site(own, optimizer, guest, data, key, gamma):
    guest_optimizer = None
    if guest is not None:
        guest_optimizer = momentum(p for n, p in guest.named_parameters() if "head" not in n)
        guest.train()
    own.train()
    generator = streams.generator(7, *key, "batches")
    for _ in range(2):
        for rows in torch.randperm(len(data), generator=generator).split(5):
            if len(rows) == 1 and any(isinstance(m, nn.BatchNorm2d) for m in own.modules()):
                continue
            images, labels = data.images[rows], data.labels[rows]
            logits, mine = staged(own, images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            both = guest is not None and not (len(rows) == 1 and isinstance(guest.body[1], nn.BatchNorm2d))
            if both:
                guest_optimizer.zero_grad()
                guest_logits, theirs = staged(guest, images)
                forms = [
                    plain_similarity(plain_rows(mine, f), plain_rows(theirs, f)) for f in ("batch", "pixel", "region")
                ]
                loss = loss + F.cross_entropy(guest_logits, labels) + gamma * sum(forms)
            loss.backward()
            optimizer.step()
            if both:
                guest_optimizer.step()


def test_fedskd_is_a_plain_loop_over_unlike_networks(tmp_path):
    torch.set_num_threads(1)  # as a run does
    task, sites, gamma = dataclasses.replace(task_of(), optimizer=momentum), make_sites(), 0.7
    models = {name: task.load(task.initial(7, WIDTHS[name]), WIDTHS[name]) for name in NAMES}
    optimizers = {name: task.optimizer(model.parameters()) for name, model in models.items()}
    met = set()
    for round_ in (1, 2, 3):
        before = copy.deepcopy(models)
        for host, owner in permutation(round_).items():
            guest = copy.deepcopy(before[owner]) if owner != host else None
            met.add(guest is None)
            plain_site(models[host], optimizers[host], guest, sites[host].train, (host, round_), gamma)
    assert met == {True, False}, "there is a self visit, too"
    args = {"gamma": gamma, "skd": ("batch", "pixel", "region"), "layers": (1,), "p2p_scale": 2}
    result = run(tmp_path, args=args, task=task, networks=WIDTHS)
    for name, model in models.items():
        found = result.models[name]["personal"]
        assert found.network == WIDTHS[name]
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(
                found.tensors[key], tensor, atol=2e-5, rtol=1e-4, msg=lambda m, k=f"{name}/{key}": f"{k}: {m}"
            )


# ---- O-SK-5: without the loss, or without guests, it is Local


@pytest.mark.parametrize("state", ["persistent", "reset"])
def test_sk_5_without_gamma_it_is_local_for_unlike_networks_with_dropout(tmp_path, state):
    """Though the guests train beside: their dropout and their batch norm take nothing from the own model."""
    networks = {"drop": Dropping, "wide": lambda: SmallNet(width=9), "plain": lambda: SmallNet(norm=False)}
    options = {"task": task_of(**networks), "networks": {"site-2": "wide", "site-3": "plain"}, "rounds": 3}
    sites = make_sites({"site-1": 11, "site-2": 13, "site-3": 6, "site-4": 9})  # some batches of one image
    args = {"gamma": 0.0, "p2p_scale": 1, "optimizer_state": state}
    found = run(tmp_path / "a", args=args, sites=sites, **options)
    local = run(tmp_path / "b", "local", {"optimizer_state": state}, sites=sites, **options)
    assert same(bits(found), bits(local))
    guests = pd.read_csv(tmp_path / "a" / "metrics.csv").query("metric == 'guests'")["value"]
    assert guests.sum() > 6
    assert same(states(tmp_path / "a") | {"server": {}}, states(tmp_path / "b") | {"server": {}}), (
        "the optimisers', too"
    )


def test_with_the_loss_it_is_not_local(tmp_path):
    """And neither a frozen head nor whose features are taught is without effect."""
    task, seen = task_of(), []
    for number, args in enumerate(
        [
            {"gamma": 0.0},
            {"gamma": 5.0},
            {"gamma": 5.0, "freeze_ktm_header": False},
            {"gamma": 5.0, "skd_detach": "ktm"},
            {"gamma": 5.0, "skd_detach": "dam"},
            {"gamma": 5.0, "skd": ("batch",)},
            {"gamma": 5.0, "optimizer_state": "reset"},
            {"gamma": 5.0, "p2p_scale": 2},
        ]
    ):
        found = bits(run(tmp_path / str(number), args={"p2p_scale": 1} | args, task=task, rounds=2))
        if args.get("skd_detach") == "dam":
            assert same(found, seen[0]), "nothing teaches the own model: this is gamma = 0"
        else:
            assert not any(same(found, other) for other in seen), args
        seen.append(found)


def test_left_to_itself_a_site_trains_as_local(tmp_path):
    """Whose guest did not come has the bits of Local in that round, and says so."""
    task = task_of()
    route = permutation(1)
    away = route["site-2"]
    assert away != "site-2"
    args, gone = {"p2p_scale": 1, "init": "own"}, {(away, 1)}
    found = run(tmp_path / "a", args=args, task=task, rounds=1, absent=lambda site, step: (site, step) in gone)
    local = run(tmp_path / "b", "local", {"optimizer_state": "persistent", "init": "own"}, task=task, rounds=1)
    assert tensors_equal(found.models["site-2"]["personal"].tensors, local.models["site-2"]["personal"].tensors)
    assert record_of(tmp_path / "a", "site-2", 2).meta["reply"] == {"guest": ""}
    others = {name for name in NAMES if route[name] not in (name, away)}
    assert others
    for name in others:
        assert record_of(tmp_path / "a", name, 2).meta["reply"] == {"guest": route[name]}
        assert not tensors_equal(found.models[name]["personal"].tensors, local.models[name]["personal"].tensors)


def test_a_guest_that_came_too_late_is_no_guest(tmp_path):
    """site-2 is away when it should train with its guest of round 1; in round 2 it gets that of round 2."""
    run(tmp_path, rounds=2, absent=lambda site, step: (site, step) == ("site-2", 2))
    table = pd.read_csv(tmp_path / "metrics.csv").query("metric == 'guests' and site == 'site-2'")
    assert table["round"].tolist() == [2]
    assert record_of(tmp_path, "site-2", 4).meta["reply"] == {"guest": permutation(2)["site-2"]}


def test_a_guest_of_an_earlier_round_is_not_taken_for_this_ones(tmp_path):
    """site-2 was away when its guest came; when it is back, the guest's owner is away and sends no newer one."""
    gone = {("site-2", 2), ("site-2", 3), ("site-1", 3)}
    sites = make_sites({"site-1": 9, "site-2": 8})
    options = {"sites": sites, "rounds": 2, "absent": lambda site, step: (site, step) in gone}
    run(tmp_path, args={"route": "derangement"}, **options)
    assert record_of(tmp_path, "site-2", 4).meta["reply"] == {"guest": ""}
    assert record_of(tmp_path, "site-1", 2).meta["reply"] == {"guest": "site-2"}


def test_a_site_without_training_data_keeps_its_initial_model(tmp_path):
    result = run(tmp_path, sites=make_sites({"site-1": 11, "site-2": 0, "site-3": 8}), rounds=2)
    assert tensors_equal(result.models["site-2"]["personal"].tensors, make_task().initial(7))
    assert not (tmp_path / "state" / "site-2" / "inbox").exists(), "nor does it get a guest"


# ---- O-SK-6: what is sent, and what becomes of it

SEEN = []


class Watched(FedSKD):
    """Notes each guest as it came and as it went."""

    def before_fit(self, fit):
        super().before_fit(fit)
        if "pair" in fit.extra:
            fit.extra["came"] = copy.deepcopy(fit.extra["pair"].guest.model.state_dict())

    def after_fit(self, fit):
        if "pair" in fit.extra:
            went = copy.deepcopy(fit.extra["pair"].guest.model.state_dict())
            SEEN.append((fit.site.round, fit.extra["guest"].owner, fit.extra["came"], went))
        super().after_fit(fit)


def test_sk_6_a_guest_is_what_its_owner_sent_and_its_head_stays(tmp_path):
    SEEN.clear()
    case = Case(REGISTRY, "fedskd")
    starts = []
    for rounds in (1, 2, 3):
        before = {n: states(tmp_path)[n] for n in NAMES} if rounds > 1 else {n: make_task().initial(7) for n in NAMES}
        starts.append({name: {k: t for k, t in model.items() if "/" not in k} for name, model in before.items()})
        case.run(tmp_path, rounds=rounds, make_method=Watched)
    assert len(SEEN) == sum(host != owner for round_ in (1, 2, 3) for host, owner in permutation(round_).items())
    for round_, owner, came, went in SEEN:
        assert tensors_equal(came, starts[round_ - 1][owner]), "as it was at the end of the round before"
        assert torch.equal(came["head.weight"], went["head.weight"])
        assert torch.equal(came["head.bias"], went["head.bias"])
        assert not torch.equal(came["body.0.weight"], went["body.0.weight"])
        assert not torch.equal(came["body.1.running_var"], went["body.1.running_var"]), "in training mode"


def test_sending_changes_nothing_at_the_sender(tmp_path):
    """The synchronous snapshot: after `send` every state is what it was after the round before."""
    found = []

    class Stepwise(FedSKD):
        def plan(self, server):
            found.append({name: copy.deepcopy(s) for name, s in states(tmp_path).items() if name != "server"})
            return super().plan(server)

    Case(REGISTRY, "fedskd").run(tmp_path, rounds=2, make_method=Stepwise, task=task_of())
    assert [host for host, owner in permutation(2).items() if host == owner] == []
    assert same(found[2], found[3]), "round 2"


def test_the_server_holds_no_model_and_sees_no_tensor(tmp_path):
    run(tmp_path, args={"start_fraction": 0.4}, task=task_of(), networks=WIDTHS)
    folder = tmp_path / "state" / "server"
    assert sorted(path.name[:5] for path in folder.iterdir()) == ["step-", "step-"]
    for step in Store(folder).steps():
        record = Store(folder).load(step)
        assert record.tensors == {}
        assert set(record.state().meta) == {"next", "visits"}
    for name in NAMES:
        for step in Store(tmp_path / "state" / name).steps():
            record = record_of(tmp_path, name, step)
            assert not any(key.startswith("reply/") for key in record.tensors)
            assert set(record.meta["reply"]) <= {"guest"}
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert set(table[table["metric"].isin(["bytes_up", "bytes_down"])]["value"]) == {0}


def test_a_parcel_is_the_model_with_its_buffers_and_nothing_else(tmp_path):
    """Four bytes for each number of the owner's network; the optimiser's state stays at home."""
    run(tmp_path, task=task_of(), networks=WIDTHS)
    table = pd.read_csv(tmp_path / "metrics.csv").query("metric == 'bytes_to_peers'")
    for round_ in (1, 2, 3):
        sent = {owner for host, owner in permutation(round_).items() if host != owner}
        for name in NAMES:
            size = payload_bytes(task_of().initial(7, WIDTHS[name]))
            spent = table[(table["round"] == round_) & (table["site"] == name)]["value"].sum()
            assert spent == (size if name in sent else 0)
    inbox = next(iter((tmp_path / "state" / "site-1" / "inbox").iterdir()))
    assert b"model/body.0.weight" in inbox.read_bytes()
    assert b"optimizer/" not in inbox.read_bytes()


# ---- O-SK-11: before its start it is FedCross*


@pytest.mark.parametrize("state", ["persistent", "reset"])
def test_sk_11_before_its_start_it_is_fedcross_star(tmp_path, state):
    """Rounds 1 and 2 of 4 with half of them before the start; then they part."""
    task, after = task_of(), []

    class Stepwise(FedSKD):
        def plan(self, server):
            if server.rounds_done == len(after) + 1:
                after.append({n: copy.deepcopy(s) for n, s in states(tmp_path / "skd").items() if n != "server"})
            return super().plan(server)

    def make_method():
        return Stepwise(start_fraction=0.5, optimizer_state=state)

    case = Case(REGISTRY, "fedskd")
    case.run(tmp_path / "skd", rounds=4, task=task, networks=WIDTHS, make_method=make_method)
    star = {"persistent": "travel", "reset": "reset"}[state]
    for rounds in (1, 2, 3):
        run(tmp_path / "star", "fedcross_star", {"optimizer_state": star}, rounds=rounds, task=task, networks=WIDTHS)
        expected = {name: tensors for name, tensors in states(tmp_path / "star").items() if name != "server"}
        assert same(after[rounds - 1], expected) == (rounds <= 2)


class StopError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_it_resumes_on_both_sides_of_its_start(tmp_path, stop):
    """Steps 1 to 3 are a round of visits, steps 4 and 5 one of the loss."""

    def absent(site, step):
        if (site, step) == ("site-2", stop):
            raise StopError
        return False

    args, options = {"start_fraction": 0.5, "p2p_scale": 1}, {"rounds": 2, "task": task_of(), "networks": WIDTHS}
    run(tmp_path / "whole", args=args, **options)
    with pytest.raises(StopError):
        run(tmp_path / "parts", args=args, absent=absent, **options)
    run(tmp_path / "parts", args=args, **options)
    assert same(states(tmp_path / "parts"), states(tmp_path / "whole"))


def test_rounds_that_are_added_later_come_after_the_start(tmp_path):
    """The start is that of the rounds that were asked for first."""
    args = {"start_fraction": 0.5}
    for rounds in (2, 4):
        run(tmp_path, args=args, rounds=rounds)
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert sorted(set(table.query("metric == 'guests'")["round"])) == [2, 3, 4]
    assert set(table.query("metric == 'trained'")["round"]) == {1}


def test_partial_participation_permutes_those_who_take_part(tmp_path):
    sites = make_sites({f"site-{index}": 6 for index in range(5)})
    result = run(tmp_path, sites=sites, fraction=0.6, rounds=3)
    assert result.outcome.status == "finished"
    table = pd.read_csv(tmp_path / "metrics.csv")
    worked = table.query("metric == 'guests'").groupby("round")["site"].agg(set)
    posted = table.query("metric == 'bytes_to_peers' and value > 0").groupby("round")["site"].agg(set)
    assert all(len(hosts) == 3 for hosts in worked)
    assert all(posted[round_] <= worked[round_] for round_ in posted.index)


def test_half_precision_is_close(tmp_path):
    task = dataclasses.replace(task_of(), regions=REGIONS)
    args = {"skd": ("batch", "pixel", "region"), "p2p_scale": 1}
    rough, fine = (bits(run(tmp_path / p, args=args, task=task, rounds=1, precision=p)) for p in ("bf16", "fp32"))
    apart = max((rough[k][n] - t).abs().max() for k in fine for n, t in fine[k].items() if t.is_floating_point())
    assert 0 < float(apart) < 0.1


def test_volumes_residual_networks_of_unlike_widths_and_an_atlas(tmp_path):
    """All four stages and all three forms; the loss is noted and teaches."""
    size = (16, 16, 16)
    rng = torch.Generator().manual_seed(0)
    atlas = torch.zeros(size, dtype=torch.int64)
    atlas[:8], atlas[8:, :8], atlas[15, 15, 15] = 1, 2, 3  # the third is a single voxel

    def split(n):
        return TensorData(torch.randn(n, 2, *size, generator=rng), torch.arange(n) % 2)

    networks = {f"width{w}": functools.partial(ResNet, 10, 2, 2, 3, w, stem_kernel=3) for w in (4, 3)}
    loss, metrics = nn.CrossEntropyLoss(), ("accuracy",)
    task = Task(networks, "width4", loss, lambda p: torch.optim.Adam(p, 1e-3), 2, metrics, regions=atlas)
    sites = {name: Splits(split(4), split(0), split(2)) for name in ("a", "b")}
    settings = Settings(rounds=1, steps=2, batch_size=2, networks={"b": "width3"})

    def result_of(name, **args):
        make_method = functools.partial(REGISTRY.make_method, name, args | {"init": "own"})
        return simulate(Run(name, make_method, task, settings, sites, tmp_path / name))

    result = result_of("fedskd", preset="paper_asd", route="derangement", p2p_scale=1)
    local = result_of("local", optimizer_state="persistent")
    table = pd.read_csv(tmp_path / "fedskd" / "metrics.csv").query("metric == 'similarity'")["value"]
    assert len(table) == 2
    assert all(0 < value < 3 * 4 for value in table)
    for name, models in result.models.items():
        found, alone = models["personal"].tensors, local.models[name]["personal"].tensors
        assert all(torch.isfinite(tensor).all() for tensor in found.values())
        assert not torch.equal(found["conv1.weight"], alone["conv1.weight"])
