"""The server's side of federated statistics: request them from all sites, check the replies, write the result file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from medfl.errors import MedflError, RefusedError
from medfl.types import Meta
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.remote_backend import Transport
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.backend.site_replies import reply_handler, write_replies
from medfl_flare.federated_statistics.statistics_request import KIND, StatisticsRequest
from medfl_flare.statistics.site_statistics import SiteStatistics

RESULT_FILE_NAME = "statistics.json"
"""Name of the result file for the researcher: ``sites`` maps each site to its statistics, ``missing`` each unavailable
site to the reason."""

REPLY_LIMITS = Limits(max_bytes=32 * 2**20, max_tensors=0)
"""Limits of a site's reply."""


def request_statistics(request: StatisticsRequest, transport: Transport, result: Path, progress: RunStatus) -> None:
    """Request statistics from the sites and write them to a file in `result`.

    Args:
        request: The request, with the names of the sites.
        transport: Transport of the messages to the sites.
        result: Folder whose content is sent to the researcher.
        progress: Status of the job, updated in place.

    Raises:
        MedflError: If no site replies with statistics.
    """
    sites: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    progress.state, progress.missing = "running", missing
    transport.listen(lambda site, blob: False, result, REPLY_LIMITS)

    def store(site: str, message: Message) -> None:
        """Check and store a site's statistics."""
        sites[site] = read_statistics(message).model_dump(mode="json")

    blob = pack(Message(KIND, {}, request.to_json()))
    missing |= transport.ask(
        dict.fromkeys(request.sites, blob), request.reply_timeout, reply_handler(KIND, REPLY_LIMITS, store, missing)
    )
    if not sites:
        whys = "; ".join(f"{site}: {why}" for site, why in sorted(missing.items()))
        raise MedflError("no_statistics", f"no site returned statistics. {whys}", missing=missing)
    write_replies(result / RESULT_FILE_NAME, sites, missing)
    progress.state = "finished"


def read_statistics(message: Message) -> SiteStatistics:
    """Return the statistics in a site's reply, after a check.

    Raises:
        RefusedError: If the reply does not contain valid statistics.
    """
    meta = {key: value for key, value in message.meta.items() if key != "refused"}
    try:
        statistics = SiteStatistics.model_validate(meta)
    except ValidationError as error:
        places = {".".join(map(str, problem["loc"]))[:80] for problem in error.errors()}
        raise RefusedError(
            "invalid_statistics",
            f"expected valid statistics, got invalid fields: {', '.join(sorted(places)[:5])}",
            places=sorted(places)[:5],
        ) from None
    if any(len(table.names) != len(table.counts) for table in statistics.tables):
        raise RefusedError("counts_without_names", "expected a count or null for each name of a table")
    return statistics
