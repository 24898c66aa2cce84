"""Reference implementation of FedKD.

On each batch, a site's mentor and the shared mentee minimise their cross entropy plus [KL(the other || own) +
MSE(mentor's features, W mentee's features)] / S, with S the sum of both cross entropies. The mentee's update is
reduced, matrix by matrix, to the smallest rank that holds a share T of its energy, and so is the server's unweighted
mean. T = T_0 + (T_1 - T_0) t / R in round t.

Conventions: The equations of the paper. Neither S nor the teaching side has a gradient, and W is trained with the
mentee. Energy is the sum of squared singular values.

Deliberate differences of medfl: An update is sent unfactorised if its factors would be longer. Predictions are compared
in float32, as in medfl, so the test has no momentum, which would accumulate rounding errors.

Source: Wu, Wu, Lyu, Huang, Xie, Nature Communications 2022, equations 1 to 8.
"""

import dataclasses

import pytest
import torch
from reference_training import (
    LR,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    Net,
    assert_close,
    average_models,
    batches,
    network_from,
    run_method,
    state_of,
    task_of,
)
from torch import nn
from torch.nn import functional as F

from medfl.utils.rng import seeded_generators

WIDTH = 8
TASK = dataclasses.replace(task_of(), networks={"net": Net, "wide": lambda: Net(width=WIDTH)})


def first_adapter():
    with seeded_generators(SEED, "initial", "adapter", "wide"):
        return nn.Linear(6, WIDTH, bias=False).double().state_dict()


def kl(teacher, student):
    aim, own = teacher.float().log_softmax(1), student.float().log_softmax(1)
    return (aim.exp() * (aim - own)).sum(1).mean()


def train(received, mentor_tensors, adapter_tensors, site, round_, hidden, rate):
    mentee, mentor, adapter = network_from(received), Net(width=WIDTH), nn.Linear(6, WIDTH, bias=False).double()
    mentor.load_state_dict(mentor_tensors)
    adapter.load_state_dict(adapter_tensors)
    optimizers = [torch.optim.SGD(part.parameters(), lr=LR) for part in (mentor, adapter)]
    optimizers.append(torch.optim.SGD(mentee.parameters(), lr=rate * LR))
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        h_s, h_t = mentee.body(images), mentor.body(images)
        z_s, z_t = mentee.head(h_s), mentor.head(h_t)
        ce_s, ce_t = F.cross_entropy(z_s, labels), F.cross_entropy(z_t, labels)
        both = (ce_s + ce_t).detach()
        loss_s = ce_s + (kl(z_t.detach(), z_s) + hidden * (h_t.detach() - adapter(h_s)).square().mean()) / both
        loss_t = ce_t + (kl(z_s.detach(), z_t) + hidden * (h_t - adapter(h_s).detach()).square().mean()) / both
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss_s + loss_t).backward()
        for optimizer in optimizers:
            optimizer.step()
    return state_of(mentee), state_of(mentor), state_of(adapter)


def cut(update, energy):
    if update.ndim < 2:
        return update
    u, s, v = torch.linalg.svd(update, full_matrices=False)
    shares = s.square().cumsum(0) / s.square().sum()
    rank = int((shares < energy).sum()) + 1
    if rank * (sum(update.shape) + 1) >= update.numel():
        return update
    return (u[:, :rank] * s[:rank]) @ v[:rank]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("hidden", "compress", "rate"), [(True, "both", 1.0), (False, "both", 1.0), (True, "up", 0.5)])
def test_method_equals_the_reference_implementation(tmp_path, hidden, compress, rate):
    w = TASK.initial(SEED)
    mentors = dict.fromkeys(SIZES, TASK.initial(SEED, "wide"))
    adapters = dict.fromkeys(SIZES, first_adapter())
    lossy = 0
    for round_ in range(1, ROUNDS + 1):
        energy = 0.8 + (0.95 - 0.8) * round_ / 4
        updates = []
        for site in SIZES:
            y, mentors[site], adapters[site] = train(w, mentors[site], adapters[site], site, round_, hidden, rate)
            update = {name: y[name] - w[name] for name in w}
            updates.append({name: cut(tensor, energy) for name, tensor in update.items()})
            lossy += any(not torch.equal(updates[-1][name], update[name]) for name in w)
        average = average_models(updates, [1, 1, 1])
        down = {name: cut(tensor, energy) if compress == "both" else tensor for name, tensor in average.items()}
        w = {name: w[name] + down[name] for name in w}
    assert lossy
    args = {"hidden_loss": hidden, "energy_start": 0.8, "energy_end": 0.95, "over": 4, "compress": compress}
    args |= {"mentee_rate": rate}
    result = run_method(tmp_path, "fedkd", args, task=TASK, networks_by_site=dict.fromkeys(SIZES, "wide"))
    assert_close(result.outcome.models["global"].tensors, w)
    for site in SIZES:
        assert_close(result.models[site]["personal"].tensors, mentors[site])
