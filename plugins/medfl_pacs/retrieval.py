"""Retrieve the selected series of a PACS into a store.

1. Search for studies, then for the series and instances of each study.
2. Retrieve each instance that the store does not have, pseudonymise it, and write it.
3. When all instances of a series are there, move the series to ``images`` or ``quarantine``.
4. Write the tables.

The same command continues after an interruption, and retrieves new instances later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from medfl.errors import DataError
from medfl.utils.progress import progress
from medfl.utils.text import Say
from medfl_pacs.image_store import ImageStore
from medfl_pacs.pace import Pace
from medfl_pacs.pacs_source import (
    TRANSIENT_CODES,
    InstanceReference,
    PacsSource,
    SeriesReference,
    is_stored_class,
    quiet_libraries,
)
from medfl_pacs.store_tables import write_tables

RETRY_SECONDS = (2.0, 10.0, 30.0)
"""Seconds to wait before each new attempt after a failure that may pass."""

MAX_CONSECUTIVE_REFUSALS, MIN_REFUSED_SERIES = 10, 3
"""Number of instances in a row that the PACS did not deliver, and number of their series, from which on the retrieval
stops, because all answers seem to be wrong. A single damaged series does not stop it."""

SERIES_BETWEEN_TABLES = 100
"""Number of series after which the tables are written during a retrieval."""

_REFUSAL_CODES = ("not_dicom", "pacs_refused_request", "pacs_server_error", "pacs_answer_too_large")
"""Codes of errors that concern one instance; others stop the retrieval."""

Answer = TypeVar("Answer")
"""Type of an answer of the PACS."""


@dataclass
class RetrievalCounts:
    """Numbers of series and instances in a retrieval.

    Attributes:
        series: Series that the search selected.
        stored: Instances that were retrieved.
        present: Instances that were there already.
        skipped: Instances that are neither images nor masks.
        refused: Instances that could not be retrieved or read.
    """

    series: int = 0
    stored: int = 0
    present: int = 0
    skipped: int = 0
    refused: int = 0


class Retrieval:
    """One retrieval.

    Args:
        source: The PACS and the search keys.
        store: The opened store.
        pace: Waiting times before requests.
        say: Function that receives lines of progress.

    Attributes:
        counts: Numbers so far.
    """

    def __init__(self, source: PacsSource, store: ImageStore, pace: Pace, say: Say) -> None:
        self.source, self.store, self.pace, self.say = source, store, pace, say
        self.counts = RetrievalCounts()
        self._undelivered: list[SeriesReference] = []  # series of the instances refused since the last delivery

    def run(self) -> RetrievalCounts:
        """Retrieve everything that the search selects.

        Raises:
            DataError: If the PACS can't be reached, refuses, or gives malformed answers.
            StoreError: If the disk is full or can't be written.
        """
        with quiet_libraries():
            self.pace.wait()
            studies = self.source.find_studies()  # not repeated: a wrong address is reported at once
            try:
                self._retrieve_studies(studies)
            finally:
                write_tables(self.store)
        return self.counts

    def _retrieve_studies(self, studies: Sequence[str]) -> None:
        """Retrieve the selected series of studies, and show the progress."""
        with progress("retrieving", len(studies), "studies", self.say) as show:
            for number, study_uid in enumerate(studies, 1):
                for series in self._request(partial(self.source.find_series, study_uid)):
                    self._retrieve_series(series)
                    show(number - 1, text=f"studies, {self.counts.stored} images")
                show(number)

    def _retrieve_series(self, series: SeriesReference) -> None:
        """Retrieve the missing instances of a series, and move it to its folder."""
        self.counts.series += 1
        for instance in self._request(lambda: self.source.find_instances(series)):
            if not self.store.needs(instance):
                self.counts.present += 1
            else:
                self._retrieve_instance(instance)
        self.store.settle_reference(series)
        if self.counts.series % SERIES_BETWEEN_TABLES == 0:
            write_tables(self.store)

    def _retrieve_instance(self, instance: InstanceReference) -> None:
        """Retrieve an instance, and store, skip or refuse it.

        Raises:
            DataError: If too many instances in a row were refused, or the PACS can't be reached.
        """
        if instance.class_uid and not is_stored_class(instance.class_uid):
            status = self.store.skip(instance)
        else:
            try:
                dataset = self._request(lambda: self.source.retrieve(instance))
            except DataError as error:
                if error.code not in _REFUSAL_CODES:
                    raise
                status = self.store.refuse(instance, error.code)
                self._undelivered.append(instance.series)
            else:
                status = self.store.add(instance, dataset)
                self._undelivered.clear()
        setattr(self.counts, status, getattr(self.counts, status) + 1)
        if self._is_failing() and len(set(self._undelivered)) >= MIN_REFUSED_SERIES:
            raise DataError(
                "too_many_refused",
                f"{len(self._undelivered)} instances in a row could not be retrieved. Check that the address belongs "
                "to a DICOM service and that the user may retrieve images, then repeat the command.",
                count=len(self._undelivered),
            )

    def _is_failing(self) -> bool:
        """Return True if many instances in a row were not delivered."""
        return len(self._undelivered) >= MAX_CONSECUTIVE_REFUSALS

    def _request(self, request: Callable[[], Answer]) -> Answer:
        """Send a request when the pace allows it. Repeat it after failures that may pass, unless many have failed."""
        for seconds in () if self._is_failing() else RETRY_SECONDS:
            self.pace.wait()
            try:
                return request()
            except DataError as error:
                if error.code not in TRANSIENT_CODES:
                    raise
                self.say(f"no answer ({error.code}); trying again in {seconds:.0f} s")
            self.pace.sleep(seconds)
        self.pace.wait()
        return request()
