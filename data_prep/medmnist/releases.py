"""Table of the official MedMNIST release: sizes, checksums, class names and licences of its data sets.

The values come from release 3.0 (Zenodo record 10519652), as listed in the authors' package medmnist 3.0.2. Class
names are in their order; some are reworded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CITATION = (
    "Yang, J. et al.: MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image "
    "classification. Scientific Data 10, 41 (2023)."
)
"""Publication that users of the data are asked to cite."""

URL = "https://zenodo.org/records/10519652/files"
"""Address of the official files, which are named ``<flag>.npz``."""


@dataclass(frozen=True)
class MedmnistRelease:
    """Entry of one data set in the official release.

    Attributes:
        counts: Numbers of training, validation and test images.
        modality: Imaging modality.
        labels: Names of the classes, by their numbers from 0; names of the findings if `multi_label`.
        md5: Maps the image edge in pixels to the checksum of the file with images of that size.
        licence: Terms of use.
        multi_label: Whether an image has a label (absent or present) for each of several findings.
    """

    counts: tuple[int, int, int]
    modality: str
    labels: tuple[str, ...]
    md5: Mapping[int, str]
    licence: str = "CC BY 4.0"
    multi_label: bool = False


def split_flag(flag: str) -> tuple[str, int]:
    """Split a flag, such as ``bloodmnist_64``, into data set (``bloodmnist``) and image edge (64, by default 28)."""
    head, _, side = flag.rpartition("_")
    return (head, int(side)) if head and side.isdecimal() else (flag, 28)


def find_release(flag: str) -> MedmnistRelease | None:
    """Return the official entry of a flag (name of a data set, with or without a size suffix); None if unknown."""
    return RELEASES.get(split_flag(flag)[0])


def _release(
    counts: tuple[int, int, int],
    modality: str,
    labels: str,
    md5: str,
    licence: str = "CC BY 4.0",
    multi_label: bool = False,
) -> MedmnistRelease:
    """Make an entry of the table.

    Args:
        counts: Numbers of training, validation and test images.
        modality: Imaging modality.
        labels: Names of the classes, separated by ``|``.
        md5: Checksums for the edges 28, 64, 128 and 224, separated by blanks; 3-D data sets have only the first two.
        licence: Terms of use.
        multi_label: Whether an image has several labels.
    """
    sums = dict(zip((28, 64, 128, 224), md5.split(), strict=False))
    return MedmnistRelease(counts, modality, tuple(labels.split("|")), sums, licence, multi_label)


_ORGANS = "bladder|femur-left|femur-right|heart|kidney-left|kidney-right|liver|lung-left|lung-right|pancreas|spleen"

RELEASES: Mapping[str, MedmnistRelease] = {
    "pathmnist": _release(
        (89996, 10004, 7180),
        "colon pathology",
        "adipose|background|debris|lymphocytes|mucus|smooth muscle|normal colon mucosa|"
        "cancer-associated stroma|colorectal adenocarcinoma epithelium",
        "a8b06965200029087d5bd730944a56c1"
        " 55aa9c1e0525abe5a6b9d8343a507616"
        " ac42d08fb904d92c244187169d1fd1d9"
        " 2c51a510bcdc9cf8ddb2af93af1eadec",
    ),
    "chestmnist": _release(
        (78468, 11219, 22433),
        "chest X-ray",
        "atelectasis|cardiomegaly|effusion|infiltration|mass|nodule|pneumonia|pneumothorax|consolidation|edema|"
        "emphysema|fibrosis|pleural|hernia",
        "02c8a6516a18b556561a56cbdd36c4a8"
        " 9de6cd0b934ebb5b7426cfba5efbae16"
        " db107e5590b27930b62dbaf558aebee3"
        " 45bd33e6f06c3e8cdb481c74a89152aa",
        multi_label=True,
    ),
    "dermamnist": _release(
        (7007, 1003, 2005),
        "dermatoscope",
        "actinic keratoses and intraepithelial carcinoma|basal cell carcinoma|"
        "benign keratosis-like lesions|dermatofibroma|melanoma|melanocytic nevi|vascular lesions",
        "0744692d530f8e62ec473284d019b0c7"
        " b70a2f5635c6199aeaa28c31d7202e1f"
        " 2defd784463fa5243564e855ed717de1"
        " 8974907d8e169bef5f5b96bc506ae45d",
        licence="CC BY-NC 4.0",
    ),
    "octmnist": _release(
        (97477, 10832, 1000),
        "retinal OCT",
        "choroidal neovascularization|diabetic macular edema|drusen|normal",
        "c68d92d5b585d8d81f7112f81e2d0842"
        " e229e9440236b774d9f0dfef9d07bdaf"
        " 0a97e76651ace45c5d943ee3f65b63ae"
        " abc493b6d529d5de7569faaef2773ba3",
    ),
    "pneumoniamnist": _release(
        (4708, 524, 624),
        "chest X-ray",
        "normal|pneumonia",
        "28209eda62fecd6e6a2d98b1501bb15f"
        " 8f4eceb4ccffa70c672198ea285246c6"
        " 05b46931834c231683c68f40c47b2971"
        " d6a3c71de1b945ea11211b03746c1fe1",
    ),
    "retinamnist": _release(
        (1080, 120, 400),
        "fundus camera",
        "grade 0|grade 1|grade 2|grade 3|grade 4",
        "bd4c0672f1bba3e3a89f0e4e876791e4"
        " afda852cc34dcda56f86ad2b2457dbcc"
        " e48e916a24454daf90583d4e6efb1a18"
        " eae7e3b6f3fcbda4ae613ebdcbe35348",
    ),
    "breastmnist": _release(
        (546, 78, 156),
        "breast ultrasound",
        "malignant|normal or benign",
        "750601b1f35ba3300ea97c75c52ff8f6"
        " 742edef2a1fd1524b2efff4bd7ba9364"
        " 363e4b3f8d712e9b5de15470a2aaadf1"
        " b56378a6eefa9fed602bb16d192d4c8b",
    ),
    "bloodmnist": _release(
        (11959, 1712, 3421),
        "blood cell microscope",
        "basophil|eosinophil|erythroblast|immature granulocyte|lymphocyte|monocyte|neutrophil|platelet",
        "7053d0359d879ad8a5505303e11de1dc"
        " 2b94928a2ae4916078ca51e05b6b800b"
        " adace1e0ed228fccda1f39692059dd4c"
        " b718ff6835fcbdb22ba9eacccd7b2601",
    ),
    "tissuemnist": _release(
        (165466, 23640, 47280),
        "kidney cortex microscope",
        "collecting duct or connecting tubule|distal convoluted tubule|glomerular endothelial cells|interstitial "
        "endothelial cells|leukocytes|podocytes|proximal tubule segments|thick ascending limb",
        "ebe78ee8b05294063de985d821c1c34b"
        " 123ece2eba09d0aa5d698fda57103344"
        " 61b955355d7425a89687b06cca3ce0c2"
        " b077128c4a949f0a4eb01517f9037b9c",
    ),
    "organamnist": _release(
        (34561, 6491, 17778),
        "abdominal CT",
        _ORGANS,
        "68e3f8846a6bd62f0c9bf841c0d9eacc"
        " 2dcccc29b88e6da5a01161ef20cda288"
        " eeae80d0a227a8d099027e1b3cfd3b60"
        " 50747347e05c87dd3aaf92c49f9f3170",
    ),
    "organcmnist": _release(
        (12975, 2392, 8216),
        "abdominal CT",
        _ORGANS,
        "b9ceb9546e10131b32923c5bbeaea2b1"
        " 3ce34a8724ea6f548e6db4744d03b6a9"
        " 773c1f009daa3fe5d9a2a201b2a7ed94"
        " 050f5e875dc056f6768abf94ec9995d1",
    ),
    "organsmnist": _release(
        (13932, 2452, 8827),
        "abdominal CT",
        _ORGANS,
        "9ab87b696fb54e2a387ebe992d6ed5f1"
        " 53a6d115339d874c25e309a994ff46d3"
        " ded0c5fa01a95dc4978b956f613e9b8e"
        " b354719e553fbbb2513d5533f52a4cb1",
    ),
    "organmnist3d": _release(
        (971, 161, 610),
        "abdominal CT",
        "liver|kidney-right|kidney-left|femur-right|femur-left|bladder|heart|lung-right|lung-left|spleen|pancreas",
        "a0c5a1ff56af4f155c46d46fbb45a2fe 58a2205adf14a9d0a189cb06dc78bf10",
    ),
    "nodulemnist3d": _release(
        (1158, 165, 310),
        "chest CT",
        "benign|malignant",
        "8755a7e9e05a4d9ce80a24c3e7a256f3 c47c5b7d457bf6332200d2ea6d64ecd8",
    ),
    "adrenalmnist3d": _release(
        (1188, 98, 298),
        "abdominal CT",
        "normal|hyperplasia",
        "bbd3c5a5576322bc4cdfea780653b1ce 17721accfe9fb005146a47d33bc54b2f",
    ),
    "fracturemnist3d": _release(
        (1027, 103, 240),
        "chest CT",
        "buckle rib fracture|nondisplaced rib fracture|displaced rib fracture",
        "6aa7b0143a6b42da40027a9dda61302f f01d7e6316aedf4210da0da5b7437b42",
    ),
    "vesselmnist3d": _release(
        (1335, 191, 382),
        "brain MRA",
        "vessel|aneurysm",
        "b41fd4f7e7e2feedddb201585ecafa1b 6bb274a8846e1097066dcd64e2c4520f",
    ),
    "synapsemnist3d": _release(
        (1230, 177, 352),
        "electron microscope",
        "inhibitory synapse|excitatory synapse",
        "1235b78a3cd6280881dd7850a78eadb6 43bd14ebf3af9d3dd072446fedc14d5e",
    ),
}
"""Maps each flag (name of a data set, without the suffix of a size) to its official entry."""
