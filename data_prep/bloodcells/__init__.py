"""White blood cells: the releases of Acevedo, Matek and Bodzas, and their combination."""

from medfl.hooks import DatasetRecord

RECORDS = [
    DatasetRecord(
        "acevedo",
        "medfl_datasets.bloodcells.acevedo:Acevedo",
        modality="blood smear, light microscopy",
        licence="CC BY 4.0",
        summary="Acevedo-20: normal white blood cells. Nothing is downloaded.",
        synthetic="medfl_datasets.bloodcells.synthetic:write_acevedo",
    ),
    DatasetRecord(
        "matek",
        "medfl_datasets.bloodcells.matek:Matek",
        modality="blood smear, light microscopy",
        licence="CC BY 3.0",
        summary="Matek-19: white blood cells with leukaemia and without, in 15 classes. Nothing is downloaded.",
        synthetic="medfl_datasets.bloodcells.synthetic:write_matek",
    ),
    DatasetRecord(
        "bodzas",
        "medfl_datasets.bloodcells.bodzas:Bodzas",
        modality="blood smear, light microscopy",
        licence="CC BY 4.0",
        summary="Bodzas-23: normal and pathological white blood cells in nine classes. Nothing is downloaded.",
        synthetic="medfl_datasets.bloodcells.synthetic:write_bodzas",
    ),
    DatasetRecord(
        "bloodcells",
        "medfl_datasets.bloodcells.spec:BloodCells",
        modality="blood smear, light microscopy",
        licence="that of each release",
        summary="White blood cells of up to three releases, with one set of classes. Nothing is downloaded.",
        synthetic="medfl_datasets.bloodcells.synthetic:write_release",
        synthetic_options={
            "acevedo": "PBC_dataset_normal_DIB",
            "matek": "AML-Cytomorphology_LMU",
            "bodzas": "bodzas",
        },
    ),
]
"""Data sets that this package registers."""
