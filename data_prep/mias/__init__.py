"""mini-MIAS: mammography."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "mias",
        "medfl_datasets.mias.spec:Mias",
        modality="mammography",
        licence="research only; no redistribution (see Licence.txt of the release)",
        summary="mini-MIAS: films of the breast, normal, benign or malignant. Nothing is downloaded.",
        synthetic="medfl_datasets.mias.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
