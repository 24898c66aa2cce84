"""Who gains where each run tests another fold of the sites' people: a site's row is the mean over its folds.

A fold of a small site holds few images, too few to resample. So the interval is that of the differences of the folds,
by Student's t with the correction for training sets that overlap, as in the tables of `medfl.report.compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from medfl.report.formats import count
from medfl.report.gains import UNDEFINED, Comparison, Gain, Pair, Sets, interval_row, mean_known, worst_row
from medfl.report.groups import folds_among
from medfl.report.statistics import paired_t

Scores = Mapping[int, tuple[float, float]]
"""Place of a pair to the two scores, alone and with the other method, where both are defined."""


def compare_folds(metric: str, name: str, pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> Comparison:
    """Compare a group with the sites alone over folds.

    Args:
        metric: Its name.
        name: Of the group.
        pairs: Of at least two folds, all about the same people: see `medfl.report.pools`.
        tested: Run folder, as text, to its test sets.
    """
    sites = sorted({site for pair in pairs for site in pair.other.run["identity"]["sites"]})
    scores = {site: _scores(metric, site, pairs) for site in sites}
    folds = folds_among([pair.other for pair in pairs])
    rows = [
        _row(metric, site, _images(site, pairs, tested), found, folds, len(pairs)) for site, found in scores.items()
    ]
    means = {
        place: (mean_of[0], mean_of[1])
        for place in range(len(pairs))
        if (found := [site[place] for site in scores.values() if place in site])
        and (mean_of := [sum(side) / len(found) for side in zip(*found, strict=True)])
    }
    mean = _row(metric, "mean of sites", None, means, folds, len(means))
    return Comparison(metric, name, rows, mean, worst_row(metric, rows))


def _scores(metric: str, site: str, pairs: Sequence[Pair]) -> Scores:
    found = {}
    for place, pair in enumerate(pairs):
        alone, other = pair.alone.score(site, metric), pair.other.score(site, metric)
        if alone is not None and other is not None:
            found[place] = (alone, other)
    return found


def _images(site: str, pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> int | None:
    """Test images of a site in all folds; None if nobody counted them."""
    sizes = {
        pair.other.data: len(one.labels)
        for pair in pairs
        if (one := tested[str(pair.other.folder)].get(site)) is not None
    }
    return sum(sizes.values()) if sizes else None


def _row(metric: str, name: str, images: int | None, scores: Scores, folds: int | None, runs: int) -> Gain:
    alone, other = (mean_known(both[side] for both in scores.values()) for side in (0, 1))
    by_run = tuple(both[1] - both[0] for both in scores.values())
    if not by_run:
        return Gain(name, images, alone, other, verdict=UNDEFINED, left=runs)
    found = paired_t(by_run, folds=folds)
    if found is not None:
        return replace(interval_row(metric, name, images, (alone, other), found, by_run), left=runs - len(by_run))
    why = "the same in all folds" if len(by_run) > 1 else f"defined in {count(1, 'fold')} only"
    gap = mean_known(by_run)
    return Gain(name, images, alone, other, gap, by_run=by_run, verdict=f"no interval: {why}", left=runs - len(by_run))
