"""MedMNIST: 18 data sets of small images."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "medmnist",
        "medfl_datasets.medmnist.spec:MedMNIST",
        modality="of many kinds",
        licence="CC BY 4.0; DermaMNIST CC BY-NC 4.0",
        summary="MedMNIST, in 2-D and 3-D and all sizes. Nothing is downloaded without --download.",
        synthetic="medfl_datasets.medmnist.synthetic:write_release",
        synthetic_options={"flag": "syntheticmnist"},
        order=0,
    ),
]
"""Data sets that this package registers."""
