"""Who takes part in a round."""

from __future__ import annotations

import torch


def sample(names: list[str], fraction: float, generator: torch.Generator) -> list[str]:
    """max(1, floor(fraction * K)) of K names without replacement (rule G-3).

    Args:
        names: Candidates, sorted as strings.
        fraction: In (0, 1]; 1 means all of them.
        generator: Keyed by (seed, "participation", round), so that all methods share one schedule.

    Returns:
        The chosen names, sorted; empty if there is no candidate.
    """
    if not names:
        return []
    count = max(1, int(fraction * len(names) + 1e-9))  # 0.1 * 30 is 3, whatever floating point says
    chosen = torch.randperm(len(names), generator=generator)[:count]
    return sorted(names[index] for index in chosen.tolist())
