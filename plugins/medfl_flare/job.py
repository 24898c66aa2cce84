"""The two classes that a job of NVFlare names, for the server and for a site.

Both are on the participants' allow-lists, the lists of classes that a job may name; no code is sent with a job.
"""

from __future__ import annotations

from pathlib import Path

from medfl.errors import MedflError, SettingsError
from medfl.privacy.signatures import read_signer
from medfl.types import Meta
from medfl.utils.wire import Blob
from medfl_flare.backend.flare_server import FlareController, FlareTransport
from medfl_flare.backend.flare_site import FlareExecutor
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest, is_evaluation_request
from medfl_flare.federated_evaluation.server_evaluation import request_evaluation
from medfl_flare.federated_statistics.server_requests import request_statistics
from medfl_flare.federated_statistics.statistics_request import StatisticsRequest, is_statistics_request
from medfl_flare.job_folder import copy_result
from medfl_flare.records.offer import Offer
from medfl_flare.server import serve
from medfl_flare.sites.site_file import SITE_FILE_NAME, read_site_file
from medfl_flare.sites.site_service import SiteService


class MedflController(FlareController):
    """The server's side of a run, of federated statistics or of a federated evaluation.

    Args:
        offer: JSON values of an `Offer` of a run, of a `StatisticsRequest` or of an `EvaluationRequest`. They are
            checked before anything else.
    """

    def __init__(self, offer: Meta) -> None:
        super().__init__()
        self._offer, self._progress = offer, RunStatus()

    def progress(self, after: int) -> Meta:
        """Return the status of the run as JSON values (`medfl_flare.backend.run_progress.RunStatus`).

        Args:
            after: Number of bytes of the run's progress file that the caller already has.
        """
        return self._progress.to_meta(after)

    def federate(self, transport: FlareTransport, local: Path, result: Path) -> None:
        """Run the federation, or collect the federated statistics or the scores of an evaluation.

        Writes the results, or the reason for the failure, to `result`.

        Args:
            transport: Transport of the messages to the sites.
            local: Folder ``local`` of the server's startup kit, with the server's own file.
            result: Folder whose content is sent to the researcher who submitted the job.
        """
        result.mkdir(parents=True, exist_ok=True)
        try:
            if is_statistics_request(self._offer):
                request_statistics(StatisticsRequest.from_meta(self._offer), transport, result, self._progress)
                return
            if is_evaluation_request(self._offer):
                request = EvaluationRequest.from_meta(self._offer)
                request_evaluation(request, self.config, transport, result, self._progress)
                return
            site_file, offer = read_site_file(local / SITE_FILE_NAME), Offer.from_meta(self._offer)
            copy_result(serve(offer, site_file, transport, self._progress), result)
        except MedflError as error:
            self._progress.message, self._progress.state = str(error), "failed"
            (result / "error.txt").write_text(f"{error}\n", encoding="utf-8")
            raise


class MedflExecutor(FlareExecutor):
    """A site's side of any run. Everything it needs is in the run's messages or in the site's own file."""

    def open(self, local: Path) -> None:
        """Prepare the site for messages: read the site's own file, and the private key of its startup kit.

        Args:
            local: Folder ``local`` of the startup kit, with the site's own file.
        """
        site_file, signer = read_site_file(local / SITE_FILE_NAME), read_signer(local.parent)
        if signer.name != site_file.site:
            raise SettingsError(
                "wrong_certificate_name",
                f"the kit '{local.parent}' is for '{signer.name}', its {SITE_FILE_NAME} for '{site_file.site}'; "
                "correct 'site', or use the site's own kit",
                path=local.parent,
                expected=site_file.site,
                found=signer.name,
            )
        self._service = SiteService(site_file, self.post, self.beat, signer)

    def refuse_by_size(self, size: int) -> bytes | None:
        """Return the reply to a message that is refused for its size, or None if the site must fetch the message."""
        return self._service.refuse_by_size(size)

    def answer(self, blob: Blob) -> bytes:
        """Process a message of the server and return the packed reply."""
        return self._service.answer(blob)

    def receive(self, sender: str, blob: bytes) -> str | None:
        """Process a message of another site, and return the reason for its refusal, or None if it was accepted."""
        return self._service.receive(sender, blob)
