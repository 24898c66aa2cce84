"""Profiles of the sites' machines, seven numbers each: synthetic, measured, or from a file.

PFedCDP groups sites by these profiles, so that weak machines get small networks.
"""

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
"""Names of two sources of profiles. `SYNTHETIC`: drawn at random; `LIVE`: measured on this machine. The third source is
a CSV file, named by its path."""


class Profile(NamedTuple):
    """Seven numbers that describe the capability of a machine.

    Attributes:
        cpu_mhz: Current clock frequency.
        cpu_max_mhz: Maximum clock frequency.
        memory_free_gb: Free memory.
        memory_gb: Total memory.
        battery_percent: Charge of the battery, 0 to 100; 100 for a machine on mains power.
        latency_ms: Round-trip time to the server.
        latency_max_ms: Latency that counts as no network at all.
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
        """Capability of processor, memory, battery and network, in this order, each in [0, 1]; 1 is the strongest."""
        raw = (
            self.cpu_mhz / self.cpu_max_mhz,
            self.memory_free_gb / self.memory_gb,
            self.battery_percent / 100,
            1 - self.latency_ms / self.latency_max_ms,
        )
        return tuple(min(max(share, 0.0), 1.0) for share in raw)  # type: ignore[return-value]

    @property
    def facts(self) -> dict[str, float]:
        """Mapping from the name of each field to the field's number, for a site's reply and the record of a run."""
        return {name: float(value) for name, value in self._asdict().items()}


ARCHETYPES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "workstation": ((3000, 3600), (3600, 3600), (24, 56), (64, 64), (100, 100), (1, 20), (200, 200)),
    "laptop": ((1600, 3000), (3200, 3200), (4, 10), (16, 16), (40, 100), (10, 80), (200, 200)),
    "phone": ((800, 1800), (2400, 2400), (0.5, 2.5), (6, 6), (10, 80), (40, 180), (200, 200)),
}
"""Ranges of the numbers in synthetic profiles: mapping from each kind of machine to a pair (lowest, highest) for each
field of `Profile`, in the order of the fields."""


def find_profiles(sites: Sequence[str], where: str, seed: int) -> dict[str, Profile]:
    """Return a mapping from each site to the profile of its machine.

    Args:
        sites: Names of the sites.
        where: Source of the profiles. ``synthetic``: draw them at random. ``live``: measure this machine, and use its
            profile for all sites. Any other text: path of a CSV file, see `read_profiles`.
        seed: Seed of synthetic profiles.

    Raises:
        SettingsError: If a site has no profile, or a profile is invalid.
    """
    if where == SYNTHETIC:
        return {site: draw_profile(site, seed) for site in sites}
    if where == LIVE:
        measured = measure_profile()
        return dict.fromkeys(sites, measured)
    known = read_profiles(Path(where))
    missing = sorted(set(sites) - set(known))
    if missing:
        raise SettingsError(
            "missing_site",
            f"expected a row for every site in '{where}', found no row for {missing}.",
            path=where,
            sites=missing,
        )
    return {site: known[site] for site in sites}


def draw_profile(site: str, seed: int) -> Profile:
    """Draw a site's synthetic profile from the seed.

    First a kind of machine is drawn, each equally likely, then each number uniformly in that kind's range. The same
    site name and seed give the same profile.
    """
    rng = make_generator(seed, site, "device profile")
    which, *draws = torch.rand(1 + len(Profile._fields), generator=rng, dtype=torch.float64).tolist()
    kind = ARCHETYPES[sorted(ARCHETYPES)[int(which * len(ARCHETYPES))]]
    return Profile(*(round(low + (high - low) * draw, 3) for draw, (low, high) in zip(draws, kind, strict=True)))


def measure_profile(latency_ms: float | None = None, latency_max_ms: float = 200.0) -> Profile:
    """Measure the profile of this machine with psutil.

    A clock or battery that the system does not report counts as full, and a latency of None counts as 0. Each such
    assumption is logged as a warning.

    Args:
        latency_ms: Round-trip time to the server, or None if it is unknown.
        latency_max_ms: Latency that counts as no network at all.

    Raises:
        SettingsError: If psutil is not installed.
    """
    try:
        import psutil
    except ImportError:
        raise SettingsError(
            "missing_package",
            f"measuring this machine needs psutil: `{pip_install('devices')}`, or use profiles from a file.",
            package="psutil",
            extra="devices",
        ) from None
    clock, battery = _call_or_none(lambda: psutil.cpu_freq()), _call_or_none(lambda: psutil.sensors_battery())
    has_clock, memory = clock is not None and clock.max > 0, psutil.virtual_memory()
    is_reported = {"clock": has_clock, "battery": battery is not None, "latency": latency_ms is not None}
    assumed = [name for name, is_known in is_reported.items() if not is_known]
    if assumed:
        logger.warning("This machine does not report: %s. Assuming the best value.", ", ".join(assumed))
    return Profile(
        clock.current if has_clock else 1.0,
        clock.max if has_clock else 1.0,
        memory.available / 1e9,
        memory.total / 1e9,
        battery.percent if battery is not None else 100.0,
        latency_ms or 0.0,
        latency_max_ms,
    )


def _call_or_none(ask: Callable[[], Any]) -> Any:
    """Return the result of a psutil call, or None if this system does not support it."""
    try:
        return ask()
    except (AttributeError, NotImplementedError, OSError, RuntimeError):
        return None


def read_profiles(path: Path) -> dict[str, Profile]:
    """Read the profile of each site from a CSV file with a column ``site`` and the columns of `Profile`.

    Raises:
        SettingsError: If the file can't be read, lacks a column, contains a site twice, or contains an invalid number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(
            "unreadable_file",
            f"expected device profiles: 'synthetic', 'live' or the path of a CSV file; can't read '{path}': {error}.",
            path=path,
        ) from None
    missing = [name for name in ("site", *Profile._fields) if name not in columns]
    if missing:
        raise SettingsError(
            "missing_column",
            f"expected the columns site, {', '.join(Profile._fields)} in '{path}'; missing: {missing}.",
            path=path,
            columns=missing,
        )
    profiles: dict[str, Profile] = {}
    for number, row in enumerate(rows, start=2):
        if row["site"] in profiles:
            raise SettingsError(
                "duplicate_row",
                f"'{path}', line {number}: site '{row['site']}' already has a profile. Keep only one row.",
                path=path,
                line=number,
                site=row["site"],
            )
        profiles[row["site"]] = _parse_row(row, f"'{path}', line {number}")
    return profiles


def _parse_row(row: Mapping[str, str], where: str) -> Profile:
    """Return the profile in a row of the file. Raise if a number is not a number or out of range."""
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
    """Check numbers by field name, and return the profile with them.

    Args:
        numbers: Mapping from the name of each field of `Profile` to its value.
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
