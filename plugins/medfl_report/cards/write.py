"""Writing the cards and the evidence of all bundles of a run."""

from __future__ import annotations

from pathlib import Path

from medfl.engine.runs.records import TEST_CONFIG, RunRecord, read_run
from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER
from medfl.plugins import Registry
from medfl.types import GLOBAL, Meta, PathLike
from medfl.utils.files import sha256_of, write_atomic
from medfl.utils.text import plain_name
from medfl.utils.wire import digest
from medfl.version import __version__
from medfl_report.cards.answers import read_answers
from medfl_report.cards.bundles import Bundle, bundles_of, read_config, read_predicted
from medfl_report.cards.card_record import CardAnswers, CardFacts, DataFacts, ModelFacts, RunFacts
from medfl_report.cards.card_scores import CardScores
from medfl_report.cards.data_facts import data_facts
from medfl_report.cards.evidence import CardFile, CodeVersions, Evidence
from medfl_report.cards.hashes import digest_of, file_hashes, source_hash
from medfl_report.cards.page import MARK, render_card
from medfl_report.cards.run_facts import outputs_of, run_facts
from medfl_report.cards.scores import card_scores

RUN_FILES = ("summary.json", "metrics.csv")
"""Files of the run folder that a card is made from, beside ``run.json`` and the results of attacks."""

README, OTHER_README = "README.md", "MODEL_CARD.md"
"""File of the card, and its file in a bundle that brought a ``README.md`` of its own."""


def write_cards(
    folder: PathLike, registry: Registry, data: PathLike | None = None, answers: PathLike | None = None
) -> list[Path]:
    """Write a card and its evidence into every bundle of a run; no other file of a bundle is touched.

    Args:
        folder: The run folder.
        registry: Registry with the run's method and the sections of the report.
        data: Folder of the partitioned data; None for the folder that the run names.
        answers: File of answers (`medfl_report.cards.answers.read_answers`); None for no answers.

    Returns:
        Paths of the cards.

    Raises:
        SettingsError: If the answers can't be read.
        StoreError: If the folder holds no run that is over, or a file can't be read or written.
    """
    run, people = read_run(folder), read_answers(None if answers is None else Path(answers))
    data_folder = run.data_folder if data is None else Path(data)
    written = []
    for bundle in bundles_of(run):
        digests = run.run.provenance.data.sites
        data_of = data_facts(data_folder, digests, [bundle.site] if bundle.site else run.sites)
        facts = card_facts(run, bundle, data_of, people, registry)
        tested = read_predicted(bundle.predictions, run.objective)
        scores = card_scores(tested, facts.output_names, run.task_metrics)
        written.append(_write(run, bundle, facts, scores))
    return written


def card_facts(run: RunRecord, bundle: Bundle, data: DataFacts, answers: CardAnswers, registry: Registry) -> CardFacts:
    """Return the facts of a bundle's card.

    Args:
        run: The run.
        bundle: The bundle.
        data: Facts of the data.
        answers: Answers of people.
        registry: Registry with the run's method and the sections of the report.
    """
    method, of_run = registry.methods.get(run.method), run_facts(run, bundle.site, registry)
    model = _model(bundle.folder, of_run.networks)
    data_name = run.run.provenance.data.name
    homes = [bundle.folder] if bundle.site is not None else (bundle.folder.parent / "sites").glob("*")
    model_name = "global model" if bundle.site is None else f"model of {bundle.site}"
    return CardFacts(
        title=f"{run.method} on {' and '.join(data.names) or data_name or 'data without a name'}: {model_name}",
        site=bundle.site,
        data_name=data_name,
        output_names=tuple(outputs_of(run, model.channels)),
        method_summary="" if method is None else method.summary,
        method_paper="" if method is None else method.paper,
        has_test_cases=any((home / TEST_CONFIG).is_file() for home in homes),
        unscored_because=_unscored_because(of_run, bundle),
        run=of_run,
        data=data,
        model=model,
        answers=answers,
    )


def _unscored_because(run: RunFacts, bundle: Bundle) -> str:
    if bundle.site is None and run.exported_kinds != (GLOBAL,):
        return "sites took models of their own home, and their predictions are of these"
    return "there are no predictions of test images"


def card_file(bundle: Path) -> Path:
    """Return where the card of a bundle goes; a file that the bundle brought is never replaced.

    Args:
        bundle: Folder of the bundle.
    """
    path = bundle / README
    is_foreign = path.exists() and MARK.encode() not in path.read_bytes()
    return bundle / OTHER_README if is_foreign else path


def run_hashes(run: RunRecord) -> dict[str, str]:
    """Return the SHA-256 of each file of a run folder that cards are made from; ``run.json`` without `medfl clean`."""
    folder, kept = run.folder, {key: value for key, value in run.run.to_json().items() if key != "cleaned"}
    hashes = {"run.json": digest({}, kept)}
    paths = [*(folder / name for name in RUN_FILES), *sorted((folder / ATTACKS_FOLDER).glob("*.json"))]
    return hashes | {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths if path.is_file()}


def _write(run: RunRecord, bundle: Bundle, facts: CardFacts, scores: CardScores) -> Path:
    """Write the card of a bundle and its evidence, and return the path of the card."""
    path, evidence = card_file(bundle.folder), bundle.folder / Evidence.NAME
    if evidence.exists() and b'"card"' not in evidence.read_bytes():
        raise StoreError(
            "foreign_file", f"'{evidence}' is no evidence of medfl, so it is not replaced. Move it away.", path=evidence
        )
    write_atomic(path, render_card(facts, scores).encode())
    hashes = file_hashes(bundle.folder)
    identity, provenance = run.run.identity, run.run.provenance
    Evidence(
        facts=facts,
        scores=scores,
        card=CardFile(name=path.name, medfl_version=__version__),
        files=hashes,
        files_digest=digest_of(hashes),
        predictions={site: sha256_of(file) for site, file in bundle.predictions.items()},
        data_digests=provenance.data.sites,
        code=CodeVersions(
            versions=run.run.versions,
            plugins=provenance.plugins,
            card_source=source_hash(),
        ),
        identity=identity,
        identity_digest=digest({}, identity.to_json()),
        run_files=run_hashes(run),
    ).write(evidence)
    return path


def _model(bundle: Path, networks: tuple[str, ...]) -> ModelFacts:
    """Return the facts of a model from its bundle's own files; it has one of the run's networks."""
    named = read_config(bundle, "train.json").get("network_name")
    metadata = read_config(bundle, "metadata.json")
    image = _inside(metadata, "network_data_format", "inputs", "image")
    channels = _inside(metadata, "network_data_format", "outputs", "pred", "channel_def")
    return ModelFacts(
        networks=(named,) if named in networks else networks,
        intended_use=str(metadata.get("intended_use") or "") or None,
        input=str(metadata.get("image_classes") or "") or None,
        output=str(metadata.get("pred_classes") or "") or None,
        channels=tuple(plain_name(str(name), str(number)) for number, name in enumerate(channels.values())),
        takes_images=bool(image.get("spatial_shape")),
    )


def _inside(content: Meta, *keys: str) -> Meta:
    """Return an object within others; empty if there is none."""
    for key in keys:
        value = content.get(key)
        content = value if isinstance(value, dict) else {}
    return content
