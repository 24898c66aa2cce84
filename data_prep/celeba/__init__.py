"""CelebA: photographs of faces."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "celeba",
        "medfl_datasets.celeba.spec:CelebA",
        modality="photographs of faces",
        licence="non-commercial research only; images may not be passed on",
        summary="CelebA: faces with any of 40 attributes as label. Nothing is downloaded.",
        synthetic="medfl_datasets.celeba.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
