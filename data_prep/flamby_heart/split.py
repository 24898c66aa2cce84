"""Select the test rows that scikit-learn's ``train_test_split`` selects in FLamby, without using scikit-learn.

FLamby calls ``train_test_split`` with ``random_state=43``, which draws from numpy's `RandomState`. Numpy guarantees
that this stream of random numbers never changes, so the code here selects the same rows for any table; a test compares
them with scikit-learn. A stored list of row numbers would work for the real tables only.
"""

from __future__ import annotations

import numpy as np

FLAMBY_SEED = 43
"""Seed that FLamby passes to ``train_test_split`` as ``random_state``."""

TRAINING_SHARE = 0.66
"""Share of the rows for training; the other rows are test rows."""

SMALL_CLASS_SIZE = 2
"""Class size up to which the split is not stratified: each class needs more rows than this."""


def select_test_rows(labels: np.ndarray) -> np.ndarray:
    """Select the test rows of a hospital.

    If each class has more than two rows, the split is stratified by class; otherwise rows are drawn from all.

    Args:
        labels: Class of each row, shape (n,), int64, n >= 3.

    Returns:
        True for test rows, shape (n,), bool.

    Source: scikit-learn's ``ShuffleSplit`` and ``StratifiedShuffleSplit``; FLamby's code for Fed-Heart-Disease.
    """
    n = len(labels)
    train, test = int(np.floor(TRAINING_SHARE * n)), int(np.ceil((1.0 - TRAINING_SHARE) * n))
    rng = np.random.RandomState(FLAMBY_SEED)
    counts = np.unique(labels, return_counts=True)[1]
    chosen = np.zeros(n, dtype=bool)
    if len(counts) < 2 or counts.min() <= SMALL_CLASS_SIZE:
        chosen[rng.permutation(n)[:test]] = True
        return chosen
    training_counts = _draws_by_class(counts, train, rng)
    test_counts = _draws_by_class(counts - training_counts, test, rng)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    for rows, before, count in zip(members, training_counts, test_counts, strict=True):
        chosen[rng.permutation(rows)[before : before + count]] = True
    return chosen


def _draws_by_class(counts: np.ndarray, draws: int, rng: np.random.RandomState) -> np.ndarray:
    """Compute the number of rows to draw from each class.

    Each class gets its proportional share, rounded down. The remaining draws go to the classes with the largest
    remainders; ties are resolved at random.

    Args:
        counts: Number of rows of each class.
        draws: Total number of rows to draw.
        rng: Random number generator.
    """
    exact = counts / counts.sum() * draws
    shares = np.floor(exact)
    missing, remainders = int(draws - shares.sum()), exact - shares
    for value in np.unique(remainders)[::-1]:
        if missing <= 0:
            break
        tied = np.flatnonzero(remainders == value)
        tied = rng.choice(tied, size=min(len(tied), missing), replace=False)
        shares[tied] += 1
        missing -= len(tied)
    return shares.astype(np.int64)
