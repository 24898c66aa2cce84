"""The networks and partitions that come with medfl, registered as any other plugin registers its own."""

from __future__ import annotations

from medfl.plugins import NetworkRecord, PartitionRecord, hookimpl


@hookimpl
def medfl_networks() -> list[NetworkRecord]:
    """Networks of `medfl.networks`."""
    return [NetworkRecord("cnn4", "medfl.networks.cnn:CNN4", "a small convolutional network for small images")]


@hookimpl
def medfl_partitions() -> list[PartitionRecord]:
    """Partitions of `medfl.partition`."""
    return [
        PartitionRecord("iid", "medfl.partition.iid:iid", "every site gets a random share of the same kind"),
        PartitionRecord(
            "dirichlet_class_balanced",
            "medfl.partition.dirichlet_class_balanced:dirichlet_class_balanced",
            "unlike shares of the classes, drawn from a Dirichlet distribution",
        ),
    ]
