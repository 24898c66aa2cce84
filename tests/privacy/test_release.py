"""Test releases of parts of images: clip, noise, epsilon against its definition, and statements."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.privacy import release as module
from medfl.privacy.release import ImageRelease, epsilon_together, guarantee_sentences
from medfl.utils.rng import SecretStream, make_generator

SECRET = b"a secret of sixteen or more bytes"
ORDER = {"gaussian": 2, "laplace": 1}


def stream(*key):
    return SecretStream(SECRET, *key)


def parts(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=make_generator(0, "parts"))


# ---- the clip


@pytest.mark.parametrize("noise", ORDER)
@pytest.mark.parametrize("shape", [(6, 1, 5, 4), (6, 3, 3, 4, 5)])
def test_each_image_is_clipped_as_a_whole_by_the_norm_of_its_noise(noise, shape):
    part = parts(*shape) * torch.logspace(-3, 1, 6).view(-1, *[1] * (len(shape) - 1))
    norms = part.double().flatten(1).norm(p=ORDER[noise], dim=1)
    bound = float(norms.median()) * 1.01
    clipped = ImageRelease(noise, 0.15, bound).clipped(part)
    assert 0 < int((norms > bound).sum()) < 6, "both kinds are among them"
    for image, before, norm in zip(clipped, part, norms, strict=True):
        if norm > bound:
            assert float(image.flatten().norm(p=ORDER[noise])) == pytest.approx(bound, rel=1e-12)
            assert torch.allclose(image / bound, before.double() / norm, rtol=1e-12, atol=0), "its direction stays"
        else:
            assert torch.equal(image, before.double()), "to the bit"


def test_without_noise_parts_within_the_bound_come_back_as_they_are():
    part = parts(4, 1, 3, 3)
    part[0] = 0
    assert torch.equal(ImageRelease("none", 0.15, None).apply(part, stream()), part)
    assert torch.equal(ImageRelease("none", 0.15, 100.0).apply(part, stream()), part)


def test_an_image_does_not_change_how_its_neighbour_is_clipped():
    part, other = parts(2, 1, 4, 4), parts(2, 1, 4, 4)
    other[1] *= 1000
    release = ImageRelease("gaussian", 0.15, 1.0)
    assert torch.equal(release.apply(part, stream(1))[0], release.apply(other, stream(1))[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "none"])
def test_parts_that_are_not_finite_are_refused(noise, clip, bad):
    part = parts(3, 1, 2, 2)
    part[1, 0, 1, 1] = bad
    with refused(RefusedError, "not_finite", count=1, total=3):
        ImageRelease(noise, 0.15, clip).apply(part, stream())


def test_integers_are_refused():
    with refused(ContractError, "wrong_dtype", found="torch.int64"):
        ImageRelease("gaussian", 0.15, 1.0).apply(torch.ones(2, 1, 2, 2, dtype=torch.int64), stream())


# ---- the noise


@pytest.mark.parametrize("noise", ORDER)
@pytest.mark.parametrize("variance", [0.15, 4.0])
def test_noise_is_added_after_the_clip_and_has_the_variance(noise, variance):
    part = parts(400, 1, 10, 10, scale=50.0)
    release = ImageRelease(noise, variance, 3.0)
    added = (release.apply(part, stream(noise)).double() - release.clipped(part)).flatten()
    fourth = {"gaussian": 3.0, "laplace": 6.0}[noise] * variance**2
    assert abs(float(added.mean())) < 4 * math.sqrt(variance / len(added))
    assert abs(float(added.var()) - variance) < 4 * math.sqrt((fourth - variance**2) / len(added))
    assert float((added**4).mean()) == pytest.approx(fourth, rel=0.15), "the tails tell which of the two it is"
    assert abs(float(torch.corrcoef(torch.stack([added, part.double().flatten()]))[0, 1])) < 4 / math.sqrt(len(added))


def test_no_two_images_and_no_two_copies_share_noise(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 3 * 16)  # three images at a time
    nothing, noise = torch.zeros(8, 1, 4, 4, dtype=torch.float64), stream(3)
    release = ImageRelease("gaussian", 0.25, None)
    copies = torch.cat([release.apply(nothing, noise), release.apply(nothing, noise)]).flatten(1)
    apart = torch.pdist(copies)
    assert float(apart.min()) > 0.5, "expected about sqrt(2 * 16 * 0.25) = 2.8"
    assert float(copies.std()) == pytest.approx(0.5, rel=0.15)


def test_noise_is_drawn_in_few_images_at_a_time_and_comes_again_with_the_same_key(monkeypatch):
    part = parts(5, 1, 4, 4)
    release = ImageRelease("laplace", 0.15, 1.0)
    assert torch.equal(release.apply(part, stream(4)), release.apply(part, stream(4)))
    assert not torch.equal(release.apply(part, stream(4)), release.apply(part, stream(5)))
    drawn = []
    source = stream(4)
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 40)
    monkeypatch.setattr(source, "laplace", lambda shape: drawn.append(shape) or torch.zeros(shape))
    assert torch.allclose(release.apply(part, source), release.clipped(part).float())
    assert drawn == [(2, 1, 4, 4), (2, 1, 4, 4), (1, 1, 4, 4)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "none"])
def test_shape_and_type_stay_also_without_images(noise, dtype):
    for count in (0, 3):
        part = parts(count, 2, 3, 3).to(dtype)
        released = ImageRelease(noise, 0.15, 1.0).apply(part, stream())
        assert (released.shape, released.dtype) == (part.shape, dtype)
        assert bool(released.isfinite().all())


def test_what_was_given_is_not_changed():
    part = parts(2, 1, 3, 3, scale=9.0).requires_grad_()
    before = part.detach().clone()
    released = ImageRelease("gaussian", 0.15, 1.0).apply(part, stream())
    assert torch.equal(part.detach(), before)
    assert not released.requires_grad


# ---- epsilon, against the definition


def hockey_stick(epsilon, distances):
    """Return delta by integrating max(0, p - e^epsilon q) for normal noise with one dimension for each distance."""
    axes = [torch.linspace(-8, 8 + far, 2001, dtype=torch.float64) for far in distances]
    grids = torch.meshgrid(*axes, indexing="ij")
    log_p, log_q = (
        -sum((x - moved * far) ** 2 for x, far in zip(grids, distances, strict=True)) / 2
        - len(distances) * math.log(2 * math.pi) / 2
        for moved in (1, 0)
    )
    value = (log_p.exp() - (epsilon + log_q).exp()).clamp(min=0)
    for axis in reversed(axes):
        value = torch.trapezoid(value, axis, dim=-1)
    return float(value)


@pytest.mark.parametrize(("adjacency", "far"), [("add_remove", 1.0), ("replace", 2.0)])
@pytest.mark.parametrize(("variance", "clip", "delta"), [(0.15, 1.0, 1e-5), (4.0, 3.0, 1e-3)])
def test_gaussian_epsilon_is_what_the_definition_says(variance, clip, delta, adjacency, far):
    release = ImageRelease("gaussian", variance, clip, delta)
    distance = far * clip / math.sqrt(variance)
    assert hockey_stick(release.epsilon(adjacency), [distance]) == pytest.approx(delta, rel=1e-3)


def test_two_noisy_copies_are_one_release_in_two_dimensions():
    copies = [ImageRelease("gaussian", 0.6, 1.0), ImageRelease("gaussian", 1.0, 1.5)]
    distances = [1 / math.sqrt(0.6), 1.5]
    assert hockey_stick(epsilon_together(copies, "add_remove"), distances) == pytest.approx(1e-5, rel=2e-3)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_laplace_epsilon_is_the_largest_log_ratio_there_is(adjacency):
    """Check that the ratio of densities is at most e^epsilon for any two images, and reaches it for some."""
    release = ImageRelease("laplace", 0.15, 0.7)
    first = torch.cat([parts(200, 3, scale=5.0), torch.tensor([[100.0, 0.0, 0.0]])])
    second = torch.zeros_like(first) if adjacency == "add_remove" else -first.roll(1, dims=0)
    if adjacency == "replace":
        second[-1] = -first[-1]
    a, b = release.clipped(first), release.clipped(second)
    outputs = torch.cat([parts(500, 3).double(), 2 * torch.eye(3, dtype=torch.float64)])
    noise = torch.distributions.Laplace(torch.zeros(3, dtype=torch.float64), math.sqrt(0.15 / 2))
    ratios = [
        noise.log_prob(outputs - x).sum(1) - noise.log_prob(outputs - y).sum(1) for x, y in zip(a, b, strict=True)
    ]
    epsilon = release.epsilon(adjacency)
    assert float(torch.stack(ratios).abs().max()) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_without_clip_or_noise_there_is_no_epsilon(adjacency):
    nothing = [
        ImageRelease("gaussian", 0.15, None),
        ImageRelease("laplace", 0.15, None),
        ImageRelease("none", 0.15, 1.0),
    ]
    for release in nothing:
        assert release.epsilon(adjacency) is None
        assert epsilon_together([ImageRelease("gaussian", 0.15, 1.0), release], adjacency) is None


@settings(max_examples=30, deadline=None)
@given(
    noise=some.sampled_from(["gaussian", "laplace"]),
    variance=some.floats(0.01, 100),
    clip=some.floats(0.05, 20),
    factor=some.floats(0.1, 10),
)
def test_only_the_ratio_of_clip_and_noise_counts(noise, variance, clip, factor):
    release, other = ImageRelease(noise, variance, clip), ImageRelease(noise, variance * factor**2, clip * factor)
    assert release.epsilon("add_remove") == pytest.approx(other.epsilon("add_remove"), rel=1e-6, abs=1e-9)
    doubled = ImageRelease(noise, variance, 2 * clip).epsilon("add_remove")
    assert release.epsilon("replace") == pytest.approx(doubled, rel=1e-6, abs=1e-9)


def test_copies_compose():
    half = [ImageRelease("gaussian", 0.3, 1.0)] * 2
    assert epsilon_together(half, "add_remove") == pytest.approx(
        ImageRelease("gaussian", 0.15, 1.0).epsilon("add_remove")
    )
    laplace = [ImageRelease("laplace", 0.5, 1.0), ImageRelease("laplace", 2.0, 1.0)]
    assert epsilon_together(laplace, "replace") == pytest.approx(4.0 + 2.0)
    gaussian = ImageRelease("gaussian", 0.15, 1.0)
    mixed = epsilon_together([gaussian, laplace[0]], "add_remove")
    assert mixed == pytest.approx(gaussian.epsilon("add_remove") + 2.0)
    assert epsilon_together([], "add_remove") == 0.0


def test_one_delta_for_all_copies_and_a_known_adjacency():
    with refused(SettingsError, "several_deltas", found=[1e-6, 1e-5]):
        epsilon_together([ImageRelease("gaussian", 0.15, 1.0), ImageRelease("gaussian", 0.15, 1.0, 1e-6)], "add_remove")
    with refused(SettingsError, "unknown_choice", what="adjacency", choice="replaced"):
        ImageRelease("laplace", 0.15, 1.0).epsilon("replaced")


# ---- words


@pytest.mark.parametrize("of", ["x_s", "raw"])
@pytest.mark.parametrize(
    ("release", "phrases"),
    [
        (
            ImageRelease("gaussian", 0.15, 1.0),
            ["L2 norm 1 ", "0.3873", "delta 1e-05", "13.76", "34.63", "Gaussian", "square"],
        ),
        (
            ImageRelease("laplace", 0.15, 2.0),
            ["L1 norm 2 ", "0.2739", "delta 0 ", "7.303", "14.61", "Laplace", "add up"],
        ),
    ],
)
def test_the_statement_says_everything(release, phrases, of):
    text = ImageRelease(release.noise, release.variance, release.clip, of=of).statement()
    unit = {"x_s": "image less its reconstruction", "raw": "whole image"}[of]
    common = [
        "unit is one image's shared part",
        "'add_remove'",
        "'replace'",
        "variance 0.15",
        "one release of each image",
    ]
    outside = ["another run on the same images", "conditional", "published generator", "Not covered are the generator"]
    for words in [*phrases, *common, *outside, unit, "classifier and the task model", "label of each part", "in clear"]:
        assert words in text
    assert "no differential privacy" not in text


@pytest.mark.parametrize(
    ("release", "why"),
    [
        (ImageRelease("gaussian", 0.15, None), "Gaussian noise of variance 0.15"),
        (ImageRelease("laplace", 0.2, None, of="raw"), "hides no image"),
        (ImageRelease("none", 0.15, None), "without noise"),
        (ImageRelease("none", 0.15, 1.0), "without noise"),
    ],
)
def test_without_clip_or_noise_the_statement_says_that_there_is_no_privacy(release, why):
    text = release.statement()
    assert text.startswith("no differential privacy: ")
    assert why in text
    assert "epsilon" not in text
    assert "task model" in text
    assert "in clear" in text


def test_two_copies_are_stated_together():
    copies = [ImageRelease("gaussian", 0.15, 1.0), ImageRelease("gaussian", 0.25, 1.0)]
    statements = guarantee_sentences(copies)
    assert all(statement.endswith(".") for statement in statements)
    text = " ".join(statements)
    for words in ("variance 0.15", "variance 0.25", "epsilon 18.63", "these 2 copies"):
        assert words in text
    lacking = guarantee_sentences([copies[0], ImageRelease("gaussian", 0.25, None)])
    assert lacking[0].startswith("no differential privacy: Gaussian noise of variance 0.25")
    assert "0.15" not in lacking[0], "only what lacks a bound is named"


# ---- values


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({"noise": "gauss"}, "unknown_choice", {"what": "noise"}),
        ({"of": "x_r"}, "unknown_choice", {"what": "part to release"}),
        ({"variance": 0.0}, "setting_out_of_range", {"setting": "variance"}),
        ({"variance": -0.15}, "setting_out_of_range", {"setting": "variance"}),
        ({"variance": math.nan}, "setting_out_of_range", {"setting": "variance"}),
        ({"variance": math.inf}, "setting_out_of_range", {"setting": "variance"}),
        ({"noise": "laplace", "variance": 0.0}, "setting_out_of_range", {"setting": "variance"}),
        ({"clip": 0.0}, "setting_out_of_range", {"setting": "clip"}),
        ({"clip": -1.0}, "setting_out_of_range", {"setting": "clip"}),
        ({"clip": math.nan}, "setting_out_of_range", {"setting": "clip"}),
        ({"clip": math.inf}, "setting_out_of_range", {"setting": "clip"}),
        ({"noise": "none", "clip": 0.0}, "setting_out_of_range", {"setting": "clip"}),
        ({"delta": 0.0}, "setting_out_of_range", {"setting": "delta"}),
        ({"delta": 1.0}, "setting_out_of_range", {"setting": "delta"}),
    ],
)
def test_impossible_values_are_refused(values, code, field):
    with refused(SettingsError, code, **field):
        ImageRelease(**{"noise": "gaussian", "variance": 0.15, "clip": 1.0, **values})


def test_scale_and_norm():
    releases = {kind: ImageRelease(kind, 0.18, 1.0) for kind in ("gaussian", "laplace", "none")}
    scales = {kind: release.scale for kind, release in releases.items()}
    assert scales == pytest.approx({"gaussian": math.sqrt(0.18), "laplace": 0.3, "none": 0.0})
    assert [release.norm for release in releases.values()] == ["l2", "l1", "l2"]
    assert ImageRelease("none", 0.0, None).scale == 0, "without noise its variance counts for nothing"


@pytest.mark.parametrize(
    "release", [ImageRelease("gaussian", 0.15, 1.0), ImageRelease("laplace", 0.2, None, 1e-6, "raw")]
)
def test_a_release_survives_json(release):
    assert ImageRelease.from_meta(json.loads(json.dumps(release.meta()))) == release


@pytest.mark.parametrize("change", [{"sigma": 1.0}, {"clip": "1"}])
def test_a_record_of_something_else_is_refused(change):
    expected = ["noise", "variance", "clip", "delta", "of"]
    with refused(SettingsError, "wrong_fields", expected=expected, found=sorted({*expected, *change})):
        ImageRelease.from_meta({**ImageRelease("gaussian", 0.15, 1.0).meta(), **change})
