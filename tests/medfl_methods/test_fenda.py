"""FENDA-FL and PerFCL: which body is whose, how they are joined, and the contrasts."""

import dataclasses

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_task, states
from medfl.toolkit.fit import Fit
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fenda import Fenda
from medfl_methods.perfcl import PerFCL

REGISTRY = load_plugins()


def run(folder, args=None, name="fenda", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


# ---- FENDA-FL


class Ones:
    """Stands for weights in a file."""

    def body_of(self, model, network):
        return {name: torch.ones_like(t) for name, t in model.state_dict().items() if name.startswith("body.")}


def test_weights_of_a_file_go_into_both_bodies():
    task = Fenda().task_of(dataclasses.replace(make_task("plain"), weights=Ones()))
    begun = task.initial(7)
    assert all(bool((begun[name] == 1).all()) == name.startswith(("own.", "body.")) for name in begun)


def test_the_cosine_is_that_of_both_features():
    own, common = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-3.0, 0.0], [1.0, 1.0]])
    fit = Fit(None, torch.nn.Identity(), {})
    assert Fenda(cosine=2.0).term(fit, None, own, common).item() == pytest.approx(2 * (1 + 0.5**0.5) / 2)
    assert Fenda().term(fit, None, own, common) == 0


# ---- PerFCL


def test_the_contrasts_have_the_values_of_the_formulas():
    """The received body is near the common one by .75 and near the own one by .1, and so on."""
    common, own = torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    received = torch.tensor([[0.75, 0.1, (1 - 0.75**2 - 0.1**2) ** 0.5]], dtype=torch.float64)
    previous = torch.tensor([[0.3, (1 - 0.3**2) ** 0.5, 0.0]], dtype=torch.float64)
    before = torch.tensor([[(1 - 0.7**2) ** 0.5, 0.7, 0.0]], dtype=torch.float64)
    pad = lambda tensor: torch.nn.functional.pad(tensor, (0, 1))  # noqa: E731
    others = [lambda batch, tensor=tensor: tensor for tensor in (received, previous, before)]
    values = []
    for mu, gamma in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        fit = Fit(None, torch.nn.Identity(), {}, {"others": others})
        values.append(PerFCL(mu=mu, gamma=gamma).term(fit, None, pad(own), pad(common)).item())
    near, far = 0.3411538747, 0.2632824673
    assert values == pytest.approx([near, far, 2 * near + 3 * far], abs=1e-9)


def test_bodies_that_stay_do_not_move_the_statistics(tmp_path):
    """At learning rate 0 batch norm sees the same batches, whether or not there is a term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (bits(run(tmp_path / name, name=name, task=still)) for name in ("perfcl", "fenda"))
    assert all(tensors_equal(ours[name], plain[name]) for name in plain)


def test_the_previous_body_is_that_of_the_last_participation(tmp_path):
    run(tmp_path, name="perfcl", absent=lambda site, step: site == "site-1" and step == 2)
    first, held = PerFCL().task_of(make_task()).initial(7), states(tmp_path)
    update = select(Store(tmp_path / "state" / "site-1").latest().tensors, "reply/model/")
    previous = select(held["site-1"], "kept/previous/")
    assert previous.keys() == update.keys()
    for name, tensor in previous.items():
        torch.testing.assert_close(tensor, first[name] + update[name])
