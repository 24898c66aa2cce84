"""The server's side of a federated evaluation: ask all sites, send the model to those that accept, collect scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from medfl.engine.runs.weights_file import tensors_of
from medfl.errors import MedflError
from medfl.types import MODEL_PREFIX, Meta
from medfl.utils.wire import Blob
from medfl_flare.backend.messages import Limits, Message, pack
from medfl_flare.backend.remote_backend import Transport
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.backend.site_replies import unpack_reply
from medfl_flare.federated_evaluation.evaluation_request import KIND, MODEL_KIND, EvaluationRequest
from medfl_flare.federated_evaluation.site_scores import read_scores
from medfl_flare.job_folder import WEIGHTS_FILE_NAME

logger = logging.getLogger(__name__)

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
    missing |= transport.ask(requests, request.reply_timeout, _reply_handler(KIND, accept, missing))
    if accepted:
        weights = pack(Message(MODEL_KIND, model, {}))
        receivers = dict.fromkeys(sorted(accepted), weights)
        missing |= transport.ask(receivers, request.reply_timeout, _reply_handler(MODEL_KIND, store, missing))
    if not sites:
        whys = "; ".join(f"{site}: {why}" for site, why in sorted(missing.items()))
        raise MedflError("no_scores", f"no site returned scores. {whys}", missing=missing)
    result.mkdir(parents=True, exist_ok=True)
    content = {"sites": dict(sorted(sites.items())), "missing": dict(sorted(missing.items()))}
    (result / RESULT_FILE_NAME).write_text(json.dumps(content), encoding="utf-8")
    progress.state = "finished"


def _reply_handler(
    kind: str, use: Callable[[str, Message], None], missing: dict[str, str]
) -> Callable[[str, Blob], None]:
    """Return a function that passes a site's valid reply to `use`, or stores the reason of a refusal in `missing`."""

    def take(site: str, blob: Blob) -> None:
        try:
            use(site, unpack_reply(blob, kind, REPLY_LIMITS))
        except MedflError as error:
            missing[site] = str(error)
        except Exception as error:  # an unexpected error in one reply must not affect the others
            logger.exception("A reply of %s caused an error.", site)
            missing[site] = f"its reply could not be read ({type(error).__name__})"

    return take
