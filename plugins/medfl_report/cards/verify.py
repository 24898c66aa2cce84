"""Check of bundles against their cards: the SHA-256 of every file, and every score computed again from predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.records import RunRecord, objective_of, read_run
from medfl.errors import MedflError, StoreError
from medfl.plugins import Registry, load_plugins
from medfl.utils.files import sha256_of
from medfl.version import __version__
from medfl_report.cards.bundles import Bundle, bundles_of, prediction_files, read_predicted
from medfl_report.cards.card_record import RunFacts
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.hashes import digest_of, file_hashes
from medfl_report.cards.page import render_card, score_lines
from medfl_report.cards.run_facts import run_facts
from medfl_report.cards.scores import card_scores, count_numbers, score_differences
from medfl_report.cards.write import run_hashes

MOST = 5
"""Maximum number of differing scores that are listed."""


@dataclass
class Verification:
    """Result of the check of a bundle.

    Attributes:
        name: Name of the bundle: its folder, relative to the run folder.
        problems: Sentences about differences from the card; empty without any.
        notes: Sentences about parts that could not be checked.
        files: Number of files that were compared.
        numbers: Number of scores and counts that were computed again.
        sha256: SHA-256 of the evidence; empty if it can't be read.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    numbers: int = 0
    sha256: str = ""


def verify(place: Path, registry: Registry | None = None) -> list[Verification]:
    """Check a bundle, or all bundles of a run.

    Args:
        place: Folder of the bundle or the run.
        registry: Registry with the sections of the report; None loads the installed plugins.

    Raises:
        StoreError: If the folder holds neither a run nor a bundle with a card.
    """
    if (place / "run.json").is_file():
        run = read_run(place)
        registry = registry or load_plugins()
        return [_verify_in_run(bundle, run, registry) for bundle in bundles_of(run)]
    if (place / Evidence.NAME).is_file():
        return [verify_bundle(place)]
    raise StoreError(
        "missing_card",
        f"expected a run folder or a bundle with a card at '{place}', there is neither run.json nor {Evidence.NAME} in "
        "it. Write cards with `medfl card RUN`.",
        path=place,
    )


def _verify_in_run(bundle: Bundle, run: RunRecord, registry: Registry) -> Verification:
    """Check a bundle, and compare its card with the run folder."""
    name, facts = bundle.folder.relative_to(run.folder).as_posix(), run_facts(run, bundle.site, registry)
    if not (bundle.folder / Evidence.NAME).is_file():
        return Verification(name, [f"there is no {Evidence.NAME}: `medfl card` was not given since the run ended"])
    result = verify_bundle(bundle.folder, name)
    try:
        evidence = Evidence.read(bundle.folder / Evidence.NAME)
    except StoreError:
        return result
    result.problems += _differences(evidence.run_files, run_hashes(run), "of the run folder")
    if names := _unlike_facts(evidence.facts.run, facts):
        result.problems.append(f"the run folder does not say what the card says of: {', '.join(names)}")
    return result


def _unlike_facts(old: RunFacts, new: RunFacts) -> list[str]:
    """Return the names of the facts that differ, in words."""
    names = (name for name in RunFacts.model_fields if getattr(old, name) != getattr(new, name))
    return sorted(name.replace("_", " ") for name in names)


def verify_bundle(bundle: Path, name: str = "") -> Verification:
    """Check a bundle by its own files; the predictions of the global one are in the run folder.

    Args:
        bundle: Folder of the bundle.
        name: Name of the bundle in the result; by default that of the folder.
    """
    result = Verification(name or bundle.absolute().name)
    result.problems += changed_files(bundle)
    try:
        evidence = Evidence.read(bundle / Evidence.NAME)
    except StoreError:
        return result
    result.files, result.sha256 = len(evidence.files), sha256_of(bundle / Evidence.NAME)
    _check_numbers(bundle, evidence, result)
    _check_card(bundle, evidence, result)
    return result


def changed_files(bundle: Path) -> list[str]:
    """Return a sentence for each file that differs from the evidence, and one if the evidence itself is damaged.

    Args:
        bundle: Folder of the bundle.
    """
    try:
        evidence = Evidence.read(bundle / Evidence.NAME)
    except StoreError as error:
        return [str(error)]
    problems = _differences(evidence.files, file_hashes(bundle), "")
    if digest_of(evidence.files) != evidence.files_digest:
        problems.append(f"{Evidence.NAME}: the digest of the files is not that of their hashes")
    return problems


def _differences(old: Mapping[str, str], new: Mapping[str, str], where: str) -> list[str]:
    words = {
        "changed": old.keys() & new.keys(),
        "missing": old.keys() - new.keys(),
        "not there before": new.keys() - old.keys(),
    }
    suffix = f" {where}" if where else ""
    return [
        f"{name}{suffix}: {word}"
        for word, names in words.items()
        for name in sorted(names)
        if old.get(name) != new.get(name)
    ]


def _check_numbers(bundle: Path, evidence: Evidence, result: Verification) -> None:
    """Compute the scores again, and add differences to the result."""
    facts, scores, predictions = evidence.facts, evidence.scores, evidence.predictions
    if not scores.tables:
        return
    files = prediction_files(bundle, facts.site, predictions)
    if missing := sorted(predictions.keys() - files.keys()):
        if facts.site is None:
            where = f"the predictions of {', '.join(missing)} lie with the run, not here"
            result.notes.append(f"its scores were not computed again: {where}")
        return
    if facts.site is None:  # those of a site are among its files
        hashes = {site: sha256_of(path) for site, path in files.items()}
        result.problems += _differences(predictions, hashes, "(predictions)")
    try:
        tested = read_predicted(files, objective_of(evidence.identity.task))
    except (MedflError, KeyError, TypeError, ValueError):  # people may have made up the identity, too
        result.problems.append("its scores can't be computed again: the predictions can't be read")
        return
    unlike = score_differences(scores, card_scores(tested, facts.output_names, facts.run.metrics))
    result.numbers = count_numbers(scores)
    result.problems += unlike[:MOST]
    if len(unlike) > MOST:
        result.problems.append(f"and {len(unlike) - MOST} further numbers")


def _check_card(bundle: Path, evidence: Evidence, result: Verification) -> None:
    """Compare the card's text with the text that its facts and scores give, and add a difference to the result."""
    path = bundle / evidence.card.name
    if not path.is_file():
        return  # another check names it as missing
    text, facts, scores = path.read_bytes().decode(errors="replace"), evidence.facts, evidence.scores
    lines = text.splitlines()
    if evidence.card.medfl_version == __version__:
        expected = render_card(facts, scores).splitlines()
        unlike = [place for place, pair in enumerate(zip(lines, expected, strict=False), 1) if pair[0] != pair[1]]
        if unlike or len(lines) != len(expected):
            place = unlike[0] if unlike else min(len(lines), len(expected)) + 1
            result.problems.append(f"{path.name}: line {place} is not what its evidence gives")
        return
    result.notes.append(f"its words were not compared: medfl {evidence.card.medfl_version} wrote it")
    for _, rows in score_lines(facts, scores):
        for row in rows.splitlines():
            if row not in lines:
                result.problems.append(f"{path.name}: a line of scores is not what its evidence gives")
                return
