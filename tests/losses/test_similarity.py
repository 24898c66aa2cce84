"""The similarity loss: the oracles of FedSKD, its invariances, layers and kinds, regions, bad input."""

import pytest
import torch
from torch.nn import functional as F

from medfl.errors import ContractError, DataError, SettingsError
from medfl.losses.regions import region_weights
from medfl.losses.similarity import (
    batch_similarity_loss,
    pixel_similarity_loss,
    region_similarity_loss,
    similarity_loss,
)

FORMS = [batch_similarity_loss, pixel_similarity_loss]


def by_the_book(h, k):
    """Eqs 6, 9 and 14 in float64 on rows of features (n, p)."""

    def similarity(rows):
        gram = rows.double() @ rows.double().T
        return F.normalize(gram, dim=1, eps=1e-300) * len(rows) ** 0.5

    return (similarity(h) - similarity(k)).square().sum() / len(h) ** 2


def pixel_rows(maps):
    return maps.movedim(1, -1).flatten(1, -2).transpose(0, 1).flatten(1)


def maps(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestOracles:
    def test_two_positions_of_one_channel(self):
        a, b = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[1.0, -1.0]]]])
        assert pixel_similarity_loss(a, b).item() == pytest.approx(2.0, abs=1e-6)

    def test_orthogonal_features_against_a_constant_map(self):
        a = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
        b = torch.ones(1, 2, 1, 2)
        assert pixel_similarity_loss(a, b).item() == pytest.approx(0.5857864376, abs=1e-7)

    def test_the_literal_divisor_depends_on_the_orientation(self):
        a, b = torch.tensor([[[[1.0], [0.0]], [[0.0], [1.0]]]]), torch.ones(1, 2, 2, 1)
        assert pixel_similarity_loss(a, b, pixel_norm="hw_times").item() == pytest.approx(1.1715728753, abs=1e-6)
        turned = (x.transpose(2, 3) for x in (a, b))
        assert pixel_similarity_loss(*turned, pixel_norm="hw_times").item() == pytest.approx(0.5857864376, abs=1e-6)

    def test_orthogonal_samples_against_equal_ones(self):
        a, b = torch.eye(2)[:, :, None, None], torch.ones(2, 3, 1, 1)
        assert batch_similarity_loss(a, b).item() == pytest.approx(2 - 2**0.5, abs=1e-7)

    @pytest.mark.parametrize("shape", [(4, 3, 5, 6), (3, 2, 4, 3, 5)], ids=["2-D", "3-D"])
    def test_batch_and_pixel_are_the_paper_s_equations(self, shape):
        a, b = maps(*shape), maps(*shape, seed=1)[:, :2].abs()
        assert batch_similarity_loss(a, b).item() == pytest.approx(
            by_the_book(a.flatten(1), b.flatten(1)).item(), rel=1e-5
        )
        expected = by_the_book(pixel_rows(a), pixel_rows(b)).item()
        assert pixel_similarity_loss(a, b).item() == pytest.approx(expected, rel=1e-5)


class TestInvariances:
    A, B = maps(6, 5, 4, 7), maps(6, 3, 4, 7, seed=1)

    @pytest.mark.parametrize("loss", FORMS)
    def test_channels_of_one_model_may_be_mixed_by_any_rotation(self, loss):
        rotation, _ = torch.linalg.qr(maps(5, 5, seed=2))
        turned = torch.einsum("bchw,cd->bdhw", self.A, rotation)
        assert loss(turned, self.B).item() == pytest.approx(loss(self.A, self.B).item(), rel=1e-5)

    @pytest.mark.parametrize("loss", FORMS)
    def test_samples_of_both_models_may_be_permuted(self, loss):
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        assert loss(self.A[order], self.B[order]).item() == pytest.approx(loss(self.A, self.B).item(), rel=1e-5)

    def test_it_matters_which_sample_is_which(self):
        assert batch_similarity_loss(self.A, self.A.flip(0)).item() > 0.01

    @pytest.mark.parametrize("loss", FORMS)
    @pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
    def test_positive_scale_of_either_model_is_free(self, loss, factor):
        expected = pytest.approx(loss(self.A, self.B).item(), rel=1e-5)
        assert loss(factor * self.A, self.B).item() == expected
        assert loss(self.A, factor * self.B).item() == expected
        assert loss(self.A, factor * self.A).item() < 1e-10

    @pytest.mark.parametrize("loss", FORMS)
    def test_it_is_symmetric(self, loss):
        assert loss(self.A, self.B).item() == pytest.approx(loss(self.B, self.A).item(), rel=1e-5)

    @pytest.mark.parametrize("loss", FORMS)
    def test_within_4_and_within_2_after_a_relu(self, loss):
        for seed in range(20):
            a, b = maps(3, 2, 3, 3, seed=2 * seed), maps(3, 2, 3, 3, seed=2 * seed + 1)
            assert 0 <= loss(a, b).item() <= 4
            assert 0 <= loss(a.relu(), b.relu()).item() <= 2

    def test_nearly_4_is_reached_where_all_but_one_position_turn_around(self):
        line = torch.full((1, 1, 10, 10), 1e-3)
        line[0, 0, 0, 0] = 1
        turned = torch.where(line < 1, -line, line)
        assert pixel_similarity_loss(line, turned).item() == pytest.approx(4 * 0.99, rel=1e-3)
        assert pixel_similarity_loss(line, turned).item() == pytest.approx(
            by_the_book(pixel_rows(line), pixel_rows(turned)).item(), rel=1e-5
        )


class TestUnlikeSizes:
    def test_the_larger_map_is_resized_to_the_smaller(self):
        a, b = maps(2, 3, 8, 8), maps(2, 5, 6, 6, seed=1)
        small = F.interpolate(a, size=(6, 6), mode="bilinear", align_corners=False)
        assert pixel_similarity_loss(a, b).item() == pixel_similarity_loss(small, b).item()
        assert pixel_similarity_loss(b, a).item() == pixel_similarity_loss(b, small).item()

    def test_in_3_d_it_is_trilinear(self):
        a, b = maps(2, 3, 6, 5, 4), maps(2, 3, 3, 3, 3, seed=1)
        small = F.interpolate(a, size=(3, 3, 3), mode="trilinear", align_corners=False)
        assert pixel_similarity_loss(a, b).item() == pixel_similarity_loss(small, b).item()

    def test_a_map_resembles_its_own_upsampling(self):
        for seed in range(20):
            a, other = maps(2, 4, 6, 6, seed=seed), maps(2, 4, 8, 8, seed=seed + 100)
            own = F.interpolate(a, size=(8, 8), mode="bilinear", align_corners=False)
            assert 4 * pixel_similarity_loss(a, own).item() < pixel_similarity_loss(a, other).item()

    def test_gradients_reach_both_models_through_the_resizing(self):
        a, b = maps(2, 3, 8, 8).requires_grad_(), maps(2, 5, 6, 6, seed=1).requires_grad_()
        pixel_similarity_loss(a, b).backward()
        assert a.grad.abs().sum() > 0
        assert b.grad.abs().sum() > 0


class TestUnlikeChannels:
    def test_channels_of_zeros_change_nothing_at_all(self):
        a = maps(2, 3, 4, 4)
        wider = F.pad(a, (0, 0, 0, 0, 0, 2))
        for loss in FORMS:
            assert loss(a, wider).item() == pytest.approx(0, abs=1e-12)
        assert pixel_similarity_loss(a, wider, form="columns").item() == 0, "the samples must stay aligned"


class TestLayers:
    A = [maps(4, 2, 6, 6), maps(4, 3, 3, 3, seed=1)]
    B = [maps(4, 3, 6, 6, seed=2), maps(4, 2, 3, 3, seed=3)]
    REGIONS = region_weights(torch.arange(36).reshape(6, 6) // 12 + 1, (6, 6))

    def test_the_sum_over_kinds_of_the_mean_over_layers(self):
        pairs = list(zip(self.A, self.B, strict=True))
        batch, pixel = (sum(loss(a, b) for a, b in pairs) / 2 for loss in FORMS)
        region = sum(region_similarity_loss(a, b, self.REGIONS) for a, b in pairs) / 2
        assert similarity_loss(self.A, self.B).item() == pytest.approx((batch + pixel).item())
        assert similarity_loss(self.A, self.B, regions=self.REGIONS).item() == pytest.approx(
            (batch + pixel + region).item()
        )
        for kind, expected in (("batch", batch), ("pixel", pixel), ("region", region)):
            assert similarity_loss(self.A, self.B, [kind], self.REGIONS).item() == pytest.approx(expected.item())

    def test_regions_of_each_layer_equal_regions_pooled_on_the_way(self):
        for_each = [self.REGIONS, F.adaptive_avg_pool2d(self.REGIONS, (3, 3))]
        one = similarity_loss(self.A, self.B, ["region"], self.REGIONS)
        assert similarity_loss(self.A, self.B, ["region"], for_each).item() == pytest.approx(one.item(), rel=1e-6)

    def test_unlike_depths_are_refused_with_both_numbers(self):
        with pytest.raises(SettingsError, match="2 and 1"):
            similarity_loss(self.A, self.B[:1])
        with pytest.raises(SettingsError, match="0 and 0"):
            similarity_loss([], [])

    def test_a_region_loss_without_an_atlas_is_refused(self):
        with pytest.raises(SettingsError, match="atlas"):
            similarity_loss(self.A, self.B, ["batch", "region"])

    @pytest.mark.parametrize(
        ("kinds", "regions", "said"),
        [
            (["pixels"], None, "Did you mean 'pixel'"),
            ([], None, "at least one kind"),
            (None, [REGIONS], "each of 2 layers"),
        ],
    )
    def test_other_settings_that_make_no_sense(self, kinds, regions, said):
        with pytest.raises(SettingsError, match=said):
            similarity_loss(self.A, self.B, kinds, regions)
        with pytest.raises(SettingsError, match="hw_sq"):
            similarity_loss(self.A, self.B, pixel_norm="hwsq")

    @pytest.mark.parametrize("other", [(3, 2, 6, 6), (4, 2, 6, 6, 6), (4, 0, 6, 6), (4, 2, 6)])
    def test_maps_that_do_not_fit_are_refused_with_their_shapes(self, other):
        for loss in (*FORMS, lambda a, b: region_similarity_loss(a, b, self.REGIONS)):
            with pytest.raises(ContractError, match=r"\(4, 2, 6, 6\) and "):
                loss(self.A[0], torch.ones(other))

    def test_half_precision_and_autocast_compute_in_single(self):
        a, b = (x[0].to(torch.bfloat16) for x in (self.A, self.B))
        expected = similarity_loss([a.float()], [b.float()], regions=self.REGIONS)
        assert similarity_loss([a], [b], regions=self.REGIONS).item() == expected.item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = similarity_loss([a.float()], [b.float()], regions=self.REGIONS)
        assert again.item() == expected.item()

    def test_gradients_of_half_precision_come_back_in_it(self):
        a = self.A[0].to(torch.float16).requires_grad_()
        similarity_loss([a], [self.B[0]]).backward()
        assert a.grad.dtype == torch.float16
        assert a.grad.abs().sum() > 0


class TestRegions:
    def test_means_over_disjoint_regions(self):
        a, b = maps(2, 3, 4, 4), maps(2, 5, 4, 4, seed=1)
        labels = torch.tensor([[1, 1, 2, 2], [1, 1, 2, 2], [0, 5, 5, 5], [0, 5, 5, 5]])
        rows = [torch.stack([x[:, :, labels == value].mean(2).flatten() for value in (1, 2, 5)]) for x in (a, b)]
        found = region_similarity_loss(a, b, region_weights(labels, (4, 4)))
        assert found.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)

    def test_soft_weights_keep_each_region_s_mass_and_sum_to_one_inside(self):
        labels = torch.zeros(12, 12, 12, dtype=torch.int16)
        labels[:6], labels[6:, :, :6], labels[11, 11, 11] = 1, 2, 7
        weights = region_weights(labels, (3, 3, 3))
        assert weights.shape == (3, 3, 3, 3)
        volumes = [(labels == value).sum().item() for value in (1, 2, 7)]
        assert torch.allclose(weights.flatten(1).sum(1) * 64, torch.tensor(volumes, dtype=torch.float32))
        assert torch.allclose(region_weights(torch.ones(12, 12), (5, 5)), torch.ones(1, 5, 5))

    def test_a_region_that_vanishes_by_nearest_neighbour_survives_soft(self):
        labels = torch.ones(16, 16, dtype=torch.long)
        labels[5, 7] = 2
        a, b = maps(2, 3, 4, 4), maps(2, 3, 4, 4, seed=1)
        soft, nearest = region_weights(labels, (4, 4)), region_weights(labels, (4, 4), "nearest")
        assert nearest[1].sum() == 0
        assert torch.count_nonzero(soft[1]) == 1
        cell = a[:, :, 1, 1].flatten()
        rows = [
            torch.stack([(x * soft[0]).sum((2, 3)).flatten() / soft[0].sum(), x[:, :, 1, 1].flatten()]) for x in (a, b)
        ]
        assert torch.equal(rows[0][1], cell)
        assert region_similarity_loss(a, b, soft).item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)
        dropped = region_similarity_loss(a, b, nearest)
        assert dropped.item() == region_similarity_loss(a, b, nearest[:1]).item()

    def test_each_sample_may_have_its_own_regions(self):
        a, b = maps(2, 3, 4, 4), maps(2, 3, 4, 4, seed=1)
        labels = torch.stack([torch.arange(16).reshape(4, 4) // 8 + 1, torch.arange(16).reshape(4, 4) % 2 + 1])
        weights = region_weights(labels, (4, 4))
        assert weights.shape == (2, 2, 4, 4)
        rows = [
            torch.stack([torch.cat([x[i, :, labels[i] == value].mean(1) for i in (0, 1)]) for value in (1, 2)])
            for x in (a, b)
        ]
        assert region_similarity_loss(a, b, weights).item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)

    def test_a_sample_without_a_region_counts_as_zero_there(self):
        a, b = maps(2, 3, 2, 2), maps(2, 3, 2, 2, seed=1)
        labels = torch.tensor([[[1, 1], [2, 2]], [[1, 1], [1, 1]]])
        first = [x[0].flatten(1)[:, 2:].mean(1) for x in (a, b)]
        rows = []
        for x, mean in zip((a, b), first, strict=True):
            one = torch.cat([x[0].flatten(1)[:, :2].mean(1), x[1].flatten(1).mean(1)])
            rows.append(torch.stack([one, torch.cat([mean, torch.zeros(3)])]))
        found = region_similarity_loss(a, b, region_weights(labels, (2, 2)))
        assert found.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)

    def test_one_atlas_for_all_samples_in_each_of_its_shapes(self):
        a, b = maps(3, 2, 4, 4), maps(3, 2, 4, 4, seed=1)
        weights = region_weights(torch.arange(16).reshape(4, 4) // 4 + 1, (4, 4))
        one = region_similarity_loss(a, b, weights).item()
        assert region_similarity_loss(a, b, weights[None]).item() == one
        assert region_similarity_loss(a, b, weights.expand(3, -1, -1, -1)).item() == pytest.approx(one, rel=1e-6)

    def test_each_model_is_pooled_on_its_own_grid(self):
        labels = torch.arange(64).reshape(8, 8) // 16 + 1
        a, b = maps(2, 3, 8, 8), maps(2, 3, 4, 4, seed=1)
        rows = []
        for x in (a, b):
            w = region_weights(labels, x.shape[2:])
            rows.append(torch.stack([((x * one).sum((2, 3)) / one.sum()).flatten() for one in w]))
        found = region_similarity_loss(a, b, region_weights(labels, (8, 8)))
        assert found.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)

    def test_no_gradient_is_ever_nan(self):
        a, b = maps(2, 3, 4, 4).requires_grad_(), maps(2, 3, 4, 4, seed=1).requires_grad_()
        labels = torch.zeros(2, 16, 16, dtype=torch.long)
        labels[0, 0, 0], labels[1, :8], labels[0, 8:] = 1, 2, 2
        region_similarity_loss(a, b, region_weights(labels, (4, 4))).backward()
        assert a.grad.isfinite().all()
        assert b.grad.isfinite().all()
        assert a.grad[0, :, 0, 0].abs().sum() > 0

    @pytest.mark.parametrize(
        ("labels", "said"),
        [
            (torch.zeros(8, 8), "found none"),
            (torch.full((8, 8), 0.5), "nearest neighbour"),
            (torch.full((8, 8), float("nan")), "nearest neighbour"),
            (torch.full((8, 8), -1), "got -1"),
            (torch.ones(8, 8, 8, 8), r"\(8, 8, 8, 8\)"),
            (torch.ones(8), r"\(8,\)"),
        ],
    )
    def test_what_is_no_atlas_is_refused(self, labels, said):
        with pytest.raises(DataError, match=said):
            region_weights(labels, (4, 4))

    def test_other_bad_regions(self):
        with pytest.raises(SettingsError, match="Did you mean 'nearest'"):
            region_weights(torch.ones(4, 4), (2, 2), "nearst")
        a = maps(2, 3, 4, 4)
        with pytest.raises(SettingsError, match="got none of 2 regions"):
            region_similarity_loss(a, a, torch.zeros(2, 4, 4))
        with pytest.raises(ContractError, match=r"\(5, 2, 4, 4\)"):
            region_similarity_loss(a, a, torch.ones(5, 2, 4, 4))
