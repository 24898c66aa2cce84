"""Profiles of the sites' machines, seven numbers each: synthetic, measured, or from a file."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from medfl.errors import SettingsError, pip_install
from medfl.utils.rng import make_generator

logger = logging.getLogger(__name__)

SYNTHETIC, LIVE = "synthetic", "live"
"""Sources of profiles that are no file."""


class Profile(NamedTuple):
    """Seven numbers about a machine.

    Attributes:
        cpu_mhz: Clock now.
        cpu_max_mhz: Largest clock.
        memory_free_gb: Free memory.
        memory_gb: All memory.
        battery_percent: Charge, 0 to 100; 100 for a machine on the mains.
        latency_ms: Time to the server and back.
        latency_max_ms: The latency that counts as no network at all.
    """

    cpu_mhz: float
    cpu_max_mhz: float
    memory_free_gb: float
    memory_gb: float
    battery_percent: float
    latency_ms: float
    latency_max_ms: float

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Processor, memory, battery and network, each in [0, 1]."""
        raw = (
            self.cpu_mhz / self.cpu_max_mhz,
            self.memory_free_gb / self.memory_gb,
            self.battery_percent / 100,
            1 - self.latency_ms / self.latency_max_ms,
        )
        return tuple(min(max(share, 0.0), 1.0) for share in raw)  # type: ignore[return-value]

    @property
    def facts(self) -> dict[str, float]:
        """Maps the name of each number to the number, as it is reported and recorded."""
        return {name: float(value) for name, value in self._asdict().items()}


ARCHETYPES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "workstation": ((3000, 3600), (3600, 3600), (24, 56), (64, 64), (100, 100), (1, 20), (200, 200)),
    "laptop": ((1600, 3000), (3200, 3200), (4, 10), (16, 16), (40, 100), (10, 80), (200, 200)),
    "phone": ((800, 1800), (2400, 2400), (0.5, 2.5), (6, 6), (10, 80), (40, 180), (200, 200)),
}
"""Kinds of machine of synthetic profiles: the range of each number of `Profile`."""


def find_profiles(sites: Sequence[str], where: str, seed: int) -> dict[str, Profile]:
    """Return the profile of each site.

    Args:
        sites: Names of the sites.
        where: Source of the profiles, as `medfl_methods.pfedcdp.machine_clusters.MachineClusters.profiles`.
        seed: Seed of synthetic profiles.

    Raises:
        SettingsError: If there is none for a site, or one is impossible.
    """
    if where == SYNTHETIC:
        return {site: synthetic(site, seed) for site in sites}
    if where == LIVE:
        measured = live()
        return dict.fromkeys(sites, measured)
    known = read_profiles(Path(where))
    missing = sorted(set(sites) - set(known))
    if missing:
        raise SettingsError(
            "missing_site",
            f"expected a row for every site in '{where}', got none for {missing}.",
            path=where,
            sites=missing,
        )
    return {site: known[site] for site in sites}


def synthetic(site: str, seed: int) -> Profile:
    """Draw a profile: a kind of machine, each with the same probability, and numbers uniform in its ranges."""
    rng = make_generator(seed, site, "device profile")
    which, *draws = torch.rand(1 + len(Profile._fields), generator=rng, dtype=torch.float64).tolist()
    kind = ARCHETYPES[sorted(ARCHETYPES)[int(which * len(ARCHETYPES))]]
    return Profile(*(round(low + (high - low) * draw, 3) for draw, (low, high) in zip(draws, kind, strict=True)))


def live(latency_ms: float | None = None, latency_max_ms: float = 200.0) -> Profile:
    """Measure the profile of this machine with psutil.

    A clock or battery that the system doesn't report counts as full, and a latency that is not given as 0, each with a
    warning.

    Raises:
        SettingsError: If psutil is not installed.
    """
    try:
        import psutil
    except ImportError:
        raise SettingsError(
            "missing_package",
            f"measuring this machine needs psutil: `{pip_install('devices')}`, or give profiles in a file.",
            package="psutil",
            extra="devices",
        ) from None
    clock, battery = _quietly(lambda: psutil.cpu_freq()), _quietly(lambda: psutil.sensors_battery())
    known, memory = clock is not None and clock.max > 0, psutil.virtual_memory()
    known_parts = {"clock": known, "battery": battery is not None, "latency": latency_ms is not None}
    assumed = [name for name, is_told in known_parts.items() if not is_told]
    if assumed:
        logger.warning("This machine tells no %s: assumed to be at its best.", ", ".join(assumed))
    return Profile(
        clock.current if known else 1.0,
        clock.max if known else 1.0,
        memory.available / 1e9,
        memory.total / 1e9,
        battery.percent if battery is not None else 100.0,
        latency_ms or 0.0,
        latency_max_ms,
    )


def _quietly(ask: Callable[[], Any]) -> Any:
    """Return psutil's answer, or None if this system can't give it."""
    try:
        return ask()
    except (AttributeError, NotImplementedError, OSError, RuntimeError):
        return None


def read_profiles(path: Path) -> dict[str, Profile]:
    """Read the profile of each site from a CSV file with a column ``site`` and those of `Profile`.

    Raises:
        SettingsError: If the file can't be read, lacks a column, names a site twice, or holds an impossible number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(
            "unreadable_file",
            f"expected device profiles, 'synthetic', 'live' or a CSV file, at '{path}': {error}.",
            path=path,
        ) from None
    missing = [name for name in ("site", *Profile._fields) if name not in columns]
    if missing:
        raise SettingsError(
            "missing_column",
            f"expected the columns site, {', '.join(Profile._fields)} in '{path}', got no {missing}.",
            path=path,
            columns=missing,
        )
    profiles: dict[str, Profile] = {}
    for number, row in enumerate(rows, start=2):
        if row["site"] in profiles:
            raise SettingsError(
                "duplicate_row",
                f"'{path}', line {number}: site '{row['site']}' has a profile already. Keep one.",
                path=path,
                line=number,
                site=row["site"],
            )
        profiles[row["site"]] = _checked(row, f"'{path}', line {number}")
    return profiles


def _checked(row: Mapping[str, str], where: str) -> Profile:
    try:
        numbers = {name: float(row[name]) for name in Profile._fields}
    except (TypeError, ValueError):
        raise SettingsError(
            "not_a_number",
            f"{where}: expected seven numbers, {', '.join(Profile._fields)}.",
            place=where,
            columns=Profile._fields,
        ) from None
    return read_profile(numbers, where)


def read_profile(numbers: Mapping[str, float], where: str) -> Profile:
    """Return the profile with these numbers, if it is possible.

    Args:
        numbers: Maps the name of each field of `Profile` to its value.
        where: Source of the numbers, for the message.

    Raises:
        SettingsError: If a number is missing or unknown, is not finite or below 0, or if a maximum or total is 0.
    """
    if numbers.keys() != set(Profile._fields):
        raise SettingsError(
            "wrong_names",
            f"{where}: expected exactly the numbers {', '.join(Profile._fields)}.",
            place=where,
            expected=Profile._fields,
        )
    profile = Profile(**numbers)
    whole = (profile.cpu_max_mhz, profile.memory_gb, profile.latency_max_ms)
    if not (all(math.isfinite(value) and value >= 0 for value in profile) and min(whole) > 0):
        raise SettingsError(
            "value_out_of_range",
            f"{where}: expected finite numbers >= 0, and cpu_max_mhz, memory_gb and latency_max_ms > 0.",
            place=where,
        )
    return profile
