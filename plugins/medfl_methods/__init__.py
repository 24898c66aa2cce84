"""Federated learning methods that come with medfl, registered through the same entry point as any other plugin.

Each method is one module or one package. ``python -m medfl.testing.method_index medfl_methods`` writes ``index.json``
from the classes, so listing the methods does not import them.
"""

from __future__ import annotations

from pathlib import Path

from medfl.plugins import MethodRecord, NetworkAssignmentRecord, SectionRecord, hookimpl, read_method_index


@hookimpl
def medfl_methods() -> list[MethodRecord]:
    """Return the records of all methods in this package."""
    return read_method_index(Path(__file__).with_name("index.json"))


@hookimpl
def medfl_networks_by_site() -> list[NetworkAssignmentRecord]:
    """Return the records of rules that assign a network to each site."""
    return [
        NetworkAssignmentRecord(
            "machine_clusters",
            "medfl_methods.pfedcdp.machine_clusters:MachineClusters",
            "clusters of sites by the capability of their machines, each with a network of its own",
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the report sections that single methods add."""
    return [
        SectionRecord("clusters", "Clusters", "medfl_methods.pfedcdp.report_clusters:ClustersSection", 150),
        SectionRecord("teachers", "Teachers of the student", "medfl_methods.pfedcdp.report:TeachersSection", 200),
        SectionRecord("heads", "Who held which head", "medfl_methods.fedsdc.report:HeadsSection", 210),
        SectionRecord(
            "looks", "What the teachers look at", "medfl_methods.pfedcdp.report_explanations:LooksSection", 220
        ),
        SectionRecord("sharing", "What was shared", "medfl_methods.fedfed.report:SharingSection", 230),
    ]
