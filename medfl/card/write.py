"""Cards and evidence of all bundles of a run."""

from __future__ import annotations

from pathlib import Path

import medfl
from medfl.card.answers import read_answers
from medfl.card.bundles import Bundle, bundles_of, read_config, read_predicted
from medfl.card.data_facts import data_facts
from medfl.card.evidence import EVIDENCE, card_file, digest_of, file_hash, file_hashes, source_hash, to_bytes
from medfl.card.page import render_card
from medfl.card.run_facts import outputs_of, run_facts
from medfl.card.scores import card_scores
from medfl.errors import StoreError
from medfl.plugins import Registry
from medfl.runs.attack_results import FOLDER
from medfl.runs.records import TEST_CONFIG, RunRecord, read_run
from medfl.types import GLOBAL, Meta, PathLike
from medfl.utils.files import write_atomic
from medfl.utils.text import plain_name
from medfl.utils.wire import digest

RUN_FILES = ("summary.json", "metrics.csv")
"""Of the run folder, what a card is made from, beside ``run.json`` and the results of attacks."""


def write_cards(
    folder: PathLike, registry: Registry, data: PathLike | None = None, answers: PathLike | None = None
) -> list[Path]:
    """Write a card and its evidence into every bundle of a run; no other file of a bundle is touched.

    Args:
        folder: The run folder.
        registry: Knows the run's method.
        data: Folder of the partitioned data; None means where the run says that it lay.
        answers: What people answer (`medfl.card.answers.read_answers`); None for nothing.

    Returns:
        The cards.

    Raises:
        SettingsError: If the answers can't be read.
        StoreError: If the folder holds no run that is over, or a file can't be read or written.
    """
    run, people = read_run(folder), read_answers(None if answers is None else Path(answers))
    data_folder = run.data_folder if data is None else Path(data)
    known = registry.methods.get(run.method)
    method: Meta = {"summary": known.summary, "paper": known.paper} if known else {"summary": "", "paper": ""}
    written = []
    for bundle in bundles_of(run):
        digests = run.run.provenance.data.sites
        facts = data_facts(data_folder, digests, [bundle.site] if bundle.site else run.sites)
        about = about_bundle(run, bundle, facts, people, method)
        tested = read_predicted(bundle.predictions, run.objective)
        scores = card_scores(tested, about["names"], run.task_metrics)
        written.append(_write(run, bundle, about, scores))
    return written


def about_bundle(record: RunRecord, bundle: Bundle, data: Meta, people: Meta, method: Meta) -> Meta:
    """What a card says beside scores."""
    run = run_facts(record, bundle.site)
    model = _model(bundle.folder, run["networks"])
    name = record.run.provenance.data.name
    homes = [bundle.folder] if bundle.site is not None else (bundle.folder.parent / "sites").glob("*")
    whose = "global model" if bundle.site is None else f"model of {bundle.site}"
    shown = " and ".join(data.get("names", [])) or name or "data without a name"
    return {
        "has_test_cases": any((home / TEST_CONFIG).is_file() for home in homes),
        "title": f"{run['method']} on {shown}: {whose}",
        "name": name,
        "names": outputs_of(record, model["channels"]),
        "site": bundle.site,
        "license": people["license"],
        "intended_use": people["intended_use"] or model["intended_use"],
        "unscored": _unscored(run, bundle),
        "answers": people,
        "model": model,
        "run": run,
        "data": data,
        **method,
    }


def _unscored(run: Meta, bundle: Bundle) -> str:
    if bundle.site is None and run["taken_home"] != [GLOBAL]:
        return "sites took models of their own home, and their predictions are of these"
    return "there are no predictions of test images"


def run_hashes(run: RunRecord) -> dict[str, str]:
    """SHA-256 of the files of a run folder that cards are made from; ``run.json`` without a note of `medfl clean`."""
    folder, kept = run.folder, {key: value for key, value in run.run.to_json().items() if key != "cleaned"}
    hashes = {"run.json": digest({}, kept)}
    paths = [*(folder / name for name in RUN_FILES), *sorted((folder / FOLDER).glob("*.json"))]
    return hashes | {path.relative_to(folder).as_posix(): file_hash(path) for path in paths if path.is_file()}


def _write(run: RunRecord, bundle: Bundle, about: Meta, scores: Meta) -> Path:
    path, evidence = card_file(bundle.folder), bundle.folder / EVIDENCE
    if evidence.exists() and b'"card"' not in evidence.read_bytes():
        raise StoreError(
            "foreign_file", f"'{evidence}' is no evidence of medfl, so it is not replaced. Move it away.", path=evidence
        )
    write_atomic(path, render_card(about, scores).encode())
    hashes = file_hashes(bundle.folder)
    identity, provenance = run.run.identity.to_json(), run.run.provenance
    content: Meta = {
        "about": about,
        "scores": scores,
        "card": {"file": path.name, "medfl": medfl.__version__},
        "files": hashes,
        "bundle": digest_of(hashes),
        "predictions": {site: file_hash(file) for site, file in bundle.predictions.items()},
        "data": {"all": run.data, "sites": provenance.data.sites, "lists": about["data"].get("lists", {})},
        "code": {
            "versions": run.run.versions.to_json(),
            "plugins": provenance.plugins,
            "card_source": source_hash(),
        },
        "identity": identity,
        "identity_sha256": digest({}, identity),
        "run_files": run_hashes(run),
    }
    write_atomic(evidence, to_bytes(content))
    return path


def _model(bundle: Path, networks: list[str]) -> Meta:
    """What the bundle's own files say of the model, which has one of the run's networks."""
    named = read_config(bundle, "train.json").get("network_name")
    metadata = read_config(bundle, "metadata.json")
    image = _inside(metadata, "network_data_format", "inputs", "image")
    channels = _inside(metadata, "network_data_format", "outputs", "pred", "channel_def")
    return {
        "networks": [named] if named in networks else networks,
        "intended_use": str(metadata.get("intended_use") or "") or None,
        "input": str(metadata.get("image_classes") or "") or None,
        "output": str(metadata.get("pred_classes") or "") or None,
        "channels": [plain_name(str(name), str(number)) for number, name in enumerate(channels.values())],
        "images": bool(image.get("spatial_shape")),
    }


def _inside(content: Meta, *keys: str) -> Meta:
    """An object within others; empty where there is none."""
    for key in keys:
        value = content.get(key)
        content = value if isinstance(value, dict) else {}
    return content
