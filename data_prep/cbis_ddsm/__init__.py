"""CBIS-DDSM: mammography."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "cbis_ddsm",
        "medfl_datasets.cbis_ddsm.spec:CbisDdsm",
        modality="mammography",
        licence="CC BY 3.0 (The Cancer Imaging Archive, doi:10.7937/K9/TCIA.2016.7O02S9CY)",
        summary="CBIS-DDSM: mammograms with benign or malignant lesions. Nothing is downloaded.",
        synthetic="medfl_datasets.cbis_ddsm.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
