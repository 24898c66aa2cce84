"""FLamby's Fed-KiTS19: kidneys and their tumours in CT of six sites."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_kits19",
        "medfl_datasets.flamby_kits19.spec:FlambyKiTS19",
        modality="CT",
        licence="CC BY-NC-SA 4.0",
        summary="FLamby's Fed-KiTS19: kidneys and their tumours in CT of six sites. Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_kits19.synthetic:write_release",
        synthetic_options={"size": "16x16x16", "spacing": "2x2x4"},
    ),
]
"""Data sets that this package registers."""
