"""FedKF by Zhou, Lei, Jiang, Xiong, IEEE Internet of Things Journal 2023: a round starts from the mean of the last
participants; the teacher is the mean, weighted by size, of the last models of all sites that ever took part. From the
second round on a site has a generator, which makes B images from noise for each batch of B and learns by Adam on 1 +
sum_c p_c log p_c / log C + oh CE(z, argmax z) - a mean |f|, of the teacher's logits z, features f and mean predictions
p; the site's model learns by CE on its images plus gamma KL(teacher || model) on the made ones.

Convention: the authors' loss; with ``g_use_kl`` the generator's has - gamma KL(model || teacher), too. Where ours
differs on purpose: a site makes as many batches as it has of its own, the teacher is in evaluation mode throughout, and
so is the model where the generator asks it. The generator's network and first tensors are the run's. Predictions are
compared in float32, as in medfl.
"""

import math

import pytest
import torch
from judging import (
    LR,
    ROUNDS,
    SEED,
    SITES,
    SIZES,
    agree,
    batches,
    frozen,
    mean,
    network,
    plain_sgd,
    run,
    start,
    state_of,
)
from torch.nn import functional as F

from medfl.utils.rng import make_generator, pinned
from medfl_methods.fedkf.generator import Generator

GAMMA, OH, A, NOISE, WIDTH, GEN_LR, AWAY = 0.8, 0.3, 0.2, 5, 2, 1e-3, ("site-2", 2)


def first_generator():
    with pinned(SEED, "initial", "generator"):
        generator = Generator((1, 6, 6), NOISE, WIDTH)
    return generator, torch.optim.Adam(generator.parameters(), lr=GEN_LR)


def kl(teacher, student):
    aim, own = teacher.float().log_softmax(1), student.float().log_softmax(1)
    return (aim.exp() * (aim - own)).sum(1).mean()


def train(received, teacher, pair, site, round_, g_use_kl):
    model, (generator, adam) = network(received), pair
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
def test_it_is_the_loop_of_the_paper(tmp_path, g_use_kl):
    w, last, pairs = start(), {}, {}
    for round_ in range(1, ROUNDS + 1):
        here = [site for site in SIZES if (site, round_) != AWAY]
        teacher = frozen(mean(list(last.values()), [SIZES[site] for site in last])) if last else None
        models = {}
        for site in here:
            if teacher is None:
                models[site] = plain_sgd(w, site, round_)
                continue
            pairs.setdefault(site, first_generator())
            models[site] = train(w, teacher, pairs[site], site, round_, g_use_kl)
        last |= models
        w = mean(list(models.values()), [SIZES[site] for site in here])
    args = {"gamma": GAMMA, "oh": OH, "a": A, "noise_dim": NOISE, "width": WIDTH, "gen_lr": GEN_LR}
    result = run(tmp_path, "fedkf", args | {"g_use_kl": g_use_kl}, away=AWAY)
    agree(result.outcome.models["global"].tensors, w)
