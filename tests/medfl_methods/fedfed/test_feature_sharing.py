"""Feature sharing, step by step: released residuals and training on them (A4.4, TP-01, TP-08, TP-09, O-TP-12)."""

import logging
import math

import pytest
import torch
from fedtpf_toys import DATA, fed, parts_of, sent_by, server_of, site_of, told, tpf, with_scale
from refusals import refused
from torch.nn import functional as F

from medfl.contract import Reply, Request
from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.errors import ContractError, RefusedError
from medfl.privacy.released import ReleasesImages
from medfl.task import ImageScale
from medfl.testing.cohort import SmallNet, make_data
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.utils.wire import prefixed, select, tensors_equal
from medfl_methods.fedfed.shared_images import SharedImages
from medfl_methods.fedtpf.method import FedTPF

# ---- what leaves a site


def test_all_images_with_their_labels_in_half_precision(tmp_path):
    method = tpf()
    sent, parts = sent_by(method, site_of(DATA), server_of(method, tmp_path))
    assert sent.keys() == {"images/0", "labels"}
    assert (sent["images/0"].shape, sent["images/0"].dtype) == (parts.shape, torch.float16)
    assert sent["labels"].tolist() == DATA.class_labels.tolist()


@pytest.mark.parametrize("make", [tpf, fed])
def test_a_share_of_each_class(tmp_path, make):
    """The draw is stratified: a quarter of each class, rounded up. It differs between sites."""
    method = make(share_fraction=0.25, noise="none", clip=None)
    server, chosen = server_of(method, tmp_path), {}
    for name in ("site-1", "site-2"):
        site = site_of(DATA, name=name)
        sent, parts = sent_by(method, site, server)
        expected = [math.ceil(int(count) / 4) for count in DATA.class_labels.bincount()]
        assert sent["labels"].bincount().tolist() == expected
        distances = (sent["images/0"].float()[:, None] - parts).flatten(2).abs().amax(2)
        chosen[name] = distances.argmin(1).tolist()
        assert len(set(chosen[name])) == sum(expected)
        assert distances.amin(1).max() < 1e-3, "each is a part of one of the images"
        assert DATA.class_labels[chosen[name]].tolist() == sent["labels"].tolist(), "with the label of that image"
    assert chosen["site-1"] != chosen["site-2"]


@pytest.mark.parametrize(("clip", "noise"), [(0.5, "none"), (0.5, "laplace"), (1e6, "none")])
def test_the_clip_bounds_every_item(tmp_path, clip, noise):
    """TP-08, without noise (x_s), which would hide the bound. The clip changes only residuals above the bound."""
    method = tpf(share="x_s", clip=clip, noise=noise)
    sent, parts = sent_by(method, site_of(DATA), server_of(method, tmp_path))
    norms, before = (items.double().flatten(1).norm(dim=1) for items in (sent["images/0"], parts))
    assert norms.max() <= clip * (1 + 2**-10)
    torch.testing.assert_close(norms, before.clamp(max=clip), atol=0, rtol=2**-10)
    directions = F.cosine_similarity(sent["images/0"].double().flatten(1), parts.double().flatten(1))
    assert directions.min() > 1 - 1e-5, "an image is scaled as a whole"


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_tp_09_the_noise_has_the_variance_that_was_asked(tmp_path, noise):
    """The variance is the same for both distributions. FedFed has a standard deviation for each copy instead."""
    for method, variances in ((tpf, [0.2]), (fed, [0.15**2, 0.25**2])):
        made = method(noise=noise, clip=None, **({"variance": 0.2} if method is tpf else {}))
        sent, parts = sent_by(made, site_of(DATA), server_of(made, tmp_path))
        for copy, variance in enumerate(variances):
            added = sent[f"images/{copy}"].double() - parts.double()
            assert float(added.var()) == pytest.approx(variance, rel=0.2)  # of 1440 numbers
            assert abs(float(added.mean())) < 4 * math.sqrt(variance / added.numel())
            kurtosis = float(added.pow(4).mean() / added.var() ** 2)
            assert (kurtosis > 4) == (noise == "laplace"), "3 for a normal distribution, 6 for Laplace's"
        assert len(select(sent, "images/")) == len(variances)


def noise_of(method, site, server):
    """Return the noise that a site added, one row for each image, one block for each copy."""
    sent, parts = sent_by(method, site, server)
    return [sent[f"images/{copy}"].float().flatten(1) - parts.flatten(1) for copy in range(len(sent) - 1)]


def alike(first, other):
    """Return the largest absolute correlation of two rows; 0.62 is 4 standard deviations for 36 numbers."""
    return float(torch.corrcoef(torch.cat([first, other]))[: len(first), len(first) :].abs().max())


def test_no_two_images_copies_or_sites_share_noise(tmp_path):
    """Equal noise would cancel in the difference of two images. FedFed's code uses one noise for a whole batch."""
    data = TensorData(DATA.images[:1].expand(4, -1, -1, -1).clone(), DATA.class_labels[:4])
    method = fed(noise_std=(0.2, 0.2), clip=None)
    server = server_of(method, tmp_path)
    noises = noise_of(method, site_of(data), server)
    noises += noise_of(method, site_of(data, secret=b"another of 16 b."), server)
    every = torch.cat(noises)
    assert alike(every[:8], every[8:]) < 0.75
    correlations = torch.corrcoef(every) - torch.eye(len(every))
    assert float(correlations.abs().max()) < 0.75


def test_noise_is_the_sites_secret(tmp_path):
    """Noise depends on the secret, the run and the residuals. It does not depend on chance or on the run's seed.

    The server knows the seed.
    """
    method = tpf(clip=None)
    server = server_of(method, tmp_path)
    (first,) = noise_of(method, site_of(DATA), server)
    torch.manual_seed(99)
    (again,) = noise_of(method, site_of(DATA), server)
    assert torch.equal(first, again), "an order that comes again draws no fresh noise"
    (seeded,) = noise_of(method, site_of(DATA, seed=8), server)
    assert torch.equal(first, seeded)
    for changes in ({"secret": b"another of 16 b."}, {"run_id": "another"}, {"round_": 4}):
        (other,) = noise_of(method, site_of(DATA, **changes), server)
        assert (first - other).abs().mean() > 0.3, changes
    changed = TensorData(DATA.images.clone(), DATA.class_labels)
    changed.images[0, 0, 0, 0] += 0.5
    (other,) = noise_of(method, site_of(changed), server)
    assert (first - other)[5:].abs().mean() > 0.3, "another set of parts, another noise, also for the same parts"


def test_two_ways_of_noising_the_same_parts_have_unlike_noise(tmp_path):
    """The releases (x + a n) and (x + b n) with equal noise n would reveal x."""
    server = server_of(tpf(), tmp_path)
    (first,) = noise_of(tpf(variance=0.15, clip=None), site_of(DATA), server)
    (two,) = noise_of(tpf(variance=0.25, clip=None), site_of(DATA), server)
    assert alike(first, two) < 0.8
    whole = float(torch.corrcoef(torch.stack([first.flatten(), two.flatten()]))[0, 1])
    assert abs(whole) < 0.15


@pytest.mark.parametrize("make", [tpf, fed])
def test_forms_of_what_is_shared(tmp_path, make):
    """A4.8: x_s is the residual without noise, in one copy; raw+noise is the whole image with noise."""
    for share, noisy in (("x_s", False), ("raw+noise", True), ("x_p", True)):
        method = make(share=share, clip=None)
        site = site_of(DATA)
        server = server_of(method, tmp_path)
        sent, parts = sent_by(method, site, server)
        whole = site.task.scale.to_images(DATA.images) if share == "raw+noise" else parts
        added = sent["images/0"].float() - whole
        assert len(sent) == (3 if noisy and make is fed else 2)
        if noisy:
            assert abs(float(added.mean())) < 0.05
            assert float(added.std()) > 0.1
        else:
            torch.testing.assert_close(sent["images/0"].float(), whole, atol=1e-3, rtol=1e-3)
        server.round = 3
        method.aggregate_shared(server, told({"site-1": Reply(prefixed(sent, "shared/"))}))
        assert method.released(server).releases[0].of == ("raw" if share == "raw+noise" else "x_s")
        images = site.task.scale.to_images(DATA.images)
        torch.testing.assert_close(method.released(server).part(images), whole)


def test_latents_are_means_and_nothing_hangs_on_the_batch(tmp_path):
    """A4.4: z = mu. The residual of an image does not depend on the other images."""
    method = tpf(share="x_s", clip=None)
    server = server_of(method, tmp_path)
    whole = sent_by(method, site_of(DATA), server)[0]["images/0"]
    few = TensorData(DATA.images[:3], DATA.class_labels[:3])
    assert torch.equal(sent_by(method, site_of(few), server)[0]["images/0"], whole[:3])


# ---- the shared set


def test_the_set_is_everyones_with_its_owners(tmp_path):
    method = fed(clip=None)
    server = server_of(method, tmp_path, names=("site-1", "site-2", "site-3"))
    datas = {"site-2": make_data(3, "b"), "site-1": make_data(4, "a")}
    sent = {name: sent_by(method, site_of(data, name=name), server)[0] for name, data in datas.items()}
    assert method.released(server) is None
    method.aggregate_shared(
        server, told({name: Reply(prefixed(part, "shared/")) for name, part in sent.items()}, ["site-3"])
    )
    released = method.released(server)
    assert isinstance(method, ReleasesImages)
    assert released.owners == ("site-1",) * 4 + ("site-2",) * 3
    assert released.labels.tolist() == sent["site-1"]["labels"].tolist() + sent["site-2"]["labels"].tolist()
    for number, copy in enumerate(released.copies):
        assert torch.equal(copy, torch.cat([sent[name][f"images/{number}"] for name in ("site-1", "site-2")]))
    assert [(release.scale, release.clip) for release in released.releases] == [
        (pytest.approx(std), None) for std in (0.15, 0.25)
    ]
    with torch.no_grad():
        expected = parts_of(method, site_of(datas["site-1"]), server)
        torch.testing.assert_close(released.part(server.task.scale.to_images(datas["site-1"].images)), expected)
    facts = method.findings(server).meta["sharing"]
    assert facts["items"] == {"site-1": 4, "site-2": 3}
    assert facts["classes"] == released.labels.bincount(minlength=3).tolist()
    assert not any(name.startswith("shared") for name in server.state.tensors), "a blob, not repeated in every step"
    shown = method.findings(server).tensors
    assert shown["sharing/images"].shape[0] == sum(min(2, n) for n in facts["classes"])
    assert shown["sharing/labels"].tolist() == sorted(shown["sharing/labels"].tolist())


def test_an_empty_shared_set_is_no_set(tmp_path):
    """O-TP-10: the server sends no shared set, the task's loss equals FedAvg's, and the report says so."""
    method = tpf()
    server = server_of(method, tmp_path)
    nothing = SharedImages((torch.empty(0, 1, 6, 6).half(),), torch.empty(0, dtype=torch.int64))
    empty = prefixed(nothing.tensors(), "shared/")
    method.aggregate_shared(server, told({name: Reply(empty) for name in ("site-1", "site-2")}))
    assert method.released(server) is None
    requests = method.requests(server)
    assert not any(name.startswith("shared") for request in requests for name in request.tensors)
    facts = method.findings(server)
    assert (facts.meta["sharing"]["classes"], facts.tensors) == ([], {})
    site, model = site_of(DATA), SmallNet(norm=False)
    fit = Fit(site, model, {})
    method.before_fit(fit)
    batch = Batch(DATA.images[:5], DATA.class_labels[:5], torch.arange(5))
    assert torch.equal(method.loss(fit, batch), F.cross_entropy(model(batch.images), batch.targets))


# ---- requests


def test_a_site_does_what_the_request_says(tmp_path):
    """A site has no stage: a new site shares, trains or distils in any round, and refuses unknown requests."""
    for method in (tpf(), fed()):
        server = server_of(method, tmp_path)
        both = method.publish(server) | method.distiller(server)
        replies = {
            op: method.execute(site_of(DATA), Request("site-1", op, both)) for op in ("train", "share", "distil")
        }
        names = {op: {name.split("/")[0] for name in reply.tensors} for op, reply in replies.items()}
        distils = {"model", "distiller"} if isinstance(method, FedTPF) else {"distiller"}
        kinds = ["distil", "assess", "share", "train"] if isinstance(method, FedTPF) else ["distil", "share", "train"]
        assert names == {"train": {"model"}, "share": {"shared"}, "distil": distils}
        with refused(ContractError, "unknown_order", name="freeze", known=kinds):
            method.execute(site_of(DATA), Request("site-1", "freeze", both))


def test_once_and_again_in_the_second_stage(tmp_path):
    """A site stores the shared set of a request, and trains on it in later requests without one."""
    method = tpf(clip=None)
    server = server_of(method, tmp_path)
    sent, _ = sent_by(method, site_of(DATA), server)
    losses = []
    for first in (prefixed(sent, "shared/"), {}):
        site = site_of(make_data(10, "own"))
        site.blobs = Store(tmp_path / str(len(losses)))
        method.execute(site, Request("site-1", "train", method.publish(server) | first))
        losses.append(method.execute(site, Request("site-1", "train", method.publish(server))).tensors)
        assert ("shared/" in site.state.blobs) == bool(first)
    assert not tensors_equal(*losses)


def test_a_site_that_lost_the_shared_set_says_so(tmp_path):
    """The server assumes that the site holds the set and sends only the model.

    The site's state with the set was damaged.
    """
    method = tpf(clip=None)
    server = server_of(method, tmp_path)
    sent, _ = sent_by(method, site_of(DATA), server)
    server.round = 3
    method.aggregate_shared(server, told({"site-1": Reply(prefixed(sent, "shared/"))}))
    server.state.meta["holders"] = ["site-1", "site-2"]
    request = method.requests(server)[0]
    with refused(RefusedError, "lost_shared_images", site="site-1"):
        method.execute(site_of(make_data(10, "own")), request)


def test_a_site_that_did_not_reply_gets_the_shared_set_again(tmp_path):
    """An unavailable site may have lost the set.

    The server sends only the model to the other sites that hold the set.
    """
    method = tpf(clip=None)
    server = server_of(method, tmp_path, ("site-1", "site-2", "site-3"))
    sent, _ = sent_by(method, site_of(DATA), server)
    method.aggregate_shared(server, told({"site-1": Reply(prefixed(sent, "shared/"))}))
    server.state.meta["holders"] = ["site-1", "site-2"]
    update = {name: torch.zeros_like(tensor) for name, tensor in method.publish(server).items()}
    replies = told({name: Reply(update, {"size": 1}) for name in ("site-1", "site-3")})
    replies.missing = ["site-2"]
    method.aggregate_updates(server, replies)
    assert server.state.meta["holders"] == ["site-1", "site-3"]
    brought = {request.to: "shared/labels" in request.tensors for request in method.requests(server)}
    assert brought == {"site-1": False, "site-2": True, "site-3": False}


def test_initial_tensors_do_not_hang_on_how_the_latent_was_set(tmp_path):
    """G-13: None means 24, the number of features; it must give the same distiller as the value 24."""
    states = [server_of(tpf(**args), tmp_path).state.tensors for args in ({}, {"latent": 24})]
    assert tensors_equal(*states)


def test_a_site_sends_its_images_once(tmp_path):
    """A second request with another generator would be a second release, but epsilon covers a single one."""
    method, site = tpf(clip=1.0), site_of(DATA)
    request = Request("site-1", "share", method.distiller(server_of(method, tmp_path)))
    method.execute(site, request)
    with refused(RefusedError, "repeated_release", site="site-1"):
        method.execute(site, request)


# ---- errors of the generator


@pytest.mark.parametrize("judged", ["validation", "training"])
def test_a_site_discloses_how_far_generator_and_mean_image_are_off(tmp_path, judged):
    """Mean squared errors in [0, 1] by hand, on validation images, or on training images without validation images."""
    method, site = tpf(), site_of(DATA)
    server = server_of(method, tmp_path)
    if judged == "training":
        site.val = TensorData(DATA.images[:0], DATA.class_labels[:0])
    reply = method.execute(site, Request("site-1", "share", method.distiller(server)))
    model = (
        method.with_distiller_network(site.task)
        .load(select(server.state.tensors, "kept/distiller/"), "distiller")
        .eval()
    )
    images = site.task.scale.to_images((site.val if judged == "validation" else site.train).images)
    usual = site.task.scale.to_images(DATA.images).mean(0)
    with torch.no_grad():
        expected = F.mse_loss(model.generator(images).images, images), F.mse_loss(usual.expand_as(images), images)
    assert [reply.meta[key] for key in ("generator_error", "mean_image_error")] == pytest.approx(
        [*map(float, expected)]
    )


def test_a_generator_worse_than_the_mean_image_is_warned_of(tmp_path, caplog):
    """The warning uses the mean over the sites that reported their errors; a site may withhold both."""
    for errors, warned in ({"site-1": (0.03, 0.02), "site-2": (0.01, 0.015)}, True), ({"site-1": (0.1, 0.2)}, False):
        caplog.clear()
        method = tpf()
        server, replies = server_of(method, tmp_path / str(warned)), {}
        for name in ("site-1", "site-2"):
            tensors, _ = sent_by(method, site_of(DATA, name=name), server)
            told_errors = dict(zip(("generator_error", "mean_image_error"), errors.get(name, ()), strict=False))
            replies[name] = Reply(prefixed(tensors, "shared/"), {"size": 40} | told_errors)
        server.state.meta["ended"] = {"rounds": 1, "ended": "round limit"}
        method.aggregate(server, told(replies))
        facts = method.findings(server).meta["sharing"]["errors"]
        assert facts == {name: list(pair) for name, pair in errors.items()}
        warnings = [line for line in caplog.messages if "no better than the mean" in line]
        assert len(warnings) == warned
        assert not warnings or ("0.0200" in warnings[0] and "0.0175" in warnings[0] and "distil_steps" in warnings[0])


@pytest.mark.parametrize(("budget", "batches"), [({}, 8), ({"distil_steps": 3}, 3), ({"distil_epochs": 2}, 16)])
def test_the_first_stage_has_a_budget_of_its_own(tmp_path, budget, batches):
    """The distiller trains on 40 images in batches of 5, for any number of steps of the task's network."""
    method, site = tpf(generator="vae", **budget), site_of(DATA, steps=1)
    server = server_of(method, tmp_path)
    method.execute(site, Request("site-1", "distil", method.publish(server) | method.distiller(server)))
    kept = select(site.state.tensors, "kept/optimizer/")
    assert {int(tensor) for name, tensor in kept.items() if name.endswith("/step")} == {batches}


# ---- data for attacks


@pytest.mark.parametrize("share", ["x_s", "raw+noise"])
def test_a_shadow_network_sees_what_the_attacked_network_saw(tmp_path, share):
    """Residuals are not shifted by the mean, which is two standard deviations here; whole images are."""
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.membership.targets import choose_shadow_set
    from medfl_attacks.open_run import OpenedRun

    method, task = tpf(share=share, noise="none", clip=None), with_scale(ImageScale((1, 6, 6), (0.5,), (0.25,)))
    site, server, seen = site_of(DATA, task), server_of(method, tmp_path, task=task), []
    replies = {"site-1": method.execute(site, Request("site-1", "share", method.distiller(server)))}
    server.state.meta["ended"] = {"rounds": 1, "ended": "round limit"}
    method.aggregate(server, told(replies))
    fit = Fit(site, lambda images: seen.append(images) or torch.zeros(len(images), 3), {})
    site.blobs, site.state.blobs = server.blobs, server.state.blobs
    method.before_fit(fit)
    method.loss(fit, Batch(site.train.images, site.train.class_labels, torch.arange(40)))
    attacked = seen[0][40:]

    class Opened(OpenedRun):
        has_state = True

        def released(self):
            return method.released(server)

    source, data = choose_shadow_set(Opened(tmp_path, "fedtpf", method, task, server.settings, {}))
    assert source == "shared"
    shadow = data.batch(torch.arange(len(data)))[0]
    distances = (attacked[:, None] - shadow).flatten(2).abs().amax(2).amin(1)
    assert float(distances.max()) < 1e-6, "each image that the network was trained on is one of the shadow's"


def test_the_mean_image_is_that_of_all_training_images_and_is_judged_on_validation_images(tmp_path):
    """The method reads 257 images in chunks of 256 and 1. The last image must not weigh more than the others."""
    method, train = tpf(), make_data(257, "many")
    train.images[-1] += 50
    site = site_of(train)
    server = server_of(method, tmp_path)
    reply = method.execute(site, Request(site.name, "share", method.distiller(server)))
    usual, raw = (site.task.scale.to_images(data.images) for data in (train, site.val))
    expected = float((raw - usual.mean(0)).square().mean())
    assert reply.meta["mean_image_error"] == pytest.approx(expected, rel=1e-4)
    parts = parts_of(method, site_of(site.val), server)
    assert reply.meta["generator_error"] == pytest.approx(float(parts.square().mean()), rel=1e-4)


def test_tp_03_where_nothing_is_pulled_the_latent_is_free(tmp_path):
    for args in ({"prototype": "none"}, {"prototype_weight": 0.0}, {"latent": 24}):
        assert server_of(tpf(**({"latent": 4} | args)), tmp_path).state.tensors


def test_a_run_without_a_second_stage_warns(tmp_path, caplog):
    server_of(tpf(distil_rounds=9), tmp_path)
    assert any("share nothing" in line for line in caplog.messages)
    caplog.clear()
    server_of(tpf(distil_rounds=8), tmp_path)
    server_of(tpf(distil_rounds=9, share_fraction=0.0), tmp_path)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
