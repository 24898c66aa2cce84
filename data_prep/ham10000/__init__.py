"""HAM10000: dermoscopy."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "ham10000",
        "medfl_datasets.ham10000.spec:HAM10000",
        modality="dermoscopy",
        licence="CC BY-NC 4.0",
        summary="HAM10000: dermoscopic images of skin lesions in seven classes, from Kaggle or Dataverse. Nothing is "
        "downloaded.",
        phantom="medfl_datasets.ham10000.phantom:write_release",
    ),
]
"""What this folder brings."""
