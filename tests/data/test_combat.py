"""ComBat from sums of the sites: the numbers of ComBat on pooled features, its limits, and degenerate features."""

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.data.harmonisation import combat
from medfl.data.harmonisation.combat import FeatureSums, compute_sums, fit_map, pool_sums
from medfl.errors import DataError

NEUROCOMBAT = {
    (0, 0): [0.40466, 1.27869, 1.84701, 2.73881, 3.72589, 5.5295],
    (0, 11): [0.23529, 0.8811, 1.36756, 2.01015, 2.87832, 4.4119],
    (1, 0): [1.12743, 2.03672, 2.75401, 3.74563, 4.80741, 6.63842],
    (1, 16): [0.17274, 0.19626, 2.57466, 3.13926, 2.53963, 6.31038],
    (2, 0): [1.44917, 2.36065, 2.89912, 3.81214, 4.80664, 6.55489],
    (2, 24): [-0.77526, 2.53494, 0.58895, 4.2996, 2.43899, 6.2931],
}
"""Rows (site, row) of `closed_form_sites` after ``neuroCombat(dat, covars, "batch")`` of neuroCombat 0.2.12."""


def closed_form_sites():
    """Return features (n, 6) of three sites, which need no random numbers."""
    sites = []
    for site, (count, location, scale) in enumerate([(12, 0.0, 1.0), (17, 0.8, 1.6), (25, -0.5, 0.7)]):
        rows, columns = np.arange(count)[:, None], np.arange(6)[None, :]
        waves = np.sin(1.7 * rows * (columns + 1) + site) + 0.3 * np.cos(2.3 * rows + columns**2)
        sites.append(waves * scale * (1 + 0.05 * columns) + location * (1 + 0.2 * columns) + columns)
    return [torch.as_tensor(features) for features in sites]


def harmonised(sites):
    sums = [compute_sums(features) for features in sites]
    pooled = pool_sums(sums)
    return [fit_map(own, pooled).harmonise(features) for own, features in zip(sums, sites, strict=True)]


def pooled_combat(sites):
    """Return the harmonised features of ComBat on pooled arrays: a direct transcription with sums over images."""
    pool = np.concatenate(sites)
    batch = np.repeat(np.arange(len(sites)), [len(features) for features in sites])
    grand = pool.mean(0)
    own_means = np.stack([pool[batch == site].mean(0) for site in range(len(sites))])
    sigma = np.sqrt(((pool - own_means[batch]) ** 2).mean(0))
    standard = (pool - grand) / sigma
    results = []
    for site in range(len(sites)):
        z = standard[batch == site]
        n, gamma_hat, delta_hat = len(z), z.mean(0), z.var(0, ddof=1)
        gamma_bar, tau2 = gamma_hat.mean(), gamma_hat.var(ddof=1)
        m, s2 = delta_hat.mean(), delta_hat.var(ddof=1)
        a, b = (2 * s2 + m**2) / s2, (m * s2 + m**3) / s2
        gamma, delta = gamma_hat, delta_hat
        for _ in range(200):
            gamma = (tau2 * n * gamma_hat + delta * gamma_bar) / (tau2 * n + delta)
            delta = (0.5 * ((z - gamma) ** 2).sum(0) + b) / (n / 2 + a - 1)
        results.append(sigma * (z - gamma) / np.sqrt(delta) + grand)
    return results


def draw_sites(counts, locations, scales, features=40, seed=1):
    generator = np.random.default_rng(seed)
    return [
        torch.as_tensor(generator.normal(5 + location, scale, (count, features)))
        for count, location, scale in zip(counts, locations, scales, strict=True)
    ]


def test_sums_give_the_numbers_of_an_independent_implementation():
    results = harmonised(closed_form_sites())
    for (site, row), expected in NEUROCOMBAT.items():
        np.testing.assert_allclose(results[site][row], expected, atol=2e-5)


@pytest.mark.parametrize("features", [2, 40])
def test_sums_give_the_numbers_of_combat_on_pooled_features(features):
    sites = draw_sites((11, 30, 75), (0, 1, -2), (1, 0.5, 3), features)
    for result, expected in zip(harmonised(sites), pooled_combat([part.numpy() for part in sites]), strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_many_images_give_plain_location_and_scale():
    sites = draw_sites((20_000, 40_000), (0, 3), (1, 2), features=3)
    for factor, part in zip((1.0, 0.3), sites, strict=True):
        part *= 1 + factor * torch.arange(3)  # features that differ have wide priors
    pooled = pool_sums([compute_sums(features) for features in sites])
    for result in harmonised(sites):
        torch.testing.assert_close(result.mean(0), pooled.mean, rtol=0, atol=1e-3)
        torch.testing.assert_close(result.var(0), pooled.variance, rtol=1e-3, atol=0)


def test_features_of_equal_distribution_hardly_change():
    sites = draw_sites((200, 300), (0, 0), (1, 1))
    unharmonised_gap = (sites[0].mean(0) - sites[1].mean(0)).abs().max()
    assert float(unharmonised_gap) > 0.1  # plain location and scale would remove these chance differences
    for features, result in zip(sites, harmonised(sites), strict=True):
        assert float((result - features).abs().max()) < 0.1


def test_equal_sites_are_mapped_to_themselves_up_to_the_degrees_of_freedom():
    features = draw_sites((50,), (0,), (2,))[0]
    own = compute_sums(features)
    site_map = fit_map(own, pool_sums([own, own]))
    torch.testing.assert_close(
        site_map.scale, torch.full((40,), (49 / 50) ** 0.5, dtype=torch.float64), rtol=1e-2, atol=0
    )
    torch.testing.assert_close(site_map.harmonise(features).mean(0), own.mean)


def test_one_feature_is_moved_and_scaled_without_shrinkage():
    sites = draw_sites((10, 20), (0, 4), (1, 3), features=1)
    pooled = pool_sums([compute_sums(features) for features in sites])
    for result in harmonised(sites):
        torch.testing.assert_close(result.mean(0), pooled.mean)
        torch.testing.assert_close(result.var(0), pooled.variance)


def test_features_with_equal_variances_get_this_variance():
    features = torch.tensor([[-1.0, 4.0], [1.0, 6.0]]).repeat(10, 1)
    others = torch.tensor([[-3.0, 4.0], [3.0, 10.0]]).repeat(10, 1)
    first, second = harmonised([features, others])
    assert bool(first.isfinite().all())
    torch.testing.assert_close(first.var(0), second.var(0), rtol=1e-4, atol=0)


def test_a_feature_that_is_constant_at_a_site_stays_as_it_is_everywhere():
    sites = draw_sites((20, 30), (0, 2), (1, 1), features=5)
    without = harmonised([part[:, 1:] for part in sites])
    sites[0][:, 0] = 0.1  # its sum has a rounding error
    sites[0] = sites[0].float()
    sites[0][::2, 0] += 2e-8  # the last bit of float32 may depend on the batch
    for features, result, expected in zip(sites, harmonised(sites), without, strict=True):
        assert torch.equal(result[:, 0], features[:, 0])
        torch.testing.assert_close(result[:, 1:].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_site_that_was_not_pooled_is_moved_to_the_moments_of_the_others():
    *others, late = draw_sites((2_000, 3_000, 4_000), (0, 1, -3), (1, 2, 0.5), features=3)
    pooled = pool_sums([compute_sums(features) for features in others])
    result = fit_map(compute_sums(late), pooled).harmonise(late)
    torch.testing.assert_close(result.mean(0), pooled.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(result.var(0), pooled.variance, rtol=0.02, atol=0)


def test_a_site_that_was_not_pooled_and_has_a_constant_feature_is_refused():
    *others, late = draw_sites((20, 30, 40), (0, 1, 2), (1, 1, 1), features=5)
    pooled = pool_sums([compute_sums(features) for features in others])
    late[:, 3] = 7.0
    with refused(DataError, "constant_features", constant=1, features=5):
        fit_map(compute_sums(late), pooled)


def test_constant_features_alone_are_left_as_they_are():
    sites = [torch.full((10, 3), 2.0), torch.full((10, 3), 5.0)]
    assert all(map(torch.equal, harmonised(sites), sites))


def test_a_linear_layer_on_features_equals_the_layer_on_harmonised_features():
    sites = draw_sites((15, 40), (0, 2), (1, 4))
    sums = [compute_sums(features) for features in sites]
    site_map, layer = fit_map(sums[1], pool_sums(sums)), torch.nn.Linear(40, 3).double()
    weight, bias = site_map.fold(layer.weight.detach(), layer.bias.detach())
    folded = torch.nn.functional.linear(sites[1], weight, bias)
    torch.testing.assert_close(folded, layer(site_map.harmonise(sites[1])).detach())


def test_the_sums_of_a_site_contain_no_more_than_count_mean_and_variance():
    features = draw_sites((15,), (3,), (2,), features=4)[0]
    own = compute_sums(features.flip(0))
    assert set(vars(own)) == {"count", "total", "squares"}
    torch.testing.assert_close(own.mean, features.mean(0))
    torch.testing.assert_close(own.squares / (own.count - 1), features.var(0))


def test_estimates_that_do_not_converge_are_refused(monkeypatch):
    monkeypatch.setattr(combat, "MAX_ITERATIONS", 1)
    own = FeatureSums(10, torch.tensor([1.0, 30.0]).double(), torch.tensor([9.0, 50.0]).double())
    other = FeatureSums(10, torch.tensor([5.0, 0.0]).double(), torch.tensor([1.0, 20.0]).double())
    with pytest.raises(DataError) as error:
        fit_map(own, pool_sums([own, other]))
    assert error.value.code == "not_converged"
