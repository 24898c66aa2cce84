"""Interface of a PACS, which both protocols implement, and the references to series and instances."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

TRANSIENT_CODES = ("pacs_unreachable", "pacs_timeout", "pacs_server_error")
"""Codes of errors after which the same request may succeed later."""

MAX_RESULTS = 1_000_000
"""Maximum number of results of a search."""

MASK_CLASSES = ("Segmentation Storage", "RT Structure Set Storage")
"""Names of the SOP classes that hold masks, which are stored in addition to images."""

_UID = re.compile(r"[0-9.]{1,64}")


@dataclass(frozen=True)
class SeriesReference:
    """Original UIDs of a series in the PACS. They must not reach a file, a message or a log.

    Attributes:
        study_uid: Study instance UID.
        series_uid: Series instance UID.
    """

    study_uid: str
    series_uid: str


@dataclass(frozen=True)
class InstanceReference:
    """Original UIDs of an instance in the PACS. They must not reach a file, a message or a log.

    Attributes:
        series: The series.
        instance_uid: SOP instance UID.
        class_uid: SOP class UID; empty if the PACS does not state it.
    """

    series: SeriesReference
    instance_uid: str
    class_uid: str


class PacsSource(Protocol):
    """A PACS and the search keys."""

    def find_studies(self) -> list[str]:
        """Return the UIDs of the selected studies.

        Raises:
            DataError: If the PACS does not answer, refuses, or gives a malformed answer.
        """
        ...

    def find_series(self, study_uid: str) -> list[SeriesReference]:
        """Return the selected series of a study. Raises as `find_studies` does."""
        ...

    def find_instances(self, series: SeriesReference) -> list[InstanceReference]:
        """Return all instances of a series. Raises as `find_studies` does."""
        ...

    def retrieve(self, instance: InstanceReference) -> Dataset:
        """Return an instance with its file meta information.

        Raises:
            DataError: As for `find_studies`. The code ``not_dicom`` means that the answer is no DICOM instance.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def is_stored_class(class_uid: str) -> bool:
    """Return True if instances of a SOP class are stored: images and masks, but no reports and other documents."""
    from pydicom.uid import UID

    name = UID(class_uid).name
    return "Image Storage" in name or name in MASK_CLASSES


def checked_uid(value: object) -> str:
    """Return a UID from the PACS's answer as text, after a check of its characters.

    Raises:
        DataError: If the value is no UID. The message does not contain it.
    """
    text = str(value or "").strip("\0 ")
    if _UID.fullmatch(text) is None:
        raise malformed_answer("an entry without a valid UID")
    return text


def malformed_answer(cause: str) -> DataError:
    """Return the error for an answer that contradicts the protocol."""
    return DataError(
        "pacs_malformed_answer",
        f"The PACS gave a malformed answer: {cause}. Check that the address and port belong to a DICOM service.",
        cause=cause,
    )


def too_many_results() -> DataError:
    """Return the error for a search with more than `MAX_RESULTS` results."""
    return DataError(
        "too_many_results",
        f"The PACS gives more than {MAX_RESULTS:,} results for one search. Use more search keys, such as a shorter "
        "StudyDate.",
        maximum=MAX_RESULTS,
    )


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress all warnings and log messages in this block: those of the libraries may repeat UIDs and header values.

    Enter it before threads start.
    """
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
