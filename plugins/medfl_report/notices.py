"""Title, summary sentence and notices (information and warnings about the runs) at the top of a report.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.summary import describe_unavailable
from medfl.privacy.policy import mechanism_of
from medfl.privacy.statements import ADJACENCY_WORDS, describe_secure
from medfl.settings import Privacy
from medfl.utils.formats import count, join_words, number
from medfl_report.groups import Group, data_per, name_runs
from medfl_report.scores import named_runs
from medfl_report.section import LEVELS, Notice

NamedRun = tuple[str, RunRecord]
"""Pair (name of the run on the page, run)."""

STATUS_WORDS = {"running": "not over"}
"""Mapping from a run's status to the words for the status in a sentence, if these differ from the status."""

MAX_NAMED = 8
"""Largest number of methods that a title names; for more methods the title has only their number."""


def headline(groups: Sequence[Group]) -> str:
    """Return the title of the report: the methods, or the number of methods, and the number of sites."""
    sites = {site for group in groups for run in group.runs for site in run.sites}
    who = join_words([group.label for group in groups]) if len(groups) <= MAX_NAMED else f"{len(groups)} methods"
    return f"{who} at {count(len(sites), 'site')}"


def summary_sentence(runs: Sequence[NamedRun]) -> str:
    """Return a sentence with the number of runs, rounds, seeds, the data, and how the runs ended."""
    rounds = sorted({run.run.rounds for _, run in runs})
    seeds = sorted({run.seed for _, run in runs})
    states = Counter(run.status for _, run in runs)
    parts = [
        f"{count(len(runs), 'run')} over {' or '.join(map(str, rounds))} round{'s' if rounds != [1] else ''}",
        f"with the seed{'s' if len(seeds) > 1 else ''} {join_words([str(seed) for seed in seeds])}",
    ]
    folds = {run.fold for _, run in runs} - {None}
    parts += [f"in {len(folds)} folds"] if len(folds) > 1 else []
    parts += _data({run.data: run for _, run in sorted(runs, key=lambda named: named[1].summary is not None)})
    ended = [f"{n} {STATUS_WORDS.get(state, state)}" for state, n in states.items()]
    if len(states) == 1:
        ended = [("all " if len(runs) > 1 else "") + STATUS_WORDS.get(runs[0][1].status, runs[0][1].status)]
    return f"{' '.join(parts)}: {join_words(ended)}."


def _data(kinds: Mapping[str, RunRecord]) -> list[str]:
    """Return phrases about the data: name, sites and images; for several data sets their number and names."""
    names = sorted({name for run in kinds.values() if (name := run.run.provenance.data.name)})
    if len(kinds) > 1:
        return [f"on {len(kinds)} data sets" + (f" made from {join_words(names)}" if names else "")]
    (run,) = kinds.values()
    named = [f"on {names[0]}"] if names else []
    return [*named, f"at {count(len(run.sites), 'site')}{_images(run)}"]


def _images(run: RunRecord) -> str:
    """Return a phrase with the number of images; empty if it is not known."""
    holdings = run.holdings
    if holdings is None:
        return ""
    totals = {
        split: sum(sum(site.get(split, ())) for site in holdings.sites.values())
        for split in ("training", "validation", "test")
    }
    classes = f" of {count(len(holdings.classes), 'class', 'classes')}" if run.objective.has_class_labels else ""
    return (
        f" with {count(sum(totals.values()), 'image')}{classes} "
        f"({number(totals['training'])} training, {number(totals['validation'])} validation, "
        f"{number(totals['test'])} test)"
    )


def make_notices(groups: Sequence[Group], of_sections: Sequence[Notice] = ()) -> list[Notice]:
    """Return all notices, the most severe first.

    Args:
        groups: Groups of the page.
        of_sections: Notices of the page's sections.
    """
    runs = named_runs(groups)
    notices = [
        *_attacked(runs),
        *_secure(groups),
        *_endings(runs),
        *_constant(groups),
        *_starts(groups),
        *_harmonised(groups),
        *_best_rounds(runs),
        *_missing(runs),
        *_leaks(groups),
        *_changes(groups),
        *_data_notes(groups),
        *_other_data(groups),
        *_no_test(groups),
        *of_sections,
        *_privacy(groups, {label for notice in of_sections for label in notice.privacy_of}),
    ]
    return sorted(notices, key=lambda notice: LEVELS.index(notice.level))


def _attacked(runs: Sequence[NamedRun]) -> list[Notice]:
    """Return a notice for each run with a simulated attack."""
    return [
        Notice(
            "bad",
            f"{name} contains a simulated attack ({adversaries['attack']} at {join_words(adversaries['sites'])}).",
        )
        for name, run in runs
        if (adversaries := run.settings.adversaries)
    ]


def _about(groups: Sequence[Group], texts: Callable[[RunRecord], Iterable[str]]) -> list[tuple[str, str]]:
    """Return pairs (name of the runs, text) for each text, with all runs that share it."""
    runs: dict[str, list[RunRecord]] = {}
    for run in (run for group in groups for run in group.runs):
        for text in texts(run):
            runs.setdefault(text, []).append(run)
    return [(name_runs(same, groups), text) for text, same in runs.items()]


def _secure(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about secure aggregation: the values that the server sees."""

    def words(run: RunRecord) -> Iterator[str]:
        if (setting := run.settings.secure_aggregation) is not None:
            yield describe_secure(setting, simulated=run.run.provenance.offer is None)

    return [Notice("info", f"{who}: {text}") for who, text in _about(groups, words)]


def _missing(runs: Sequence[NamedRun]) -> list[Notice]:
    """Return notices about unavailable sites, in runs that ended without some sites and in runs between machines."""
    parts = [
        Notice("warn", f"{name} {run.status}{on}: without {join_words(run.summary.attendance.unavailable)}.")
        for name, run in runs
        if run.summary is not None and (on := describe_unavailable(run.summary)) and run.status == "finished"
    ]
    return parts + [
        Notice("warn", f"{name}: site {site} did not reply to the last request: {why}.")
        for name, run in runs
        if run.summary is not None
        for site, why in sorted(run.summary.unavailable_reasons.items())
    ]


def _endings(runs: Sequence[NamedRun]) -> list[Notice]:
    """Return notices about runs that are not over or did not finish."""
    notices = []
    for name, run in runs:
        if run.summary is None:
            done = 0 if run.metrics.empty else int(run.metrics["round"].max())
            text = (
                f"{name} is not over: it is running or was stopped, with {done} of {run.run.rounds} rounds "
                "in its metrics. The same command continues it; there are no final scores yet."
            )
            notices.append(Notice("warn", text))
        elif run.status != "finished":
            reason = (run.summary.reason or "no reason is given").rstrip(".")
            last = run.summary.evaluated_round
            scored = f"Its scores are those after round {last}." if last else "It has no scores."
            rounds = f"{run.summary.rounds} of {run.run.rounds} rounds"
            on = describe_unavailable(run.summary)
            notices.append(Notice("bad", f"{name} ended as {run.status}{on} after {rounds}: {reason}. {scored}"))
    return notices


def _constant(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about models that predict the same for every image."""
    findings = _about(groups, lambda run: [entry.sentence for entry in run.constant_predictions])
    return [Notice("bad", f"{who}: {sentence}") for who, sentence in findings]


def _starts(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about the weights from which runs started."""

    def words(run: RunRecord) -> Iterator[str]:
        if (start := run.run.provenance.start) is not None:
            yield start.sentence

    return [Notice("info", f"{who} started from weights: {text}") for who, text in _about(groups, words)]


def _harmonised(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about the harmonisation of images or features."""

    def words(run: RunRecord) -> Iterator[str]:
        if run.run.provenance.data.harmonisation:
            yield run.run.provenance.data.harmonisation

    return [Notice("info", f"Harmonised ({who}): {text}.") for who, text in _about(groups, words)]


def _best_rounds(runs: Sequence[NamedRun]) -> list[Notice]:
    """Return notices about model selection and early stopping by validation scores."""
    notices = []
    for name, run in runs:
        if run.summary is None or run.summary.best_round is None:
            continue
        best, clauses = run.summary.best_round, []
        if best.ended_early:
            clauses.append(f"it ended early, after {run.summary.rounds} of {run.run.rounds} rounds")
        if best.is_exported:
            clauses.append(f"its models and final scores are those of round {best.round}")
        elif best.round:
            clauses.append(f"its models are those of round {run.summary.models_round}; the best was {best.round}")
        score = " (none was defined)" if best.score is None else f" ({best.metric} {best.score:.3f})"
        notices.append(Notice("info", f"{name}: {', and '.join(clauses)}, by scores on {best.scored_on}{score}."))
    return notices


def _leaks(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about data leaks that the user allowed."""
    leaks = _about(groups, lambda run: () if run.summary is None else run.summary.leaks)
    return [Notice("bad", f"The user allowed a data leak ({who}): {sentence.rstrip('.')}.") for who, sentence in leaks]


def _changes(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about data files that changed after the partition."""
    files = _about(groups, lambda run: run.run.provenance.data.allowed_changes)
    return [
        Notice("warn", f"'{file}' changed after the partition; the user allowed this change ({who}).")
        for who, file in files
    ]


def _data_notes(groups: Sequence[Group]) -> list[Notice]:
    """Return notices with what the data lists say about the data, such as the number of cases without a target."""
    notes = _about(groups, lambda run: run.run.provenance.data.notes)
    return [Notice("info", f"Data ({who}): {sentence.rstrip('.')}.") for who, sentence in notes]


def _other_data(groups: Sequence[Group]) -> list[Notice]:
    """Return a notice if the runs have different data."""
    kinds = _about(groups, lambda run: [run.data])
    if len(kinds) < 2:
        return []
    if way := data_per([run for group in groups for run in group.runs]):
        within = "seed" if way == "seed" else "seed and fold"
        return [Notice("info", f"Each {way} has its own data set. Differences are paired within a {within}.")]
    who = "; ".join(f"data {data[:8]}: {names}" for names, data in kinds)
    return [
        Notice(
            "warn", f"The runs did not use the same data ({who}). Differences are between runs on the same data only."
        )
    ]


def _no_test(groups: Sequence[Group]) -> list[Notice]:
    """Return notices about runs without test scores."""

    def text(run: RunRecord) -> Iterator[str]:
        scored = [split for splits in run.scores.values() for split in splits]
        if run.status != "running" and "test" not in scored:
            yield "no site evaluated test images."

    return [Notice("warn", f"There are no test scores of {who}: {why}") for who, why in _about(groups, text)]


def _privacy(groups: Sequence[Group], named: Set[str]) -> list[Notice]:
    """Return notices about differential privacy, on pages with private runs.

    Args:
        groups: Groups of the page.
        named: Labels of the groups about whose privacy a section has a notice.
    """
    promises: dict[str, list[str]] = {}
    without = []
    for group in groups:
        settings = group.runs[0].settings.privacy
        if settings is None:
            without += [group.label] if group.label not in named else []
        else:
            promises.setdefault(_promise(settings), []).append(group.label)
    if not promises and not named:
        return []
    summary = "; ".join(f"{promise} ({join_words(names)})" for promise, names in promises.items())
    text = f"Differential privacy: {summary}. The section on it has the definitions and the budget spent."
    others = [Notice("info", f"No differential privacy: {join_words(without)}.")] if without else []
    return [*([Notice("info", text)] if promises else []), *others]


def _promise(privacy: Privacy) -> str:
    """Return the guarantee of a privacy setting in words."""
    unit = mechanism_of(privacy.unit).unit_phrase
    adjacency = ADJACENCY_WORDS[privacy.adjacency]
    return f"epsilon {privacy.epsilon:g} with delta {privacy.delta:g} for {unit} that is {adjacency}"
