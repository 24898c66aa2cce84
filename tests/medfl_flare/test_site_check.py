"""``medfl site check`` passes for a correct site and names each fault."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from typer.testing import CliRunner

from medfl.bundle.bundle_folders import bundle_hash, shipped_bundles
from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl_flare.commands.site import app
from medfl_flare.provision import ALLOWED_CLASSES
from medfl_flare.sites.preflight.weights import check_weights
from medfl_flare.sites.site_check import CheckResult, check_site

NAME = "medmnist_classification"
SIZES = {"training": 24, "validation": 12, "test": 4}


def write_site(folder: Path, shared: int = 0, sizes: dict[str, int] | None = None, classes: int = 2) -> None:
    """Write random images of 8 x 8 pixels; `shared` of the training images are also in the test split."""
    sizes = sizes or SIZES
    folder.mkdir(parents=True)
    total = sum(sizes.values())
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (total, 8, 8), dtype=np.uint8))
    splits, start = {}, 0
    for name, size in sizes.items():
        rows = list(range(start, start + size))
        start += size
        if name == "test":
            rows[:shared] = range(shared)
        splits[name] = make_records(rows, [row % classes for row in rows], name)
    labels = {str(number): word for number, word in enumerate(["benign", "malignant", "other"][:classes])}
    write_datalist(folder, Datalist("toy", "images.npy", classes, labels, splits=splits))


def write_file(folder: Path, bundle: dict[str, Any] | None = None, more: str = "", **change: Any) -> Path:
    values = {"site": "site-01", "state": "state", "methods": ["fedavg"], "min_count": 10} | change
    bundle = {"data": "data"} if bundle is None else bundle
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += [f"[bundles.{NAME}]", *(f"{name} = {json.dumps(value)}" for name, value in bundle.items()), more]
    path = folder / "medfl-site.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    write_site(tmp_path / "data")
    return tmp_path


def failed(lines: list[CheckResult]) -> list[str]:
    return [line.text for line in lines if not line.ok]


def test_a_site_that_is_ready_passes_every_check(ready: Path) -> None:
    lines = check_site(write_file(ready))
    assert failed(lines) == []
    text = "\n".join(map(str, lines))
    assert all(str(line).startswith("ok: ") for line in lines)
    assert f"version 0.1.0, hash {bundle_hash(shipped_bundles()[NAME])}" in text
    assert "24 training, 12 validation, fewer than 10 test images of 1 x 8 x 8" in text
    assert "benign: 12, malignant: 12" in text
    assert "needs the options num_classes 2, in_channels 1, size [8, 8]" in text
    assert "'cnn4' has" in text
    assert "2 finite outputs" in text
    assert "fedavg (0.1.0)" in text
    assert "no minimum" in text
    assert sorted(path.name for path in (ready / "state").iterdir()) == ["secret"], "no probe is left behind"


def test_its_privacy_minimum_is_reported_and_its_ledger_is_tried(ready: Path) -> None:
    more = '[privacy]\nunit = "site"\nepsilon = 8\nledger = "ledger"\ntotal_epsilon = 20'
    text = "\n".join(map(str, check_site(write_file(ready, more=more))))
    assert "unit site, adjacency replace, epsilon 8.0, delta 1e-05; all runs together stay within epsilon 20" in text
    assert (ready / "ledger").is_dir()
    (ready / "blocked").write_text("")
    (failure,) = failed(check_site(write_file(ready, more=more.replace('"ledger"', '"blocked/ledger"'))))
    assert failure.startswith("ledger: ")


def test_the_folder_of_the_cache_is_tried(ready: Path) -> None:
    assert failed(check_site(write_file(ready, cache="disk", cache_dir="cache"))) == []
    assert (ready / "cache").is_dir()
    (ready / "blocked").write_text("")
    (failure,) = failed(check_site(write_file(ready, cache="disk", cache_dir="blocked/cache")))
    assert failure.startswith("cache: ")


def weights_line(path: Path) -> CheckResult:
    (line,) = [line for line in check_site(path) if line.text.startswith("weights: ")]
    return line


def test_the_files_of_weights_are_listed_with_their_digests(ready: Path) -> None:
    path = write_file(ready, weights="weights")
    missing = weights_line(path)
    assert (missing.ok, missing.warns, str(ready / "weights") in missing.text) == (False, False, True)
    (ready / "weights").mkdir()
    (ready / "weights" / "readme.txt").write_text("none")
    (ready / "weights" / "folder.pt").mkdir()
    assert (weights_line(path).ok, weights_line(path).warns) == (True, True)
    for name in ("b.safetensors", "a.pth"):
        (ready / "weights" / name).write_bytes(name.encode())
    first, second = (hashlib.sha256(name).hexdigest()[:12] for name in (b"a.pth", b"b.safetensors"))
    line = weights_line(path)
    assert str(line) == f"ok: weights: a.pth (SHA-256 {first}), b.safetensors (SHA-256 {second})"
    assert not [line for line in check_site(write_file(ready)) if line.text.startswith("weights: ")]


def test_known_weights_are_named_and_unreadable_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pth").write_bytes(b"a")
    (record, *_) = load_plugins().pretrained_weights.values()
    known = replace(record, sha256=hashlib.sha256(b"a").hexdigest())
    assert check_weights(tmp_path, [record, known]).endswith(f", known as '{record.name}')")

    def deny(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", deny)
    with refused(SettingsError, "unreadable_folder", path=str(tmp_path), reason="Permission denied"):
        check_weights(tmp_path, [])


def edit(ready: Path, what: str) -> Path:
    """Change one thing of a site."""
    if what == "state folder":
        (ready / "blocked").write_text("")
        return write_file(ready, state="blocked/state")
    if what == "secret":
        (ready / "state").mkdir()
        (ready / "state" / "secret").write_bytes(b"x" * 32)
        (ready / "state" / "secret").chmod(0o644)
    elif what == "methods":
        return write_file(ready, methods=["fedavgg"])
    elif what == "threads":
        return write_file(ready, threads=100_000)
    elif what == "network":
        return write_file(ready, {"data": "data", "network": "cnn5"})
    elif what == "data":
        (ready / "data" / "datalist.json").unlink()
    elif what == "leaks":
        shutil.rmtree(ready / "data")
        write_site(ready / "data", shared=2)
    elif what == "few":
        shutil.rmtree(ready / "data")
        write_site(ready / "data", sizes={"training": 9, "test": 20})
    elif what == "folder":
        return write_file(ready, {"data": "data", "folder": "nothing"})
    elif what == "federate":
        shutil.copytree(shipped_bundles()[NAME], ready / "own")
        (ready / "own" / "configs" / "federate.json").unlink()
        return write_file(ready, {"data": "data", "folder": "own"})
    return write_file(ready)


@pytest.mark.parametrize(
    ("what", "title", "message"),
    [
        ("state folder", "state folder", "blocked"),
        ("secret", "secret", "chmod 600"),
        ("methods", "methods", "Did you mean 'fedavg'"),
        ("threads", "device", "100000"),
        ("network", "network", "unknown network 'cnn5'. Did you mean 'cnn4'"),
        ("data", "data", "datalist.json"),
        ("leaks", "leaks", "site-01/training"),
        ("few", "data", "at least 10 training images for that and has fewer"),
        ("folder", f"bundle '{NAME}'", "has no configs/metadata.json"),
        ("federate", f"bundle '{NAME}'", "federate.json"),
    ],
)
def test_what_is_not_ready_is_named_and_all_other_checks_are_made(
    ready: Path, what: str, title: str, message: str
) -> None:
    lines = check_site(edit(ready, what))
    failures = failed(lines)
    assert any(title in line.partition(": ")[0] and message in line for line in failures), failures
    assert len(failures) == (3 if what == "state folder" else 1), "secret and locks are in the state folder, too"
    assert any("limits" in str(line) for line in lines)
    assert any("updates leave one by one" in str(line) for line in lines)


def test_messages_name_the_sites_own_folder_and_no_small_number(ready: Path) -> None:
    (ready / "data" / "images.npy").unlink()
    (failure,) = failed(check_site(write_file(ready)))
    assert str(ready / "data" / "images.npy") in failure
    assert not any("4 test" in str(line) for line in check_site(write_file(ready)))


def test_a_bundle_whose_own_number_of_classes_does_not_fit_the_data_fails(ready: Path) -> None:
    own = Path(shutil.copytree(shipped_bundles()[NAME], ready / "own"))
    path = own / "configs" / "federate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_classes": 3}))
    shutil.rmtree(ready / "data")
    write_site(ready / "data", classes=3)
    assert failed(check_site(write_file(ready, {"data": "data", "folder": "own"}))) == []
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_classes": 2}))
    (failure,) = failed(check_site(write_file(ready, {"data": "data", "folder": "own"})))
    assert "expected labels in 0..1" in failure


def test_a_file_that_can_not_be_read_is_one_failed_line(tmp_path: Path) -> None:
    (line,) = check_site(tmp_path / "none.toml")
    assert str(line).startswith("FAIL: Could not read")
    (tmp_path / "site.toml").write_text('site = "site-01"\nrounds = 3')
    (line,) = check_site(tmp_path / "site.toml")
    assert all(text in str(line) for text in ("'state' is required", "Did you mean 'max_rounds'"))
    assert "\n" not in str(line)


def test_only_the_bundle_that_is_asked_for_is_checked(ready: Path) -> None:
    path = write_file(ready, more='[bundles.gone]\nfolder = "gone"\ndata = "data"')
    assert failed(check_site(path, bundle=NAME)) == []
    assert len(failed(check_site(path))) == 1
    (failure,) = failed(check_site(path, bundle="other"))
    assert "'other'" in failure


def test_a_servers_file_needs_no_secret_and_no_training_data(tmp_path: Path) -> None:
    path = write_file(tmp_path, {}, site="server")
    lines = check_site(path)
    assert failed(lines) == []
    assert not (tmp_path / "state" / "secret").exists()
    write_site(tmp_path / "data" / "global", sizes={"test": 12})
    lines = check_site(write_file(tmp_path, {"data": "data"}, site="server"))
    assert failed(lines) == []
    text = "\n".join(map(str, lines))
    assert "global: 0 training, 0 validation, 12 test images of 1 x 8 x 8; 2 classes" in text
    write_site(tmp_path / "data" / "public", sizes={"training": 20})
    (failure,) = failed(check_site(write_file(tmp_path, {"data": "data"}, site="server")))
    assert "leaks" in failure, "both hold the same random images"


def test_a_server_whose_data_folder_holds_neither_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (failure,) = failed(check_site(write_file(tmp_path, {"data": "data"}, site="server")))
    assert "expected global or public" in failure


@pytest.fixture(scope="module")
def root() -> Any:
    pytest.importorskip("cryptography")
    from kit_keys import Root

    return Root()


@pytest.fixture
def kit(ready: Path, root: Any) -> Path:
    folder: Path = root.kit(ready / "kit", "site-01", days=(-400, 30.1))
    (folder / "local").mkdir()
    client = json.dumps({"servers": [{"identity": "server"}]})
    for name, content in {"fed_client.json": client, "sub_start.sh": ""}.items():
        (folder / "startup" / name).write_text(content)
    (folder / "startup" / "client.key").chmod(0o600)
    (folder / "local" / "resources.json.default").write_text(
        json.dumps({"class_allow_list": [ALLOWED_CLASSES["client"]]})
    )
    return folder


def kit_failures(ready: Path, kit: Path) -> list[str]:
    return failed(check_site(write_file(ready), kit=kit))


def test_a_whole_kit_passes(ready: Path, kit: Path) -> None:
    lines = check_site(write_file(ready), kit=kit)
    assert failed(lines) == []
    assert "in 30 days" in str(lines[-1])


def test_the_own_resources_of_a_kit_win_over_the_ones_it_came_with(ready: Path, kit: Path) -> None:
    (kit / "local" / "resources.json").write_text(json.dumps({"class_allow_list": ["other.Class"]}))
    (failure,) = kit_failures(ready, kit)
    assert ALLOWED_CLASSES["client"] in failure
    assert "resources.json'" in failure


def test_a_key_that_others_can_read_fails(ready: Path, kit: Path) -> None:
    (kit / "startup" / "client.key").chmod(0o640)
    (failure,) = kit_failures(ready, kit)
    assert "chmod 600" in failure


@pytest.mark.parametrize(
    ("name", "days", "message"), [("site-01", -2, "expired on"), ("site-02", 9, "the certificate is for 'site-02'")]
)
def test_a_certificate_that_ended_or_is_anothers_fails(
    ready: Path, kit: Path, root: Any, name: str, days: int, message: str
) -> None:
    (kit / "startup" / "client.crt").write_bytes(root.certify(name, root.key.public_key(), (-400, days)))
    (failure,) = kit_failures(ready, kit)
    assert message in failure


def test_a_certificate_of_another_key_or_root_fails(ready: Path, kit: Path, root: Any) -> None:
    (kit / "startup" / "client.crt").write_bytes(root.certify("site-01", root.key.public_key()))
    (failure,) = kit_failures(ready, kit)
    assert "client.key' is not the key of 'client.crt'" in failure
    shutil.copy(type(root)().kit(ready / "foreign", "site-01") / "startup" / "client.crt", kit / "startup")
    (failure,) = kit_failures(ready, kit)
    assert "expected a certificate of 'site-01' by this project's root, got one by another root" in failure


def test_a_kit_that_is_not_whole_fails(ready: Path, kit: Path) -> None:
    (kit / "startup" / "rootCA.pem").unlink()
    files, certificate = kit_failures(ready, kit)
    assert "lacks startup/rootCA.pem" in files
    assert "can't be read" in certificate


def test_the_command_prints_a_line_for_each_check_and_its_status_shows(ready: Path, monkeypatch) -> None:
    write_file(ready)
    monkeypatch.chdir(ready)
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 0, result.output
    *lines, last = result.output.strip().splitlines()
    assert all(line.startswith("ok: ") for line in lines)
    assert last == f"{len(lines)} checks, 0 failed"
    result = CliRunner().invoke(app, ["check", str(write_file(ready, methods=[])), "--bundle", NAME])
    assert result.exit_code == 2
    assert "FAIL: methods: no method is allowed" in result.output


def test_the_file_is_looked_for_in_the_kit(ready: Path, kit: Path) -> None:
    shutil.copy(write_file(ready, {"data": "../../data"}), kit / "local" / "medfl-site.toml")
    assert CliRunner().invoke(app, ["check", "--kit", str(kit), "--offline"]).exit_code == 0
