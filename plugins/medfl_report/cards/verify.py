"""Verification of model cards: compare the SHA-256 of every file, and compute every score again from predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.records import RunRecord, read_run, read_task_objective
from medfl.errors import MedflError, StoreError
from medfl.plugins import Registry, load_plugins
from medfl.utils.files import sha256_of
from medfl.version import __version__
from medfl_report.cards.bundle_hashes import digest_hashes, hash_files
from medfl_report.cards.card_markdown import render_card, render_score_tables
from medfl_report.cards.card_record import RunFacts
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.run_bundles import RunBundle, find_bundles, find_prediction_files, read_test_predictions
from medfl_report.cards.run_facts import read_run_facts
from medfl_report.cards.score_computation import compute_card_scores, count_numbers, find_score_differences
from medfl_report.cards.write import hash_run_files, read_site_evaluations
from medfl_report.evaluation.evaluate import estimate_scores
from medfl_report.evaluation.stored import read_evaluations

MAX_LISTED_SCORES = 5
"""Maximum number of differing scores that a result lists."""


@dataclass
class Verification:
    """Result of the verification of a bundle.

    Attributes:
        name: Name of the bundle: its folder, relative to the run folder.
        problems: Differences between the bundle and its card, in words; empty if the bundle matches its card.
        notes: Parts that could not be checked, with the reason, in words.
        files: Number of compared files.
        numbers: Number of scores and counts that were computed again.
        sha256: SHA-256 of ``evidence.json``; empty if the file can't be read.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    numbers: int = 0
    sha256: str = ""


def verify(path: Path, registry: Registry | None = None) -> list[Verification]:
    """Verify the card of a bundle, or the cards of all bundles of a run.

    Args:
        path: Folder of the bundle or the run.
        registry: Registry with the sections of the report; None loads the installed plugins.

    Raises:
        StoreError: If the folder holds neither a run nor a bundle with a card.
    """
    if (path / "run.json").is_file():
        run = read_run(path)
        registry = registry or load_plugins()
        return [_verify_in_run(bundle, run, registry) for bundle in find_bundles(run)]
    if (path / Evidence.NAME).is_file():
        return [verify_bundle(path)]
    raise StoreError(
        "missing_card",
        f"expected a run folder or a bundle with a card at '{path}', but it contains neither run.json nor "
        f"{Evidence.NAME}. Write cards with `medfl card RUN`.",
        path=path,
    )


def _verify_in_run(bundle: RunBundle, run: RunRecord, registry: Registry) -> Verification:
    """Verify the card of a bundle, and compare it with the run folder."""
    name, facts = bundle.folder.relative_to(run.folder).as_posix(), read_run_facts(run, bundle.site, registry)
    if not (bundle.folder / Evidence.NAME).is_file():
        return Verification(name, [f"{Evidence.NAME} is missing: run `medfl card` after the end of the run"])
    result = verify_bundle(bundle.folder, name)
    try:
        evidence = Evidence.read(bundle.folder / Evidence.NAME)
    except StoreError:
        return result
    result.problems += _hash_differences(evidence.run_files, hash_run_files(run), "of the run folder")
    if evidence.facts.evaluations != read_site_evaluations(run, bundle):
        result.problems.append("the card differs from the run folder in: evaluations")
    result.problems += _evaluation_differences(run)
    if names := _different_facts(evidence.facts.run, facts):
        result.problems.append(f"the card differs from the run folder in: {', '.join(names)}")
    return result


def _evaluation_differences(run: RunRecord) -> list[str]:
    """Return a line for each evaluation of the run whose scores differ from those of its predictions."""
    problems = []
    for stored in read_evaluations(run):
        sets = stored.prediction_sets(run)
        metrics = list(stored.record.scores)
        expected = [estimate_scores([test_set], metrics) for test_set in sets]
        if sets and [model.scores for model in stored.record.models] != expected:
            problems.append(f"{stored.folder.name}: the scores of the evaluation differ from its predictions")
        if not sets and stored.record.has_prediction_sets:
            problems.append(f"{stored.folder.name}: the predictions of the evaluation are missing or changed")
    return problems


def _different_facts(old: RunFacts, new: RunFacts) -> list[str]:
    """Return the names of the facts that differ, sorted, with spaces for underscores."""
    names = (name for name in RunFacts.model_fields if getattr(old, name) != getattr(new, name))
    return sorted(name.replace("_", " ") for name in names)


def verify_bundle(bundle: Path, name: str = "") -> Verification:
    """Verify the card of a bundle from the files of the bundle alone.

    The scores of a global bundle are recomputed only if the sites' bundles with the predictions are beside it.

    Args:
        bundle: Folder of the bundle.
        name: Name of the bundle in the result; by default the name of its folder.
    """
    result = Verification(name or bundle.absolute().name)
    result.problems += find_changed_files(bundle)
    try:
        evidence = Evidence.read(bundle / Evidence.NAME)
    except StoreError:
        return result
    result.files, result.sha256 = len(evidence.files), sha256_of(bundle / Evidence.NAME)
    _check_numbers(bundle, evidence, result)
    _check_card(bundle, evidence, result)
    return result


def find_changed_files(bundle: Path) -> list[str]:
    """Return a line for each file that differs from ``evidence.json``; one line with the error if that file is damaged.

    Args:
        bundle: Folder of the bundle.
    """
    try:
        evidence = Evidence.read(bundle / Evidence.NAME)
    except StoreError as error:
        return [str(error)]
    problems = _hash_differences(evidence.files, hash_files(bundle), "")
    if digest_hashes(evidence.files) != evidence.files_digest:
        problems.append(f"{Evidence.NAME}: files_digest does not match the hashes of the files")
    return problems


def _hash_differences(old: Mapping[str, str], new: Mapping[str, str], where: str) -> list[str]:
    """Return a line for each changed, missing or added file.

    Args:
        old: Maps each file to its hash in the evidence.
        new: Maps each file to its current hash.
        where: Phrase after the name of each file, such as ``of the run folder``; may be empty.
    """
    candidates = {
        "changed": old.keys() & new.keys(),
        "missing": old.keys() - new.keys(),
        "added": new.keys() - old.keys(),
    }
    suffix = f" {where}" if where else ""
    return [
        f"{name}{suffix}: {difference}"
        for difference, names in candidates.items()
        for name in sorted(names)
        if old.get(name) != new.get(name)
    ]


def _check_numbers(bundle: Path, evidence: Evidence, result: Verification) -> None:
    """Compute the scores again from predictions, and add differences to `result`."""
    facts, scores, predictions = evidence.facts, evidence.scores, evidence.predictions
    if not scores.tables:
        return
    files = find_prediction_files(bundle, facts.site, predictions)
    if missing := sorted(predictions.keys() - files.keys()):
        if facts.site is None:
            names = ", ".join(missing)
            result.notes.append(f"scores: the predictions of {names} are in the run folder, not here")
        return
    if facts.site is None:  # a site's predictions are among the files of its bundle
        hashes = {site: sha256_of(path) for site, path in files.items()}
        result.problems += _hash_differences(predictions, hashes, "(predictions)")
    try:
        tested = read_test_predictions(files, read_task_objective(evidence.identity.task))
    except (MedflError, KeyError, TypeError, ValueError):  # the identity may be forged
        result.problems.append("scores can't be computed again: the predictions can't be read")
        return
    again = compute_card_scores(tested, facts.output_names, facts.run.metrics, facts.calibration)
    different = find_score_differences(scores, again)
    result.numbers = count_numbers(scores)
    result.problems += different[:MAX_LISTED_SCORES]
    if len(different) > MAX_LISTED_SCORES:
        result.problems.append(f"and {len(different) - MAX_LISTED_SCORES} more scores")


def _check_card(bundle: Path, evidence: Evidence, result: Verification) -> None:
    """Compare the card's text with the text rendered from its evidence, and add a difference to `result`.

    Of a card that another version of medfl wrote, only the rows of the score tables are compared.
    """
    path = bundle / evidence.card.name
    if not path.is_file():
        return  # `find_changed_files` reports the missing file
    text, facts, scores = path.read_bytes().decode(errors="replace"), evidence.facts, evidence.scores
    lines = text.splitlines()
    if evidence.card.medfl_version == __version__:
        expected = render_card(facts, scores).splitlines()
        pairs = enumerate(zip(lines, expected, strict=False), 1)
        differing_lines = [line_number for line_number, (line, expected_line) in pairs if line != expected_line]
        if differing_lines or len(lines) != len(expected):
            first = differing_lines[0] if differing_lines else min(len(lines), len(expected)) + 1
            result.problems.append(f"{path.name}: line {first} differs from the evidence")
        return
    result.notes.append(f"text of the card: medfl {evidence.card.medfl_version} wrote it")
    rows = [row for table in render_score_tables(facts, scores).values() for row in table.splitlines()]
    if any(row not in lines for row in rows):
        result.problems.append(f"{path.name}: a row of scores differs from the evidence")
