"""HAM10000: dermoscopic images of skin lesions."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "ham10000",
        "medfl_datasets.ham10000.spec:HAM10000",
        modality="dermoscopy",
        licence="CC BY-NC 4.0",
        summary="HAM10000: dermoscopic images of skin lesions in seven classes, from Kaggle or Dataverse. Nothing is "
        "downloaded.",
        synthetic="medfl_datasets.ham10000.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
