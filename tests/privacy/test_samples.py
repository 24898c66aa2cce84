"""Test DP-SGD: plain training without noise and clip, and the influence of images and noise with them."""

from __future__ import annotations

import math

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.contract import Site, State
from medfl.errors import ContractError, SettingsError
from medfl.privacy import samples
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.privacy.samples import PrivateSteps, check_samples, planned_steps, sampling_schedule
from medfl.settings import Settings
from medfl.testing.cohort import SmallNet, TensorData, make_data, make_task
from medfl.training.loop import PlainSteps, train
from medfl.utils.rng import make_generator, seeded_generators

HUGE = 1e9


class GroupNet(SmallNet):
    """Small network with group norm."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        self.body.insert(1, nn.GroupNorm(2, 6))


def site_of(data: TensorData, secret: bytes = b"0" * 16, run_id: str = "run", **settings: object) -> Site:
    privacy = {"unit": "sample", "epsilon": 5.0, "adjacency": "add_remove", "clip": HUGE} | settings.pop("privacy", {})
    merged = Settings(**({"rounds": 2, "epochs": 3, "batch_size": 50, "privacy": privacy} | settings))
    return Site("a", 1, State(), make_task("plain"), merged, train=data, secret=secret, run_id=run_id)


def fresh(kind: type[nn.Module] = GroupNet) -> nn.Module:
    with seeded_generators("network"):
        return kind()


def trained(
    site: Site, private: bool = True, sigma: float = 0.0, optimizer=None, loss=None, payload: str = "p", **more
) -> dict[str, torch.Tensor]:
    model = fresh()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(model.parameters())

    def cross_entropy(batch):
        value = nn.functional.cross_entropy(model(batch.images), batch.targets)
        return value if loss is None else value + loss(model, start, batch)

    way = PrivateSteps(model, steps, site, payload, sigma=sigma, **more) if private else None
    settings = site.settings if private else site.settings.model_copy(update={"privacy": None})
    train(model, site.train, cross_entropy, steps, settings, make_generator("b"), steps=way, **more)
    assert not [name for name in model.state_dict() if "_module" in name]
    return dict(model.state_dict())


def pull(model, start, batch):
    return 0.5 * sum((p - start[name] - 0.01).square().sum() for name, p in model.named_parameters())


@pytest.mark.parametrize("loss", [None, pull], ids=["alone", "with a term of the parameters"])
@pytest.mark.parametrize(
    "optimizer", [None, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3)], ids=["momentum", "adam"]
)
def test_without_noise_and_clip_it_is_plain_training_on_the_same_batches(loss, optimizer):
    site = site_of(make_data(20, "x"))  # one batch holds all images, so draws and permutations agree
    plain, private = (trained(site, way, optimizer=optimizer, loss=loss) for way in (False, True))
    for name, tensor in plain.items():
        torch.testing.assert_close(private[name], tensor, rtol=1e-4, atol=1e-5)
    assert max(float((tensor - fresh().state_dict()[name]).abs().max()) for name, tensor in plain.items()) > 0.01


def test_a_batchs_gradient_is_clipped_after_the_noise():
    site = site_of(make_data(20, "x"), epochs=1)
    plain, private = (trained(site, way, gradient_clip=0.01) for way in (False, True))
    for name, tensor in plain.items():
        torch.testing.assert_close(private[name], tensor, rtol=1e-4, atol=1e-6)


def test_drawn_batches_are_summed_and_divided_by_the_size_to_expect():
    data = make_data(30, "x")
    site = site_of(data, batch_size=6, epochs=2)
    model = fresh()
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in PrivateSteps(model, steps, site, "p", sigma=0.0).batches(30):
        steps.zero_grad()
        images, labels = data.batch(rows)
        (nn.functional.cross_entropy(model(images), labels, reduction="sum") / 6).backward()
        steps.step()
    ended = trained(site, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(ended[name], tensor, rtol=1e-4, atol=1e-6)


def test_one_image_moves_the_sum_by_the_clip_at_most():
    data = make_data(12, "x")
    data.images[3] *= 1000.0
    sums = {}
    for name, kept in (("all", torch.arange(12)), ("without", torch.tensor([i for i in range(12) if i != 3]))):
        site = site_of(TensorData(*data.batch(kept)), epochs=1, privacy={"clip": 0.05})
        moved = trained(site, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
        sums[name] = {key: (value - fresh().state_dict()[key]).double() * len(kept) for key, value in moved.items()}
    norm = math.sqrt(sum(float((sums["all"][key] - sums["without"][key]).square().sum()) for key in sums["all"]))
    assert norm == pytest.approx(0.05, rel=1e-3), "a huge image moves it by exactly the clip"


def noise_of(site: Site, sigma: float, payload: str = "p") -> torch.Tensor:
    """Return the noise of one step, from a loss without gradients, times the expected batch size."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 1000))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    steps = torch.optim.SGD(model.parameters(), lr=1.0)
    way = PrivateSteps(model, steps, site, payload, sigma=sigma)
    train(model, site.train, lambda batch: 0.0 * model(batch.images).sum(), steps, site.settings, None, steps=way)
    return -torch.cat([p.detach().flatten() for p in model.parameters()]) * site.settings.batch_size


def test_noise_is_gaussian_of_sigma_times_clip():
    site = site_of(make_data(40, "x"), batch_size=8, steps=1, privacy={"clip": 0.5})
    noise = noise_of(site, sigma=3.0).double()
    assert len(noise) == 37_000
    assert float(noise.std()) == pytest.approx(1.5, rel=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.02)
    for multiple, share in ((1.0, 0.6827), (2.0, 0.9545)):
        assert float((noise.abs() < multiple * 1.5).double().mean()) == pytest.approx(share, abs=0.008)
    assert float((noise**4).mean() / noise.var() ** 2) == pytest.approx(3.0, abs=0.1)


def test_noise_adds_up_over_steps_and_empty_batches_are_noised_too():
    data = make_data(40, "x")
    site = site_of(data, batch_size=1, steps=16, privacy={"clip": 0.5})
    model = fresh()
    way = PrivateSteps(model, torch.optim.SGD(model.parameters(), lr=1.0), site, "p", sigma=3.0)
    sizes = [len(rows) for rows in way.batches(40)]
    assert 0 in sizes, "else this shows nothing"
    assert len(sizes) == 16
    assert float(noise_of(site, sigma=3.0).std()) == pytest.approx(4 * 1.5, rel=0.02)


def test_draws_are_independent_and_as_likely_as_the_rate():
    site = site_of(make_data(50, "x"), batch_size=10, steps=400)
    model = fresh()
    way = PrivateSteps(model, torch.optim.SGD(model.parameters(), lr=1.0), site, "p", sigma=1.0)
    drawn = torch.zeros(400, 50, dtype=torch.float64)
    for step, rows in enumerate(way.batches(50)):
        drawn[step, rows] = 1.0
    assert float(drawn.mean()) == pytest.approx(0.2, abs=0.01)
    assert float(drawn.sum(dim=1).var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.3), "binomial, not fixed"
    assert float((torch.corrcoef(drawn.T) - torch.eye(50)).abs().mean()) < 0.06


def test_the_secret_decides_and_torchs_own_generator_does_not():
    data = make_data(30, "x")

    def run(seed: int = 0, payload: str = "p", sigma: float = 2.0, **more) -> torch.Tensor:
        torch.manual_seed(seed)
        site = site_of(data, **({"batch_size": 6, "epochs": 1, "privacy": {"clip": 0.1}} | more))
        return torch.cat([t.flatten() for t in trained(site, sigma=sigma, payload=payload).values()])

    first = run()
    assert torch.equal(first, run(seed=1))
    for other in (run(secret=b"1" * 16), run(run_id="another"), run(payload="q")):
        assert float((first - other).abs().mean()) > 1e-3
    # another multiplier has other noise, not the same scaled: of two such sums anyone could work out the gradient
    site = site_of(data, batch_size=6, steps=1)
    noises = torch.stack([noise_of(site, 1.0), noise_of(site, 2.0)])
    assert abs(float(torch.corrcoef(noises)[0, 1])) < 0.02


def test_sums_that_differ_never_share_noise():
    # of z + s and z + t, released by two runs that differ in something else than data, anyone could work out s - t
    data = make_data(30, "x")
    clip, sigma = 1e-3, 100.0  # the sums differ by 0.06 at most, the noises by 0.1 in each number

    def end(target: float) -> torch.Tensor:
        way = {"optimizer": lambda p: torch.optim.SGD(p, lr=1.0), "sigma": sigma}
        site = site_of(data, epochs=1, privacy={"clip": clip})
        return torch.cat(
            [t.flatten() for t in trained(site, loss=lambda m, s, b: target * m.head.bias[0], **way).values()]
        )

    first, again, other = end(1.0), end(1.0), end(2.0)
    assert torch.equal(first, again)
    assert float((first - other).std()) * len(data) == pytest.approx(math.sqrt(2) * sigma * clip, rel=0.2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_image_without_a_finite_gradient_counts_as_none(bad):
    data, clip = make_data(12, "x"), {"epochs": 1, "privacy": {"clip": 0.5}}
    kept = TensorData(*data.batch(torch.arange(1, 12)))
    data.images[0] = bad
    way = {"optimizer": lambda p: torch.optim.SGD(p, lr=1.0)}
    whole, without = (trained(site_of(images, **clip), **way) for images in (data, kept))
    for name, start in fresh().state_dict().items():
        moved, expected = ((end[name] - start) * count for end, count in ((whole, 12), (without, 11)))
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-5)


def test_gradients_in_pieces_are_the_same(monkeypatch):
    site = site_of(make_data(20, "x"), epochs=1, privacy={"clip": 0.2})
    whole = trained(site)  # noise is keyed by the bits of the sum, whose last ones differ
    monkeypatch.setattr(samples, "CHUNK_NUMBERS", 3 * sum(p.numel() for p in fresh().parameters()))
    for name, tensor in trained(site).items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay():
    model = fresh()
    model.head.requires_grad_(False)
    site = site_of(make_data(9, "x"))
    steps = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    way = PrivateSteps(model, steps, site, "p", sigma=1.0)
    loss = nn.CrossEntropyLoss()
    train(model, site.train, lambda b: loss(model(b.images), b.targets), steps, site.settings, None, steps=way)
    assert torch.equal(model.head.weight, fresh().head.weight)
    assert not torch.equal(model.body[0].weight, fresh().body[0].weight)


def test_bfloat16_stays_near_float32():
    data, clip = make_data(20, "x"), {"privacy": {"clip": 0.5}}
    exact, coarse = (trained(site_of(data, precision=kind, **clip), sigma=0.0) for kind in ("fp32", "bf16"))
    for name, tensor in exact.items():
        torch.testing.assert_close(coarse[name], tensor, rtol=0.1, atol=0.02)


def test_a_training_that_forgets_to_be_private_is_stopped():
    site = site_of(make_data(9, "x"))
    with refused(ContractError, "missing_private_steps"):
        train(fresh(), site.train, lambda batch: batch.images.sum(), None, site.settings, make_generator("b"))


# ---- the account


def test_schedule_is_that_of_plain_training():
    settings = Settings(rounds=4, epochs=2, batch_size=5)
    assert sampling_schedule(settings, 21) == (5 / 21, 10)
    assert sampling_schedule(Settings(rounds=4, steps=7, batch_size=5), 3) == (1.0, 7)
    model = fresh(lambda: SmallNet(norm=False))
    plain = PlainSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), settings, make_generator("b"))
    assert len(list(plain.batches(21))) == 10


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_noise_keeps_the_budget_of_all_rounds(adjacency):
    settings = site_of(make_data(1, "x"), batch_size=50, privacy={"adjacency": adjacency}).settings
    part = planned_steps(settings, 40)
    assert part.count == 2 * 3
    assert part.rate == 1.0
    assert epsilon((part,), 1e-5, adjacency) == pytest.approx(5.0, rel=1e-6)


def test_without_steps_nothing_is_released():
    assert planned_steps(site_of(make_data(1, "x"), epochs=0).settings, 30) == NoisedReleases(math.inf, 0, 1.0)


# ---- what can't be private


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.InstanceNorm2d(6, track_running_stats=True)])
def test_layers_that_mix_images_are_refused_with_advice(norm):
    network = SmallNet(norm=False)
    network.body.insert(1, norm)
    with refused(SettingsError, "network_not_supported", network="SmallNet") as caught:
        check_samples(site_of(make_data(1, "x")).settings, [GroupNet(), network])
    assert "Use group norm" in str(caught.value)
    check_samples(site_of(make_data(1, "x")).settings, [GroupNet(), SmallNet(norm=False)])


@pytest.mark.parametrize("balance", ["loss", "sampling"])
def test_class_sizes_are_not_looked_at(balance):
    with refused(SettingsError, "incompatible_settings", setting="balance", expected="none", found=balance) as caught:
        check_samples(site_of(make_data(1, "x"), balance=balance).settings, [])
    assert "--balance none" in str(caught.value), "leaving the option out does not help where the bundle sets it"


def test_a_loss_that_is_not_one_of_single_images_is_refused():
    site = site_of(make_data(8, "x"))
    with refused(SettingsError, "loss_not_per_image"):
        trained(site, loss=lambda model, start, batch: model(batch.images).sum().item())
