"""Rule of freezing and weight of a frozen site: closed forms, limits, and invalid values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import SettingsError
from medfl.utils.rng import make_generator
from medfl_methods.fedfed.distiller_training import mean_abs_cosine
from medfl_methods.fedtpf.early_stop import decay, should_freeze

CHANGES = some.lists(some.floats(-1, 1), max_size=8)
MODES = ["cumulative", "literal", "text", "none"]

# ---- the weight


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cumulative", math.exp(-5 * 0.13)),
        ("literal", math.exp(-5 * 0.03)),
        ("text", math.exp(-5 * 2 / 3)),
        ("none", 1),
    ],
)
def test_four_readings_of_one_history(mode, expected):
    assert decay([0.10, -0.20, 0.03], 5.0, mode) == pytest.approx(expected)  # text: 0, 0 and 2/3


@pytest.mark.parametrize(
    ("change", "pace"),
    [(0.0, 1), (0.02, 1), (-0.02, 1), (0.035, 0.5), (-0.035, 0.5), (0.04, 1 / 3), (0.05, 0), (-0.05, 0), (0.9, 0)],
)
def test_in_the_text_small_changes_speed_the_decay_up(change, pace):
    assert decay([change], 2.0, "text") == pytest.approx(math.exp(-2 * pace))


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, later=some.floats(-1, 1), rate=some.floats(0, 20))
def test_limits_of_the_weight(changes, later, rate):
    for mode in MODES:
        assert 0 < decay(changes, rate, mode) <= 1
        assert decay(changes, 0.0, mode) == 1
        assert decay([], rate, mode) == 1
    for mode in ("cumulative", "text"):
        assert decay([*changes, later], rate, mode) <= decay(changes, rate, mode), "it never rises again"
    assert decay([later], rate, "cumulative") == decay([later], rate, "literal"), "equation 8, in the first round"
    assert decay([*changes, -abs(later)], rate, "literal") == 1, "as printed, the weight comes back"


@pytest.mark.parametrize(
    ("changes", "rate", "mode", "code"),
    [
        ([0.1], -1.0, "cumulative", "setting_out_of_range"),
        ([0.1], math.nan, "text", "setting_out_of_range"),
        ([math.nan], 5.0, "literal", "setting_out_of_range"),
        ([0.1], 5.0, "linear", "unknown_choice"),
    ],
)
def test_impossible_decays_are_refused(changes, rate, mode, code):
    with refused(SettingsError, code):
        decay(changes, rate, mode)


# ---- the freeze

GOOD, LOW = [0.92, 0.90, 0.93], [0.10, 0.12, 0.14]


def test_good_and_steady_for_three_epochs_freezes():
    assert should_freeze(GOOD, LOW)
    assert should_freeze([0.2, 0.5, *GOOD], [0.9, 0.8, *LOW]), "what was before does not count"
    assert should_freeze([0.88, 0.93, 0.90], [0.10, 0.10, 0.149]), "the bounds themselves, in floating point"


@pytest.mark.parametrize(
    ("accuracies", "cosines"),
    [
        (GOOD[:2], LOW[:2]),
        ([], []),
        ([0.92, 0.879, 0.92], LOW),
        ([0.92, 0.99, 0.93], LOW),
        (GOOD, [0.10, 0.15, 0.12]),
        (GOOD, [0.08, 0.14, 0.10]),
        ([*GOOD, 0.5], [*LOW, 0.1]),
        (GOOD, [0.10, math.nan, 0.14]),
        ([0.92, math.nan, 0.93], LOW),
        ([0.92, 0.93, math.inf], LOW),
    ],
)
def test_what_does_not_freeze(accuracies, cosines):
    assert not should_freeze(accuracies, cosines)


def test_each_threshold_is_its_own():
    assert should_freeze([0.6], [0.3], accuracy=0.6, cosine=0.31, window=1)
    assert not should_freeze([0.6], [0.3], accuracy=0.63, cosine=0.31, window=1)
    assert should_freeze([0.6], [0.3], accuracy=0.63, tolerance=0.03, cosine=0.31, window=1)
    assert not should_freeze([0.6], [0.3], accuracy=0.6, cosine=0.30, window=1)
    assert should_freeze([0.90, 1.0], [0.0, 0.1], window=2, fluctuation=0.1)
    assert not should_freeze([0.90, 1.0], [0.0, 0.0], window=2, fluctuation=0.09)


def test_a_window_of_nothing_and_histories_of_unlike_lengths_are_refused():
    with refused(SettingsError, "setting_out_of_range", setting="window", minimum=1, found=0):
        should_freeze(GOOD, LOW, window=0)
    with pytest.raises(ValueError, match="zip"):
        should_freeze(GOOD, LOW[:2])


# ---- the cosine


def test_the_cosine_is_torchs_and_its_sign_does_not_count():
    a, b = (torch.randn(9, 2, 4, 5, generator=make_generator(seed)) for seed in (1, 2))
    expected = torch.cosine_similarity(a.flatten(1).double(), b.flatten(1).double())
    assert mean_abs_cosine(a, b) == pytest.approx(float(expected.abs().mean()), rel=1e-9)
    assert bool((expected < 0).any()), "both signs are there"
    assert mean_abs_cosine(a, -a) == pytest.approx(1.0)
    assert mean_abs_cosine(a, b) == mean_abs_cosine(b, -a)


def test_zero_tiny_and_absent_images():
    a = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]], [[3.0, 4.0]], [[1e-30, 0.0]]])
    b = torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]], [[0.0, 0.0]], [[1e-30, 0.0]]])
    assert mean_abs_cosine(a, b) == pytest.approx(0.5), "1, 0, 0 and 1"
    assert mean_abs_cosine(1e15 * a, b) == pytest.approx(0.5)
    assert math.isnan(mean_abs_cosine(torch.empty(0, 1, 2), torch.empty(0, 1, 2)))
    assert math.isnan(mean_abs_cosine(torch.full((2, 3), math.nan), torch.ones(2, 3)))
