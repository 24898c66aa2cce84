"""FLamby's Fed-ISIC2019: dermoscopic images of six centres."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_isic2019",
        "medfl_datasets.flamby_isic2019.spec:FlambyISIC2019",
        modality="dermoscopy",
        licence="CC BY-NC 4.0",
        summary="FLamby's Fed-ISIC2019: skin lesions of eight classes at six centres, resized by scripts. "
        "Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_isic2019.synthetic:write_release",
        synthetic_options={"size": 12},
    ),
]
"""Data sets that this package registers."""
