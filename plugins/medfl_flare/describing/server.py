"""The server's side of a description: it asks all sites, checks what they answer, and keeps nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pydantic import ValidationError

from medfl.errors import MedflError, RefusedError
from medfl.types import Meta
from medfl.utils.wire import Blob
from medfl_flare.backend.answers import opened
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.remote import Transport
from medfl_flare.backend.remote_progress import Progress
from medfl_flare.describing.request import KIND, Request
from medfl_flare.statistics.description import Description

logger = logging.getLogger(__name__)

RESULT = "descriptions.json"
"""What the researcher fetches: ``sites`` with what each tells, ``missing`` with why one does not."""

LARGEST = Limits(max_bytes=32 * 2**20, max_tensors=0)
"""What an answer may be."""


def ask_sites(request: Request, transport: Transport, result: Path, progress: Progress) -> None:
    """Have the sites describe their data; what they tell lies in `result`.

    Args:
        request: What is asked, with the names of the sites.
        transport: Brings messages to the sites.
        result: The folder that whoever submitted the request gets.
        progress: Kept up to date.

    Raises:
        MedflError: If no site answers.
    """
    sites: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    progress.state, progress.missing = "running", missing
    transport.listen(lambda site, blob: False, result, LARGEST)

    def take(site: str, blob: Blob) -> None:
        try:
            sites[site] = read_description(opened(blob, KIND, LARGEST)).model_dump(mode="json")
        except MedflError as error:
            missing[site] = str(error)
        except Exception as error:  # whatever a message brings about, the others count
            logger.exception("An answer of %s brought about an error.", site)
            missing[site] = f"its answer could not be read ({type(error).__name__})"

    blob = pack(Message(KIND, {}, request.to_json()))
    missing |= transport.ask(dict.fromkeys(request.sites, blob), request.answer_timeout, take)
    if not sites:
        whys = "; ".join(f"{site}: {why}" for site, why in sorted(missing.items()))
        raise MedflError("no_descriptions", f"no site describes its data. {whys}", missing=missing)
    result.mkdir(parents=True, exist_ok=True)
    content = {"sites": dict(sorted(sites.items())), "missing": dict(sorted(missing.items()))}
    (result / RESULT).write_text(json.dumps(content), encoding="utf-8")
    progress.state = "finished"


def read_description(message: Message) -> Description:
    """A site's answer, checked.

    Raises:
        RefusedError: If it is no description.
    """
    meta = {key: value for key, value in message.meta.items() if key != "refused"}
    try:
        description = Description.model_validate(meta)
    except ValidationError as error:
        places = {".".join(map(str, problem["loc"]))[:80] for problem in error.errors()}
        raise RefusedError(
            "invalid_description",
            f"expected a description, got something else in: {', '.join(sorted(places)[:5])}",
            places=sorted(places)[:5],
        ) from None
    if any(len(table.names) != len(table.counts) for table in description.tables):
        raise RefusedError("counts_without_names", "expected a count or none for each name of a table")
    return description
