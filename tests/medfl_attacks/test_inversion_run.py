"""Inversion attacks on hand-made runs: targets, error messages and files."""

import dataclasses
import re

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.contract import Model
from medfl.data.pooled import EmptyDataset
from medfl.engine.site import Splits
from medfl.errors import SettingsError
from medfl.privacy.release import ImageRelease
from medfl.privacy.released import ReleasedImages
from medfl.settings import Settings
from medfl.testing.cohort import make_sites, make_task
from medfl_attacks.attack_files import read_results
from medfl_attacks.inversion.attack import InversionOptions, attack_targets, run_inversion
from medfl_attacks.open_run import OpenedRun

QUICK = InversionOptions(images=3, steps=4)


class Keeps(nn.Module):
    """Network that removes a share of the image."""

    def __init__(self, back):
        super().__init__()
        self.back = back

    def forward(self, images):
        return images - self.back * images


class Shares:
    """Method whose sites have shared images, with the attributes that an attack reads."""

    sends = {"model/": "update"}
    sends_meta = {}
    needs = frozenset()

    def __init__(self, *releases, back=0.5):
        self.releases, self.back = releases, back

    def shown(self):
        if not self.releases:
            return None
        copies = tuple(torch.zeros(1, 1, 6, 6) for _ in self.releases)
        return ReleasedImages(copies, torch.zeros(1).long(), ("site-1",), Keeps(self.back), self.releases)


class ByHand(OpenedRun):
    """A run without stored states."""

    def released(self):
        return self.method.shown()

    def global_model(self):
        return Model("plain", self.task.initial(0)) if self.method.sends else None

    def predictor(self, model, name=""):
        return self.task.load(model.tensors, model.network).eval()


def opened(tmp_path, method, sites=None, **settings):
    task = make_task("plain")
    scale = dataclasses.replace(task.scale, mean=(0.5,), std=(2.0,))  # the tiny cohort's images then lie within [0, 1]
    return ByHand(
        tmp_path,
        "shares",
        method,
        dataclasses.replace(task, scale=scale),
        Settings(rounds=2, **settings),
        sites or make_sites({"site-1": 9, "site-2": 7}),
    )


GAUSSIAN = ImageRelease("gaussian", 0.15, 1.0)


def test_all_targets_are_attacked_and_written(tmp_path):
    seen = []
    rows = run_inversion(
        opened(tmp_path, Shares(GAUSSIAN)), tmp_path, QUICK, lambda done, total: seen.append((done, total))
    )
    (shared,) = attack_targets(opened(tmp_path, Shares(GAUSSIAN)), dataclasses.replace(QUICK, target="shared"))
    assert shared.sent == "x_p"
    content = read_results(tmp_path, "inversion")
    assert list(content.results) == rows
    assert content.options == dataclasses.asdict(QUICK)
    assert any("worst case" in note for note in content.notes)
    keys = {(row.target, row.attack, row.item) for row in rows}
    assert len(keys) == len(rows)
    each = {("shared", kind, item) for kind in ("gradient", "decoder", "fixed_point") for item in ("x_s", "x_p")}
    assert keys >= each | {("update", "gradient", "update"), ("model", "gradient", "class mean")}
    assert seen[-1][0] == seen[-1][1] == len(seen) - 1  # a step each, and the end
    raw = next(row for row in rows if row.item == "raw")
    assert (raw.mse, raw.images) == (0, 3)
    clean, noised = (
        next(row for row in rows if (row.attack, row.item) == ("fixed_point", item)) for item in ("x_s", "x_p")
    )
    assert clean.mse < 1e-6 < 1e-2 < noised.mse
    assert clean.converged == 3


def test_the_page_holds_all_it_shows_and_warns(tmp_path):
    run_inversion(opened(tmp_path, Shares(GAUSSIAN)), tmp_path, QUICK)
    page = (tmp_path / "attacks" / "inversion.html").read_text()
    assert "images of patients" in page
    assert "://" not in re.sub(r"data:image/png;base64,[^\"]+", "", page)
    # three images of raw, x_r, x_s, x_p, mean and six attacks; three of raw, mean, update; three classes of four each
    assert page.count("<img") == page.count("data:image/png;base64,") == 3 * 11 + 3 * 3 + 3 * 4
    assert page.count("SSIM ") >= 3 * 7


def test_the_same_seed_gives_the_same_files_and_another_one_other_images(tmp_path):
    run = opened(tmp_path, Shares(GAUSSIAN))
    first, again, other = (
        attack_targets(run, dataclasses.replace(QUICK, target="shared", seed=seed))[0] for seed in (0, 0, 1)
    )
    assert first.results() == again.results()
    assert not torch.equal(first.truth, other.truth)


def test_images_are_spread_over_the_classes(tmp_path):
    (attacked,) = attack_targets(opened(tmp_path, Shares(GAUSSIAN)), dataclasses.replace(QUICK, target="update"))
    assert sorted(attacked.names) == ["0", "1", "2"]


def test_without_noise_and_clip_what_was_sent_is_the_part_itself(tmp_path):
    run = opened(tmp_path, Shares(ImageRelease("none", 0.0, None), back=0.0))
    (attacked,) = attack_targets(run, dataclasses.replace(QUICK, target="shared"))
    assert attacked.sent == "x_s"
    rows = {(row.attack, row.item): row for row in attacked.results()}
    assert ("fixed_point", "x_p") not in rows
    assert rows["fixed_point", "x_s"].mse == 0  # oracle O-TP-11: nothing was kept back
    assert "x_s itself" in attacked.notes[0]


def test_two_copies_reveal_what_their_mean_by_precision_reveals(tmp_path):
    """FedFed's variances 0.0225 and 0.0625 combine to 0.0165, which the attack reports. One copy reveals less."""
    both = [ImageRelease("gaussian", std**2, None) for std in (0.15, 0.25)]
    options = dataclasses.replace(QUICK, target="shared", steps=1)
    noise = []
    for releases in ([both[0]], [both[1]], both):
        (attacked,) = attack_targets(opened(tmp_path, Shares(*releases)), options)
        noise.append(float((attacked.shown["sent x_p"] - attacked.shown["shared part x_s"]).var()))
        assert ("copies" in " ".join(attacked.notes)) == (len(releases) == 2)
    expected = 1 / (1 / 0.15**2 + 1 / 0.25**2)
    assert f"variance {expected:.3g}, that of the copies 0.0225 and 0.0625" in attacked.notes[0]
    assert noise == pytest.approx([0.15**2, 0.25**2, expected], rel=0.35)  # of 108 numbers
    released = Shares(*both).shown()
    parts = torch.randn(2, 1, 6, 6)
    mean = dataclasses.replace(released, copies=(parts.half(), 2 * parts.half())).images
    torch.testing.assert_close(mean, (parts / 0.15**2 + 2 * parts / 0.25**2) * expected, atol=1e-2, rtol=1e-2)


def test_without_validation_images_there_is_no_decoder(tmp_path):
    sites = {name: Splits(site.train, EmptyDataset(), site.test) for name, site in make_sites({"a": 9}).items()}
    (attacked,) = attack_targets(opened(tmp_path, Shares(GAUSSIAN), sites), dataclasses.replace(QUICK, target="shared"))
    assert "decoder" not in {made.attack for made in attacked.reconstructions}
    assert any("no decoder" in note for note in attacked.notes)


def test_a_run_without_shared_images_is_refused_for_them_and_attacked_otherwise(tmp_path):
    run = opened(tmp_path, Shares())
    with refused(SettingsError, "no_released_images", target="shared", method="shares"):
        attack_targets(run, dataclasses.replace(QUICK, target="shared"))
    assert [attacked.target for attacked in attack_targets(run, QUICK)] == ["update", "model"]


def test_a_run_with_nothing_to_attack_is_refused(tmp_path):
    method = Shares()
    method.sends = {}
    for target in ("model", "update"):
        with refused(SettingsError, "no_global_model", target=target, method="shares"):
            attack_targets(opened(tmp_path, method), dataclasses.replace(QUICK, target=target))
    with refused(SettingsError, "no_attack_target", method="shares"):
        attack_targets(opened(tmp_path, method), QUICK)


def test_a_task_without_a_scale_is_refused(tmp_path):
    run = opened(tmp_path, Shares(GAUSSIAN))
    run.task = dataclasses.replace(run.task, scale=None)
    with refused(SettingsError, "missing_scale"):
        attack_targets(run, QUICK)


def test_the_runs_own_filters_act_on_the_update(tmp_path):
    options = dataclasses.replace(QUICK, target="update", images=2, batch=2, steps=30)
    privacy = {"epsilon": 0.1, "clip": 1.0}
    plain, private = (
        attack_targets(opened(tmp_path, Shares(), **settings), options)[0] for settings in ({}, {"privacy": privacy})
    )
    best = [
        next(made for made in attacked.reconstructions if made.attack == "gradient") for attacked in (plain, private)
    ]
    assert float(best[0].similarity.mse.mean()) < float(best[1].similarity.mse.mean())
    assert any("epsilon 0.1" in note for note in private.notes)
    (coarse,) = attack_targets(opened(tmp_path, Shares(), compression={"bits": 8}), options)
    assert any("8 bits" in note for note in coarse.notes)
    (hidden,) = attack_targets(
        opened(tmp_path, Shares(), secure_aggregation={"threshold": 2}, privacy=privacy), options
    )
    masked = next(made for made in hidden.reconstructions if made.attack == "gradient")
    assert float(best[0].similarity.mse.mean()) < float(masked.similarity.mse.mean())
    assert any("secure-aggregation mask" in note for note in hidden.notes)


def test_volumes_and_colours(tmp_path):
    from medfl_attacks.inversion.inversion_page import image_element

    assert "<img" in image_element(torch.rand(1, 6, 5, 4), "a volume")
    assert "<img" in image_element(torch.randn(3, 200, 120), "a colour part", full=0.5)
    middle = torch.zeros(1, 4, 5, 3)
    middle[..., 1] = 1
    assert image_element(middle, "v") == image_element(torch.ones(1, 5, 4), "v")


@pytest.mark.parametrize("bad", [{"images": 0}, {"batch": 0}, {"steps": 0}, {"smoothness": -1.0}])
def test_options_out_of_range_are_refused(bad):
    ((name, value),) = bad.items()
    with refused(SettingsError, "setting_out_of_range", setting=name, found=value):
        InversionOptions(**bad)


def test_an_unknown_target_is_refused():
    with refused(SettingsError, "unknown_choice", choice="any"):
        InversionOptions(target="any")
