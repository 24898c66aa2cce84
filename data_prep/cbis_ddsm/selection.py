"""Select the images of CBIS-DDSM that are used, with their label and split.

- **Images.** View ``full``: one image for each patient, side and view. The release contains 71 films twice, once for
  their masses and once for their calcifications; the first copy that has a file is used. View ``crop``: one image for
  each lesion.
- **Labels.** Benign or malignant; "benign without callback" is benign, or a class of its own. The worst of all lesions
  in one film decides, in whichever table they are: malignant before benign before benign without callback.
- **Split.** The official one. Masses and calcifications were split separately, so that 31 patients are in the training
  part of one kind and in the test part of the other. If both kinds are used, the training images of these patients are
  excluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from medfl_datasets.cbis_ddsm.tables import LESION_KINDS, PATHOLOGIES, Lesion

TWO_CLASSES = ("benign", "malignant")
"""Class names if "benign without callback" counts as benign."""

THREE_CLASSES = ("benign without callback", "benign", "malignant")
"""Class names if "benign without callback" is a class of its own; in the order of
`medfl_datasets.cbis_ddsm.tables.PATHOLOGIES`."""

PATIENT_IN_TEST_PART = "the patient is in the official test part of the other kind of lesion"
"""Exclusion reason of training images whose patient also has test images."""


@dataclass(frozen=True)
class CbisImage:
    """Image of the data set: a film or the crop of a lesion.

    Attributes:
        lesions: Lesions in the image, in the order of the tables; one for a crop.
        crop: Whether the image is the crop of a lesion.
    """

    lesions: tuple[Lesion, ...]
    crop: bool

    @property
    def patient(self) -> str:
        """Pseudonym of the patient in the release."""
        return self.lesions[0].patient

    @property
    def split(self) -> str:
        """Split of the image: ``training`` or ``test``."""
        return "test" if any(lesion.split == "test" for lesion in self.lesions) else "training"

    @property
    def name(self) -> str:
        """Name of the image for messages: patient, side and view, for crops also kind and number of the lesion."""
        first = self.lesions[0]
        return " ".join((*first.breast_view, *((first.kind, first.number) if self.crop else ())))

    def label(self, three: bool) -> int:
        """Return the class number of the worst lesion, in `THREE_CLASSES` if `three`, otherwise in `TWO_CLASSES`."""
        worst = max(PATHOLOGIES.index(lesion.pathology) for lesion in self.lesions)
        return worst if three else int(worst == 2)

    def about(self) -> dict[str, str | int]:
        """Return the metadata that the data list keeps beside label and patient.

        Returns:
            Dictionary with ``laterality``, ``view``, ``abnormality`` and ``density``, for crops also ``lesion``.
        """
        first = self.lesions[0]
        kinds = dict.fromkeys(LESION_KINDS[lesion.kind] for lesion in self.lesions)
        entries: dict[str, str | int] = {
            "laterality": first.side.lower(),
            "view": first.view,
            "abnormality": "+".join(kinds),
            "density": next((lesion.density for lesion in self.lesions if lesion.density), 0),
        }
        return entries | ({"lesion": first.number} if self.crop else {})


@dataclass(frozen=True)
class CbisSelection:
    """Selected images, and the numbers to report about the selection.

    Attributes:
        images: Selected images, in the order of the tables.
        leaking_patients: Number of patients who are in a training and a test part; their training images are excluded.
        left_out: Number of training images that are excluded for this reason.
        mixed: Number of selected images with malignant and other lesions.
    """

    images: list[CbisImage]
    leaking_patients: int
    left_out: int
    mixed: int


def select_images(lesions: Sequence[Lesion], crop: bool) -> CbisSelection:
    """Select the images of the data set.

    Args:
        lesions: Rows of the tables of the kinds of lesions that are used.
        crop: Whether each lesion is an image; otherwise each film is one.
    """
    groups: dict[object, list[Lesion]] = defaultdict(list)
    for place, lesion in enumerate(lesions):
        groups[place if crop else lesion.breast_view].append(lesion)
    images = [CbisImage(tuple(group), crop) for group in groups.values()]
    parts = {part: {lesion.patient for lesion in lesions if lesion.split == part} for part in ("train", "test")}
    leaking = parts["train"] & parts["test"]
    kept = [image for image in images if image.split == "test" or image.patient not in leaking]
    mixed = sum(len({lesion.pathology == "MALIGNANT" for lesion in image.lesions}) == 2 for image in kept)
    return CbisSelection(kept, len(leaking), len(images) - len(kept), mixed)
