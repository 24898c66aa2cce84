"""The researcher's side of a federated evaluation: read the exported bundle, submit the request, write the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch as st
from monai.bundle import ConfigParser
from pydantic import TypeAdapter, ValidationError

from medfl.bundle.bundle_folders import bundle_hash
from medfl.engine.runs.provenance import bundle_values
from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.engine.runs.weights_file import read_state_dict
from medfl.errors import RefusedError, check_choice
from medfl.records.evaluation import DataRelation, EvaluatedModel, Evaluation, ScoreEstimate
from medfl.types import Meta
from medfl.utils.files import sha256_of, write_atomic
from medfl_flare.backend.messages import Message
from medfl_flare.connection import Connection
from medfl_flare.federated_evaluation.evaluation_request import (
    MODEL_KIND,
    VALUE_IDS,
    EvaluationRequest,
    is_evaluation_id,
)
from medfl_flare.federated_evaluation.server_evaluation import RESULT_FILE_NAME
from medfl_flare.federated_evaluation.site_scores import FederatedEvaluation, read_scores
from medfl_flare.federated_statistics.researcher_session import JobResult, fetch_result
from medfl_flare.offer import bundle_version
from medfl_flare.records.offer import Name
from medfl_flare.session import connect
from medfl_report.cards.run_bundles import read_bundle_config
from medfl_report.evaluation.models import find_models, read_task
from medfl_report.evaluation.stored import EVALUATIONS

SCORES_FILE_NAME = "scores.csv"
"""Name of the table of scores."""

_NAME: TypeAdapter[str] = TypeAdapter(Name)


@dataclass(frozen=True)
class EvaluationPlan:
    """What to evaluate.

    Attributes:
        model: Exported bundle, run, or ``RUN#SITE``; exactly one model.
        bundle: Folder of the researcher's copy of the bundle; its name is the bundle's name in the sites' own files.
        scores: Names of the scores.
        sites: Names of the sites; empty asks all connected sites.
        reply_timeout: Seconds to wait for a silent site, >= 1.
    """

    model: str
    bundle: Path
    scores: Sequence[str]
    sites: Sequence[str] = ()
    reply_timeout: int = 3600


@dataclass(frozen=True)
class EvaluatedWeights:
    """A request with the model that it is about.

    Attributes:
        request: The request.
        model: Name of the model.
        content: Weights in the format of safetensors.
    """

    request: EvaluationRequest
    model: str
    content: bytes


def read_evaluation(plan: EvaluationPlan, name: str) -> EvaluatedWeights:
    """Read the model of a plan and return its request.

    Args:
        plan: What to evaluate.
        name: Name of the evaluation.

    Raises:
        SettingsError: If there are several models, or a score is unknown for the objective of the model.
        StoreError: If there is no such model.
        RefusedError: If a name is invalid.
    """
    model = find_models(plan.model).only_bundle(plan.model, "the sites")
    task = read_task(model.folder)
    for score in plan.scores:
        check_choice("scores", score, sorted(task.objective.scores))
    state = read_state_dict(model.folder / WEIGHTS)
    request = EvaluationRequest.from_meta(
        {
            "evaluation": name,
            "bundle": plan.bundle.resolve().name,
            "bundle_version": bundle_version(plan.bundle),
            "bundle_hash": bundle_hash(plan.bundle),
            "network": read_bundle_config(model.folder, "train.json").get("network_name", ""),
            "values": _exported_values(model.folder, bundle_values(plan.bundle)),
            "names": list(task.names),
            "scores": list(plan.scores),
            "weights": sha256_of(model.folder / WEIGHTS),
            "sites": sorted(plan.sites),
            "reply_timeout": plan.reply_timeout,
        }
    )
    content = st.save({tensor: value.clone().contiguous() for tensor, value in state.items()})
    return EvaluatedWeights(request, model.name, content)


def _exported_values(folder: Path, bundle: Meta) -> Meta:
    """Return the values of an exported bundle that a site needs, by id: those that depend on data, and changed numbers.

    Args:
        folder: Folder of the exported bundle.
        bundle: Values of the researcher's copy of the bundle.
    """
    values: Meta = {}
    for name in ("inference.json", "train.json"):  # some ids are in one of the files only
        config = read_bundle_config(folder, name)
        parser = ConfigParser(config)
        parser.update(pairs={"bundle_root": str(folder)})
        wanted = [id_ for id_ in config if is_evaluation_id(id_, bundle)]
        values |= {id_: parser.get_parsed_content(id_) for id_ in wanted}
    return {id_: value for id_, value in sorted(values.items()) if id_ in VALUE_IDS or value != bundle[id_]}


def fetch_evaluation(
    plan: EvaluationPlan, kit: Path, out: Path, opener: Callable[[Path], Connection] = connect
) -> FederatedEvaluation:
    """Request scores of a model from the sites, write the result to `out` and into the run of the model, and return it.

    Args:
        plan: What to evaluate.
        kit: The researcher's startup kit.
        out: Folder for the result: ``federated_evaluation.json`` and `SCORES_FILE_NAME`.
        opener: Function that opens the connection to the server.

    Raises:
        SettingsError: If the model, the scores, the kit or the sites are invalid.
        MedflError: If the server can't be reached, or if no site returns scores.
    """
    models = find_models(plan.model)
    prepared = read_evaluation(plan, out.absolute().name)
    request = prepared.request
    content = fetch_result(request, JobResult("scores", RESULT_FILE_NAME), kit, out, opener, prepared.content)
    evaluation = FederatedEvaluation(
        evaluation=request.evaluation,
        model=prepared.model,
        weights=request.weights,
        bundle=request.bundle,
        requested=tuple(request.scores),
        relation=DataRelation(kind="unchecked", reason="other_machine"),
        sites={
            _read_site_name(site): read_scores(Message(MODEL_KIND, {}, meta), request.scores)
            for site, meta in content["sites"].items()
        },
        missing=content["missing"],
    )
    write_evaluation(evaluation, out)
    if models.run is not None:
        _write_into_run(evaluation, models.run)
    return evaluation


def _write_into_run(evaluation: FederatedEvaluation, run: RunRecord) -> None:
    """Write the scores of each site into the run folder, where the report and the model card find them.

    Raises:
        StoreError: If a file can't be written.
        RefusedError: If the name of a site is invalid.
    """
    for site, disclosed in evaluation.sites.items():
        scores = {
            name: None if score is None else ScoreEstimate(value=score.value, low=score.low, high=score.high)
            for name, score in disclosed.scores.items()
        }
        model = EvaluatedModel(name=evaluation.model, weights=evaluation.weights, predictions="", scores=scores)
        record = Evaluation(
            models=(model,),
            method=run.method,
            seed=run.seed,
            run=run.folder.resolve().name,
            site=site,
            dataset="",
            data="",
            split="federated",
            images=disclosed.images or None,
            patients=disclosed.patients or None,
            relation=evaluation.relation,
            scores=scores,
        )
        record.write(run.folder / EVALUATIONS / f"{evaluation.model}-at-{site}-federated" / Evaluation.NAME)


def _read_site_name(name: str) -> str:
    """Return the name of a site in the server's result, after a check.

    Raises:
        RefusedError: If the name is invalid.
    """
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise RefusedError("invalid_site_name", "the result has an invalid name of a site") from None


def write_evaluation(evaluation: FederatedEvaluation, out: Path) -> None:
    """Write the record and the table of scores of an evaluation.

    Args:
        evaluation: The evaluation.
        out: Folder to write.

    Raises:
        StoreError: If a file can't be written.
    """
    lines = ["site,metric,value,low,high,state,images,patients,relation"]
    for site, disclosed in evaluation.sites.items():
        sizes = ",".join("" if size is None else str(size) for size in (disclosed.images, disclosed.patients))
        for name in evaluation.requested:
            score = disclosed.scores[name]
            numbers = ",," if score is None else f"{score.value!r},{score.low!r},{score.high!r}"
            state = "suppressed" if name in disclosed.suppressed else "undefined" if score is None else "disclosed"
            lines.append(f"{site},{name},{numbers},{state},{sizes},{evaluation.relation.kind}")
    write_atomic(out / SCORES_FILE_NAME, ("\n".join(lines) + "\n").encode())
    evaluation.write(out / FederatedEvaluation.NAME)
