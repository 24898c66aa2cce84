"""What a reader must know before any number: what was run, what went wrong, what was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.summary import ended_on
from medfl.privacy.policy import mechanism_of
from medfl.privacy.statements import WHAT, describe_secure
from medfl.settings import Privacy
from medfl.utils.formats import count, listed, number
from medfl_report.groups import Group, data_per, name_runs
from medfl_report.scores import named_runs
from medfl_report.section import LEVELS, Notice

Named = tuple[str, RunRecord]
"""A run with the name that it has on the page."""

ENDINGS = {"running": "not over"}
"""Status to how a sentence calls it, where that differs."""


NAMED = 8
"""How many methods a title names; of more it has the number."""


def headline(groups: Sequence[Group]) -> str:
    """The methods, or how many there are, and the number of sites, as a title."""
    sites = {site for group in groups for run in group.runs for site in run.sites}
    who = listed([group.label for group in groups]) if len(groups) <= NAMED else f"{len(groups)} ways to train"
    return f"{who} at {count(len(sites), 'site')}"


def summary_sentence(runs: Sequence[Named]) -> str:
    """One sentence in plain words: what was run on what, and how it ended."""
    rounds = sorted({run.run.rounds for _, run in runs})
    seeds = sorted({run.seed for _, run in runs})
    states = Counter(run.status for _, run in runs)
    parts = [
        f"{count(len(runs), 'run')} over {' or '.join(map(str, rounds))} round{'s' if rounds != [1] else ''}",
        f"with the seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}",
    ]
    folds = {run.fold for _, run in runs} - {None}
    parts += [f"in {len(folds)} folds"] if len(folds) > 1 else []
    parts += _data({run.data: run for _, run in sorted(runs, key=lambda named: named[1].summary is not None)})
    ended = [f"{n} {ENDINGS.get(state, state)}" for state, n in states.items()]
    if len(states) == 1:
        ended = [("all " if len(runs) > 1 else "") + ENDINGS.get(runs[0][1].status, runs[0][1].status)]
    return f"{' '.join(parts)}: {listed(ended)}."


def _data(kinds: Mapping[str, RunRecord]) -> list[str]:
    """Sites, name and images of the data; of several only their number and names, for the rest differs."""
    names = sorted({name for run in kinds.values() if (name := run.run.provenance.data.name)})
    if len(kinds) > 1:
        return [f"on {len(kinds)} data sets" + (f" made from {listed(names)}" if names else "")]
    (run,) = kinds.values()
    named = [f"on {names[0]}"] if names else []
    return [*named, f"at {count(len(run.sites), 'site')}{_images(run)}"]


def _images(run: RunRecord) -> str:
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
        f"({number(totals['training'])} to train, {number(totals['validation'])} to validate, "
        f"{number(totals['test'])} to test)"
    )


def make_notices(groups: Sequence[Group], of_sections: Sequence[Notice] = ()) -> list[Notice]:
    """All notices, the worst first.

    Args:
        groups: Of the page.
        of_sections: What the sections of the page have to say.
    """
    runs = named_runs(groups)
    notices = [
        *_simulated_attacks(runs),
        *_secure(groups),
        *_endings(runs),
        *_constant(groups),
        *_best_rounds(runs),
        *_missing(runs),
        *_leaks(groups),
        *_changes(groups),
        *_other_data(groups),
        *_no_test(groups),
        *of_sections,
        *_privacy(groups, {label for notice in of_sections for label in notice.privacy_of}),
    ]
    return sorted(notices, key=lambda notice: LEVELS.index(notice.level))


def _simulated_attacks(runs: Sequence[Named]) -> list[Notice]:
    """Simulated attacks: their scores are no federation's."""
    return [
        Notice(
            "bad",
            f"{name} simulates an attack ({adversaries['attack']} at {listed(adversaries['sites'])}). Its scores are "
            "not those of an honest federation.",
        )
        for name, run in runs
        if (adversaries := run.settings.adversaries)
    ]


def _about(groups: Sequence[Group], texts: Callable[[RunRecord], Iterable[str]]) -> list[tuple[str, str]]:
    """Return each text about one of the runs, behind the runs that have it in common."""
    runs: dict[str, list[RunRecord]] = {}
    for run in (run for group in groups for run in group.runs):
        for text in texts(run):
            runs.setdefault(text, []).append(run)
    return [(name_runs(same, groups), text) for text, same in runs.items()]


def _secure(groups: Sequence[Group]) -> list[Notice]:
    """Return what the server learned of the updates."""

    def words(run: RunRecord) -> Iterator[str]:
        if (setting := run.settings.secure_aggregation) is not None:
            yield describe_secure(setting, simulated=run.run.provenance.offer is None)

    return [Notice("info", f"{who}: {text}") for who, text in _about(groups, words)]


def _missing(runs: Sequence[Named]) -> list[Notice]:
    """Runs that ended on a part of their sites; and sites on other machines that were missing when asked last."""
    parts = [
        Notice("warn", f"{name} {run.status}{on}: without {listed(run.summary.attendance.unavailable)}.")
        for name, run in runs
        if run.summary is not None and (on := ended_on(run.summary)) and run.status == "finished"
    ]
    return parts + [
        Notice("warn", f"{name}: site {site} was missing when it was asked last: {why}.")
        for name, run in runs
        if run.summary is not None
        for site, why in sorted(run.summary.unavailable_reasons.items())
    ]


def _endings(runs: Sequence[Named]) -> list[Notice]:
    notices = []
    for name, run in runs:
        if run.summary is None:
            done = 0 if run.metrics.empty else int(run.metrics["round"].max())
            text = (
                f"{name} is not over: it is still running or was stopped, with {done} of {run.run.rounds} rounds "
                "in its metrics. The same command continues it; its final scores are not known yet."
            )
            notices.append(Notice("warn", text))
        elif run.status != "finished":
            reason = (run.summary.reason or "no reason is given").rstrip(".")
            last = run.summary.evaluated_round
            scored = f"Its scores are those after round {last}." if last else "It has no scores."
            rounds = f"{run.summary.rounds} of {run.run.rounds} rounds"
            on = ended_on(run.summary)
            notices.append(Notice("bad", f"{name} ended as {run.status}{on} after {rounds}: {reason}. {scored}"))
    return notices


def _constant(groups: Sequence[Group]) -> list[Notice]:
    """Return what is found of models that predict the same for every image."""
    findings = _about(groups, lambda run: [entry.sentence for entry in run.constant_predictions])
    return [Notice("bad", f"{who}: {sentence}") for who, sentence in findings]


def _best_rounds(runs: Sequence[Named]) -> list[Notice]:
    """Which round was chosen, and which runs ended early; both by validation scores."""
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
        score = " (of which none came)" if best.score is None else f" ({best.metric} {best.score:.3f})"
        notices.append(Notice("info", f"{name}: {', and '.join(clauses)}, by scores on {best.scored_on}{score}."))
    return notices


def _leaks(groups: Sequence[Group]) -> list[Notice]:
    leaks = _about(groups, lambda run: () if run.summary is None else run.summary.leaks)
    return [
        Notice("bad", f"A leak between the data was allowed by name ({who}): {sentence.rstrip('.')}.")
        for who, sentence in leaks
    ]


def _changes(groups: Sequence[Group]) -> list[Notice]:
    files = _about(groups, lambda run: run.run.provenance.data.allowed_changes)
    return [
        Notice("warn", f"'{file}' changed after the partition, which was accepted by name ({who}).")
        for who, file in files
    ]


def _other_data(groups: Sequence[Group]) -> list[Notice]:
    kinds = _about(groups, lambda run: [run.data])
    if len(kinds) < 2:
        return []
    if way := data_per([run for group in groups for run in group.runs]):
        within = "seed" if way == "seed" else "seed and fold"
        return [Notice("info", f"Each {way} has data of its own. Differences are taken within a {within}.")]
    who = "; ".join(f"data {data[:8]}: {names}" for names, data in kinds)
    return [Notice("warn", f"The runs did not use the same data ({who}). Differences are taken on the same data only.")]


def _no_test(groups: Sequence[Group]) -> list[Notice]:
    def text(run: RunRecord) -> Iterator[str]:
        scored = [split for splits in run.scores.values() for split in splits]
        if run.status != "running" and "test" not in scored:
            yield "no site had test images that were scored."

    return [Notice("warn", f"There are no test scores of {who}: {why}") for who, why in _about(groups, text)]


def _privacy(groups: Sequence[Group], named: Set[str]) -> list[Notice]:
    """What private runs promise, in short, and who promises nothing; the groups in `named` have a notice already."""
    promises: dict[str, list[str]] = {}
    without = []
    for group in groups:
        settings = group.runs[0].settings.privacy
        if settings is None:
            without += [group.label] if group.label not in named else []
        else:
            promises.setdefault(_promise(settings), []).append(group.label)
    if not promises and not named:
        return [Notice("info", "No differential privacy was used.")]
    summary = "; ".join(f"{promise} ({listed(names)})" for promise, names in promises.items())
    text = f"Differential privacy: {summary}. The section Privacy says what that means, and what was spent."
    others = [Notice("info", f"No differential privacy was used by {listed(without)}.")] if without else []
    return [*([Notice("info", text)] if promises else []), *others]


def _promise(privacy: Privacy) -> str:
    unit = mechanism_of(privacy.unit).unit_phrase
    return f"epsilon {privacy.epsilon:g} with delta {privacy.delta:g} for {unit} that is {WHAT[privacy.adjacency]}"
