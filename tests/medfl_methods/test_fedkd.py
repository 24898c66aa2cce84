"""FedKD: ranks by energy, factors on the way, whom which loss trains, and the mean of the mentees."""

from types import SimpleNamespace

import pytest
import torch

from medfl_methods.fedkd.low_rank import LARGEST, LowRankFactors, cut, pays, rank_of, singular_values
from medfl_methods.fedkd.method import FedKD


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
