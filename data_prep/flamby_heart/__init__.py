"""FLamby's Fed-Heart-Disease: clinical tables of four hospitals."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_heart",
        "medfl_datasets.flamby_heart.spec:FlambyHeart",
        modality="clinical table",
        licence="CC BY 4.0",
        summary="FLamby's Fed-Heart-Disease: heart disease or none, by 13 numbers, at four hospitals. "
        "Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_heart.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
