"""Settings of methods that save time without leaving out a part of the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUICK: Mapping[str, Mapping[str, Any]] = {
    "feddf": {"distil_steps": 3},
    "fedfed": {"distil_rounds": 1, "width": 2},
    "fedkf": {"noise_dim": 8, "width": 4},
    "fedmd": {"public_epochs": 1, "private_epochs": 1},
    "fedskd": {"p2p_scale": 1},
    "fedsm": {"selector_width": 2},
    "fedtgp": {"server_epochs": 5},
    "fedtpf": {"distil_rounds": 1, "width": 2},
    "isfl": {"probe": 3},
    "moon": {"proj_dim": 3},
    "pfedcdp": {"refine": {"epochs": 2, "probe_epochs": 1}},
}
"""Maps methods to their settings in tests of all methods."""
