"""FedDyn against closed forms; its first round, lost replies, and sizes."""

import pytest
import torch
from quadratic_toys import run_curved
from refusals import refused

from medfl.contract import Server, State
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.types import SERVER
from medfl_methods.feddyn import FedDyn

REGISTRY = load_plugins()


def run(folder, name="feddyn", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def test_three_rounds_have_the_values_of_the_formulas(tmp_path):
    start, mean = [], []
    for rounds in (1, 2, 3):  # each continues the one before
        result = run_curved(tmp_path, lambda: FedDyn(alpha=1.0), rounds)
        mean.append(result.outcome.models["global"].tensors["w"].item())
        start.append(states(tmp_path, SERVER)["w"].item())
        if rounds == 1:
            duals = [-1.0 * states(tmp_path, site)["kept/pending/w"].item() for site in "abc"]
    assert start == pytest.approx([0.8642308333, 1.2545932149, 1.3478714040], abs=1e-9)
    assert mean == pytest.approx([0.4321154167, 0.8433543158, 1.0956128599], abs=1e-9)
    assert duals == pytest.approx([0, -0.55462, -0.74172625], abs=1e-9)


def test_it_ends_at_the_optimum_of_all_sites(tmp_path):
    result = run_curved(tmp_path, lambda: FedDyn(alpha=1.0), 40)
    assert result.outcome.models["global"].tensors["w"].item() == pytest.approx(8 / 7, abs=1e-4)


def test_by_size_has_sites_of_unlike_sizes_weigh_by_them():
    method = FedDyn(alpha=0.5, by_size=True)

    class Held:
        facts = {"a": {"size": 1}, "b": {"size": 1}, "c": {"size": 4}}

        def trainable(self):
            return sorted(self.facts)

    assert [method.alpha_of(Held(), name) for name in "abc"] == pytest.approx([1.0, 1.0, 0.25])


def test_a_lost_reply_counts_at_neither_side(tmp_path):
    """Sites' sums of updates, once settled, have the mean that the server keeps."""

    class Lost(FedDyn):
        """The reply of site-2 in round 1 is not taken."""

        def aggregate(self, server, replies):
            if server.round == 1:
                replies = Without(replies, "site-2")
            super().aggregate(server, replies)

    class Without:
        def __init__(self, replies, name):
            self.replies, self.name, self.missing = replies, name, [name]
            self.meta = {site: meta for site, meta in replies.meta.items() if site != name}

        def __iter__(self):
            return ((site, tensors) for site, tensors in self.replies if site != self.name)

        def __len__(self):
            return len(self.meta)

    Case(REGISTRY, "feddyn").run(tmp_path, make_method=Lost, task=make_task("plain"), rounds=3)
    server = states(tmp_path, SERVER)
    sums = {}
    for site in make_sites():
        held = states(tmp_path, site)
        for name in (n.removeprefix("kept/pending/") for n in held if n.startswith("kept/pending/")):
            own = held.get(f"kept/drift/{name}", 0) + held[f"kept/pending/{name}"]
            sums[name] = sums.get(name, 0) + own / 3
    for name, total in sums.items():
        torch.testing.assert_close(server[f"kept/drift/{name}"], total, atol=1e-5, rtol=1e-4)


def test_a_long_sum_of_updates_is_warned_of(tmp_path, caplog):
    run(tmp_path, task=make_task("plain"), rounds=1)
    assert not [record for record in caplog.records if record.name == "medfl_methods.feddyn"]
    state = State({"w": torch.ones(2), "kept/drift/w": torch.full((2,), 20.0)}, {"parameters": ["w"], "replied": 1})
    server = Server("server", 2, state, make_task(), Settings(rounds=2), sites=["a"])
    FedDyn().server_update(server, {"w": torch.ones(2)}, {"w": torch.zeros(2, dtype=torch.float64)})
    assert "FedDyn's sum of updates is more than 10 times as long" in caplog.text


@pytest.mark.slow
def test_single_images_are_hidden_by_dp_sgd(tmp_path):
    """Both terms are in the loss of each image, so they are clipped with it; g_k is the sum of noised updates."""
    pytest.importorskip("opacus")
    privacy = {"unit": "sample", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    result = run(tmp_path, task=make_task("plain"), privacy=privacy, rounds=2)
    assert all(bool(tensor.isfinite().all()) for tensor in result.outcome.models["global"].tensors.values())
    with refused(SettingsError, "missing_site_sizes", setting="by_size"):
        run(tmp_path / "sizes", args={"by_size": True}, task=make_task("plain"), privacy=privacy)
