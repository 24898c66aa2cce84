"""Whether bundles are as their cards say: every file's SHA-256, and every score computed again from predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import medfl
from medfl.card.bundles import Bundle, bundles_of, prediction_files, read_predicted
from medfl.card.evidence import EVIDENCE, digest_of, file_hash, file_hashes, from_bytes
from medfl.card.page import render_card, score_lines
from medfl.card.run_facts import run_facts
from medfl.card.scores import card_scores, count_numbers, same_scores
from medfl.card.write import run_hashes
from medfl.errors import DamagedError, StoreError
from medfl.records.run_file import TaskIdentity
from medfl.runs.records import RunRecord, objective_of, read_run
from medfl.types import Meta

MOST = 5
"""Numbers that differ, of those that a message lists."""


@dataclass
class Checked:
    """A bundle and what was seen.

    Attributes:
        name: Of the bundle: its folder, seen from the run folder.
        problems: What is not as the card says, a sentence each; empty where all is.
        notes: What could not be checked.
        files: How many files were compared.
        numbers: How many numbers were computed again.
        sha256: Of its evidence, as far as that can be read; "" else.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    numbers: int = 0
    sha256: str = ""


def verify(place: Path) -> list[Checked]:
    """Check a bundle, or all bundles of a run.

    Raises:
        StoreError: If it is neither.
    """
    if (place / "run.json").is_file():
        run = read_run(place)
        return [_of_run(bundle, run) for bundle in bundles_of(run)]
    if (place / EVIDENCE).is_file():
        return [verify_bundle(place)]
    raise StoreError(
        "missing_card",
        f"expected a run folder or a bundle with a card at '{place}', there is neither run.json nor {EVIDENCE} in it. "
        "Write cards with `medfl card RUN`.",
        path=place,
    )


def _of_run(bundle: Bundle, run: RunRecord) -> Checked:
    """A bundle, and whether the run folder still says what its card does."""
    name, facts = bundle.folder.relative_to(run.folder).as_posix(), run_facts(run, bundle.site)
    if not (bundle.folder / EVIDENCE).is_file():
        return Checked(name, [f"there is no {EVIDENCE}: `medfl card` was not given since the run ended"])
    checked = verify_bundle(bundle.folder, name)
    try:
        evidence = from_bytes((bundle.folder / EVIDENCE).read_bytes())
    except DamagedError:
        return checked
    checked.problems += _differences(evidence["run_files"], run_hashes(run), "of the run folder")
    if evidence["about"]["run"] != facts:
        keys = sorted(key for key in facts if facts[key] != evidence["about"]["run"].get(key))
        checked.problems.append(f"the run folder does not say what the card says of: {', '.join(keys)}")
    return checked


def verify_bundle(bundle: Path, name: str = "") -> Checked:
    """Check a bundle by its own files; of the global one the predictions lie with the run.

    Args:
        bundle: Its folder.
        name: What it is called; by default the folder's name.
    """
    checked = Checked(name or bundle.absolute().name)
    checked.problems += changed_files(bundle)
    try:
        evidence = from_bytes((bundle / EVIDENCE).read_bytes())
    except (DamagedError, OSError):
        return checked
    checked.files, checked.sha256 = len(evidence["files"]), file_hash(bundle / EVIDENCE)
    _check_numbers(bundle, evidence, checked)
    _check_card(bundle, evidence, checked)
    return checked


def changed_files(bundle: Path) -> list[str]:
    """What is not as the evidence says: changed, missing and further files, and the evidence itself."""
    try:
        evidence = from_bytes((bundle / EVIDENCE).read_bytes())
    except (DamagedError, OSError) as error:
        return [f"{EVIDENCE}: {error}"]
    problems = _differences(evidence["files"], file_hashes(bundle), "")
    if digest_of(evidence["files"]) != evidence["bundle"]:
        problems.append(f"{EVIDENCE}: the SHA-256 of the bundle is not that of its files")
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


def _check_numbers(bundle: Path, evidence: Meta, checked: Checked) -> None:
    """Compute the scores again."""
    about, scores = evidence["about"], evidence["scores"]
    if not scores:
        return
    files = prediction_files(bundle, about["site"], evidence["predictions"])
    if absent := sorted(evidence["predictions"].keys() - files.keys()):
        if about["site"] is None:
            where = f"the predictions of {', '.join(absent)} lie with the run, not here"
            checked.notes.append(f"its scores were not computed again: {where}")
        return
    if about["site"] is None:  # those of a site are among its files
        hashes = {site: file_hash(path) for site, path in files.items()}
        checked.problems += _differences(evidence["predictions"], hashes, "(predictions)")
    try:
        tested = read_predicted(files, objective_of(TaskIdentity.model_validate(evidence["identity"]["task"])))
    except StoreError:
        checked.problems.append("its scores can't be computed again: the predictions can't be read")
        return
    again = card_scores(tested, about["names"], about["run"]["metrics"])
    unlike = same_scores(scores, again)
    checked.numbers = count_numbers(scores)
    checked.problems += unlike[:MOST]
    if len(unlike) > MOST:
        checked.problems.append(f"and {len(unlike) - MOST} further numbers")


def _check_card(bundle: Path, evidence: Meta, checked: Checked) -> None:
    """Compare the card's text with what its facts and scores give."""
    path = bundle / evidence["card"]["file"]
    if not path.is_file():
        return  # it is missing, which was said
    text, about, scores = path.read_bytes().decode(errors="replace"), evidence["about"], evidence["scores"]
    lines = text.splitlines()
    if evidence["card"]["medfl"] == medfl.__version__:
        expected = render_card(about, scores).splitlines()
        unlike = [place for place, pair in enumerate(zip(lines, expected, strict=False), 1) if pair[0] != pair[1]]
        if unlike or len(lines) != len(expected):
            place = unlike[0] if unlike else min(len(lines), len(expected)) + 1
            checked.problems.append(f"{path.name}: line {place} is not what its evidence gives")
        return
    checked.notes.append(f"its words were not compared: medfl {evidence['card']['medfl']} wrote it")
    for _, rows in score_lines(about, scores):
        for row in rows.splitlines():
            if row not in lines:
                checked.problems.append(f"{path.name}: a line of scores is not what its evidence gives")
                return
