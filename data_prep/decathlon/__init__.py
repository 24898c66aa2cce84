"""Medical Segmentation Decathlon: volumes with masks, and other data in the layout of its tasks."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "decathlon",
        "medfl_datasets.decathlon.spec:Decathlon",
        modality="CT or MRI",
        licence="as its dataset.json says; CC BY-SA 4.0 for the ten tasks",
        summary="A task of the Medical Segmentation Decathlon: volumes with masks in one orientation. Nothing is "
        "downloaded.",
        synthetic="medfl_datasets.decathlon.synthetic:write_release",
        synthetic_options={"size": "16x16x16"},
    ),
]
"""Data sets that this package registers."""
