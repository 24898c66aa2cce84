"""Test the life cycle of a run in its folder, and the reader that can't write."""

import json
from pathlib import Path

import pytest
from refusals import refused

from medfl.engine.plan import MethodChoice, RunPlan
from medfl.engine.runs.lifecycle import RunViewer, RunWriter
from medfl.engine.store import Store
from medfl.errors import RefusedError, StoreError
from medfl.plugins import load_plugins
from medfl.records.run_file import DataOrigin, Provenance, RunFile
from medfl.testing.cohort import Case, make_data, make_task
from medfl.types import SERVER
from medfl.utils.locks import is_being_written
from medfl.utils.wire import digest, tensors_equal


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(load_plugins(), "ditto", settings={"rounds": 2, "keep_rounds": [1]})


def writer(case: Case, folder: Path, rounds: int = 2, method: str = "ditto") -> RunWriter:
    plan = RunPlan(
        method=MethodChoice(name=method, make=case.make_method),
        task=make_task(),
        settings=case.settings_of(rounds=rounds),
        sites=("site-1", "site-2"),
        data_digest="data",
    )
    return RunWriter(plan, folder)


def test_who_only_looks_sees_the_models_of_a_run_and_changes_nothing(case: Case, tmp_path: Path) -> None:
    result = case.run(tmp_path / "run")
    before = content(tmp_path / "run")
    viewer = RunViewer(tmp_path / "run")
    committed = viewer.latest()
    assert committed is not None
    state, last = committed
    method, task, settings = case.make_method(), make_task(), case.settings_of()
    server = viewer.server(state, last, task, settings)
    assert (last.rounds_done, last.step) == (2, Store(viewer.folder / "state" / SERVER).steps()[-1])
    models = method.models(server)
    assert tensors_equal(models["global"].tensors, result.outcome.models["global"].tensors)
    for name, of_site in result.models.items():
        site = viewer.site(name, last, task, settings)
        site.published = method.publish(server)
        for kind, model in method.models(site).items():
            assert tensors_equal(model.tensors, of_site[kind].tensors), kind
    assert viewer.kept_rounds() == [1]
    assert viewer.kept_model(1).tensors.keys() == models["global"].tensors.keys()
    assert viewer.has_state
    assert not is_being_written(tmp_path / "run")
    assert content(tmp_path / "run") == before


def test_who_only_looks_can_keep_nothing_and_post_nothing(case: Case, tmp_path: Path) -> None:
    case.run(tmp_path)
    kept = {"mean": make_data(2, "kept").images}
    Store(tmp_path / "state" / "site-1").put(kept)
    before = content(tmp_path)
    viewer = RunViewer(tmp_path)
    committed = viewer.latest()
    assert committed is not None
    for participant in (
        viewer.server(*committed, make_task(), case.settings_of()),
        viewer.site("site-1", committed[1], make_task(), case.settings_of()),
    ):
        with refused(StoreError, "read_only_run"):
            participant.keep_blob("mean", kept)
    site = viewer.site("site-1", committed[1], make_task(), case.settings_of())
    site.state.blobs["mean"] = digest(kept)
    assert tensors_equal(site.blob("mean"), kept)
    looking = writer(case, tmp_path / "other").viewer("global", make_data(3, "test"))
    with refused(RefusedError, "read_only_run", step=1):
        looking._post(1, None)  # type: ignore[arg-type]
    assert content(tmp_path) == before


def test_a_folder_without_a_commit_has_nothing_to_see(tmp_path: Path) -> None:
    viewer = RunViewer(tmp_path)
    assert viewer.latest() is None
    assert not viewer.has_state
    assert viewer.kept_rounds() == []
    with refused(StoreError, "round_not_kept", round=3, known=[]):
        viewer.kept_model(3)


def test_a_run_is_claimed_by_what_it_is_and_begun_without_its_end(case: Case, tmp_path: Path) -> None:
    first = writer(case, tmp_path)
    with first.held():
        assert is_being_written(tmp_path)
        first.claim(Provenance(data=DataOrigin(name="toy")), backend="flare")
        (tmp_path / "summary.json").write_text("{}")
        first.begin()
        first.begin()
    assert not (tmp_path / "summary.json").exists()
    run = RunFile.read(tmp_path / "run.json")
    assert run.identity == first.plan.identity
    assert (run.rounds, run.backend, run.provenance.data.name) == (2, "flare", "toy")
    (tmp_path / "state" / SERVER).mkdir(parents=True, exist_ok=True)
    (tmp_path / "state" / SERVER / "step-00000001.safetensors").write_text("a step, so that the folder is the run's")
    longer = writer(case, tmp_path, rounds=3)
    assert longer.plan.run_id == first.plan.run_id
    with longer.held():
        longer.claim(Provenance())
    with first.held(), refused(StoreError, "fewer_rounds", expected=3, found=2):
        first.claim(Provenance())
    other = writer(case, tmp_path, method="fedavg")
    assert other.plan.run_id != first.plan.run_id
    with other.held(), refused(StoreError, "other_run", setting="method", expected="ditto", found="fedavg"):
        other.claim(Provenance())


def test_a_run_that_has_done_no_step_does_not_block_another_one(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with writer(case, folder).held():
        writer(case, folder).claim(Provenance())
    start = folder / "state" / SERVER / "step-00000000.safetensors"
    start.parent.mkdir(parents=True)
    start.write_text("the initial state of the run that failed")
    other = writer(case, folder, method="fedavg")
    with other.held():
        other.claim(Provenance())
    assert json.loads((folder / "run.json").read_text())["identity"]["method"] == "fedavg"
    assert not start.exists()
    for done in (f"{SERVER}/step-00000001.safetensors", "site-1/step-00000000.safetensors", "site-1/inbox/0-site-2"):
        path = folder / "state" / done
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        fields = {"setting": "method", "expected": "fedavg", "found": "ditto"}
        with writer(case, folder).held(), refused(StoreError, "other_run", **fields):
            writer(case, folder).claim(Provenance())
        path.unlink()
