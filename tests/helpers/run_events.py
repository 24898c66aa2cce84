"""Events of runs that never were, as `medfl.runs.progress` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medfl.runs.progress import PROGRESS

Event = dict[str, Any]
SITES = ("site-1", "site-2", "site-3")


def start(at: float, sites: Sequence[str] = SITES, rounds: int = 3, **more: Any) -> Event:
    facts = {"method": "fedavg", "seed": 0, "rounds": rounds, "sites": list(sites), "metric": "auc"}
    return {"t": at, "event": "start", "privacy": None, "missing": {}} | facts | more


def work(at: float, *sites: str, doing: str = "training") -> Event:
    return {"t": at, "event": "work", "sites": list(sites), "job": "step", "doing": doing}


def beat(at: float, site: str, share: float | None = 0.5, doing: str = "training") -> Event:
    return {"t": at, "event": "beat", "sites": [site], "doing": doing, "share": share, "moved": True}


def done(at: float, *sites: str) -> Event:
    return {"t": at, "event": "done", "sites": list(sites), "job": "step"}


def missing(at: float, site: str, why: str) -> Event:
    return {"t": at, "event": "missing", "site": site, "why": why}


def commit(
    at: float, round_: int, missing: Sequence[str] = (), ordered: Sequence[str] = SITES, ends: bool = True, **more: Any
) -> Event:
    """A step; the scores of the round before come with it, 0.1 for each round and a little more at each site."""
    facts: Event = {"step": round_, "round": round_, "rounds_done": round_ - (not ends)}
    there = [site for site in ordered if site not in missing]
    facts |= {"ordered": list(ordered), "missing": list(missing), "loss": 1.0 / round_}
    facts["costs"] = {site: {"seconds": 2.0, "up": 1000.0, "down": 500.0, "to_peers": 0.0} for site in there}
    if round_ > 1:
        by_site = {site: 0.1 * (round_ - 1) + 0.01 * number for number, site in enumerate(there)}
        facts |= {"scored": round_ - 1, "by_site": {"global test": by_site}}
        facts["scores"] = {"global test auc": sum(by_site.values()) / len(by_site)}
    return {"t": at, "event": "commit"} | facts | more


def end(at: float, rounds: int = 3, status: str = "finished", away: Sequence[str] = (), reason: str = "") -> Event:
    return {"t": at, "event": "end", "status": status, "reason": reason, "rounds": rounds, "away": list(away)}


def stop(at: float, error: str) -> Event:
    return {"t": at, "event": "stop", "error": error}


def write(folder: Path, events: Sequence[Event]) -> Path:
    """A run's folder with these events; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRESS).write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder
