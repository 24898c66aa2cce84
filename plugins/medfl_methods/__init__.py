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
    """Return the records of network assignments, which are rules for which site trains which network."""
    return [
        NetworkAssignmentRecord(
            "machine_clusters",
            "medfl_methods.pfedcdp.machine_clusters:MachineClusters",
            "clusters of sites by the capability of their machines, each with a network of its own",
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the records of the report sections that single methods add."""
    return [
        SectionRecord("clusters", "Clusters", "medfl_methods.pfedcdp.clusters_report:ClustersSection", 150),
        SectionRecord(
            "teachers", "Teachers of the student", "medfl_methods.pfedcdp.teachers_report:TeachersSection", 200
        ),
        SectionRecord("heads", "Assignment of heads", "medfl_methods.fedsdc.heads_report:HeadsSection", 210),
        SectionRecord(
            "looks", "SHAP values of the teachers", "medfl_methods.pfedcdp.explanations_report:ExplanationsSection", 220
        ),
        SectionRecord("sharing", "Shared images", "medfl_methods.fedfed.sharing_report:SharingSection", 230),
    ]
