"""A site's side of a federated evaluation: check the request, score the model, suppress scores of few patients.

In the site's own file, ``evaluation_scores`` lists the scores that may leave; it is empty by default, which refuses
every evaluation. ``min_count`` is the minimum number of patients behind a score, and of patients of each class, finding
or event among the test images. A site with a minimum privacy in ``[privacy]`` refuses, as scores have no noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from medfl.bundle.bundle_folders import bundle_hash
from medfl.data.datalists import read_datalist
from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import count_patients, patients_of
from medfl.engine.runs.provenance import bundle_values
from medfl.engine.runs.records import PREDICTIONS
from medfl.errors import DataError, RefusedError
from medfl.records.evaluation import ScoreEstimate
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.devices import pick_device
from medfl.types import MODEL_PREFIX, Dataset, Meta, Tensors
from medfl_flare.backend.message_checks import printable_name
from medfl_flare.backend.messages import TensorForm, check_tensors, tensor_forms
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest, is_evaluation_id
from medfl_flare.federated_evaluation.site_scores import DisclosedScore, SiteScores
from medfl_flare.federated_statistics.site_reply import requested_data_folder
from medfl_flare.offer import bundle_version
from medfl_flare.offered_bundle import build_run, case_shape
from medfl_flare.overrides import check_overrides
from medfl_flare.sites.policy import check_networks, guarantee_text
from medfl_flare.sites.site_file import SiteFile
from medfl_flare.statistics.disclosure import SIGNIFICANT_DIGITS
from medfl_flare.statistics.measurements import CountTable, measure_targets
from medfl_report.evaluation.cases import SiteCases, load_cases
from medfl_report.evaluation.evaluate import estimate_scores, predict_cases
from medfl_report.evaluation.models import BundleTask


@dataclass(frozen=True)
class OpenedEvaluation:
    """A request that this site has accepted, with the data and the network for it.

    Attributes:
        request: The request.
        site_file: The site's own file.
        task: Task of the site's own copy of the bundle.
        scoring: Configuration of the scoring.
        cases: Test cases of the site.
        tables: Tables of labels of the test images.
        forms: Maps each tensor of the network to its allowed shapes and dtypes.
    """

    request: EvaluationRequest
    site_file: SiteFile
    task: Task
    scoring: BundleTask
    cases: SiteCases
    tables: tuple[CountTable, ...]
    forms: Mapping[str, set[TensorForm]]


def open_evaluation(request: EvaluationRequest, site_file: SiteFile) -> OpenedEvaluation:
    """Check a request against the site's own file, bundle and data. Nothing is scored and no model is received yet.

    Args:
        request: The server's request.
        site_file: The site's own file.

    Raises:
        RefusedError: If the site's own file does not allow the scores, or the model does not fit the bundle or data.
        MedflError: If the data can't be read.
    """
    folder = requested_data_folder(request, site_file)
    _check_permission(request, site_file)
    entry = site_file.bundle(request.bundle)
    _check_bundle(request, entry.folder, site_file)
    values = _checked_values(request, bundle_values(entry.folder))
    built = build_run(entry.folder, values, site_file, folder)
    objective = built.task.objective
    if unknown := sorted(set(request.scores) - set(objective.scores)):
        raise RefusedError(
            "unknown_score",
            f"The request wants the scores {', '.join(unknown)}, which the objective '{objective.name}' does not have.",
            names=unknown,
            known=sorted(objective.scores),
        )
    check_networks(site_file, built.task, [request.network])
    scoring = BundleTask(
        objective=objective,
        metrics=tuple(request.scores),
        key_metrics=tuple(request.scores),
        mean=built.mean,
        std=built.std,
        shape=case_shape(built.site_values) or None,
        names=tuple(request.names),
        inferer=built.task.inferer,
    )
    cases = _load_cases(folder, scoring, site_file)
    check_unchanged(folder.parent, [cases.data], entry.allow_changes)
    tested = replace(cases.data, train=cases.data.test)
    tables, _ = measure_targets(tested, read_datalist(folder), objective)
    return OpenedEvaluation(
        request=request,
        site_file=site_file,
        task=built.task,
        scoring=scoring,
        cases=cases,
        tables=tables,
        forms=tensor_forms(built.task, [request.network]),
    )


def _check_permission(request: EvaluationRequest, site_file: SiteFile) -> None:
    """Raise if the site's own file does not allow the requested scores without noise."""
    if undeclared := sorted(set(request.scores) - set(site_file.evaluation_scores)):
        allowed = ", ".join(site_file.evaluation_scores) or "none"
        raise RefusedError(
            "score_not_allowed",
            f"The request wants the scores {', '.join(undeclared)} of a model; '{site_file.site}' allows "
            f"(evaluation_scores): {allowed}.",
            site=site_file.site,
            names=undeclared,
            allowed=list(site_file.evaluation_scores),
        )
    if site_file.privacy is not None:
        raise RefusedError(
            "insufficient_privacy",
            f"Scores of an evaluation have no noise; '{site_file.site}' requires at least: "
            f"{guarantee_text(site_file.privacy)}.",
            unit=site_file.privacy.unit,
            expected=guarantee_text(site_file.privacy),
            found=guarantee_text(None),
        )


def _check_bundle(request: EvaluationRequest, folder: Path, site_file: SiteFile) -> None:
    """Raise if the site's own copy of the bundle differs from the researcher's, or lacks the network."""
    here = {"bundle_version": bundle_version(folder), "bundle_hash": bundle_hash(folder)}
    differences = [name for name, value in here.items() if getattr(request, name) != value]
    if differences:
        texts = [
            f"{name}: the request has {getattr(request, name)}, this site has {here[name]}" for name in differences
        ]
        raise RefusedError(
            "different_setup",
            f"'{site_file.site}' refuses the evaluation '{request.evaluation}' with the bundle '{request.bundle}': "
            f"{'. '.join(texts)}.",
            site=site_file.site,
            differences=differences,
        )
    networks = bundle_values(folder).get("networks")
    known = sorted(networks) if isinstance(networks, dict) else []
    if request.network not in known:
        raise RefusedError(
            "unknown_network",
            f"The request names the network '{request.network}'; the bundle has {', '.join(known) or 'none'}.",
            names=[request.network],
            known=known,
        )


def _checked_values(request: EvaluationRequest, bundle: Meta) -> Meta:
    """Return the values of the request and its network by id; raise if a value may not come from another machine."""
    if unlisted := sorted(name for name in request.values if not is_evaluation_id(name, bundle)):
        raise RefusedError(
            "unlisted_value",
            f"The request sets {', '.join(map(printable_name, unlisted[:5]))}; expected only ids of the bundle that "
            "depend on data, and numbers of the bundle.",
            names=unlisted[:5],
        )
    values = request.values | {"network_name": request.network}
    check_overrides(values, bundle)
    return values


def _load_cases(folder: Path, scoring: BundleTask, site_file: SiteFile) -> SiteCases:
    """Return the site's test cases; raise if they don't fit the model. The message contains no path."""
    try:
        return load_cases(folder, scoring, "test")
    except DataError as error:
        described = {
            "different_classes": "classes or outputs",
            "different_shapes": "images of the shape (channels, edges)",
            "different_objective": "the learning objective",
        }
        if error.code == "no_images":
            raise RefusedError("no_images", f"'{site_file.site}' has no test images.", site=site_file.site) from None
        if error.code not in described:
            raise
        expected, known = error.fields.get("expected"), error.fields.get("found")
        raise RefusedError(
            error.code,
            f"The model does not fit the data of '{site_file.site}': {described[error.code]}: the model has "
            f"{_value_text(expected)}, the site has {_value_text(known)}.",
            site=site_file.site,
            expected=expected,
            found=known,
        ) from None


def _value_text(value: object) -> str:
    """Return a value or a list of values as text of limited length."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text[:500]


def score_model(opened: OpenedEvaluation, tensors: Tensors) -> SiteScores:
    """Score a model on the site's test images, and return the scores that may leave.

    If too few patients are behind a score, nothing is predicted.

    Args:
        opened: The accepted request.
        tensors: Tensors of the message; untrusted.

    Raises:
        RefusedError: If the tensors don't fit the network of the site's own bundle.
    """
    _check_model(opened, tensors)
    requested, site_file = opened.request.scores, opened.site_file
    if reason := _suppression_reason(opened):
        nothing = dict.fromkeys(requested)
        return SiteScores(
            scores=nothing, suppressed=list(requested), reason=reason, min_count=site_file.min_count, **_sizes(opened)
        )
    network = opened.task.build(opened.request.network)
    network.load_state_dict({name.removeprefix(MODEL_PREFIX): tensor for name, tensor in tensors.items()})
    settings, device = Settings(rounds=1), pick_device(site_file.device)
    with tempfile.TemporaryDirectory(prefix="medfl-evaluation-") as place:  # predictions never leave this machine
        predicted = predict_cases(Path(place, PREDICTIONS), network, opened.scoring, opened.cases, settings, device)
    estimates = estimate_scores([predicted], requested)
    scores = {name: _rounded(estimate) for name, estimate in estimates.items()}
    return SiteScores(scores=scores, min_count=site_file.min_count, **_sizes(opened))


def _check_model(opened: OpenedEvaluation, tensors: Tensors) -> None:
    """Raise if the tensors don't exactly match the network's."""
    if unlike := sorted(tensors.keys() ^ opened.forms.keys()):
        name = unlike[0]
        problem = "lacks" if name in opened.forms else "has the unknown"
        raise RefusedError(
            "different_network",
            f"The model does not fit the network '{opened.request.network}' of the bundle at "
            f"'{opened.site_file.site}': it {problem} tensor {printable_name(name)}.",
            site=opened.site_file.site,
            network=opened.request.network,
            tensor=printable_name(name),
        )
    check_tensors(tensors, prefixes=(MODEL_PREFIX,), shapes=opened.forms, norm_bound=None, who="the server")


def _suppression_reason(opened: OpenedEvaluation) -> str:
    """Return a sentence on why the scores are suppressed, or an empty text. It does not contain a count."""
    test, least = opened.cases.data.test, opened.site_file.min_count
    if min(len(test), count_patients(test)) < least:
        return f"there are fewer than {least} test images or patients"
    if any(0 < count < least for table in opened.tables for count in _patients_by_value(table, test)):
        return f"a class, finding, event or structure has fewer than {least} patients among the test images"
    return ""


def _patients_by_value(table: CountTable, test: Dataset) -> list[int]:
    """Return the number of patients with each value of a table; of images, if patients are unknown."""
    patients = patients_of(test)
    numbers = np.arange(len(test)) if patients is None else patients.numpy()
    return [len(np.unique(numbers[table.value_index == value])) for value in range(len(table.names))]


def _sizes(opened: OpenedEvaluation) -> dict[str, int | None]:
    """Return the numbers of test images and patients that may leave: none without ``size``, or if they are small."""
    test, site_file = opened.cases.data.test, opened.site_file
    if "size" not in site_file.disclose or min(len(test), count_patients(test)) < site_file.min_count:
        return {"images": None, "patients": None}
    return {"images": len(test), "patients": None if patients_of(test) is None else count_patients(test)}


def _rounded(estimate: ScoreEstimate | None) -> DisclosedScore | None:
    """Return an estimate rounded to `SIGNIFICANT_DIGITS`; None for None."""
    if estimate is None:
        return None
    value, low, high = (
        float(f"{number:.{SIGNIFICANT_DIGITS}g}") for number in (estimate.value, estimate.low, estimate.high)
    )
    return DisclosedScore(value=value, low=low, high=high)
