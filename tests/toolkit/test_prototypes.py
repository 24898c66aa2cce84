"""Tests of prototypes against means that are computed image by image."""

import math

import pytest
import torch

from medfl.data.pooled import TensorData
from medfl.testing.cohort import SmallNet, make_data
from medfl.toolkit.prototypes import latent_distance, prototypes, scale_prototypes


@pytest.mark.parametrize("norm", [True, False])
def test_they_are_the_means_of_the_features_of_each_class(norm):
    """The result does not depend on the batch size, and the network's statistics don't change."""
    model, data = SmallNet(norm).train(), make_data(11, "prototypes")
    statistics = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_size = {size: prototypes(model, data, 3, size, "cpu") for size in (1, 4, 100)}
    model.eval()
    for label in range(3):
        of_class = [model.body(data.images[i][None])[0] for i in range(11) if data.class_labels[i] == label]
        expected = sum(features.double() for features in of_class) / len(of_class)
        for rows in by_size.values():
            torch.testing.assert_close(rows[label].double(), expected, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(statistics[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(rows.requires_grad for rows in by_size.values())


def test_a_class_without_images_has_none():
    """It is NaN and not zero, which would be a valid prototype."""
    data = TensorData(torch.rand(4, 1, 6, 6), torch.tensor([2, 0, 0, 2]))
    rows = prototypes(SmallNet(), data, 4, 3, "cpu")
    assert rows.isnan().all(1).tolist() == [False, True, False, True]
    assert not rows[[0, 2]].isnan().any()
    latent = torch.zeros(2, rows.shape[1], requires_grad=True)
    loss = latent_distance(latent, rows, torch.tensor([0, 2]))
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert latent.grad.isfinite().all()


def test_without_images_there_is_none_at_all():
    data = TensorData(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))
    assert prototypes(SmallNet(), data, 3, 5, "cpu").isnan().all()


def test_volumes_have_prototypes_too():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = torch.nn.AvgPool3d(2), torch.nn.Linear(8, 2)

    images, labels = torch.rand(5, 1, 4, 4, 4), torch.tensor([0, 1, 0, 1, 1])
    rows = prototypes(Flat(), TensorData(images, labels), 2, 2, "cpu")
    expected = images.reshape(5, 2, 2, 2, 2, 2, 2).mean((2, 4, 6)).flatten(1)
    torch.testing.assert_close(rows, torch.stack([expected[labels == c].mean(0) for c in (0, 1)]))


def test_the_distance_sums_over_numbers_and_is_the_mean_over_images():
    """TP-03, with the prototype of each image's class: ((1 + 4) + (9 + 0) + (0 + 1)) / 3."""
    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    latent = torch.tensor([[1.0, 2.0], [4.0, 1.0], [0.0, -1.0]], requires_grad=True)
    loss = latent_distance(latent, rows, torch.tensor([0, 1, 0]))
    assert float(loss.detach()) == pytest.approx(5.0)
    loss.backward()
    torch.testing.assert_close(latent.grad, 2 * torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, -1.0]]) / 3)


def test_scaled_ones_have_the_norm_of_a_standard_normal_vector():
    """The norm is sqrt(d) and the direction is kept; zeros and missing classes stay unchanged."""
    rows = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1e-20, 0.0, 0.0, 0.0], [0.0] * 4, [math.nan] * 4])
    made = scale_prototypes(rows)
    torch.testing.assert_close(made[0], torch.tensor([1.2, 1.6, 0.0, 0.0]))
    assert made[1].tolist() == pytest.approx([2.0, 0.0, 0.0, 0.0], abs=1e-4)
    assert made[2].tolist() == [0.0] * 4
    assert made[3].isnan().all()
