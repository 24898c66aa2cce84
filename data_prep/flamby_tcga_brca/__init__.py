"""FLamby's Fed-TCGA-BRCA: a clinical table of six regions with survival times."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "flamby_tcga_brca",
        "medfl_datasets.flamby_tcga_brca.spec:FlambyTcgaBrca",
        modality="clinical table",
        licence="open-access TCGA data under the policies of the GDC: no attempt to identify anybody",
        summary="FLamby's Fed-TCGA-BRCA: survival with breast cancer, by 39 numbers, in six regions. "
        "Nothing is downloaded.",
        synthetic="medfl_datasets.flamby_tcga_brca.synthetic:write_release",
    ),
]
"""Data sets that this package registers."""
