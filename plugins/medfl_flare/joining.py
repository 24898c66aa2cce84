"""Who trains which network in a run between machines, and from which round on a site takes part that came later.

It is settled before the first round and stays. A site's network is, in this order: what the run names for it, what its
own file names, what the run's network assignment gives it (`medfl.engine.runs.network_assignment`), the bundle's
choice. A site that was away then may bring a network by the same ways when it comes. It takes part from the next round
that begins, and ``run.json`` says so. What makes the run this run, and so its noise, does not hang on who came later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from medfl.contract import Server, State
from medfl.engine.checks import check_plan
from medfl.engine.journal import Commit, Journal
from medfl.engine.runs.folder import begun_run
from medfl.engine.runs.network_assignment import NetworkAssignment
from medfl.engine.status import DIVERGED, INCOMPLETE
from medfl.engine.store import Store
from medfl.errors import MedflError, SettingsError
from medfl.records.run_file import AssignedNetwork, JoinedSite, RunFile, networks_brought
from medfl.types import SERVER, Dataset
from medfl.utils.rng import pinned
from medfl_flare.backend.remote import FlareBackend
from medfl_flare.backend.remote_messages import Joining
from medfl_flare.offered_bundle import OfferedRun


@dataclass(frozen=True)
class Agreed:
    """Who trains what.

    Attributes:
        opened: The run with the networks of all sites.
        joined: Maps each site that joined later to its first round and the network that it brought.
        assigned: Maps each site to the network that the run's network assignment gave it.
    """

    opened: OfferedRun
    joined: dict[str, JoinedSite] = field(default_factory=dict)
    assigned: dict[str, AssignedNetwork] = field(default_factory=dict)


def agree(
    opened: OfferedRun,
    answers: Mapping[str, Joining],
    backend: FlareBackend,
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
        SettingsError: If the run's network assignment can't be applied.
        StoreError: If the folder can't be read.
    """
    unknown = {
        site: answer.network for site, answer in answers.items() if answer.network not in (None, *opened.task.networks)
    }
    for site, network in unknown.items():
        backend.drop(site, f"its own file names the network '{network}'; the bundle has {sorted(opened.task.networks)}")
    answers = {site: answer for site, answer in answers.items() if site not in unknown}
    begun = begun_run(folder)
    if begun is None:
        return _first(opened, answers, backend)
    return _later(opened, answers, backend, begun, _last(folder), public)


def _first(opened: OfferedRun, answers: Mapping[str, Joining], backend: FlareBackend) -> Agreed:
    """The networks of a run that begins."""
    named = opened.settings.networks_by_site
    assigned = _assigned(opened, answers, backend)
    networks = {site: entry.network for site, entry in assigned.items()}
    for site, answer in answers.items():
        if answer.network is not None and _fits(site, answer.network, named.get(site, answer.network), backend):
            networks[site] = answer.network
    return Agreed(opened.with_networks(networks | named), {}, assigned)


def _assigned(opened: OfferedRun, answers: Mapping[str, Joining], backend: FlareBackend) -> dict[str, AssignedNetwork]:
    """Return the network of each site by the run's network assignment; empty without one."""
    assignment = opened.assignment
    if assignment is None:
        return {}
    if not assignment.asks_sites:
        return assignment.assign(opened.offer.sites, opened.settings.seed)
    return assignment.assign_reported(
        {site: _profile(site, answer, assignment, backend) for site, answer in answers.items()}
    )


def _profile(
    site: str, answer: Joining, assignment: NetworkAssignment, backend: FlareBackend
) -> dict[str, float] | None:
    """Return the facts that a site reports about its machine, if any. A site with impossible facts is left out."""
    if answer.profile is None:
        return None
    try:
        assignment.check_facts(answer.profile, f"site '{site}'")
    except SettingsError as error:
        backend.drop(site, str(error))
        return None
    return answer.profile


def _later(
    opened: OfferedRun,
    answers: Mapping[str, Joining],
    backend: FlareBackend,
    begun: RunFile,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> Agreed:
    """The networks of a run that goes on, with those of sites that come for the first time."""
    at_start, assigned = begun.settings.networks_by_site, begun.provenance.assigned_networks
    been = {site for site, site_info in last.site_info.items() if site_info} | set(last.answered_steps)
    joined = {site: entry for site, entry in begun.provenance.joined.items() if site in been}
    known = at_start | networks_brought(joined)
    agreed = Agreed(opened.with_networks(known | opened.settings.networks_by_site, joined), joined, assigned)
    for site, answer in sorted(answers.items()):
        settled = site in known or site in been
        expected, own = known.get(site, opened.task.network), answer.network
        if settled and own is not None and not _fits(site, own, expected, backend):
            continue
        if site not in been:
            agreed = _with(agreed, site, None if settled else answer, backend, last, public)
    backend.joins = {site: entry.round for site, entry in agreed.joined.items()}
    return agreed


def _with(
    agreed: Agreed,
    site: str,
    answer: Joining | None,
    backend: FlareBackend,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> Agreed:
    """The same with a site that comes for the first time; without it where the method can't take its network."""
    opened, assigned, network = agreed.opened, agreed.assigned, None
    if answer is not None:
        network, assigned = _brought(agreed, site, answer, backend)
    joined = agreed.joined | {site: JoinedSite(round=_next_round(last), network=network)}
    wider = opened if network is None else opened.with_networks({site: network}, joined)
    try:
        if network is not None:
            _try_set_up(wider, last, public())
    except MedflError as error:
        backend.drop(site, f"the run can't take the network '{network}' that it brings: {error}")
        return agreed
    return Agreed(replace(wider, joined=joined), joined, assigned)


def _brought(
    agreed: Agreed, site: str, answer: Joining, backend: FlareBackend
) -> tuple[str | None, dict[str, AssignedNetwork]]:
    """Return the network of a site that comes later, and the assigned networks with that of the site."""
    assignment, assigned = agreed.opened.assignment, agreed.assigned
    if assignment is None or not assignment.asks_sites:
        return answer.network, assigned
    entry = assignment.assign_late(_profile(site, answer, assignment, backend), assigned)
    return answer.network or entry.network, assigned | {site: entry}


def _try_set_up(opened: OfferedRun, last: Commit, public: Dataset | None) -> None:
    """Set the method up with all networks, for nobody: what it refuses at the start it refuses now, too."""
    method, settings = opened.make_method(), opened.settings
    check_plan(opened.offer.method, method, opened.task, settings, opened.offer.sites, public is not None)
    with tempfile.TemporaryDirectory() as nowhere, pinned(settings.seed, SERVER, 0, "global"):
        task, store = method.task_of(opened.task), Store(Path(nowhere))
        server = Server(SERVER, 0, State(), task, settings, store, opened.offer.sites, last.site_info, 0, public)
        method.setup(server)


def _fits(site: str, network: str, expected: str, backend: FlareBackend) -> bool:
    if network != expected:
        backend.drop(site, f"its own file says that it trains network '{network}'; the run expects '{expected}'")
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
