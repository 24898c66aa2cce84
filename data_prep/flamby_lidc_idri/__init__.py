"""FLamby's Fed-LIDC-IDRI: lung nodules in CT, by the scanner's manufacturer."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_lidc_idri",
        "medfl_datasets.flamby_lidc_idri.spec:FlambyLidcIdri",
        modality="CT",
        licence="CC BY 3.0",
        summary="FLamby's Fed-LIDC-IDRI: nodules of the lung in CT of four manufacturers' scanners. "
        "Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_lidc_idri.synthetic:write_release",
        synthetic_options={"size": "16x16x16", "spacing": "1x1x1"},
    ),
]
"""Data sets that this package registers."""
