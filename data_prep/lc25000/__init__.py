"""LC25000: histology images of lung and colon tissue."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "lc25000",
        "medfl_datasets.lc25000.spec:LC25000",
        modality="histology, light microscopy",
        licence="offered for free download to researchers by its authors; for terms see the release",
        summary="LC25000: lung and colon tissue, benign or cancer. Nothing is downloaded.",
        synthetic="medfl_datasets.lc25000.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
