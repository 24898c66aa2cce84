"""Terms of the distiller's loss: labels of copies, clip, noise, critic, prototypes."""

from types import SimpleNamespace

import pytest
import torch
from fedtpf_toys import DATA, fed, server_of, site_of, tpf
from torch import nn
from torch.nn import functional as F

from medfl.contract import Request
from medfl.privacy.release import ImageRelease
from medfl.task import ImageScale
from medfl.utils.wire import tensors_equal
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.distiller_training import DividedBatch, clip_and_noise
from medfl_methods.fedfed.generators import GeneratorOutput
from medfl_methods.fedfed.method import FedFed
from medfl_methods.fedtpf.method import FedTPF

SCALE = ImageScale((3, 2, 2), (0.1, 0.5, 0.9), (1.0, 1.0, 1.0))


class ChannelMeans(nn.Module):
    """Classifier whose logits are the channel means."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(2).mean(2)


def divided_batch(seed: int = 0) -> DividedBatch:
    """Return four images of several classes. The generator reconstructs a quarter of each image."""
    images = 8 * torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    labels = torch.tensor([2, 0, 1, 0])
    return DividedBatch(images, labels, GeneratorOutput(images / 4), 3 * images / 4)


def loss_of(method: FedFed | FedTPF, divided: DividedBatch) -> float:
    model = Distiller(nn.Identity(), ChannelMeans(), SCALE)
    return float(method.distil_loss(SimpleNamespace(model=model), divided, nn.CrossEntropyLoss()))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_each_copy_of_a_part_is_classified_by_the_label_of_its_image(copies: int) -> None:
    """All copies are equal for negligible noise, and the loss has the closed form of a single copy."""
    method = fed(noise_std=(1e-6,) * copies, reconstruction=3.0, kl=7.0, ce=2.0, x_ce=0.5, clip=None)
    divided = divided_batch()
    expected = 3.0 * (3 * divided.images / 4).square().mean()
    expected += 2.0 * F.cross_entropy(divided.residual.flatten(2).mean(2), divided.labels)
    whole = (divided.images - torch.tensor(SCALE.mean).view(3, 1, 1)).flatten(2).mean(2)
    expected += 0.5 * F.cross_entropy(whole, divided.labels)
    assert loss_of(method, divided) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("noise", ["none", "gaussian", "laplace"])
def test_the_clip_in_training_is_that_of_what_is_sent(noise: str) -> None:
    """Norms of 4, 1 and 0.25 are clipped to 1, 1 and 0.25: the L1 norm for Laplace noise, the L2 norm otherwise."""
    part = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1)) - 0.5
    release = ImageRelease(noise, 1e-14, 1.0)
    norms = torch.linalg.vector_norm(part.flatten(1), ord=1 if noise == "laplace" else 2, dim=1)
    part = part / norms.view(3, 1, 1, 1) * torch.tensor([4.0, 1.0, 0.25]).view(3, 1, 1, 1)
    torch.testing.assert_close(clip_and_noise(part, release), release.clipped(part).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_noise_in_training_has_the_variance_of_what_is_sent_and_no_bias(noise: str) -> None:
    torch.manual_seed(3)
    added = clip_and_noise(torch.zeros(100, 1, 20, 20), ImageRelease(noise, 0.15, None))
    assert float(added.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(added.var()) == pytest.approx(0.15, rel=0.05)


def test_the_critic_and_the_prototypes_add_to_the_loss_that_is_made_small() -> None:
    """The terms are -adversarial * E[D(reconstruction)] + prototype_weight * distance. The critic steps first."""
    calls = []
    adversary = SimpleNamespace(
        train_critic=lambda real, fake: calls.append((real, fake)),
        generator_loss=lambda fake: fake.sum() + 10 * len(calls),
    )
    divided = divided_batch()
    latent = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 0.0]])
    divided.reconstructed = GeneratorOutput(divided.reconstructed.images, latent=latent)
    method = tpf(adversarial=0.5, prototype_weight=0.25)
    total = method.extra_losses(divided, adversary, torch.zeros(3, 2))
    expected = 0.5 * (float(divided.images.sum()) / 4 + 10) + 0.25 * (1 + 4 + 0 + 9) / 4
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert len(calls) == 1
    assert torch.equal(calls[0][0], divided.images)
    assert torch.equal(calls[0][1], divided.reconstructed.images)


def test_prototypes_are_those_of_the_model_that_was_just_trained(tmp_path) -> None:
    seen = []

    class Watched(FedTPF):
        def prototypes(self, site, model):
            seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            return super().prototypes(site, model)

    method = Watched(width=2, distil_rounds=1)
    site, server = site_of(DATA), server_of(method, tmp_path)
    received = method.publish(server)
    reply = method.distil(site, Request(site.name, "distil", received | method.distiller(server)))
    (model,) = seen
    assert tensors_equal(model, reply.trained["personal"].tensors)
    assert not tensors_equal(model, {name.removeprefix("model/"): tensor for name, tensor in received.items()})
