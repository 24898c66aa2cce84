"""Write the model cards and the evidence of all bundles of a run."""

from __future__ import annotations

from pathlib import Path

from medfl.engine.runs.records import TEST_CONFIG, RunRecord, read_run
from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER
from medfl.plugins import Registry
from medfl.records.evaluation import Evaluation
from medfl.types import GLOBAL, Meta, PathLike
from medfl.utils.files import sha256_of, write_atomic
from medfl.utils.text import plain_name
from medfl.utils.wire import digest
from medfl.version import __version__
from medfl_report.calibration.validation_predictions import read_bundle_calibration
from medfl_report.cards.bundle_hashes import digest_hashes, hash_files, hash_source
from medfl_report.cards.card_markdown import CARD_MARK, render_card
from medfl_report.cards.card_record import CardAnswers, CardFacts, DataFacts, ModelFacts, RunFacts, SiteEvaluation
from medfl_report.cards.card_scores import CardScores
from medfl_report.cards.checklist_answers import read_answers
from medfl_report.cards.data_facts import read_data_facts
from medfl_report.cards.evidence import CardFile, CodeVersions, Evidence
from medfl_report.cards.run_bundles import RunBundle, find_bundles, read_bundle_config, read_test_predictions
from medfl_report.cards.run_facts import read_output_names, read_run_facts
from medfl_report.cards.score_computation import MIN_PATIENTS, compute_card_scores
from medfl_report.evaluation.stored import EVALUATIONS, read_evaluations

RUN_FILES = ("summary.json", "metrics.csv")
"""Files of the run folder from which a card is made, beside ``run.json`` and the results of attacks and evaluations."""

CARD_NAME, ALTERNATIVE_CARD_NAME = "README.md", "MODEL_CARD.md"
"""`CARD_NAME`: name of the card's file. `ALTERNATIVE_CARD_NAME`: name if a bundle has another ``README.md`` already."""


def write_cards(
    folder: PathLike, registry: Registry, data: PathLike | None = None, answers: PathLike | None = None
) -> list[Path]:
    """Write a card and its evidence into every bundle of a run; other files of the bundles stay unchanged.

    Args:
        folder: The run folder.
        registry: Registry with the run's method and the sections of the report.
        data: Folder of the partitioned data; None for the folder that the run records.
        answers: Answers file (`medfl_report.cards.checklist_answers.read_answers`); None for no answers.

    Returns:
        Paths of the cards.

    Raises:
        SettingsError: If the answers can't be read.
        StoreError: If the folder contains no finished run, or a file can't be read or written.
    """
    run, people_answers = read_run(folder), read_answers(None if answers is None else Path(answers))
    data_folder = run.data_folder if data is None else Path(data)
    written = []
    for bundle in find_bundles(run):
        digests = run.run.provenance.data.sites
        bundle_data = read_data_facts(data_folder, digests, [bundle.site] if bundle.site else run.sites)
        facts = collect_card_facts(run, bundle, bundle_data, people_answers, registry)
        tested = read_test_predictions(bundle.predictions, run.objective)
        scores = compute_card_scores(tested, facts.output_names, run.task_metrics, facts.calibration)
        written.append(_write_card(run, bundle, facts, scores))
    return written


def collect_card_facts(
    run: RunRecord, bundle: RunBundle, data: DataFacts, answers: CardAnswers, registry: Registry
) -> CardFacts:
    """Return everything that a bundle's card states beside scores.

    Args:
        run: The run.
        bundle: The bundle.
        data: Facts about the data of the bundle's sites.
        answers: People's answers.
        registry: Registry with the run's method and the sections of the report.
    """
    method, run_facts = registry.methods.get(run.method), read_run_facts(run, bundle.site, registry)
    model = _model_facts(bundle.folder, run_facts.networks)
    data_name = run.run.provenance.data.name
    site_folders = [bundle.folder] if bundle.site is not None else (bundle.folder.parent / "sites").glob("*")
    model_name = "global model" if bundle.site is None else f"model of {bundle.site}"
    return CardFacts(
        title=f"{run.method} on {' and '.join(data.names) or data_name or 'data without a name'}: {model_name}",
        site=bundle.site,
        data_name=data_name,
        output_names=tuple(read_output_names(run, model.channels)),
        method_summary="" if method is None else method.summary,
        method_paper="" if method is None else method.paper,
        has_test_cases=any((folder / TEST_CONFIG).is_file() for folder in site_folders),
        unscored_because=_unscored_because(run_facts, bundle),
        run=run_facts,
        data=data,
        model=model,
        answers=answers,
        evaluations=read_site_evaluations(run, bundle),
        calibration=read_bundle_calibration(bundle.folder),
    )


def read_site_evaluations(run: RunRecord, bundle: RunBundle) -> tuple[SiteEvaluation, ...]:
    """Return the evaluations of a bundle's model in the run folder.

    An evaluation on fewer than `MIN_PATIENTS` patients (images, if patients are unknown) has no number.

    Args:
        run: The run.
        bundle: The bundle.

    Raises:
        StoreError: If a file of an evaluation is damaged.
    """
    entries = []
    for stored in read_evaluations(run):
        record = stored.record
        for model in record.models:
            if model.name == (bundle.site or GLOBAL):
                known = record.patients or record.images
                is_small = known is not None and known < MIN_PATIENTS
                scores = {} if is_small else model.scores
                entries.append(
                    SiteEvaluation(
                        site=record.site,
                        dataset=record.dataset,
                        images=None if is_small else record.images,
                        patients=None if is_small else record.patients,
                        relation=record.relation,
                        scores={name: score for name, score in scores.items() if score is not None},
                        calibrated=None if is_small else model.calibrated,
                    )
                )
    return tuple(entries)


def _unscored_because(run: RunFacts, bundle: RunBundle) -> str:
    """Return the reason why a bundle has no scores, if it has none, as a clause."""
    if bundle.site is None and run.exported_kinds != (GLOBAL,):
        return "the sites exported personal models, and the predictions are those of the personal models"
    return "there are no predictions for test images"


def find_card_path(bundle: Path) -> Path:
    """Return the path of a bundle's card: ``README.md``, or ``MODEL_CARD.md`` if the first was not written by medfl.

    Args:
        bundle: Folder of the bundle.
    """
    path = bundle / CARD_NAME
    is_foreign = path.exists() and CARD_MARK.encode() not in path.read_bytes()
    return bundle / ALTERNATIVE_CARD_NAME if is_foreign else path


def hash_run_files(run: RunRecord) -> dict[str, str]:
    """Return a mapping from each file of the run folder that cards are made from to the file's SHA-256.

    The hash of ``run.json`` ignores whether `medfl clean` was run.

    Args:
        run: The run.
    """
    folder, content = run.folder, {key: value for key, value in run.run.to_json().items() if key != "cleaned"}
    hashes = {"run.json": digest({}, content)}
    paths = [*(folder / name for name in RUN_FILES), *sorted((folder / ATTACKS_FOLDER).glob("*.json"))]
    paths += sorted((folder / EVALUATIONS).glob(f"*/{Evaluation.NAME}"))
    return hashes | {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths if path.is_file()}


def _write_card(run: RunRecord, bundle: RunBundle, facts: CardFacts, scores: CardScores) -> Path:
    """Write the card of a bundle and its evidence, and return the path of the card."""
    path, evidence = find_card_path(bundle.folder), bundle.folder / Evidence.NAME
    if evidence.exists() and b'"card"' not in evidence.read_bytes():
        raise StoreError(
            "foreign_file",
            f"'{evidence}' was not written by medfl, so it is not replaced. Move it to another folder.",
            path=evidence,
        )
    write_atomic(path, render_card(facts, scores).encode())
    hashes = hash_files(bundle.folder)
    identity, provenance = run.run.identity, run.run.provenance
    Evidence(
        facts=facts,
        scores=scores,
        card=CardFile(name=path.name, medfl_version=__version__),
        files=hashes,
        files_digest=digest_hashes(hashes),
        predictions={site: sha256_of(file) for site, file in bundle.predictions.items()},
        data_digests=provenance.data.sites,
        code=CodeVersions(
            versions=run.run.versions,
            plugins=provenance.plugins,
            card_source=hash_source(),
        ),
        identity=identity,
        identity_digest=digest({}, identity.to_json()),
        run_files=hash_run_files(run),
    ).write(evidence)
    return path


def _model_facts(bundle: Path, networks: tuple[str, ...]) -> ModelFacts:
    """Return the facts about a model from the files of its bundle.

    Args:
        bundle: Folder of the bundle.
        networks: Names of the run's networks; a different name in the bundle is ignored.
    """
    network_name = read_bundle_config(bundle, "train.json").get("network_name")
    metadata = read_bundle_config(bundle, "metadata.json")
    image = _nested_object(metadata, "network_data_format", "inputs", "image")
    channels = _nested_object(metadata, "network_data_format", "outputs", "pred", "channel_def")
    return ModelFacts(
        networks=(network_name,) if network_name in networks else networks,
        intended_use=str(metadata.get("intended_use") or "") or None,
        input=str(metadata.get("image_classes") or "") or None,
        output=str(metadata.get("pred_classes") or "") or None,
        channels=tuple(plain_name(str(name), str(number)) for number, name in enumerate(channels.values())),
        takes_images=bool(image.get("spatial_shape")),
    )


def _nested_object(content: Meta, *keys: str) -> Meta:
    """Return the JSON object at a path of keys; empty if there is none."""
    for key in keys:
        value = content.get(key)
        content = value if isinstance(value, dict) else {}
    return content
