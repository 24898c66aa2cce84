"""Breast ultrasound: lesions of BUS-BRA and BrEaST with masks, in one folder."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "breast_ultrasound",
        "medfl_datasets.breast_ultrasound.spec:BreastUltrasound",
        modality="breast ultrasound",
        licence="BrEaST: CC BY 4.0; BUS-BRA: free to use and distribute, cite the paper and keep the notice",
        summary="BUS-BRA and BrEaST in one folder: masks, or benign and malignant, at five sources. Nothing is "
        "downloaded.",
        synthetic="medfl_datasets.breast_ultrasound.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
