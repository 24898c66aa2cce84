"""Ensemble of heads: votes and ties against counting by hand, and the voting layer in a network."""

import io
import itertools
from collections import Counter

import pytest
import torch

from medfl.utils.rng import make_generator
from medfl_methods.fedsdc.voting import VotingHead, count_votes, elect_class

FEATURES = torch.randn(64, 6, generator=make_generator("voting features"))


def winner(rows):
    """Count by hand: most votes; among tied classes the largest sum; then the first class."""
    choices = [row.index(max(row)) for row in rows]
    counts = Counter(choices)
    tied = sorted(label for label in counts if counts[label] == max(counts.values()))
    sums = {label: sum(row[label] for row in rows) for label in tied}
    return next(label for label in tied if sums[label] == max(sums.values()))


def shares(total, parts):
    """Return all ways to write a total as a sum of that many parts, each at least one."""
    if parts == 1:
        return [[total]]
    return [[first, *rest] for first in range(1, total) for rest in shares(total - first, parts - 1)]


@pytest.mark.parametrize(("heads", "classes", "total"), [(1, 3, 8), (2, 3, 8), (3, 3, 6), (3, 2, 8), (4, 2, 6)])
def test_sd_6_all_ways_to_vote(heads, classes, total):
    """All combinations of probabilities in eighths or sixths: ties of votes, of sums and within a single head."""
    cases = list(itertools.product(shares(total, classes), repeat=heads))
    opinions_ = torch.tensor(cases, dtype=torch.float64).transpose(0, 1)  # whole numbers: their sums are exact
    expected = [winner(case) for case in cases]
    assert elect_class(opinions_).tolist() == expected
    by_votes = [Counter(row.index(max(row)) for row in case) for case in cases]
    assert count_votes(opinions_).tolist() == [[count[label] for label in range(classes)] for count in by_votes]
    if heads > 1:
        assert expected != opinions_.sum(0).argmax(1).tolist(), "a vote is no mean"


def test_sd_6_a_tie_is_never_won_by_a_class_without_the_most_votes():
    """Two heads vote for 0, two for 1. Class 2 has the largest sum and would win in the released code."""
    opinions_ = torch.tensor([[0.5, 0.02, 0.48], [0.5, 0.02, 0.48], [0.0, 0.51, 0.49], [0.02, 0.5, 0.48]]).double()[
        :, None
    ]
    assert opinions_.sum(0).argmax() == 2
    assert elect_class(opinions_).tolist() == [1]
    assert elect_class(torch.tensor([[[0.6, 0.4]], [[0.4, 0.6]]])).tolist() == [0]


def head_of(widths, together="vote", spread=3.0, **options):
    """Return a voting head whose heads disagree."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = VotingHead(6, widths, 4, together, **options)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(spread)
    return head


def opinions(head):
    with torch.no_grad():
        return torch.stack([layer(FEATURES).softmax(1) for layer in head.heads])


@pytest.mark.parametrize("widths", [[0, 0, 0, 0], [5, 3, 8, 2], [4], [0], [3, 0, 2, 0, 6]])
def test_in_evaluation_it_says_who_is_elected(widths):
    """softmax of the logits = (votes + mean probability) / (heads + 1); for a single head its own probabilities."""
    head = head_of(widths).eval()
    probabilities = opinions(head)
    output = head(FEATURES)
    assert output.argmax(1).tolist() == elect_class(probabilities.double()).tolist()
    expected = (
        (count_votes(probabilities) + probabilities.mean(0)) / (len(widths) + 1)
        if len(widths) > 1
        else probabilities[0]
    )
    torch.testing.assert_close(output.softmax(1), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(output.exp().sum(1), torch.ones(64), atol=1e-6, rtol=0)
    if len(widths) > 2:
        assert elect_class(probabilities).tolist() != probabilities.mean(0).argmax(1).tolist()


def test_votes_that_are_tied_go_by_probability():
    """This holds through logits in float32, too."""
    head = head_of([0, 0]).eval()
    probabilities = opinions(head)
    tied = probabilities[0].argmax(1) != probabilities[1].argmax(1)
    assert tied.sum() > 10
    assert head(FEATURES)[tied].argmax(1).tolist() == elect_class(probabilities.double())[tied].tolist()


def test_a_class_that_no_one_thinks_of_has_a_finite_logit():
    head = head_of([0, 0], spread=3000.0).eval()
    assert torch.isfinite(head(FEATURES)).all()


@pytest.mark.parametrize("together", ["vote", "prob_mean"])
def test_in_training_it_is_the_mean_probability_and_has_gradients(together):
    head = head_of([3, 2, 4], together, dropout=0.0).train()
    output = head(FEATURES)
    torch.testing.assert_close(output.softmax(1), opinions(head).mean(0), atol=1e-6, rtol=0)
    torch.nn.functional.cross_entropy(output, torch.arange(64) % 4).backward()
    for name, parameter in head.named_parameters():
        assert float(parameter.grad.abs().max()) > 0, name
    images = FEATURES.clone().requires_grad_()
    head(images).exp()[:, 0].sum().backward()
    assert float(images.grad.abs().max()) > 0


def test_the_mean_probability_in_evaluation_too():
    head = head_of([3, 2, 4], "prob_mean").eval()
    torch.testing.assert_close(head(FEATURES).softmax(1), opinions(head).mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("together", ["vote", "prob_mean"])
def test_torchscript_votes_alike(together):
    head = head_of([0, 3, 2], together, activation="relu").eval()
    blob = io.BytesIO()
    torch.jit.save(torch.jit.script(head), blob)
    blob.seek(0)
    assert torch.equal(torch.jit.load(blob)(FEATURES), head(FEATURES))


def test_heads_have_the_names_under_which_they_are_stored():
    names = VotingHead(6, [0, 3], 4).state_dict()
    two = [f"heads.1.{layer}.{part}" for layer in ("hidden", "out") for part in ("weight", "bias")]
    assert list(names) == ["heads.0.weight", "heads.0.bias", *two]
