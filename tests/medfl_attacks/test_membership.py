"""Membership attacks: an overfitted model, the choice of targets and images, and the attacker's knowledge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_runs import net, noise, noise_settings, noise_task
from refusals import refused
from torch import nn

from medfl.contract import Model
from medfl.data.pooled import TensorData
from medfl.engine.journal import Journal
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError, StoreError
from medfl.settings import Settings
from medfl.toolkit.averaging import Averaging
from medfl.training.loop import train
from medfl.training.predict import logits
from medfl.types import Dataset
from medfl_attacks.attack_files import AttackedRun, MembershipFile, read_results
from medfl_attacks.membership.attack import MembershipOptions, _shadow_key, attack_model, format_result, run_membership
from medfl_attacks.membership.membership_page import render_membership_page
from medfl_attacks.membership.shadow import (
    TrainedShadowAttack,
    _fit_logistic_regression,
    count_epochs,
    highest_log_odds,
    match_classes,
    train_shadow_attack,
)
from medfl_attacks.membership.targets import (
    ALL_KEPT_ROUNDS,
    MembershipTarget,
    choose_shadow_set,
    find_targets,
    pool_datasets,
)
from medfl_attacks.open_run import OpenedRun

pytestmark = pytest.mark.usefixtures("undrawn")


class StoredModelsRun(OpenedRun):
    """A run whose models are given instead of read."""

    stored: dict[str, Model]

    def global_model(self, round_: int | None = None) -> Model | None:
        return self.stored.get("global") if round_ is None else super().global_model(round_)

    def site_models(self) -> dict[str, Model]:
        return {name: model for name, model in self.stored.items() if name != "global"}

    def predictor(self, model: Model, name: str = "") -> nn.Module:
        return self.task.load(model.tensors, model.network).eval()


def made(sites: dict[str, Splits], models: dict[str, Model], settings: Settings | None = None) -> StoredModelsRun:
    run = StoredModelsRun(Path("run"), "made", Averaging(), noise_task(), settings or noise_settings(), sites)
    run.stored = models
    return run


def learnt_by_heart(members: Dataset, epochs: int = 30) -> nn.Module:
    torch.manual_seed(5)
    model, task = net(), noise_task()
    optimizer = task.optimizer(model.parameters())
    generator = torch.Generator().manual_seed(6)
    loss = nn.CrossEntropyLoss()
    train(model, members, lambda b: loss(model(b.images), b.targets), optimizer, noise_settings(epochs), generator)
    return model


@pytest.fixture(scope="module")
def shadow() -> TrainedShadowAttack:
    torch.set_num_threads(1)
    return train_shadow_attack(noise_task(), noise_settings(), noise(400, seed=1), epochs=30, seed=0)


def target(model: nn.Module, members: Dataset, others: Dataset) -> MembershipTarget:
    return MembershipTarget("global", "", model, "net", members, others)


# ---- the canary (O-TP-11)


def test_an_overfitted_model_is_caught_by_both_attacks(shadow: TrainedShadowAttack) -> None:
    members, others = noise(200, seed=2), noise(200, seed=3)
    model = learnt_by_heart(members)
    rows = attack_model(made({}, {}), target(model, members, others), shadow, MembershipOptions())
    assert [row.attack for row in rows] == ["loss_threshold", "shadow_topk"]
    for row in rows:
        assert row.accuracy_members == 1
        assert row.accuracy_non_members == pytest.approx(0.5, abs=0.12)
        assert row.auc > 0.65
        assert row.auc_interval[0] > 0.5
        assert row.recall_balanced > 0.58
        assert row.accuracy > 0.55


def test_a_model_that_never_saw_the_images_is_not_caught(shadow: TrainedShadowAttack) -> None:
    torch.manual_seed(0)
    rows = attack_model(
        made({}, {}), target(net(), noise(2000, seed=8), noise(2000, seed=9)), shadow, MembershipOptions(images=1900)
    )
    for row in rows:
        assert (row.members, row.non_members) == (1900, 1900)
        assert row.auc == pytest.approx(0.5, abs=0.05)
        assert row.recall_balanced == pytest.approx(0.5, abs=0.035)
        assert row.tpr_at_1_fpr < 0.03


# ---- images


def test_both_groups_have_the_same_classes() -> None:
    first, second = torch.tensor([0] * 30 + [1] * 10 + [2] * 5), torch.tensor([1] * 40 + [0] * 20 + [3] * 9)
    rows, others = match_classes(first, second, torch.Generator().manual_seed(0))
    assert torch.bincount(first[rows]).tolist() == torch.bincount(second[others]).tolist() == [20, 10]
    assert len(rows.unique()) == len(others.unique()) == 30
    fewer, _ = match_classes(first, second, torch.Generator().manual_seed(0), most=7)
    assert torch.bincount(first[fewer]).tolist() == [5, 2], "of 20 and 10: 4.67 and 2.33"


def test_classes_that_only_one_group_has_leave_no_one() -> None:
    rows, others = match_classes(torch.zeros(5).long(), torch.ones(5).long(), torch.Generator())
    assert len(rows) == len(others) == 0


def test_the_seed_draws_the_images(shadow: TrainedShadowAttack) -> None:
    members, others = noise(60, seed=2), noise(60, seed=3)
    rows = [
        attack_model(made({}, {}), target(net_of(0), members, others), shadow, MembershipOptions(images=20, seed=seed))
        for seed in (0, 0, 1)
    ]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def net_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return net()


# ---- the shadow network


def test_the_shadow_network_learns_its_half_by_heart_and_the_same_again(shadow: TrainedShadowAttack) -> None:
    assert (shadow.members, shadow.non_members, shadow.highest, shadow.epochs) == (200, 200, 2, 30)
    assert shadow.accuracy_members == 1
    assert shadow.accuracy_non_members < 0.7
    again = train_shadow_attack(noise_task(), noise_settings(), noise(400, seed=1), epochs=30, seed=0)
    assert torch.equal(again.weights, shadow.weights)


def test_log_odds_of_the_highest_probabilities() -> None:
    probabilities = torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64)
    expected = torch.tensor([[0.7 / 0.3, 0.2 / 0.8]], dtype=torch.float64).log()
    torch.testing.assert_close(highest_log_odds(probabilities.log(), 2), expected)
    assert highest_log_odds(torch.tensor([[1e4, 0.0]]), 2).tolist() == [[30.0, -30.0]], "sure, and finite"


def test_the_logistic_regression_is_where_its_slope_is_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    members, others = torch.randn(80, 4, generator=generator) * 3, torch.randn(80, 4, generator=generator)
    fit = _fit_logistic_regression(members, others, 3)
    weights = fit.weights.clone().requires_grad_()
    scores = replace(fit, weights=weights).scores(torch.cat([members, others]))
    truth = torch.cat([torch.ones(80), torch.zeros(80)]).double()
    loss = nn.functional.binary_cross_entropy_with_logits(scores, truth) + 0.005 * weights.square().sum()
    loss.backward()
    assert float(weights.grad.abs().max()) < 1e-9
    assert float(fit.scores(members).mean()) > float(fit.scores(others).mean())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rounds": 5, "epochs": 2}, 10),
        ({"rounds": 5, "epochs": 2, "fraction": 0.5}, 5),
        ({"rounds": 1, "epochs": 0}, 1),
    ],
)
def test_the_shadow_network_is_trained_as_long_as_a_site(changes: dict[str, float], expected: int) -> None:
    assert count_epochs(Settings(**changes), 100) == expected


def test_a_run_that_counts_batches_is_turned_into_epochs() -> None:
    assert count_epochs(Settings(rounds=10, steps=5, batch_size=20), images=200) == 5


# ---- targets and knowledge of a run


def sites(val: int = 0, test: int = 30) -> dict[str, Splits]:
    return {
        name: Splits(noise(40, seed), noise(val, seed + 10), noise(test, seed + 20)) for seed, name in enumerate("ab")
    }


def model(seed: int) -> Model:
    return Model("net", net_of(seed).state_dict())


def test_the_global_model_is_attacked_with_all_sites_images() -> None:
    run = made(sites(), {"global": model(0), "a": model(1), "b": model(2)})
    (attacked,) = find_targets(run)
    assert (attacked.name, len(attacked.members), len(attacked.others)) == ("global", 80, 60)
    run.server_test = noise(7, seed=50)
    assert len(find_targets(run)[0].others) == 67
    torch.testing.assert_close(
        logits(attacked.model, attacked.members, run.settings)[40:],
        logits(net_of(0), run.sites["b"].train, run.settings),
    )


def test_models_of_earlier_rounds_are_attacked_by_shadows_trained_as_long(tmp_path: Path) -> None:
    run = made(sites(val=20), {"global": model(0)}, Settings(rounds=6, batch_size=32))
    run.folder, run.name = tmp_path, "made"
    with refused(SettingsError, "no_kept_rounds", path=str(tmp_path)):
        find_targets(run, None, ALL_KEPT_ROUNDS)
    for round_ in (2, 4):
        Journal(tmp_path).keep_model(round_, model(round_))
    rows = run_membership(run, MembershipOptions(round=ALL_KEPT_ROUNDS))
    assert [(row.attack, row.round) for row in rows] == [
        (attack, round_) for round_ in (2, 4) for attack in ("loss_threshold", "shadow_topk")
    ]
    content = read_results(tmp_path, "membership")
    assert [shadow.epochs for shadow in content.shadow] == [2, 4], "of 6 in the whole run"
    assert content.options["round"] == ALL_KEPT_ROUNDS
    assert "global model after round 4" in render_membership_page(content)
    assert format_result(rows[0]).startswith("global model after round 2, loss threshold: AUC")
    (attacked,) = find_targets(run, None, 4)
    torch.testing.assert_close(
        logits(attacked.model, attacked.members, run.settings)[:40],
        logits(net_of(4), run.sites["a"].train, run.settings),
    )
    with refused(StoreError, "round_not_kept", round=3):
        find_targets(run, None, 3)
    with refused(SettingsError, "incompatible_settings", settings=["round", "targets"]):
        find_targets(run, "sites", 2)


def test_a_sites_model_is_attacked_with_its_own_images(caplog: pytest.LogCaptureFixture) -> None:
    run = made(sites(), {"a": model(1), "b": model(2)})
    targets = find_targets(run)
    assert [(attacked.name, attacked.site, len(attacked.members), len(attacked.others)) for attacked in targets] == [
        ("sites", "a", 40, 30),
        ("sites", "b", 40, 30),
    ]
    run.sites = {**run.sites, "b": Splits(noise(40, 1), noise(0, 0), noise(0, 0))}
    assert [attacked.site for attacked in find_targets(run)] == ["a"]
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["b."], "the site that is left out"
    with refused(SettingsError, "no_global_model", method="made"):
        find_targets(run, "global")


def test_without_test_images_there_are_no_non_members() -> None:
    with refused(DataError, "too_few_images", minimum=2):
        find_targets(made(sites(test=0), {"global": model(0)}))


def test_validation_images_teach_the_attacker_unless_there_are_too_few(caplog: pytest.LogCaptureFixture) -> None:
    source, data = choose_shadow_set(made(sites(val=6), {}))
    assert (source, data is not None and len(data)) == ("validation", 12)
    with refused(SettingsError, "too_few_images", name="the sites' validation images", minimum=10, found=4):
        choose_shadow_set(made(sites(val=2), {}), "validation")
    with refused(SettingsError, "no_released_images", method="made"):
        choose_shadow_set(made(sites(val=6), {}), "shared")
    assert choose_shadow_set(made(sites(val=2), {}), "none") == ("none", None)
    assert not caplog.messages
    assert choose_shadow_set(made(sites(val=2), {})) == ("none", None)
    assert "only the loss threshold attack" in caplog.text


@pytest.mark.parametrize("wrong", [{"images": 1}, {"shadow_epochs": 0}, {"seed": -1}, {"round": 0}, {"round": "x"}])
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with refused(SettingsError, "setting_out_of_range", setting=next(iter(wrong)), found=next(iter(wrong.values()))):
        MembershipOptions(**wrong)


def test_a_model_that_diverged_is_refused() -> None:
    broken = net_of(0)
    nn.init.constant_(broken[1].weight, float("nan"))
    with refused(DataError, "not_finite", site=""):
        attack_model(made({}, {}), target(broken, noise(20, 1), noise(20, 2)), None, MembershipOptions())


def test_no_data_pooled_is_empty() -> None:
    assert len(pool_datasets([noise(0, 0)])) == 0


# ---- words


def test_a_page_of_many_sites_says_what_was_found(shadow: TrainedShadowAttack) -> None:
    members, others = noise(40, seed=2), noise(40, seed=3)
    attacked = MembershipTarget("sites", "a", net_of(0), "net", members, others)
    pair = attack_model(made({}, {}), attacked, shadow, MembershipOptions())
    rows = [row.model_copy(update={"site": f"<site {number}>"}) for number in range(14) for row in pair]
    content = MembershipFile(
        options={"shadow": "validation", "images": None},
        results=tuple(rows),
        run=AttackedRun(method="made", seed=3, rounds=1),
        classes=2,
        shadow=(),
    )
    page = render_membership_page(content)
    assert "Membership attack: made, seed 3" in page
    assert "&lt;site 13&gt;" in page
    assert "<site 13>" not in page
    assert page.count("<figure>") == 4, "two ROC curves, and the histograms of the two strongest results"
    assert "fewer than 100 non-members" in page
    assert format_result(rows[0]).startswith("model of <site 0>, loss threshold: AUC 0.")


def test_shadows_are_trained_as_long_as_at_the_mean_site_that_has_images() -> None:
    """Three sites have 10, 30 and 0 images, 20 on average. 5 rounds of 4 batches of 8 images are 8 epochs of 20."""
    sizes = {"a": 10, "b": 30, "c": 0}
    parts = {name: Splits(noise(size, 1), noise(0, 2), noise(4, 3)) for name, size in sizes.items()}
    run = made(parts, {}, Settings(rounds=5, steps=4, batch_size=8))
    attacked = target(net(), noise(4, 1), noise(4, 2))
    assert _shadow_key(run, attacked, MembershipOptions()) == ("net", 8)
    assert _shadow_key(run, replace(attacked, round=2), MembershipOptions()) == ("net", 3)
    assert _shadow_key(run, attacked, MembershipOptions(shadow_epochs=2)) == ("net", 2)


def test_the_loss_threshold_is_the_mean_loss_of_the_members() -> None:
    """The members' mean loss is 1. The attack calls an image a member if its loss is below 1."""

    class Losses(nn.Module):
        """A network whose cross-entropy on an image of class 0 is the image's first pixel."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            wanted = images.flatten(1)[:, 0].double()
            return torch.stack([-wanted, torch.log(-torch.expm1(-wanted))], dim=1)

    def of(*losses: float) -> TensorData:
        images = torch.zeros(len(losses), 1, 2, 2, dtype=torch.float64)
        images[:, 0, 0, 0] = torch.tensor(losses)
        return TensorData(images, torch.zeros(len(losses), dtype=torch.int64))

    attacked = target(Losses(), of(0.2, 0.3, 0.5, 3.0), of(0.9, 2.0, 4.0, 8.0))
    (row,) = attack_model(made({}, {}), attacked, None, MembershipOptions())
    assert (row.recall, row.false_alarms) == (0.75, 0.25)


def test_of_few_images_classes_keep_their_shares_by_the_largest_remainder() -> None:
    """Four of 5, 3 and 2 images are kept. The exact shares are 2, 1.2 and 0.8, which round to 2, 1 and 1."""
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    rows, _ = match_classes(labels, labels, torch.Generator().manual_seed(0), 4)
    assert labels[rows].bincount().tolist() == [2, 1, 1]
