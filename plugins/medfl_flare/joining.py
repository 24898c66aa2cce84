"""Assignment of networks to the sites of a distributed run, also for sites that join after the run has begun.

An offer is the server's proposal of a run, with bundle, method, settings and sites. An opened run (`OfferedRun`) is an
offer together with everything that this participant built for it: task, settings and method from its own copy of the
bundle.

The networks are fixed before the first round. A site's network comes from the first of these sources that names one:
the run's setting ``networks_by_site``; the site's own file; the run's network assignment, a rule that chooses a network
for each site (`medfl.engine.runs.network_assignment`); the bundle's default. A site that was unavailable at the start
may bring a network from the same sources when it joins. It takes part from the next round that begins, which
``run.json`` records. The run's identity, and with it its noise, does not depend on sites that join later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from medfl.contract import Server, State
from medfl.engine.checks import check_plan
from medfl.engine.journal import Commit, Journal
from medfl.engine.runs.features.feature_harmonisation import check_feature_harmonisation
from medfl.engine.runs.folder import begun_run
from medfl.engine.runs.network_assignment import NetworkAssignment
from medfl.engine.status import DIVERGED, INCOMPLETE
from medfl.engine.store import Store
from medfl.errors import MedflError, SettingsError
from medfl.records.run_file import AssignedNetwork, JoinedSite, RunFile, networks_of_joined_sites
from medfl.types import SERVER, Dataset
from medfl.utils.rng import seeded_generators
from medfl_flare.backend.protocol_messages import HelloReply
from medfl_flare.backend.remote_backend import FlareBackend
from medfl_flare.offered_bundle import OfferedRun


@dataclass(frozen=True)
class AgreedNetworks:
    """Result of `agree_networks`: the opened run with the network of each site, and the origin of these networks.

    Attributes:
        opened: The opened run. Its setting ``networks_by_site`` contains each network that differs from the bundle's
            default.
        joined: Maps each site that joined after the run began to its first round and the network that it brought.
        assigned: Maps each site to the network that the run's network assignment gave it; empty without an assignment.
    """

    opened: OfferedRun
    joined: dict[str, JoinedSite] = field(default_factory=dict)
    assigned: dict[str, AssignedNetwork] = field(default_factory=dict)


def agree_networks(
    opened: OfferedRun,
    answers: Mapping[str, HelloReply],
    backend: FlareBackend,
    folder: Path,
    public: Callable[[], Dataset | None],
) -> AgreedNetworks:
    """Determine the network of each site, and drop each site whose network the run can't use.

    If the run has begun, the networks of its first sites are read from its ``run.json``; only the networks of sites
    that join now are determined.

    Args:
        opened: The opened run, as the offer describes it, before the sites' own networks are known.
        answers: Maps each site that accepted the offer to its reply, which names the network in the site's own file.
        backend: Backend of the run; its method `FlareBackend.drop` excludes a site from the run.
        folder: The run's folder at the server; the caller must hold its lock.
        public: Function that loads the server's public training data, or returns None.

    Raises:
        SettingsError: If the run's network assignment can't be applied.
        StoreError: If the folder can't be read.
    """
    unknown = {
        site: answer.network for site, answer in answers.items() if answer.network not in (None, *opened.task.networks)
    }
    for site, network in unknown.items():
        backend.exclude_site(
            site, f"its own file names the network '{network}'; the bundle has {sorted(opened.task.networks)}"
        )
    answers = {site: answer for site, answer in answers.items() if site not in unknown}
    begun = begun_run(folder)
    if begun is None:
        return _assign_at_start(opened, answers, backend)
    return _assign_later(opened, answers, backend, begun, _commit_to_continue(folder), public)


def _assign_at_start(opened: OfferedRun, answers: Mapping[str, HelloReply], backend: FlareBackend) -> AgreedNetworks:
    """Determine the networks of a run that has not begun."""
    named = opened.settings.networks_by_site
    assigned = _assign_networks(opened, answers, backend)
    networks = {site: entry.network for site, entry in assigned.items()}
    for site, answer in answers.items():
        if answer.network is not None and _check_network(
            site, answer.network, named.get(site, answer.network), backend
        ):
            networks[site] = answer.network
    return AgreedNetworks(opened.with_networks(networks | named), {}, assigned)


def _assign_networks(
    opened: OfferedRun, answers: Mapping[str, HelloReply], backend: FlareBackend
) -> dict[str, AssignedNetwork]:
    """Return the network of each site by the run's network assignment; empty without an assignment."""
    assignment = opened.assignment
    if assignment is None:
        return {}
    if not assignment.asks_sites:
        return assignment.assign(opened.offer.sites, opened.settings.seed)
    return assignment.assign_reported(
        {site: _checked_profile(site, answer, assignment, backend) for site, answer in answers.items()}
    )


def _checked_profile(
    site: str, answer: HelloReply, assignment: NetworkAssignment, backend: FlareBackend
) -> dict[str, float] | None:
    """Return the profile of a site's machine, or None if the site reports none. Drop a site with an invalid one."""
    if answer.profile is None:
        return None
    try:
        assignment.check_facts(answer.profile, f"site '{site}'")
    except SettingsError as error:
        backend.exclude_site(site, str(error))
        return None
    return answer.profile


def _assign_later(
    opened: OfferedRun,
    answers: Mapping[str, HelloReply],
    backend: FlareBackend,
    begun: RunFile,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> AgreedNetworks:
    """Determine the networks of a run that has begun, including the networks of sites that join it now."""
    at_start, assigned = begun.settings.networks_by_site, begun.provenance.assigned_networks
    been = {site for site, site_info in last.site_info.items() if site_info} | set(last.answered_steps)
    joined = {site: entry for site, entry in begun.provenance.joined.items() if site in been}
    known = at_start | networks_of_joined_sites(joined)
    agreed = AgreedNetworks(opened.with_networks(known | opened.settings.networks_by_site, joined), joined, assigned)
    for site, answer in sorted(answers.items()):
        settled = site in known or site in been
        expected, own = known.get(site, opened.task.network), answer.network
        if settled and own is not None and not _check_network(site, own, expected, backend):
            continue
        if site not in been:
            agreed = _add_site(agreed, site, None if settled else answer, backend, last, public)
    backend.joins = {site: entry.round for site, entry in agreed.joined.items()}
    return agreed


def _add_site(
    agreed: AgreedNetworks,
    site: str,
    answer: HelloReply | None,
    backend: FlareBackend,
    last: Commit,
    public: Callable[[], Dataset | None],
) -> AgreedNetworks:
    """Add a site that joins a run that has begun. Drops the site if the method can't use its network."""
    opened, assigned, network = agreed.opened, agreed.assigned, None
    if answer is not None:
        network, assigned = _network_of_late_site(agreed, site, answer, backend)
    joined = agreed.joined | {site: JoinedSite(round=_next_round(last), network=network)}
    wider = opened if network is None else opened.with_networks({site: network}, joined)
    try:
        if network is not None:
            _try_set_up(wider, last, public())
    except MedflError as error:
        backend.exclude_site(site, f"the run can't use the network '{network}' of this site: {error}")
        return agreed
    return AgreedNetworks(replace(wider, joined=joined), joined, assigned)


def _network_of_late_site(
    agreed: AgreedNetworks, site: str, answer: HelloReply, backend: FlareBackend
) -> tuple[str | None, dict[str, AssignedNetwork]]:
    """Return the network of a site that joins later, and the assigned networks including the site's."""
    assignment, assigned = agreed.opened.assignment, agreed.assigned
    if assignment is None or not assignment.asks_sites:
        return answer.network, assigned
    entry = assignment.assign_late(_checked_profile(site, answer, assignment, backend), assigned)
    return answer.network or entry.network, assigned | {site: entry}


def _try_set_up(opened: OfferedRun, last: Commit, public: Dataset | None) -> None:
    """Set up the method with all networks on a temporary store, and discard the result.

    Raises every error that the real setup would raise.
    """
    method, settings, sites = opened.make_method(), opened.settings, opened.offer.sites
    networks = check_plan(opened.offer.method, method, opened.task, settings, sites, public is not None)
    check_feature_harmonisation(opened.offer.method, method, networks, settings, {}, len(sites))
    with tempfile.TemporaryDirectory() as nowhere, seeded_generators(settings.seed, SERVER, 0, "global"):
        task, store = method.task_of(opened.task), Store(Path(nowhere))
        server = Server(SERVER, 0, State(), task, settings, store, opened.offer.sites, last.site_info, 0, public)
        method.setup(server)


def _check_network(site: str, network: str, expected: str, backend: FlareBackend) -> bool:
    """Return whether a site's own network is the expected one; drop the site if not."""
    if network != expected:
        backend.exclude_site(site, f"its own file names the network '{network}'; the run expects '{expected}'")
    return network == expected


def _commit_to_continue(folder: Path) -> Commit:
    """Return the commit from which the run continues. A commit that ended the run early is tried again."""
    journal = Journal(folder)
    newest = journal.latest()
    if newest is None:
        return Commit()
    last = newest[1]
    if last.status in (DIVERGED, INCOMPLETE) and journal.can_go_back(last):
        return journal.at(last.step - 1)[1]
    return last


def _next_round(last: Commit) -> int:
    """Return the first round that has not begun."""
    return max(last.round, last.rounds_done) + 1
