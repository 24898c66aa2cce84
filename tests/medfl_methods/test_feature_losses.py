"""Tests of the losses of both stages of FedTPF and FedFed against their formulas (A4.3, TP-02, O-TP-12, B29)."""

import math

import pytest
import torch
from fedtpf_toys import DATA, fed, server_of, site_of, tpf, with_scale
from torch import nn
from torch.nn import functional as F

from medfl.contract import Request
from medfl.task import ImageScale
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl_methods.fedfed.shared_images import SharedBatches, SharedImages

# ---- the loss of the second stage


class Means(nn.Module):
    """Network whose logits are weighted sums over thirds of the image."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, images):
        return self.weights * images.flatten(1).unflatten(1, (3, -1)).mean(2)


def loss_of(method, site, shared, batch):
    fit = Fit(site, Means(), {})
    fit.extra["shared"] = SharedBatches(shared, len(site.train), site.rng("any"), True)
    return method.loss(fit, batch)


@pytest.mark.parametrize("copies", [1, 2])
def test_tp_12_loss_is_the_mean_over_own_and_shared_images(copies):
    """The loss is one mean over n_l + n_s rows, with one shared image of each copy per own image (3 + 3 or 3 + 6)."""
    task = with_scale(ImageScale((1, 6, 6), (0.4,), (0.25,)))
    parts = torch.rand(copies, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    shared = SharedImages(tuple(part[None].half() for part in parts), torch.tensor([2]))
    batch = Batch(DATA.images[:3], torch.tensor([0, 1, 1]), torch.arange(3))
    method = tpf() if copies == 1 else fed()
    loss = loss_of(method, site_of(DATA, task), shared, batch)
    own = [F.cross_entropy(Means()(x[None]), y[None]) for x, y in zip(batch.images, batch.targets)]
    seen = [F.cross_entropy(Means()((part.half().float() / 0.25)[None]), torch.tensor([2])) for part in parts]
    total = sum(own) + 3 * sum(seen)
    assert float(loss.detach()) == pytest.approx(float(total.detach()) / (3 + 3 * copies), rel=1e-5)
    assert abs(float((sum(own) / 3 + sum(seen) / copies - loss).detach())) > 0.1


def test_whole_shared_images_are_standardised_like_own_images():
    """The network sees, with raw+noise, (image - mean) / std of own and of shared images; the means do not cancel."""
    task = with_scale(ImageScale((1, 6, 6), (0.4,), (0.25,)))
    image = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(3)).half()
    shared = SharedImages((image,), torch.tensor([1]))
    batch = Batch(task.scale.to_inputs(image.float()), torch.tensor([1]), torch.arange(1))
    loss = loss_of(tpf(share="raw+noise"), site_of(DATA, task), shared, batch)
    own = F.cross_entropy(Means()(batch.images), batch.targets)
    assert float(loss.detach()) == pytest.approx(float(own.detach()), rel=1e-3), "the same image, own or shared"


# ---- the loss of the first stage


@pytest.mark.parametrize(("make", "noise"), [(tpf, "none"), (fed, "gaussian"), (tpf, "laplace")])
def test_first_stage_loss_equals_the_specification(tmp_path, make, noise):
    """The loss is 5 MSE + 0.005 KL + 2 CE of the noised residual (mean over copies) + 0.4 CE of the whole image."""
    method, site = make(noise=noise, clip=None), site_of(DATA)
    server = server_of(method, tmp_path)
    work = method.start_distiller_training(site, Request("site-1", "distil", method.distiller(server)))
    batch = Batch(DATA.images[:6], DATA.class_labels[:6], torch.arange(6))
    torch.manual_seed(4)
    divided = work.divide(batch)
    x, y, seen = site.task.scale.to_images(batch.images), batch.targets, site.task.scale.to_inputs
    torch.testing.assert_close(divided.reconstructed.images + divided.residual, x, atol=1e-6, rtol=0)
    state = torch.get_rng_state()
    loss = method.distil_loss(work, divided, site.task.loss)
    torch.set_rng_state(state)
    copies = []
    for std in (0.15, 0.25) if make is fed else [math.sqrt(0.15)]:
        part = divided.residual
        if noise == "gaussian":
            part = part + std * torch.randn_like(part)
        if noise == "laplace":
            signs = torch.randint_like(part, 2).mul_(2).sub_(1)
            part = part + std / math.sqrt(2) * signs * torch.empty_like(part).exponential_()
        copies.append(F.cross_entropy(work.model.classifier(part / 0.5), y))
    mean, log_variance = divided.reconstructed.mean, divided.reconstructed.log_variance
    kl = ((mean**2 + log_variance.exp() - 1 - log_variance) / 2).mean()
    mse = ((divided.reconstructed.images - x) ** 2).mean()
    whole = F.cross_entropy(work.model.classifier(seen(x)), y)
    expected = 5 * mse + 0.005 * kl + 2 * sum(copies) / len(copies) + 0.4 * whole
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    loss.backward()
    assert all(p.grad is not None for p in work.model.generator.parameters()), "through the residual, too"


def test_tp_02_classification_gradient_lowers_the_cross_entropy(tmp_path):
    """A step along the negative gradient of the cross entropy lowers it, for the generator and for the classifier."""
    method, site = tpf(noise="none", clip=None, reconstruction=0.0, kl=0.0, x_ce=0.0), site_of(DATA)
    work = method.start_distiller_training(
        site, Request("site-1", "distil", method.distiller(server_of(method, tmp_path)))
    )
    work.model.eval()
    batch = Batch(DATA.images, DATA.class_labels, torch.arange(40))
    before = method.distil_loss(work, work.divide(batch), site.task.loss)
    before.backward()
    with torch.no_grad():
        for parameter in work.model.generator.parameters():
            parameter -= 0.01 * parameter.grad
    after = method.distil_loss(work, work.divide(batch), site.task.loss)
    assert float(after.detach()) < float(before.detach())
