"""Tests of cached features: the same results as without the cache, and no feature outside of the sites' folders."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from monai.transforms import Compose, RandFlipd
from refusals import refused
from torch import nn

from medfl.data.pooled import TensorData, patients_of
from medfl.engine.runs.features import feature_cache
from medfl.engine.runs.features.feature_cache import FeatureExtractor
from medfl.engine.site import Splits
from medfl.errors import SettingsError
from medfl.networks.transfer.feature_input import FeatureNetworkBuilder, overwriting_tensors
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, bits, make_data, make_sites, make_task, scores
from medfl.training.augment import Augmentation
from medfl.utils import wire
from medfl.utils.wire import tensors_equal

FLIPS = Augmentation(Compose([RandFlipd(keys=["image"], prob=0.5, spatial_axis=0)]))

SEEN = {"images": 0}
"""Number of images that went through the body of `CountingNet`."""


class Counter(nn.Module):
    def forward(self, images):
        SEEN["images"] += len(images)
        return images


class CountingNet(SmallNet):
    def __init__(self):
        super().__init__()
        self.body.insert(0, Counter())


def case(method="fedavg", **settings):
    return Case(load_plugins(), method, {}, {"rounds": 3, "train_part": "head"} | settings)


def stored(folder):
    return sorted(folder.glob("state/*/.medfl_cache/features-*.safetensors"))


def same_up_to_rounding(left, right):
    assert left.keys() == right.keys()
    for key, tensors in left.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, right[key][name], rtol=0, atol=1e-6)


def extractor(build=SmallNet):
    task = replace(make_task(), networks={"norm": build}).with_training_of("head")
    return FeatureExtractor(task, Settings(rounds=1, train_part="head"))


@pytest.mark.parametrize("balance", ["none", "loss", "sampling"])
def test_results_equal_those_without_the_cache_up_to_rounding(balance, tmp_path):
    plain = case(balance=balance).run(tmp_path / "plain", feature_cache=False)
    cached = case(balance=balance).run(tmp_path / "cached")
    assert not stored(tmp_path / "plain")
    assert len(stored(tmp_path / "cached")) == 10  # three splits of three sites, and the server's test set
    same_up_to_rounding(bits(plain), bits(cached))
    unlike = [
        (left, right)
        for left, right in zip(scores(tmp_path / "plain")[1:], scores(tmp_path / "cached")[1:], strict=True)
        if left.rsplit(",", 1)[0] != right.rsplit(",", 1)[0]
        or abs(float(left.rsplit(",", 1)[1]) - float(right.rsplit(",", 1)[1])) > 1e-6
    ]
    assert unlike == []


def test_the_body_sees_each_image_once_in_a_run_and_never_in_the_next_one(tmp_path):
    task, cache = replace(make_task(), networks={"norm": CountingNet}), tmp_path / "state"
    sites = make_sites({"site-1": 21, "site-2": 13})
    SEEN["images"] = 0
    case().run(tmp_path, task=task, sites=sites)
    once = 21 + 13 + 2 * (6 + 9) + 10
    checked = 4 * 2  # body and network are tried on two images, in both modes
    assert once <= SEEN["images"] <= once + checked
    files = stored(tmp_path)
    SEEN["images"] = 0
    for file in files:  # as if another run of the same folder of data had left them
        (tmp_path / "second" / file.relative_to(tmp_path)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "second" / file.relative_to(tmp_path)).write_bytes(file.read_bytes())
    assert cache.is_dir()
    case("fedprox").run(tmp_path / "second", task=task, sites=sites)
    assert SEEN["images"] <= 4 * len(files) + checked  # the first four of each data set are compared
    assert stored(tmp_path / "second") == [tmp_path / "second" / file.relative_to(tmp_path) for file in files]


def test_workers_and_an_interruption_change_no_bit(tmp_path):
    whole = bits(case("scaffold").run(tmp_path / "whole"))
    workers = bits(case("scaffold").run(tmp_path / "workers", workers=2))
    case("scaffold").run(tmp_path / "parts", rounds=1)
    parts = bits(case("scaffold").run(tmp_path / "parts"))
    for other in (workers, parts):
        assert all(tensors_equal(tensors, other[key]) for key, tensors in whole.items())


def test_a_damaged_file_and_features_of_another_body_are_computed_again(tmp_path):
    data = make_data(9, "features")
    features = extractor().features(data, tmp_path)
    (path,) = tmp_path.iterdir()
    assert features.shape == (9, 24)
    path.write_bytes(path.read_bytes()[:-5])
    assert torch.equal(extractor().features(data, tmp_path), features)
    path.write_bytes(wire.encode({"features": features + 0.5}, {}))  # as an older version of the body may have left it
    assert torch.equal(extractor().features(data, tmp_path), features)
    assert torch.equal(wire.decode(path.read_bytes())[0]["features"], features)
    assert list(tmp_path.iterdir()) == [path]


def test_other_images_and_another_body_have_other_files(tmp_path):
    data = make_data(9, "features")
    images, labels = data.batch(torch.arange(9))
    changed = images.clone()
    changed[8, 0, 5, 5] += 1e-3
    extractor().features(data, tmp_path)
    extractor().features(TensorData(changed, labels), tmp_path)
    extractor(lambda: SmallNet(kernel=5)).features(data, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_run_of_another_precision_reads_no_features(tmp_path):
    data = make_data(9, "features")
    task = replace(make_task(), networks={"norm": SmallNet}).with_training_of("head")
    for precision in ("fp32", "bf16"):
        settings = Settings(rounds=1, train_part="head", precision=precision)
        FeatureExtractor(task, settings).features(data, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_networks_on_features_are_drawn_as_whole_networks_and_share_no_tensor():
    build = FeatureNetworkBuilder(lambda: make_task().with_training_of("head").build())
    heads = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        heads.append(build().head.weight)
        torch.manual_seed(seed)
        assert torch.equal(heads[-1], make_task().with_training_of("head").build().head.weight)
    assert not torch.equal(*heads)
    with overwriting_tensors():
        first, second = build(), build()
    first.head.weight.data.zero_()
    assert bool(second.head.weight.any())


def test_features_keep_the_patients_of_their_images(tmp_path):
    sites = make_sites()
    sites["site-2"].test.patients = torch.arange(9) // 2
    features = case().run(tmp_path, sites=sites, rounds=1).features
    assert torch.equal(patients_of(features["site-2"].data.test), torch.arange(9) // 2)
    assert patients_of(features["site-1"].data.test) is None


def test_images_that_attackers_change_are_not_cached(tmp_path, caplog):
    pytest.importorskip("medfl_attacks")
    caplog.set_level(logging.INFO, logger="medfl")
    case().run(tmp_path, rounds=1, adversaries={"attack": "label_flip", "sites": ["site-2"]})
    assert not stored(tmp_path)
    assert "attackers may change images" in caplog.text


def test_a_run_killed_while_it_writes_features_continues(tmp_path, monkeypatch):
    def stop(path, data):
        raise KeyboardInterrupt

    whole = bits(case().run(tmp_path / "whole"))
    monkeypatch.setattr(feature_cache, "write_atomic", stop)
    with pytest.raises(KeyboardInterrupt):
        case().run(tmp_path / "killed")
    monkeypatch.undo()
    assert not stored(tmp_path / "killed")
    again = bits(case().run(tmp_path / "killed"))
    assert all(tensors_equal(tensors, again[key]) for key, tensors in whole.items())


class NoisyNet(SmallNet):
    """Network that adds noise to the features in training, outside of the modules that the setting freezes."""

    def __init__(self):
        super().__init__()
        self.convolution = self.body
        self.noise = nn.Dropout(0.5)
        del self.body

    @property
    def body(self):
        return nn.Sequential(self.convolution, self.noise)

    def forward(self, images):
        return self.head(self.noise(self.convolution(images)))


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ({}, {"train_part": "norms"}, ""),
        (
            {"augmentation": Augmentation(Compose([RandFlipd(keys=["image"], prob=0.5, spatial_axis=0)]))},
            {},
            "augmented at random",
        ),
        (
            {"networks": {"norm": SmallNet, "wide": SmallNet}},
            {"networks_by_site": {"site-2": "wide"}},
            "different networks",
        ),
    ],
)
def test_features_are_not_cached_where_they_could_differ_and_the_log_says_why(
    changes, settings, reason, tmp_path, caplog
):
    caplog.set_level(logging.INFO, logger="medfl")
    method = "local" if "networks_by_site" in settings else "fedavg"
    case(method, **settings).run(tmp_path, task=replace(make_task(), **changes), rounds=1)
    assert not stored(tmp_path)
    assert reason in caplog.text


def test_a_body_with_random_parts_is_not_cached_unless_they_are_frozen_with_it(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="medfl")
    case().run(tmp_path / "beside", task=replace(make_task(), networks={"norm": NoisyNet}), rounds=1)
    assert not stored(tmp_path / "beside")
    assert "the body is random" in caplog.text

    def dropping():
        network = SmallNet()
        network.body.append(nn.Dropout(0.5))
        return network

    case().run(tmp_path / "inside", task=replace(make_task(), networks={"norm": dropping}), rounds=1)
    assert stored(tmp_path / "inside")


class DropoutBetweenNet(SmallNet):
    """Network whose dropout is neither in the body nor in the head."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, images):
        return self.head(self.dropout(self.body(images)))


def test_dropout_between_body_and_head_is_not_left_out(tmp_path):
    task = replace(make_task(), networks={"norm": DropoutBetweenNet})
    plain = case().run(tmp_path / "plain", task=task, rounds=1, feature_cache=False)
    cached = case().run(tmp_path / "cached", task=task, rounds=1)
    same_up_to_rounding(bits(plain), bits(cached))


def test_messages_and_exported_files_contain_no_features(tmp_path):
    sites = make_sites({"site-1": 21, "site-2": 13})
    case(disclose=("size",)).run(tmp_path, sites=sites)
    features = {wire.decode(path.read_bytes())[0]["features"].numpy().tobytes() for path in stored(tmp_path)}
    rows = {whole[start : start + 96] for whole in features for start in range(0, len(whole), 96)}  # 24 floats each
    outside = [path for path in Path(tmp_path).rglob("*") if path.is_file() and ".medfl_cache" not in path.parts]
    assert outside
    assert not [path for path in outside if any(row in path.read_bytes() for row in rows)]


def test_views_are_features_of_augmented_images_and_each_visit_draws_one(tmp_path):
    task = replace(make_task(), augmentation=FLIPS).with_training_of("head")
    settings = Settings(rounds=1, train_part="head", feature_views=8, seed=3)
    data = make_data(5, "views")
    splits = FeatureExtractor(task, settings).splits(Splits(data, data, data), tmp_path)
    images, _ = data.batch(torch.arange(5))
    body = task.load(task.initial(3)).eval().body
    with torch.no_grad():
        plain, flipped = body(images), body(images.flip(2))
    torch.testing.assert_close(splits.train.batch(torch.arange(5))[0], plain)
    views = splits.train.views
    assert views.shape == (8, 5, 24)
    is_plain, is_flipped = ((views - expected).abs().amax(dim=2) < 1e-5 for expected in (plain, flipped))
    assert bool((is_plain | is_flipped).all())
    assert 0 < int(is_flipped.sum()) < 40
    rows = torch.tensor([4, 4, 0])
    first, again, other = (next(iter(splits.train.visits([rows], stream))).inputs for stream in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert all(bool((views[:, row] == drawn).all(dim=1).any()) for row, drawn in zip(rows.tolist(), first, strict=True))
    batches = [next(iter(splits.train.visits([torch.arange(5)], stream))).inputs for stream in range(20)]
    assert not all(any(torch.equal(batch, view) for view in views) for batch in batches), "each image draws for itself"
    assert type(splits.val) is not type(splits.train)


class CountingData(TensorData):
    """Data set that counts the images that are read."""

    read = 0

    def batch(self, rows):
        self.read += len(rows)
        return super().batch(rows)


def test_images_are_read_once_for_the_names_of_features_and_views(tmp_path):
    task = replace(make_task(), augmentation=FLIPS).with_training_of("head")
    settings = Settings(rounds=1, train_part="head", feature_views=2)
    plain = make_data(40, "views")
    for expected in (40 + 3 * 40, 40 + 2 * 4):  # the name, then features and two views, or a comparison of each file
        data = CountingData(*plain.batch(torch.arange(40)))
        extractor = FeatureExtractor(task, settings)
        extractor.features(data, tmp_path)
        extractor.views(data, tmp_path)
        assert data.read == expected


def test_views_of_another_seed_and_damaged_ones_and_those_of_an_older_body_are_computed_again(tmp_path):
    task, data = replace(make_task(), augmentation=FLIPS).with_training_of("head"), make_data(9, "views")

    def views(seed):
        settings = Settings(rounds=1, train_part="head", feature_views=4, seed=seed)
        return FeatureExtractor(task, settings).views(data, tmp_path)

    first = views(1)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for left in (content[:-5], wire.encode({"features": first + 0.5}, {}), wire.encode({"features": first[:3]}, {})):
        path.write_bytes(left)
        assert torch.equal(views(1), first)
        assert torch.equal(wire.decode(path.read_bytes())[0]["features"], first)
    assert not torch.equal(views(2), first)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("settings", "is_cached", "reason"),
    [({}, False, "'feature_cache' is off"), ({"train_part": "norms"}, True, "parameters outside the head learn")],
)
def test_views_are_refused_where_features_are_not_cached(settings, is_cached, reason, tmp_path):
    task = replace(make_task(), augmentation=FLIPS)
    with refused(SettingsError, "unusable_setting", setting="feature_views", reason=reason):
        case(feature_views=2, **settings).run(tmp_path, task=task, feature_cache=is_cached)


def test_views_without_augmentation_are_refused(tmp_path):
    with refused(SettingsError, "no_augmentation", setting="feature_views"):
        case(feature_views=3).run(tmp_path / "run")


def test_a_run_on_views_continues_with_the_same_bits_and_depends_on_their_number(tmp_path):
    task = replace(make_task(), augmentation=FLIPS)
    whole = bits(case(feature_views=3).run(tmp_path / "whole", task=task))
    case(feature_views=3).run(tmp_path / "parts", task=task, rounds=1)
    parts = bits(case(feature_views=3).run(tmp_path / "parts", task=task, workers=2))
    assert all(tensors_equal(tensors, parts[key]) for key, tensors in whole.items())
    more = bits(case(feature_views=4).run(tmp_path / "more", task=task))
    assert not tensors_equal(whole["server/global"], more["server/global"])
    assert len(list(tmp_path.glob("whole/state/*/.medfl_cache/views-*"))) == 3
    caches = list(tmp_path.glob("whole/state/*/.medfl_cache"))
    assert [
        path for cache in caches for path in cache.iterdir() if path not in feature_cache.feature_files(cache)
    ] == []
