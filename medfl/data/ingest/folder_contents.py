"""Table rows and inspected files of the user's folder, and the records of the images that were read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from medfl.data.features.record_features import FEATURES_KEY, feature_entries
from medfl.data.ingest.columns.labels import LabelledRows
from medfl.data.ingest.read_plan import ReadOutcome
from medfl.data.ingest.volumes import MASK_RESAMPLED_KEY
from medfl.data.readers.dicom_intent import intent_records
from medfl.data.readers.images import ImageKind
from medfl.records.datalist import CaseRecord, make_record
from medfl.records.feature_columns import FeatureColumns


@dataclass(frozen=True)
class FolderContents:
    """Table rows and inspected files of the user's folder.

    Attributes:
        rows: Rows of the table. The place of an image is its position in these rows.
        kinds: Maps the place of each readable file to its kind: dimensions, colour and bit depth.
        warnings: Warnings for the data list.
        columns: Typed columns of the table that networks take as input; None if there are none.
        features: Their features, (number of rows, F); None if there are none.
    """

    rows: LabelledRows
    kinds: dict[int, ImageKind]
    warnings: list[str]
    columns: FeatureColumns | None = None
    features: np.ndarray | None = None


def image_records(contents: FolderContents, outcome: ReadOutcome) -> list[CaseRecord]:
    """Return the record of each row of the array, without its row number."""
    rows, kinds = contents.rows, [contents.kinds[place] for place in outcome.kept]
    intents = intent_records([kind.intent for kind in kinds])
    records = [
        {**rows.targets.entries[place], "subject_id": rows.subjects[place], **rows.others[place], **intent, **held}
        for place, intent, held in zip(outcome.kept, intents, _case_facts(outcome), strict=True)
    ]
    if contents.features is not None:
        for record, values in zip(records, feature_entries(contents.features[outcome.kept]), strict=True):
            record[FEATURES_KEY] = values
    return [make_record(record) for record in records]


def _case_facts(outcome: ReadOutcome) -> list[dict[str, Any]]:
    """Return the metadata of each row for its record, without the key that only counts resampled masks."""
    return [{key: value for key, value in facts.items() if key != MASK_RESAMPLED_KEY} for facts in outcome.facts]
