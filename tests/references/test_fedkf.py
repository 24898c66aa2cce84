"""Reference implementation of FedKF.

A round starts from the mean of the last participants. The teacher is the mean, weighted by size, of the last models of
all sites that ever took part. From the second round on, a site has a generator that generates B images from noise for
each batch of B images. The generator learns by Adam on 1 + sum_c p_c log p_c / log C + oh CE(z, argmax z) - a mean |f|,
with the teacher's logits z, features f and mean predictions p. The site's model minimises CE on its images plus gamma
KL(teacher || model) on the generated ones.

Conventions: The loss of the authors; with ``g_use_kl`` the generator's loss also has - gamma KL(model || teacher).

Deliberate differences of medfl: A site generates as many batches as it has of its own. The teacher is always in
evaluation mode, and so is the model when the generator uses it. The run creates the generator's network and initial
tensors. Predictions are compared in float32, as in medfl.

Source: Zhou, Lei, Jiang, Xiong, IEEE Internet of Things Journal 2023.
"""

import math

import pytest
import torch
from reference_training import (
    LR,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    assert_close,
    average_models,
    batches,
    frozen_model,
    initial_model,
    network_from,
    plain_sgd,
    run_method,
    state_of,
)
from torch.nn import functional as F

from medfl.utils.rng import make_generator, seeded_generators
from medfl_methods.fedkf.generator import Generator

GAMMA, OH, A, NOISE, WIDTH, GEN_LR, UNAVAILABLE = 0.8, 0.3, 0.2, 5, 2, 1e-3, ("site-2", 2)


def first_generator():
    with seeded_generators(SEED, "initial", "generator"):
        generator = Generator((1, 6, 6), NOISE, WIDTH)
    return generator, torch.optim.Adam(generator.parameters(), lr=GEN_LR)


def kl(teacher, student):
    aim, own = teacher.float().log_softmax(1), student.float().log_softmax(1)
    return (aim.exp() * (aim - own)).sum(1).mean()


def train(received, teacher, pair, site, round_, g_use_kl):
    model, (generator, adam) = network_from(received), pair
    noise = make_generator(SEED, site, round_, "generator")
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in batches(site, round_):
        images, labels = SITES[site].train.batch(rows)
        made = generator(torch.randn(len(rows), NOISE, generator=noise))
        features = teacher.body(made)
        logits = teacher.head(features).float()
        p = logits.softmax(1).mean(0)
        loss = 1 + torch.xlogy(p, p).sum() / math.log(3) - A * features.abs().mean()
        loss = loss + OH * F.cross_entropy(logits, logits.argmax(1))
        task_loss = F.cross_entropy(model(images), labels)
        if g_use_kl:
            loss = loss - GAMMA * kl(model.eval()(made), logits)
            model.train()
        adam.zero_grad()
        loss.backward()
        adam.step()
        optimizer.zero_grad()
        (task_loss + GAMMA * kl(logits.detach(), model(made.detach()))).backward()
        optimizer.step()
    return state_of(model)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("g_use_kl", [False, True])
def test_method_equals_the_reference_implementation(tmp_path, g_use_kl):
    w, last, pairs = initial_model(), {}, {}
    for round_ in range(1, ROUNDS + 1):
        here = [site for site in SIZES if (site, round_) != UNAVAILABLE]
        teacher = frozen_model(average_models(list(last.values()), [SIZES[site] for site in last])) if last else None
        models = {}
        for site in here:
            if teacher is None:
                models[site] = plain_sgd(w, site, round_)
                continue
            pairs.setdefault(site, first_generator())
            models[site] = train(w, teacher, pairs[site], site, round_, g_use_kl)
        last |= models
        w = average_models(list(models.values()), [SIZES[site] for site in here])
    args = {"gamma": GAMMA, "oh": OH, "a": A, "noise_dim": NOISE, "width": WIDTH, "gen_lr": GEN_LR}
    result = run_method(tmp_path, "fedkf", args | {"g_use_kl": g_use_kl}, unavailable=UNAVAILABLE)
    assert_close(result.outcome.models["global"].tensors, w)
