"""Similarity loss: FedSKD's oracles, invariances, layers and kinds, and invalid input."""

import pytest
import torch
from refusals import refused
from similarity_cases import by_the_book, maps, pixel_rows
from torch.nn import functional as F

from medfl.errors import ContractError, SettingsError
from medfl_methods.fedskd.regions import region_weights
from medfl_methods.fedskd.similarity import (
    batch_similarity_loss,
    pixel_similarity_loss,
    region_similarity_loss,
    similarity_loss,
)

FORMS = [batch_similarity_loss, pixel_similarity_loss]


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


class TestUnlikeChannels:
    def test_channels_of_zeros_change_nothing_at_all(self):
        a = maps(2, 3, 4, 4)
        wider = F.pad(a, (0, 0, 0, 0, 0, 2))
        for loss in FORMS:
            assert loss(a, wider).item() == pytest.approx(0, abs=1e-12)
        assert pixel_similarity_loss(a, wider, algorithm="columns").item() == 0, "the samples must stay aligned"


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
        common = similarity_loss(self.A, self.B, ["region"], self.REGIONS)
        assert similarity_loss(self.A, self.B, ["region"], for_each).item() == pytest.approx(common.item(), rel=1e-6)

    def test_unlike_depths_are_refused_with_both_numbers(self):
        with refused(SettingsError, "unlike_stage_counts", counts=[2, 1]):
            similarity_loss(self.A, self.B[:1])
        with refused(SettingsError, "unlike_stage_counts", counts=[0, 0]):
            similarity_loss([], [])

    def test_a_region_loss_without_an_atlas_is_refused(self):
        with refused(SettingsError, "missing_regions"):
            similarity_loss(self.A, self.B, ["batch", "region"])

    @pytest.mark.parametrize(
        ("kinds", "regions", "code", "fields"),
        [
            (["pixels"], None, "unknown_choice", {"choice": "pixels"}),
            ([], None, "missing_setting", {"setting": "kinds"}),
            (None, [REGIONS], "wrong_region_count", {"expected": 2, "found": 1}),
        ],
    )
    def test_other_settings_that_make_no_sense(self, kinds, regions, code, fields):
        with refused(SettingsError, code, **fields):
            similarity_loss(self.A, self.B, kinds, regions)
        with refused(SettingsError, "unknown_choice", choice="hwsq"):
            similarity_loss(self.A, self.B, pixel_norm="hwsq")

    @pytest.mark.parametrize("other", [(3, 2, 6, 6), (4, 2, 6, 6, 6), (4, 0, 6, 6), (4, 2, 6)])
    def test_maps_that_do_not_fit_are_refused_with_their_shapes(self, other):
        for loss in (*FORMS, lambda a, b: region_similarity_loss(a, b, self.REGIONS)):
            with refused(ContractError, "wrong_shape", found=[[4, 2, 6, 6], list(other)]):
                loss(self.A[0], torch.ones(other))

    def test_half_precision_and_autocast_compute_in_single(self):
        a, b = (x[0].to(torch.bfloat16) for x in (self.A, self.B))
        expected = similarity_loss([a.float()], [b.float()], regions=self.REGIONS)
        assert similarity_loss([a], [b], regions=self.REGIONS).item() == expected.item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = similarity_loss([a.float()], [b.float()], regions=self.REGIONS)
        assert again.item() == expected.item()
