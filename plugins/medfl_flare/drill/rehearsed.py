"""The server's part of a drill: a run of two rounds with one site, by the code of any run, in a temporary folder."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from medfl.contract import Capability, Method
from medfl.errors import RefusedError
from medfl.plugins import Registry, load_plugins
from medfl.types import Meta
from medfl.utils.wire import Blob
from medfl_flare.backend.message_checks import Limits
from medfl_flare.backend.remote_progress import Progress
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import facts_in
from medfl_flare.records.offer import Offer
from medfl_flare.server import serve
from medfl_flare.sites.file import SiteBundle, SiteFile

ROUNDS, STEPS = 2, 4
"""Of a drill's run, and the batches of a round."""


class OneSite:
    """The only site, as a `medfl_flare.backend.remote.Transport`.

    Args:
        exchange: Brings a message to the site and its answer back.
    """

    def __init__(self, exchange: Callable[[bytes], bytes]) -> None:
        self._exchange = exchange

    def listen(self, hear: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        """Nobody sends heartbeats."""

    def ask(self, requests: Mapping[str, Blob], patience: float, take: Callable[[str, Blob], None]) -> dict[str, str]:
        """As `Transport.ask`; who ends a drill ends the process that waits here."""
        for site, blob in requests.items():
            take(site, self._exchange(bytes(blob)))
        return {}


def rehearse(
    site_file: SiteFile, site: str, bundle: str, methods: list[str], exchange: Callable[[bytes], bytes]
) -> Meta:
    """Run the server's side of a drill.

    Args:
        site_file: The server's own file; its bundle and limits hold, its data and state are not touched.
        site: Who drills.
        bundle: Which bundle.
        methods: What may run at the site.
        exchange: Brings a message to the site and its answer back.

    Returns:
        How it ended: ``state``, ``message``, ``missing`` and ``rounds``.

    Raises:
        MedflError: If the server has no such bundle, or no method in common with the site.
    """
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="medfl-drill-") as folder:
        own = without_data(site_file, Path(folder)).model_copy(update={"device": "cpu"})
        serve(make_drill_offer(own, site, bundle, methods), own, OneSite(exchange), progress)
    return {
        "state": progress.state,
        "message": progress.message,
        "missing": dict(progress.missing),
        "rounds": progress.round,
    }


def without_data(site_file: SiteFile, state: Path, data: Path | None = None) -> SiteFile:
    """A participant's file for a drill: its limits and bundles, and nothing that is real.

    Args:
        site_file: The file.
        state: Takes the place of its folder of state.
        data: Takes the place of the data of all bundles; None at the server.
    """
    bundles = {
        name: entry.model_copy(update={"data": data, "allow_changes": ()}) for name, entry in site_file.bundles.items()
    }
    nothing_real = {"bundles": bundles, "state": state, "privacy": None, "cache_dir": None}
    return site_file.model_copy(update=nothing_real)


def make_drill_offer(site_file: SiteFile, site: str, bundle: str, methods: list[str]) -> Offer:
    """The run of a drill.

    Raises:
        RefusedError: If the server has no such bundle, or no method in common with the site.
    """
    entry, registry = site_file.bundle(bundle), load_plugins()
    method = _choose(registry, [name for name in methods if name in site_file.methods])
    if method is None:
        raise RefusedError(
            "no_common_method",
            f"no method in common for a drill with one site: the site allows {', '.join(sorted(methods)) or 'none'}, "
            f"the server {', '.join(sorted(site_file.methods)) or 'none'} (methods whose sites send to each other need "
            "more sites); add one to 'methods' at both",
            site_methods=sorted(methods),
            server_methods=sorted(site_file.methods),
        )
    facts = facts_in(SiteBundle(entry.folder), entry.folder / "no-data")
    overrides = facts | {"method": method, "rounds": ROUNDS, "steps": STEPS}
    run = f"drill-{secrets.token_hex(4)}"
    offer = make_offer(entry.folder, overrides, run, [site], registry=registry, given_by=f"drill of {site}")
    return Offer.from_meta(offer.to_json() | {"bundle": bundle})


def _choose(registry: Registry, names: list[str]) -> str | None:
    """The first method that one site can run alone, one that sends something if there is any."""
    kinds: dict[str, type[Method]] = {name: registry.method_class(name) for name in names}
    alone = [
        name
        for name, kind in kinds.items()
        if Capability.PEER_MESSAGES not in kind.supports and "pooled_data" not in kind.needs
    ]
    return next((name for name in alone if kinds[name].sends), next(iter(alone), None))
