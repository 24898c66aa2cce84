"""Tests of FedSM: the soft pull by hand, the decisions of the selector, and limit cases."""

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.contract import Request
from medfl.engine.evaluation import build_predictor
from medfl.engine.store import Store
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, make_sites, make_task, states
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedsm.method import FedSM, apply_soft_pull, check_moments
from medfl_methods.fedsm.networks import SuperModel, build_selector

REGISTRY = load_plugins()
NARROW = {"selector_width": 2}


def run(folder, args=None, name="fedsm", **options):
    args = NARROW | (args or {}) if name == "fedsm" else args or {}
    return Case(REGISTRY, name, args).run(folder, **({"rounds": 2} | options))


def own_models(folder):
    held = states(folder)[SERVER]
    return [select(held, f"kept/own/{number}/") for number in range(3)]


# ---- the soft pull


def test_soft_pull_equals_the_formula():
    models = [{"w": torch.tensor(value), "n": torch.tensor(number)} for number, value in enumerate((0.0, 1.0, 4.0))]
    total = {"w": torch.tensor(5.0, dtype=torch.float64), "n": torch.tensor(2)}
    after = [apply_soft_pull(model, total, 3, 0.7) for model in models]
    assert [model["w"].item() for model in after] == pytest.approx([0.75, 1.3, 2.95])
    assert [model["n"].item() for model in after] == [0, 1, 2]
    mean = [apply_soft_pull(model, total, 3, 1 / 3)["w"].item() for model in models]
    assert mean == pytest.approx([5 / 3] * 3)


def test_single_replying_site_keeps_its_model():
    model = {"w": torch.tensor(3.0)}
    assert apply_soft_pull(model, {"w": torch.tensor(3.0, dtype=torch.float64)}, 1, 0.7) == model


def test_with_lam_1_personal_models_are_those_of_local_training(tmp_path):
    run(tmp_path / "mine", {"lam": 1.0})
    alone = run(tmp_path / "alone", name="local")
    for own, models in zip(own_models(tmp_path / "mine"), alone.models.values(), strict=True):
        assert tensors_equal(own, models["personal"].tensors)


def test_unavailable_site_keeps_its_model_and_has_no_influence(tmp_path):
    run(tmp_path / "first", rounds=1)
    run(tmp_path / "later", unavailable=lambda site, step: site == "site-2" and step == 2)
    first, later = own_models(tmp_path / "first"), own_models(tmp_path / "later")
    assert tensors_equal(later[1], first[1])
    sent = [select(Store(tmp_path / "later" / "state" / f"site-{n}").latest().tensors, "reply/own/") for n in (1, 3)]
    name = "head.weight"
    torch.testing.assert_close(later[0][name], 0.7 * sent[0][name] + 0.3 * sent[1][name])


# ---- the selector


class Fixed(nn.Module):
    """Network with constant outputs."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value]))

    def forward(self, images):
        return self.value.expand(len(images), 1)


class Seen(nn.Module):
    """Network whose logits are its input."""

    def forward(self, images):
        return images


def test_confident_selector_chooses_the_personal_model():
    model = SuperModel(Fixed(9.0), 2, Seen(), 0.9).eval()
    with torch.no_grad():
        for number, own in enumerate(model.own):
            own.value.fill_(float(number))
        logits = torch.tensor([[0.91, 0.09], [0.89, 0.11], [0.05, 0.95], [0.9, 0.1]]).log()
        assert model(logits)[:3, 0].tolist() == [0.0, 9.0, 1.0]
        assert SuperModel(Fixed(9.0), 2, Seen(), 1.0)(100 * logits).unique().tolist() == [9.0]


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (SmallNet(norm=False), (3, 1, 6, 6)),
        (nn.Sequential(nn.Conv3d(2, 4, 3), nn.Flatten()), (3, 2, 9, 5, 7)),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), (3, 3, 2, 2)),
    ],
)
def test_selector_has_the_input_shape_of_the_network(network, shape):
    assert build_selector(network, 5, 2)(torch.randn(shape)).shape == (3, 5)


def test_network_with_unknown_input_shape_is_refused():
    with refused(SettingsError, "network_not_supported", network="Seen"):
        build_selector(Seen(), 2, 2)


def test_selector_learns_to_distinguish_the_sites(tmp_path):
    """Sites differ in brightness: after a few rounds, the selector chooses for each image the model of its site."""
    sites = make_sites({"site-1": 12, "site-2": 12})
    sites["site-2"].train.images.add_(4)
    result = run(tmp_path, {"selector_lr": 0.02, "selector_width": 4}, sites=sites, rounds=5, epochs=3)
    method, model = FedSM(selector_width=4), result.models["site-1"]["personal"]
    network = build_predictor(method, make_task(), model)
    with torch.no_grad():
        for number, data in enumerate(sites.values()):
            shares = network.selector(data.train.images).softmax(1)[:, number]
            assert shares.min() > 0.5


# ---- a run


def test_malformed_replies_are_refused(tmp_path):
    run(tmp_path, rounds=1)
    held = states(tmp_path)[SERVER]
    selector, moments = select(held, "kept/selector/"), select(held, "kept/moments/")
    check_moments(moments, selector)
    check_moments({}, selector)
    name = "head.weight/exp_avg_sq"
    for broken, code in (
        ({name: -moments[name] - 1}, "invalid_tensor_values"),
        ({name: moments[name].double()}, "invalid_tensor_values"),
        ({name: moments[name][:1]}, "unexpected_tensors"),
        ({"x/step": torch.ones(())}, "unexpected_tensors"),
    ):
        with refused(RefusedError, code):
            check_moments(moments | broken, selector)
    sent = Store(tmp_path / "state" / "site-1").latest().tensors
    common = select(sent, "reply/model/")
    request = Request(
        "site-1", "fit", {prefix + name: t for prefix in ("model/", "own/") for name, t in common.items()}
    )
    with refused(RefusedError, "missing_tensor", tensor="own/"):
        FedSM().check_tensors(make_task(), request, {f"model/{name}": tensor for name, tensor in common.items()})
