"""Who trains which network in a run between machines, and from which round on a site takes part that came later.

It is settled before the first round and stays. A site's network is, in this order: what the run names for it, what its
own file names, what its machine is good for (`medfl.engine.runs.device_profiles`), the bundle's choice. A site that was
away then may bring a network by the same ways when it comes. It takes part from the next round that begins, and
``run.json`` says so. What makes the run this run, and so its noise, does not hang on who came later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from medfl.contract import Server, State
from medfl.engine.checks import check_plan
from medfl.engine.journal import Commit, Journal
from medfl.engine.runs.device_profiles import Placed, place, place_late, place_profiles
from medfl.engine.runs.folder import begun_run
from medfl.engine.runs.machines import LIVE, Profile, check_profile
from medfl.engine.status import DIVERGED, INCOMPLETE
from medfl.engine.store import Store
from medfl.errors import MedflError, SettingsError
from medfl.records.run_file import JoinedSite, Machine, RunFile, networks_brought
from medfl.types import SERVER, Dataset
from medfl.utils.rng import pinned
from medfl_flare.backend.remote import RemoteCarrier
from medfl_flare.backend.remote_messages import Joining
from medfl_flare.offered_bundle import OfferedRun


@dataclass(frozen=True)
class Agreed:
    """Who trains what.

    Attributes:
        opened: The run with the networks of all sites.
        joined: Maps each site that joined later to its first round and the network that it brought.
        machines: Maps each site to its machine and cluster.
    """

    opened: OfferedRun
    joined: dict[str, JoinedSite] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)


def agree(
    opened: OfferedRun,
    answers: Mapping[str, Joining],
    carrier: RemoteCarrier,
    folder: Path,
    public: Callable[[], Dataset | None],
) -> Agreed:
    """Settle the networks, or go on with those of a run that has begun. A site that does not fit is left out.

    Args:
        opened: The run.
        answers: What each site that took the offer says of itself.
        carrier: Leaves sites out.
        folder: The run's folder at the server; the caller holds it.
        public: Loads the server's public training data, if it has any.

    Raises:
        SettingsError: If sites can't be put into clusters as the run asks.
        StoreError: If the folder can't be read.
    """
    unknown = {
        site: answer.network for site, answer in answers.items() if answer.network not in (None, *opened.task.networks)
    }
    for site, network in unknown.items():
        carrier.drop(site, f"its own file names the network '{network}'; the bundle has {sorted(opened.task.networks)}")
    answers = {site: answer for site, answer in answers.items() if site not in unknown}
    begun = begun_run(folder)
    if begun is None:
        return _first(opened, answers, carrier)
    return _later(opened, answers, carrier, begun, _last(folder), public)


def _first(opened: OfferedRun, answers: Mapping[str, Joining], carrier: RemoteCarrier) -> Agreed:
    """The networks of a run that begins."""
    named = opened.settings.networks_by_site
    placed, by_machine = _placed(opened, answers, carrier)
    networks = dict(by_machine)
    for site, answer in answers.items():
        if answer.network is not None and _fits(site, answer.network, named.get(site, answer.network), carrier):
            networks[site] = answer.network
    return Agreed(opened.with_networks(networks | named), {}, _machines(placed))


def _placed(
    opened: OfferedRun, answers: Mapping[str, Joining], carrier: RemoteCarrier
) -> tuple[dict[str, Placed], dict[str, str]]:
    """Sites with their clusters, and each site's network by that. A site that tells nothing of its machine gets the
    weakest cluster's network, which any machine can train."""
    capability = opened.capability
    if capability is None:
        return {}, {}
    if capability.profiles != LIVE:
        placed = place(opened.offer.sites, capability, opened.settings.seed)
        return placed, {site: spot.network for site, spot in placed.items()}
    profiles = {site: profile for site, answer in answers.items() if (profile := _profile(site, answer, carrier))}
    placed = place_profiles(profiles, capability)
    weakest = dict.fromkeys(answers, capability.networks["low"])
    return placed, weakest | {site: spot.network for site, spot in placed.items()}


def _profile(site: str, answer: Joining, carrier: RemoteCarrier) -> Profile | None:
    """What a site tells of its machine."""
    if answer.profile is None:
        return None
    try:
        return check_profile(Profile(*answer.profile), f"site '{site}'")
    except SettingsError as error:
        carrier.drop(site, str(error))
        return None


def _later(
    opened: OfferedRun,
    answers: Mapping[str, Joining],
    carrier: RemoteCarrier,
    begun: RunFile,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> Agreed:
    """The networks of a run that goes on, with those of sites that come for the first time."""
    at_start, machines = begun.settings.networks_by_site, begun.provenance.machines
    been = {site for site, facts in last.facts.items() if facts} | set(last.answers)
    joined = {site: entry for site, entry in begun.provenance.joined.items() if site in been}
    known = at_start | networks_brought(joined)
    agreed = Agreed(opened.with_networks(known | opened.settings.networks_by_site, joined), joined, machines)
    for site, answer in sorted(answers.items()):
        settled = site in known or site in been
        expected, own = known.get(site, opened.task.network), answer.network
        if settled and own is not None and not _fits(site, own, expected, carrier):
            continue
        if site not in been:
            agreed = _with(agreed, site, None if settled else answer, carrier, last, public)
    carrier.joins = {site: entry.round for site, entry in agreed.joined.items()}
    return agreed


def _with(
    agreed: Agreed,
    site: str,
    answer: Joining | None,
    carrier: RemoteCarrier,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> Agreed:
    """The same with a site that comes for the first time; without it where the method can't take its network."""
    opened, machines, network = agreed.opened, agreed.machines, None
    if answer is not None:
        network, machines = _brought(agreed, site, answer, carrier)
    joined = agreed.joined | {site: JoinedSite(round=_next_round(last), network=network)}
    wider = opened if network is None else opened.with_networks({site: network}, joined)
    try:
        if network is not None:
            _try_set_up(wider, last, public())
    except MedflError as error:
        carrier.drop(site, f"the run can't take the network '{network}' that it brings: {error}")
        return agreed
    return Agreed(replace(wider, joined=joined), joined, machines)


def _brought(
    agreed: Agreed, site: str, answer: Joining, carrier: RemoteCarrier
) -> tuple[str | None, dict[str, Machine]]:
    """The network of a site that comes later, and the machines with its own."""
    capability, machines = agreed.opened.capability, agreed.machines
    if capability is None or capability.profiles != LIVE:
        return answer.network, machines
    profile = _profile(site, answer, carrier)
    if profile is None:
        return answer.network or capability.networks["low"], machines
    spot = place_late(profile, capability, [(machine.score, machine.cluster) for machine in machines.values()])
    return answer.network or spot.network, machines | _machines({site: spot})


def _try_set_up(opened: OfferedRun, last: Commit, public: Dataset | None) -> None:
    """Set the method up with all networks, for nobody: what it refuses at the start it refuses now, too."""
    method, settings = opened.make_method(), opened.settings
    check_plan(opened.offer.method, method, opened.task, settings, opened.offer.sites, public is not None)
    with tempfile.TemporaryDirectory() as nowhere, pinned(settings.seed, SERVER, 0, "global"):
        task, store = method.task_of(opened.task), Store(Path(nowhere))
        server = Server(SERVER, 0, State(), task, settings, store, opened.offer.sites, last.facts, 0, public)
        method.setup(server)


def _fits(site: str, network: str, expected: str, carrier: RemoteCarrier) -> bool:
    if network != expected:
        carrier.drop(site, f"its own file says that it trains network '{network}'; the run expects '{expected}'")
    return network == expected


def _last(folder: Path) -> Commit:
    """The commit from which the run goes on: one that ended it early is tried again."""
    journal = Journal(folder)
    newest = journal.latest()
    if newest is None:
        return Commit()
    last = newest[1]
    if last.status in (DIVERGED, INCOMPLETE) and journal.can_go_back(last):
        return journal.at(last.step - 1)[1]
    return last


def _next_round(last: Commit) -> int:
    """The first round that is whole yet."""
    return max(last.round, last.rounds_done) + 1


def _machines(placed: Mapping[str, Placed]) -> dict[str, Machine]:
    return {site: spot.machine for site, spot in placed.items()}
