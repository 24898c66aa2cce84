"""Who takes part in a round."""

from __future__ import annotations

import torch


def participants(candidates: int, fraction: float) -> int:
    """How many of K candidates take part in a round: max(1, floor(fraction * K)); 0 of none (rule G-3)."""
    return max(1, int(fraction * candidates + 1e-9)) if candidates else 0  # 0.1 * 30 is 3, whatever floating point says


def sample(names: list[str], fraction: float, generator: torch.Generator) -> list[str]:
    """`participants` of the names without replacement (rule G-3).

    Args:
        names: Candidates, sorted as strings.
        fraction: In (0, 1]; 1 means all of them.
        generator: Keyed by (seed, "participation", round), so that all methods share one schedule.

    Returns:
        The chosen names, sorted; empty if there is no candidate.
    """
    if not names:
        return []
    chosen = torch.randperm(len(names), generator=generator)[: participants(len(names), fraction)]
    return sorted(names[index] for index in chosen.tolist())
