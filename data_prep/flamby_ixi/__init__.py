"""FLamby's Fed-IXI: small brain volumes of three hospitals, with brain masks."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_ixi",
        "medfl_datasets.flamby_ixi.spec:FlambyIXI",
        modality="T1-weighted MRI",
        licence="CC BY-SA 3.0",
        summary="FLamby's Fed-IXI (IXI Tiny): the brain in T1 volumes of three hospitals. Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_ixi.synthetic:write_release",
        synthetic_options={"size": "6x8x6"},
    ),
]
"""Data sets that this package registers."""
