"""What a job names: the two classes on the participants' allow-lists. No code comes with a job."""

from __future__ import annotations

from pathlib import Path

from medfl.errors import MedflError, SettingsError
from medfl.privacy.signatures import read_signer
from medfl.types import Meta
from medfl.utils.wire import Blob
from medfl_flare.backend.flare import FlareController, FlareTransport
from medfl_flare.backend.flare_site import FlareExecutor
from medfl_flare.backend.remote_progress import Progress
from medfl_flare.describing.request import Request, is_request
from medfl_flare.describing.server import ask_sites
from medfl_flare.job_folder import copy_result
from medfl_flare.records.offer import Offer
from medfl_flare.server import serve
from medfl_flare.sites.file import FILE, read_site_file
from medfl_flare.sites.service import SiteService


class MedflController(FlareController):
    """The server's side of a run.

    Args:
        offer: The run, as JSON (`medfl_flare.offer.Offer`), or a request for descriptions
            (`medfl_flare.describing.request.Request`); it is checked before anything else.
    """

    def __init__(self, offer: Meta) -> None:
        super().__init__()
        self._offer, self._progress = offer, Progress()

    def progress(self, after: int) -> Meta:
        """How far the run is (`medfl.engine.runs.progress.Progress`)."""
        return self._progress.facts(after)

    def federate(self, transport: FlareTransport, local: Path, result: Path) -> None:
        """Run the federation; what comes of it, or why nothing does, lies in `result`."""
        result.mkdir(parents=True, exist_ok=True)
        try:
            if is_request(self._offer):
                ask_sites(Request.from_meta(self._offer), transport, result, self._progress)
                return
            site_file, offer = read_site_file(local / FILE), Offer.from_meta(self._offer)
            copy_result(serve(offer, site_file, transport, self._progress), result)
        except MedflError as error:
            self._progress.message, self._progress.state = str(error), "failed"
            (result / "error.txt").write_text(f"{error}\n", encoding="utf-8")
            raise


class MedflExecutor(FlareExecutor):
    """A site's side of any run: everything it needs comes in the run's messages, or stands in the site's own file."""

    def open(self, local: Path) -> None:
        """Read the site's own file, and the key of the kit that it lies in."""
        site_file, signer = read_site_file(local / FILE), read_signer(local.parent)
        if signer.name != site_file.site:
            raise SettingsError(
                "wrong_certificate_name",
                f"the kit '{local.parent}' is of '{signer.name}', its {FILE} of '{site_file.site}'; correct 'site', or "
                "take the site's own kit",
                path=local.parent,
                expected=site_file.site,
                found=signer.name,
            )
        self._service = SiteService(site_file, self.post, self.beat, signer)

    def refusal(self, size: int) -> bytes | None:
        """The answer to a message of so many bytes, if it need not come for that."""
        return self._service.refusal(size)

    def answer(self, blob: Blob) -> bytes:
        """The answer to a message of the server."""
        return self._service.answer(blob)

    def receive(self, sender: str, blob: bytes) -> str | None:
        """Take a parcel of another site; returns why it is refused, or None."""
        return self._service.receive(sender, blob)
