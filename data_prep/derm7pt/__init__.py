"""Derm7pt: dermoscopic and clinical images of skin lesions."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "derm7pt",
        "medfl_datasets.derm7pt.spec:Derm7pt",
        modality="dermoscopy or clinical photograph",
        licence="academic research only; the images may not be redistributed (see README.txt of the release)",
        summary="Derm7pt: skin lesions in five groups. Nothing is downloaded.",
        synthetic="medfl_datasets.derm7pt.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
