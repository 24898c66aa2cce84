"""The decoder attack on synthetic images whose best reconstruction is known."""

import pytest
import torch

from medfl_attacks.image_metrics import compare_images
from medfl_attacks.inversion.decoder import Decoder, decode, train_decoder


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stripes(n, seed):
    """Return images with a stripe in one of six columns, brighter or darker."""
    draw = generator(seed)
    columns = torch.nn.functional.one_hot(torch.randint(6, (n,), generator=draw), 6).float()
    return (0.2 + 0.6 * torch.rand(n, 1, 1, 1, generator=draw) * columns.view(n, 1, 1, 6)).expand(n, 1, 7, 6)


def test_it_beats_the_mean_image_and_noise_harms_it():
    own, truth = stripes(64, 1), stripes(8, 2)
    made = {}
    for name, std in (("clean", 0.0), ("noisy", 0.5)):
        draw = generator(3)

        def item(images, std=std, draw=draw):
            return images - 0.5 + std * torch.randn(images.shape, generator=draw)

        made[name] = compare_images(decode(train_decoder(own, item, 80, generator()), item(truth)), truth).mse.mean()
    mean = compare_images(own.mean(dim=0).expand_as(truth), truth).mse.mean()
    assert float(made["clean"]) < 0.5 * float(mean)
    assert float(made["noisy"]) > 2 * float(made["clean"])


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 7, 5), (1, 5, 4, 7), (1, 224, 30)])
def test_it_begins_as_the_mean_image_of_any_size(shape):
    mean = torch.rand(shape, generator=generator())
    with torch.no_grad():
        out = Decoder(mean)(torch.randn(2, *shape, generator=generator()))
    assert torch.equal(out, mean.expand_as(out))


def test_the_global_generator_is_left_alone_and_the_seed_decides():
    own, before = stripes(8, 1), torch.get_rng_state()
    first, other = (train_decoder(own, lambda images: images, 3, generator()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
