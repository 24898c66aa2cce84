"""Network assignments: rules that choose the network of each site before the first round.

A plugin lists its rules by the hook ``medfl_networks_by_site``. A bundle names a rule, with the rule's options, in the
argument ``network_assignment`` of `medfl.bundle.federated_run.FederatedRun`. The setting ``networks_by_site`` of a run
takes precedence over every rule.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from medfl.errors import PluginError, SettingsError
from medfl.plugins import Registry
from medfl.records.run_file import AssignedNetwork
from medfl.settings import StrictModel, read_settings

MachineFacts = Mapping[str, float]
"""Maps the name of each fact that a site reports about its machine, such as its memory, to a number."""


class NetworkAssignment(StrictModel):
    """Rule that chooses the network of each site. The fields of a subclass are options for the user.

    In a run between machines, a rule may ask the sites for facts about their machines (`asks_sites`). Such a rule must
    also implement `measure`, `check_facts`, `assign_reported` and `assign_late`.
    """

    @property
    def asks_sites(self) -> bool:
        """True if each site of a run between machines reports facts about its machine to the server."""
        return False

    @abstractmethod
    def assign(self, sites: Sequence[str], seed: int) -> dict[str, AssignedNetwork]:
        """Return the network of each site. A site that is left out trains the bundle's network.

        Args:
            sites: Names of all sites.
            seed: Seed of the run, for rules that draw at random.

        Raises:
            SettingsError: If the options don't fit the sites.
        """

    def check_between_machines(self) -> None:
        """Check that a run between machines can use these options. By default, accept them.

        Raises:
            SettingsError: If an option is not possible between machines. The message names the option.
        """

    def measure(self) -> dict[str, float]:
        """Measure and return the facts about the machine of this process."""
        raise NotImplementedError

    def check_facts(self, facts: MachineFacts, where: str) -> None:
        """Check that all facts are present, known and possible.

        Args:
            facts: Facts that a site reported, or that its administrator configured.
            where: Source of the facts, for messages.

        Raises:
            SettingsError: If a fact is missing, unknown or impossible. The message does not contain any value.
        """
        raise NotImplementedError

    def assign_reported(self, facts_by_site: Mapping[str, MachineFacts | None]) -> dict[str, AssignedNetwork]:
        """Return the network of each site, given the facts that the sites reported.

        Args:
            facts_by_site: Maps each site that takes part from the start to its facts, or None if it reports nothing.
        """
        raise NotImplementedError

    def assign_late(self, facts: MachineFacts | None, assigned: Mapping[str, AssignedNetwork]) -> AssignedNetwork:
        """Return the network of a site that joins after the start. The networks of all other sites don't change.

        Args:
            facts: Facts of the site, or None if it reports nothing.
            assigned: Maps each other site to its assigned network.
        """
        raise NotImplementedError


def read_assignment(options: Mapping[str, Any] | None, registry: Registry) -> NetworkAssignment | None:
    """Return the network assignment that a bundle or a user chose, or None without one.

    Args:
        options: Options of the rule, and its ``name``; None chooses no rule.
        registry: Registry with the rules of all plugins.

    Raises:
        PluginError: If the rule is unknown, or its class is not a `NetworkAssignment`.
        SettingsError: If there is no name, or an option is unknown or invalid.
    """
    if options is None:
        return None
    rule_options = dict(options)
    name = rule_options.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(
            "missing_setting",
            f"expected the name of a network assignment in 'network_assignment', got {name!r}. Known: "
            f"{sorted(registry.networks_by_site)}.",
            setting="network_assignment.name",
            known=sorted(registry.networks_by_site),
        )
    kind = registry.network_assignment(name)
    if not (isinstance(kind, type) and issubclass(kind, NetworkAssignment)):
        raise PluginError(
            "wrong_type",
            f"expected the network assignment '{name}' to be a class that inherits from "
            f"medfl.engine.runs.network_assignment.NetworkAssignment; got {kind!r}.",
            name=name,
            found=repr(kind),
        )
    return read_settings(kind, rule_options, f"the network assignment '{name}'", also=["name"])
