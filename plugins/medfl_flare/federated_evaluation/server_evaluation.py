"""The server's side of a federated evaluation: ask all sites, send the model to those that accept, collect scores."""

from __future__ import annotations

from pathlib import Path

from medfl.engine.runs.weights_file import tensors_of
from medfl.errors import MedflError
from medfl.types import MODEL_PREFIX, Meta
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.remote_backend import Transport
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.backend.site_replies import reply_handler, write_replies
from medfl_flare.federated_evaluation.evaluation_request import KIND, MODEL_KIND, EvaluationRequest
from medfl_flare.federated_evaluation.site_scores import read_scores
from medfl_flare.job_folder import WEIGHTS_FILE_NAME

RESULT_FILE_NAME = "site_scores.json"
"""Name of the result file for the researcher: ``sites`` maps each site to its scores, ``missing`` each site without
scores to the reason."""

REPLY_LIMITS = Limits(max_bytes=2**20, max_tensors=0)
"""Limits of a site's reply."""


def request_evaluation(
    request: EvaluationRequest, config: Path, transport: Transport, result: Path, progress: RunStatus
) -> None:
    """Request scores of a model from the sites and write them to a file in `result`.

    Args:
        request: The request, with the names of the sites.
        config: Folder of the job with the file of weights (`WEIGHTS_FILE_NAME`).
        transport: Transport of the messages to the sites.
        result: Folder whose content is sent to the researcher.
        progress: Status of the job, updated in place.

    Raises:
        SettingsError: If the weights can't be read.
        MedflError: If no site replies with scores.
    """
    path = config / WEIGHTS_FILE_NAME
    model = {MODEL_PREFIX + name: tensor for name, tensor in tensors_of(path.read_bytes(), path).items()}
    accepted: list[str] = []
    sites: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    progress.state, progress.missing = "running", missing
    transport.listen(lambda site, blob: False, result, REPLY_LIMITS)

    def accept(site: str, message: Message) -> None:
        """Note that a site wants the model."""
        accepted.append(site)

    def store(site: str, message: Message) -> None:
        """Check and store a site's scores."""
        sites[site] = read_scores(message, request.scores).model_dump(mode="json")

    blob = pack(Message(KIND, {}, request.to_json()))
    requests = dict.fromkeys(request.sites, blob)
    missing |= transport.ask(requests, request.reply_timeout, reply_handler(KIND, REPLY_LIMITS, accept, missing))
    if accepted:
        weights = pack(Message(MODEL_KIND, model, {}))
        receivers = dict.fromkeys(sorted(accepted), weights)
        missing |= transport.ask(
            receivers, request.reply_timeout, reply_handler(MODEL_KIND, REPLY_LIMITS, store, missing)
        )
    if not sites:
        whys = "; ".join(f"{site}: {why}" for site, why in sorted(missing.items()))
        raise MedflError("no_scores", f"no site returned scores. {whys}", missing=missing)
    write_replies(result / RESULT_FILE_NAME, sites, missing)
    progress.state = "finished"
