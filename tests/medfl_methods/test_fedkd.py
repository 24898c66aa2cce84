"""FedKD: ranks by energy, factors on the way, whom which loss trains, and the mean of the mentees."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl.types import SERVER
from medfl_methods.fedkd.low_rank import LARGEST, LowRankFactors, cut, pays, rank_of, singular_values
from medfl_methods.fedkd.method import FedKD

REGISTRY = load_plugins()
WHOLE = {"energy_start": 1.0, "energy_end": 1.0}


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedkd", args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def low(rank, *shape):
    generator = torch.Generator().manual_seed(rank)
    columns = int(torch.tensor(shape[1:]).prod())
    parts = torch.randn(shape[0], rank, generator=generator), torch.randn(rank, columns, generator=generator)
    return (parts[0] @ parts[1]).reshape(shape)


# ---- compression


@pytest.mark.parametrize(("energy", "rank"), [(0.01, 1), (0.6, 1), (0.64, 1), (0.65, 2), (1.0, 2)])
def test_the_rank_is_the_smallest_that_holds_the_energy(energy, rank):
    assert rank_of(torch.tensor([4.0, 3.0]), energy) == rank  # squares 16 and 9
    assert rank_of(torch.tensor([4.0, 3.0, 0.0]), energy) == rank


def test_a_kernel_is_cut_as_a_matrix_of_its_output_channels():
    kernel = low(2, 16, 4, 3, 3) + 1e-3 * torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    done = cut(kernel, 0.99)
    u, s, v = torch.linalg.svd(kernel.reshape(16, 36), full_matrices=False)
    rank = rank_of(s, 0.99)
    assert rank <= 2
    torch.testing.assert_close(done.reshape(16, 36), (u[:, :rank] * s[:rank]) @ v[:rank], atol=1e-5, rtol=1e-5)
    assert (done - kernel).square().sum() <= 0.01 * kernel.square().sum()
    assert torch.linalg.matrix_rank(cut(low(3, 16, 36), 1.0, max_rank=1), rtol=1e-5) == 1


def test_a_matrix_for_which_divide_and_conquer_does_not_converge_is_decomposed_all_the_same(monkeypatch):
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


def test_what_would_not_be_shorter_stays_as_it_is():
    assert not pays(2, 4, 4)
    for tensor in (torch.randn(4, 4), torch.randn(9), torch.zeros(5, 8), torch.full((9, 9), float("nan"))):
        assert cut(tensor, 0.99999) is tensor


def test_factors_bring_back_what_was_encoded():
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


def test_factors_of_something_huge_are_refused_before_it_is_made():
    size = 1 << 14
    huge = {"a:u": torch.ones(size, 1), "a:s": torch.ones(1), "a:v": torch.ones(1, size)}
    assert size**2 > LARGEST
    with pytest.raises(ValueError, match="at most"):
        LowRankFactors().decode(huge, {"shapes": {"a": [size, size]}})


def test_the_energy_goes_from_its_start_to_its_end():
    holder, matrix = SimpleNamespace(), torch.diag(torch.tensor([4.0, 3.0] + [0.0] * 14))
    ranks = []
    for holder.round in (1, 2, 3, 4, 9):  # T .55, .6, .65, .7, .7 against .64 for one direction
        done = FedKD(energy_start=0.5, energy_end=0.7, over=4).cut(holder, {"w": matrix})["w"]
        ranks.append(int(torch.linalg.matrix_rank(done)))
    assert ranks == [1, 1, 2, 2, 2]


# ---- the training


def test_without_cuts_the_mentee_is_the_mean_of_the_sites(tmp_path):
    sites, task = make_sites(), make_task("plain")
    result = run(tmp_path, WHOLE, task=task, sites=sites, rounds=1)
    begun, sums = task.initial(7), {}
    for site in sites:
        for name, tensor in Store(tmp_path / "state" / site).latest().tensors.items():
            if name.startswith("reply/model/"):
                key = name.removeprefix("reply/model/")
                sums[key] = sums.get(key, 0) + tensor.double() / 3
    for name, tensor in result.outcome.models["global"].tensors.items():
        torch.testing.assert_close(tensor, (begun[name] + sums[name]).float(), atol=1e-7, rtol=1e-6)


def test_one_step_is_that_of_the_formulas(tmp_path):
    """Mentee, mentor and the layer between, each by the gradient of its own loss with the other model held fixed."""
    sites, task = make_sites({"a": 5}), make_task("plain")
    networks = {"networks_by_site": {"a": "wide"}}
    run(tmp_path, WHOLE, task=task, sites=sites, rounds=1, norm_sync="frozen", **networks)
    images, labels = sites["a"].train.batch(torch.arange(5))
    mentee = task.load(task.initial(7))
    mentor = task.load(task.initial(7, "wide"), "wide").train()
    mentor.body[1].eval()  # frozen norms
    held = states(tmp_path, "a")
    run(tmp_path / "begun", WHOLE, task=task, sites=sites, rounds=1, epochs=0, norm_sync="frozen", **networks)
    adapter = states(tmp_path / "begun", "a")["kept/adapter/weight"].requires_grad_()
    own, other = mentee.body(images), mentor.body(images)
    outputs, answers = mentee.head(own), mentor.head(other)
    losses = F.cross_entropy(outputs, labels), F.cross_entropy(answers, labels)
    total = float((losses[0] + losses[1]).detach())

    def kl(student, teacher):
        return F.kl_div(student.log_softmax(1), teacher.detach().softmax(1), reduction="batchmean")

    seen = own @ adapter.T
    mine = losses[0] + (kl(outputs, answers) + F.mse_loss(seen, other.detach())) / total
    theirs = losses[1] + (kl(answers, outputs) + F.mse_loss(other, seen.detach())) / total
    mine.backward()
    assert all(p.grad is None for p in mentor.parameters())
    mentee_grads = {name: p.grad.clone() for name, p in mentee.named_parameters()}
    theirs.backward()
    assert all(torch.equal(p.grad, mentee_grads[name]) for name, p in mentee.named_parameters())
    server = states(tmp_path, SERVER)
    for name, p in mentee.named_parameters():
        torch.testing.assert_close(server[name], p.detach() - 0.1 * p.grad, atol=1e-6, rtol=1e-5)
    for name, p in mentor.named_parameters():
        torch.testing.assert_close(held[f"kept/mentor/{name}"], p.detach() - 0.1 * p.grad, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(held["kept/adapter/weight"], adapter.detach() - 0.1 * adapter.grad, atol=1e-6, rtol=1e-5)


def test_the_mentor_never_leaves_and_factors_do(tmp_path):
    result = run(tmp_path, {"energy_start": 0.5, "energy_end": 0.5}, networks_by_site={"site-1": "wide"})
    sent = [name for name in Store(tmp_path / "state" / "site-1").latest().tensors if name.startswith("reply/")]
    assert all(name.startswith("reply/model/") for name in sent)
    assert any(name.endswith(":u") for name in sent)
    models = result.models["site-1"]
    assert models["personal"].network == "wide"
    assert models["global"].network == "norm"
    assert not torch.equal(models["personal"].tensors["head.weight"], make_task().initial(7, "wide")["head.weight"])


def test_features_need_not_be_compared(tmp_path):
    run(tmp_path, {"hidden_loss": False}, rounds=1)
    assert not any("adapter" in name for name in states(tmp_path, "site-1"))


def test_a_largest_rank_without_cuts_is_refused():
    with pytest.raises(ValueError, match="energies below 1 beside max_rank"):
        FedKD(**WHOLE, max_rank=3)
