"""FedAS: the alignment and the weights by hand, and what each is made of."""

import pytest
import torch

from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.toolkit.aggregation import normalised
from medfl.toolkit.kept import kept
from medfl.utils import wire
from medfl_methods.fedas import ALIGN, OLD, FedAS, alignment

REGISTRY = load_plugins()


# ---- by hand


def test_classes_count_alike_in_the_alignment_and_features_are_averaged():
    """Two images of class 0 with squared distances 2 and 6 over two features, one of class 2 with 8."""
    prototypes = torch.tensor([[1.0, 0.0], [float("nan")] * 2, [0.0, 0.0]], dtype=torch.float64)
    features = torch.tensor([[2.0, 1.0], [1.0, 6**0.5], [2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    value = alignment(features, prototypes, torch.tensor([0, 0, 2]))
    assert value.item() == pytest.approx((1 + 3) / 2 + 4)
    (gradient,) = torch.autograd.grad(value, features)
    assert gradient[0].tolist() == pytest.approx([0.5, 0.5])  # 2 (f - p) / d / 2 images
    assert gradient[2].tolist() == pytest.approx([2.0, 2.0])


def test_b_9_bodies_weigh_by_their_traces():
    sizes = dict(zip("abc", (7, 1, 3), strict=True))
    for traces, mean in (((1, 1, 2), 2.25), ((3, 3, 3), 5 / 3)):
        metas = {site: {"size": sizes[site], "trace": trace} for site, trace in zip("abc", traces, strict=True)}
        weights = normalised(FedAS().weights_of(None, metas), metas)
        assert sum(weights[site] * body for site, body in zip("abc", (0, 1, 4), strict=True)) == pytest.approx(mean)
    metas = {site: {"size": size, "trace": 0.0} for site, size in sizes.items()}
    assert normalised(FedAS().weights_of(None, metas), metas)["a"] == pytest.approx(7 / 11)


# ---- the alignment

SEEN = []


class Watched(FedAS):
    """Notes what the alignment is made of."""

    def train(self, site, order):
        before, old = wire.digest(order.tensors), kept(site, OLD)
        reply = super().train(site, order)
        assert wire.digest(order.tensors) == before
        if old:
            SEEN[-1] |= {"old": old, "site": site.name}
        return reply

    def loss(self, fit, batch):
        if fit.training.label == ALIGN:
            (group,) = fit.optimizer.param_groups
            assert (group["lr"], group["momentum"], len(batch.rows) <= 4) == (0.02, 0, True)
            assert not any(name.startswith("head") for name, _ in fit.parameters())
        return super().loss(fit, batch)

    def before_fit(self, fit):
        if fit.training.label == ALIGN:
            SEEN.append({"prototypes": fit.extra["prototypes"], "before": self.far(fit)})

    def after_fit(self, fit):
        super().after_fit(fit)
        if fit.training.label == ALIGN:
            SEEN[-1]["after"] = self.far(fit)

    def far(self, fit):
        images, labels = fit.site.train.batch(torch.arange(len(fit.site.train)))
        with torch.no_grad():
            return alignment(fit.model.body(images), fit.extra["prototypes"], labels).item()


def test_the_received_body_is_drawn_to_what_the_last_one_made_of_the_classes(tmp_path):
    SEEN.clear()
    settings = {"align_lr": 0.02, "align_batch": 4, "align_epochs": 2}
    Case(REGISTRY, "fedas", settings).run(
        tmp_path, rounds=2, task=make_task("plain"), make_method=lambda: Watched(**settings)
    )
    assert sorted(entry["site"] for entry in SEEN) == sorted(make_sites())
    for entry in SEEN:
        data, model = make_sites()[entry["site"]].train, make_task("plain").build()
        model.load_state_dict(entry["old"], strict=False)
        images, labels = data.batch(torch.arange(len(data)))
        for label in labels.unique():
            mean = model.body(images[labels == label]).mean(0)
            torch.testing.assert_close(entry["prototypes"][label], mean, atol=1e-5, rtol=1e-4)
        assert entry["after"] < entry["before"]
