"""Tests of FedKD, FedKF and FedMD: ranks and factors, generators, and logits of public images."""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.contract import Request, Site, State
from medfl.errors import RefusedError
from medfl.networks.norms import evaluating
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.toolkit.training_specs import Training
from medfl.training.loop import Batch
from medfl.types import SERVER
from medfl_methods.fedkd.low_rank import (
    MAX_MATRIX_ELEMENTS,
    LowRankFactors,
    is_smaller_as_factors,
    singular_values,
    smallest_rank,
    truncate_rank,
)
from medfl_methods.fedkd.method import FedKD
from medfl_methods.fedkf.generator import Generator, generator_loss, imbalance
from medfl_methods.fedmd import FedMD, consensus, public_images

REGISTRY = load_plugins()


# ---- FedKD


def low(rank, *shape):
    generator = torch.Generator().manual_seed(rank)
    columns = int(torch.tensor(shape[1:]).prod())
    parts = torch.randn(shape[0], rank, generator=generator), torch.randn(rank, columns, generator=generator)
    return (parts[0] @ parts[1]).reshape(shape)


@pytest.mark.parametrize(("energy", "rank"), [(0.01, 1), (0.6, 1), (0.64, 1), (0.65, 2), (1.0, 2)])
def test_fedkd_rank_is_the_smallest_that_holds_the_energy(energy, rank):
    assert smallest_rank(torch.tensor([4.0, 3.0]), energy) == rank  # squares 16 and 9
    assert smallest_rank(torch.tensor([4.0, 3.0, 0.0]), energy) == rank


def test_fedkd_kernel_is_factorised_by_its_output_channels():
    kernel = low(2, 16, 4, 3, 3) + 1e-3 * torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    done = truncate_rank(kernel, 0.99)
    u, s, v = torch.linalg.svd(kernel.reshape(16, 36), full_matrices=False)
    rank = smallest_rank(s, 0.99)
    assert rank <= 2
    torch.testing.assert_close(done.reshape(16, 36), (u[:, :rank] * s[:rank]) @ v[:rank], atol=1e-5, rtol=1e-5)
    assert (done - kernel).square().sum() <= 0.01 * kernel.square().sum()
    assert torch.linalg.matrix_rank(truncate_rank(low(3, 16, 36), 1.0, max_rank=1), rtol=1e-5) == 1


def test_fedkd_decomposition_works_if_gesdd_does_not_converge(monkeypatch):
    """LAPACK's gesdd fails for some finite matrices; which ones depends on the library and the processor."""
    matrix = low(3, 16, 36).double()
    expected = torch.linalg.svd(matrix, full_matrices=False)

    def fail(*args, **options):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "svd", fail)
    u, s, v = singular_values(matrix)
    torch.testing.assert_close((u * s) @ v, matrix)
    torch.testing.assert_close(s, expected.S)
    assert (u.shape, v.shape, u.dtype) == ((16, 16), (16, 36), torch.float64)


def test_fedkd_tensors_without_shorter_factors_stay_unchanged():
    assert not is_smaller_as_factors(2, 4, 4)
    for tensor in (torch.randn(4, 4), torch.randn(9), torch.zeros(5, 8), torch.full((9, 9), float("nan"))):
        assert truncate_rank(tensor, 0.99999) is tensor


def test_fedkd_decoded_factors_equal_the_encoded_tensor():
    own = LowRankFactors()
    tensors = {"model/a": low(2, 16, 4, 3, 3), "model/b": torch.randn(7), "model/c": torch.randn(5, 5)}
    tensors["model/n"] = torch.tensor(3)
    encoded, meta = own.encode(tensors, torch.Generator())
    assert set(encoded) == {"model/a:u", "model/a:s", "model/a:v", "model/b", "model/c", "model/n"}
    assert sum(encoded[f"model/a:{part}"].numel() for part in "usv") == 2 * (16 + 36 + 1)
    decoded = own.decode(encoded, meta)
    assert decoded.keys() == tensors.keys()
    torch.testing.assert_close(decoded["model/a"], tensors["model/a"], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(decoded[name], tensors[name]) for name in ("model/b", "model/c", "model/n"))


def test_fedkd_factors_of_a_huge_tensor_are_refused_before_decoding():
    size = 1 << 14
    huge = {"a:u": torch.ones(size, 1), "a:s": torch.ones(1), "a:v": torch.ones(1, size)}
    assert size**2 > MAX_MATRIX_ELEMENTS
    with pytest.raises(ValueError, match="at most"):
        LowRankFactors().decode(huge, {"shapes": {"a": [size, size]}})


def test_fedkd_energy_changes_linearly_over_the_rounds():
    participant, matrix = SimpleNamespace(), torch.diag(torch.tensor([4.0, 3.0] + [0.0] * 14))
    ranks = []
    for participant.round in (1, 2, 3, 4, 9):  # T .55, .6, .65, .7, .7 against .64 for one direction
        done = FedKD(energy_start=0.5, energy_end=0.7, over=4).truncate(participant, {"w": matrix})["w"]
        ranks.append(int(torch.linalg.matrix_rank(done)))
    assert ranks == [1, 1, 2, 2, 2]


# ---- FedKF


def test_fedkf_imbalance_is_0_for_equal_classes_and_1_for_a_single_class():
    assert float(imbalance(torch.full((5, 4), 0.25))) == pytest.approx(0, abs=1e-6)
    assert float(imbalance(torch.eye(4))) == pytest.approx(0, abs=1e-6), "each image sure, all classes alike"
    single = torch.tensor([[0.0, 1.0, 0.0]] * 3, requires_grad=True)
    value = imbalance(single)
    assert float(value.detach()) == 1.0  # 0 log 0 is 0


def test_fedkf_generator_loss_equals_the_formula():
    logits, features = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    p = logits.softmax(1).mean(0)
    expected = 1 + (p * p.log()).sum() / torch.tensor(3.0).log()
    expected = expected + 0.1 * F.cross_entropy(logits, torch.tensor([0, 1])) - 0.2 * 1.5
    torch.testing.assert_close(generator_loss(logits, features, 0.1, 0.2), expected)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 9, 5), (1, 4, 5, 6)])
def test_fedkf_images_have_the_shape_of_the_task(shape):
    images = Generator(shape, 7, 3)(torch.randn(2, 7))
    assert images.shape == (2, *shape)
    assert float(images.mean().detach()) == pytest.approx(0, abs=1e-5)
    assert Generator(shape, 7, 3)(torch.randn(1, 7)).shape == (1, *shape)


def test_fedkf_training_modes_are_restored():
    model = make_task().build().train()
    model.body[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert not model.body[1].training


# ---- FedMD

FEDMD_QUICK = {"public_epochs": 1, "private_epochs": 1}


class RecordingFedMD(FedMD):
    """FedMD that records its requests in `seen`."""

    def score_requests(self, server):
        return note(super().score_requests(server))

    def digest_requests(self, server):
        return note(super().digest_requests(server))


seen: list[dict[str, Request]] = []


def note(requests):
    seen.append(
        {request.to: Request(request.to, request.op, dict(request.tensors), request.meta) for request in requests}
    )
    return requests


def run_fedmd(folder, args=None, **options):
    seen.clear()
    settings = FEDMD_QUICK | (args or {})
    return Case(REGISTRY, "fedmd", settings).run(folder, make_method=lambda: RecordingFedMD(**settings), **options)


def test_fedmd_consensus_is_the_mean_of_logits():
    scores = [torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()]
    assert consensus(scores).tolist() == [[1.0, 0.5]]
    of_probabilities = torch.stack([row.softmax(1) for row in scores]).mean(0)
    assert not torch.allclose(of_probabilities, consensus(scores).softmax(1).double(), atol=0.01)


def test_fedmd_digest_loss_is_the_mean_absolute_difference():
    fit = Fit(None, lambda images: images, {}, training=Training("digest"))
    batch = Batch(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.5]]), torch.arange(1))
    assert FedMD().loss(fit, batch).item() == pytest.approx(0.75)


def test_fedmd_digest_ignores_rounding_errors():
    fit, logits = (
        Fit(None, lambda images: images, {}, training=Training("digest")),
        torch.zeros(1, 2, requires_grad=True),
    )
    loss = FedMD().loss(fit, Batch(logits, torch.tensor([[5e-6, 0.5]]), torch.arange(1)))
    loss.backward()
    assert loss.item() == 0.25
    assert logits.grad.tolist() == [[0.0, -0.5]]


def test_fedmd_digest_leaves_a_site_at_the_consensus_unchanged(tmp_path):
    sites = {"site-1": make_sites()["site-1"]}
    ours, plain = (
        run_fedmd(tmp_path / str(epochs), {"digest_epochs": epochs}, task=make_task("plain"), sites=sites, rounds=1)
        for epochs in (3, 0)
    )
    models = [result.models["site-1"]["personal"].tensors for result in (ours, plain)]
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


def test_fedmd_each_round_draws_the_same_new_images_for_all_sites(tmp_path):
    run_fedmd(tmp_path, {"align": 5}, rounds=2)
    rows = [requests["site-1"].tensors["rows"] for requests in seen]
    assert all(
        torch.equal(request.tensors["rows"], rows[at])
        for at, requests in enumerate(seen)
        for request in requests.values()
    )
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert len(rows[0].unique()) == 5
    assert seen[1]["site-1"].tensors["consensus"].shape == (5, 3)


def test_fedmd_public_images_are_sent_once_and_again_to_unavailable_sites(tmp_path):
    run_fedmd(tmp_path, unavailable=lambda site, step: site == "site-2" and step == 1)
    brought = [
        sorted(name for name, request in requests.items() if "public/images" in request.tensors) for requests in seen
    ]
    assert brought == [["site-1", "site-2", "site-3"], [], ["site-2"], [], [], []]
    assert sorted(seen[1]) == ["site-1", "site-3"], "who did not score has nothing to digest"
    assert sorted(seen[3]) == ["site-1", "site-2", "site-3"]
    assert not states(tmp_path)[SERVER], "the server keeps nothing"


def test_fedmd_site_without_public_images_refuses():
    site = Site("a", 1, State(), make_task(), Settings(rounds=1))
    with refused(RefusedError, "lost_public_images", site="a"):
        public_images(site)
