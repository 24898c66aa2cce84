"""ABIDE I: functional MRI of people with autism and controls."""

from medfl.hooks import DatasetRecord, SectionRecord

RECORDS = [
    DatasetRecord(
        "abide",
        "medfl_datasets.abide.spec:Abide",
        modality="functional magnetic resonance imaging at rest, derivative maps",
        licence="CC BY-NC-SA 3.0, non-commercial research",
        summary="ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) "
        "has them.",
        synthetic="medfl_datasets.abide.synthetic:write_release",
        synthetic_options={"derivatives": ("reho", "lfcd"), "size": 8},
    ),
]
"""Data sets that this package registers."""

SECTIONS = [SectionRecord("atlas", "Regions of the atlas", "medfl_datasets.abide.report:AtlasSection", 320)]
"""Sections of the report that this package registers."""
