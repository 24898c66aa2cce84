"""Which images of CBIS-DDSM are used, with which label, in which split.

- **Images.** View ``full``: one image for each patient, side and view. 71 films are in the release twice, once for
  their masses and once for their calcifications: the first copy that is there is used. View ``crop``: one image for
  each lesion.
- **Labels.** Benign or malignant; "benign without callback" is benign, or a class of its own. Of several lesions in one
  film, in whichever table, the worst one counts: malignant before benign before benign without callback.
- **Split.** The official one. Masses and calcifications were split apart, so that 31 patients are in the training part
  of one and in the test part of the other. If both kinds are used, their training images are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from medfl_datasets.cbis_ddsm.tables import KINDS, PATHOLOGIES, Lesion

TWO_CLASSES = ("benign", "malignant")
THREE_CLASSES = ("benign without callback", "benign", "malignant")
"""In the order of `medfl_datasets.cbis_ddsm.tables.PATHOLOGIES`."""

LEAKING = "the patient is in the official test part of the other kind of lesion"
"""Why training images are left out."""


@dataclass(frozen=True)
class Image:
    """One image that is wanted.

    Attributes:
        lesions: What is in it, in the order of the tables; one for a crop.
        crop: Whether it is a lesion that was cut out.
    """

    lesions: tuple[Lesion, ...]
    crop: bool

    @property
    def patient(self) -> str:
        """The release's pseudonym."""
        return self.lesions[0].patient

    @property
    def split(self) -> str:
        """``training`` or ``test``."""
        return "test" if any(lesion.split == "test" for lesion in self.lesions) else "training"

    @property
    def name(self) -> str:
        """For messages and lists, in the words of the release."""
        first = self.lesions[0]
        return " ".join((*first.breast_view, *((first.kind, first.number) if self.crop else ())))

    def label(self, three: bool) -> int:
        """The worst lesion's class, in `THREE_CLASSES` or `TWO_CLASSES`."""
        worst = max(PATHOLOGIES.index(lesion.pathology) for lesion in self.lesions)
        return worst if three else int(worst == 2)

    def about(self) -> dict[str, str | int]:
        """What a data list says of it beside label and patient."""
        first = self.lesions[0]
        kinds = dict.fromkeys(KINDS[lesion.kind] for lesion in self.lesions)
        entries: dict[str, str | int] = {
            "laterality": first.side.lower(),
            "view": first.view,
            "abnormality": "+".join(kinds),
            "density": next((lesion.density for lesion in self.lesions if lesion.density), 0),
        }
        return entries | ({"lesion": first.number} if self.crop else {})


@dataclass(frozen=True)
class Choice:
    """What is used.

    Attributes:
        images: In the order of the tables.
        leaking_patients: Patients whose training images are left out.
        left_out: How many images these are.
        mixed: Films that show malignant and other lesions.
    """

    images: list[Image]
    leaking_patients: int
    left_out: int
    mixed: int


def choose(lesions: Sequence[Lesion], crop: bool) -> Choice:
    """Choose images.

    Args:
        lesions: The rows of the tables of the kinds of lesions that are used.
        crop: Whether each lesion is an image, or each film.
    """
    groups: dict[object, list[Lesion]] = defaultdict(list)
    for place, lesion in enumerate(lesions):
        groups[place if crop else lesion.breast_view].append(lesion)
    images = [Image(tuple(group), crop) for group in groups.values()]
    parts = {part: {lesion.patient for lesion in lesions if lesion.split == part} for part in ("train", "test")}
    leaking = parts["train"] & parts["test"]
    kept = [image for image in images if image.split == "test" or image.patient not in leaking]
    mixed = sum(len({lesion.pathology == "MALIGNANT" for lesion in image.lesions}) == 2 for image in kept)
    return Choice(kept, len(leaking), len(images) - len(kept), mixed)
