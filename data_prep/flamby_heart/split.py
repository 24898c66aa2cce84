"""The test rows of a hospital: those that scikit-learn's ``train_test_split`` takes, without scikit-learn.

FLamby calls it with ``random_state=43``. It draws from numpy's `RandomState`, whose numbers numpy has promised never to
change, so the few lines here take the same rows for any table; a test compares them with scikit-learn. A list of row
numbers would do for the real tables only.
"""

from __future__ import annotations

import numpy as np

SEED = 43
"""FLamby's ``random_state``."""

TRAIN = 0.66
"""Share of the training rows; the rest is tested on."""

FEW = 2
"""A class that has no more rows than this: the split is not stratified."""


def rows_for_tests(labels: np.ndarray) -> np.ndarray:
    """Which rows are for tests.

    With classes of more than two rows each the shares of the classes are kept; otherwise rows are drawn from all.

    Args:
        labels: (n,), int64, one of each row, n >= 3.

    Returns:
        (n,), bool.

    Source: scikit-learn's ``ShuffleSplit`` and ``StratifiedShuffleSplit``; FLamby's data set of that name.
    """
    n = len(labels)
    train, test = int(np.floor(TRAIN * n)), int(np.ceil((1.0 - TRAIN) * n))
    rng = np.random.RandomState(SEED)
    counts = np.unique(labels, return_counts=True)[1]
    chosen = np.zeros(n, dtype=bool)
    if len(counts) < 2 or counts.min() <= FEW:
        chosen[rng.permutation(n)[:test]] = True
        return chosen
    trained = _shares(counts, train, rng)
    tested = _shares(counts - trained, test, rng)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    for rows, before, count in zip(members, trained, tested, strict=True):
        chosen[rng.permutation(rows)[before : before + count]] = True
    return chosen


def _shares(counts: np.ndarray, draws: int, rng: np.random.RandomState) -> np.ndarray:
    """How many of each class are drawn: its share, rounded down, and one more by the largest remainder, ties by lot."""
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
