"""Checks before a site connects, each tried on a correct setup and on a faulty one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import lines
import numpy as np
import pytest
import torch
from kits_and_offers import make_kit
from refusals import refused

from medfl.data.arrays import ArrayDataset
from medfl.errors import MedflError, StoreError
from medfl.utils.locks import LOCK_FILE, hold_lock
from medfl_flare import kit as kits
from medfl_flare.provision import Project, provision
from medfl_flare.sites.preflight import Caution, images, machine, route
from medfl_flare.sites.preflight.locks import check_kit_locks, check_run_locks
from medfl_flare.sites.preflight.route import NoRouteError, ServerAddress
from medfl_flare.sites.preflight.server import server_checks

USAGE = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def no_proxy_and_little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower() in {*route.GRPC_VARIABLES, "no_proxy", "no_grpc_proxy", "all_proxy"}:
            monkeypatch.delenv(name)
    monkeypatch.setattr("medfl_flare.sites.preflight.server.ALERT_SECONDS", 0.3)


# ---- the machine


def test_a_graphics_processor_is_looked_for_and_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(machine.check_gpu("auto"), Caution)
    assert "nvidia-smi" in machine.check_gpu("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    free = {0: 20e9, 1: 0.2e9}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free[number], 24e9))
    assert machine.check_gpu("auto") == "GPU 0, 20.0 of 24.0 GB are free"
    busy = machine.check_gpu("cuda:1")
    assert isinstance(busy, Caution)
    assert "GPU 1, 0.2 of 24.0 GB are free: other processes use it" in busy


def test_loaders_need_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: USAGE(64e6, 0, 64e6))  # what a container has by itself
    assert "none is needed" in machine.check_shared_memory(0, tmp_path)
    little = machine.check_shared_memory(2, tmp_path)
    assert isinstance(little, Caution)
    assert "--shm-size 512m" in little
    assert not isinstance(machine.check_shared_memory(2, tmp_path / "none"), Caution)


@pytest.mark.parametrize(("free", "kind"), [(99e6, StoreError), (100e6, Caution), (1.9e9, Caution), (2e9, str)])
def test_a_folder_has_space_for_a_few_messages(
    free: float, kind: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: USAGE(1e12, 0, free))
    if kind is StoreError:
        with refused(StoreError, "disk_full", path=str(tmp_path / "new"), minimum=100, found=99) as caught:
            machine.check_space(tmp_path / "new", 500)
        assert "`medfl clean`" in str(caught.value)
    else:
        assert type(machine.check_space(tmp_path / "new", 500)) is kind
    assert list((tmp_path / "new").iterdir()) == []


# ---- locks


def test_locks_work_and_a_held_run_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / LOCK_FILE).touch()  # left over by a process that died
    assert check_run_locks(tmp_path) == "they work, and no process holds a run"
    with hold_lock(run / LOCK_FILE):
        busy = check_run_locks(tmp_path)
    assert isinstance(busy, Caution)
    assert "holds the run one" in busy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_locks_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fcntl.flock", lambda file, how: None)
    with refused(StoreError, "no_file_locks", path=str(tmp_path)):
        check_run_locks(tmp_path)


def test_a_note_of_a_process_that_died_holds_no_kit_up(tmp_path: Path) -> None:
    """After a power cut another process may have the recorded id, here this one; NVFlare's own script gives up."""
    script = f'[ -f "{tmp_path}/kit/daemon_pid.fl" ] && exit 0\necho "Successfully registered client"\nexec sleep 60\n'
    kit = make_kit(tmp_path / "kit", "client", script)
    (kit / "daemon_pid.fl").write_text(f"{os.getpid()}\n")
    assert "daemon_pid.fl of a dead process will be removed at the next start" in check_kit_locks(kit)
    try:
        kits.start(kit, patience=30)
    finally:
        kits.stop(kit)
    assert check_kit_locks(kit) == "no process is running, and a dead process left no file"


# ---- images


def a_bundle(folder: Path, low: float, high: float) -> Path:
    (folder / "configs").mkdir(parents=True)
    inputs = {"inputs": {"image": {"value_range": [low, high]}}}
    (folder / "configs" / "metadata.json").write_text(json.dumps({"network_data_format": inputs}))
    return folder


def pixels(array: np.ndarray) -> ArrayDataset:
    return ArrayDataset(array, [0] * len(array), range(len(array)), (0.0,), (1.0,))


def test_intensities_are_compared_with_what_the_bundle_declares(tmp_path: Path) -> None:
    bundle, drawn = a_bundle(tmp_path, 0, 1), np.random.default_rng(0).random((40, 8, 8)).astype(np.float32)
    well = images.check_intensities(pixels(drawn), bundle)
    assert not isinstance(well, Caution)
    assert "32 training images have values from" in well
    assert "the bundle declares 0 to 1" in well
    for array, words in (
        (drawn * 1000, "100% of them out of range"),
        (drawn * 0.005, "almost no contrast"),
        (np.broadcast_to(drawn[:, :1, :1], drawn.shape).copy(), "most images are constant"),
    ):
        found_wrong = images.check_intensities(pixels(array), bundle)
        assert isinstance(found_wrong, Caution), found_wrong
        assert words in found_wrong


def test_classes_that_no_one_has_are_named() -> None:
    assert images.check_labels(["a", "b"], [3, 4]) == "all labels are among the 2 declared classes"
    lacking = images.check_labels(["a", "b", "c"], [3, 0, 4])
    assert isinstance(lacking, Caution)
    assert "no training case is labelled b of the 3 declared classes" in lacking


class Scans:
    """A data set whose cases contain their voxel size."""

    class_labels = None

    def __init__(self, *edges: float) -> None:
        self.edges = edges

    def __len__(self) -> int:
        return len(self.edges)

    def batch(self, rows):  # noqa: ANN001, ANN201 - as the protocol has it
        raise AssertionError("visits are read")

    targets = batch

    def visits(self, batches, stream):  # noqa: ANN001, ANN201
        for rows in batches:
            size = torch.tensor([[1.0, 1.0, self.edges[int(rows[0])]]], dtype=torch.float64)
            yield SimpleNamespace(inputs=torch.zeros(1, 1, 2, 2, 2), spacing=size)


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ((1.0, 1.2, 0.9), None),
        ((1.0, 0.001, 1.0), "expected 0.01 to 20 mm. The headers are wrong"),
        ((1.0, 1.0, 12.0), "differs from the median by a factor of 12"),
        ((float("nan"),), None),
    ],
)
def test_voxels_have_a_size_that_a_scanner_makes(edges: tuple[float, ...], words: str | None) -> None:
    text = images.check_spacings(Scans(*edges), None)
    assert isinstance(text, Caution) == (words is not None)
    assert (words or "") in text


def test_a_spacing_that_the_task_declares_is_looked_at_as_well() -> None:
    assert images.check_spacings(Scans(1.0), (1.0, 1.0, 2.0)) == "voxels of 1 to 2 mm"
    assert isinstance(images.check_spacings(Scans(1.0), (1000.0, 1000.0, 1000.0)), Caution)


# ---- the server


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the kits of two provisionings of one project."""
    folders = [tmp_path_factory.mktemp("kits") for _ in range(2)]
    for folder in folders:
        provision(Project("localhost", ("site-01",), "me@hospital.org"), folder)
    return folders


def kit_for(generation: Path, port: int, folder: Path, scheme: str = "http") -> Path:
    """Return a site's kit with a port of this machine."""
    kit = Path(shutil.copytree(generation / "site-01", folder / f"kit-{port}-{scheme}"))
    path = kit / "startup" / "fed_client.json"
    client = json.loads(path.read_text())
    client["servers"][0]["service"] = {"target": f"localhost:{port}", "scheme": scheme}
    path.write_text(json.dumps(client))
    return kit


def looks(kit: Path) -> dict[str, str]:
    """Return the finding or error of each check of the server."""
    said_by = {}
    for title, check in server_checks(kit):
        try:
            said_by[title] = check()
        except MedflError as error:
            said_by[title] = f"{type(error).__name__}: {error}"
    return said_by


def test_a_server_of_the_same_making_passes(generations: list[Path], tmp_path: Path) -> None:
    with lines.server(generations[0] / "localhost") as port:
        looked = looks(kit_for(generations[0], port, tmp_path))
    assert "no proxy is configured" in looked["port"]
    assert looked["kit's generation"].startswith("server and kit have the same root (made on 20")
    assert looked["clock"].startswith(("0 s", "1 s", "2 s"))
    assert "date of its HTTP response" in looked["clock"]


@pytest.mark.parametrize("new_server", [True, False])
def test_a_kit_of_another_generation_is_named(generations: list[Path], tmp_path: Path, new_server: bool) -> None:
    """The server has new kits and the site an old one, or the server's root was renewed without its certificate."""
    old, new = generations
    server = (
        lines.server(new / "localhost") if new_server else lines.server(old / "localhost", client=new / "localhost")
    )
    with server as port:
        kit = kit_for(old, port, tmp_path)
        check = dict(server_checks(kit))["kit's generation"]
        with refused(MedflError, "other_generation" if new_server else "certificate_refused", path=str(kit)) as caught:
            check()
    if new_server:
        assert "its certificate was signed by 'medfl' on 20" in str(caught.value)


@pytest.mark.parametrize(("ahead", "kind"), [(-300.0, "Caution"), (7300.0, "MedflError")])
def test_clocks_that_differ_are_named(generations: list[Path], tmp_path: Path, ahead: float, kind: str) -> None:
    with lines.server(generations[0] / "localhost", ahead) as port:
        text = looks(kit_for(generations[0], port, tmp_path))["clock"]
    assert kind == ("Caution" if isinstance(text, Caution) else text.partition(":")[0])
    side = "behind" if ahead > 0 else "ahead of"
    assert side in text
    assert "NTP" in text


def test_over_grpc_only_the_certificate_shows_the_time(generations: list[Path], tmp_path: Path) -> None:
    with lines.server(generations[0] / "localhost") as port:
        text = looks(kit_for(generations[0], port, tmp_path, "grpc"))["clock"]
    assert text == (
        "the server's clock is unknown ('grpc' does not send the time); the local time lies within the validity of the "
        "kit's certificate"
    )


def test_a_closed_port_and_an_unknown_name_are_distinguished() -> None:
    with lines.listening(lambda connection: None) as port:
        pass
    with refused(NoRouteError, "connection_refused", address=f"localhost:{port}"):
        route.connect_directly(ServerAddress("localhost", port, "http", "localhost"))
    with refused(NoRouteError, "unknown_host", host="no-such-host.invalid"):
        route.connect_directly(ServerAddress("no-such-host.invalid", port, "http", "localhost"))


def test_which_scheme_takes_a_proxy_is_reported(
    generations: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = lines.Proxy()
    with lines.server(generations[0] / "localhost") as port, lines.listening(proxy) as at:
        http, grpc = (kit_for(generations[0], port, tmp_path, scheme) for scheme in ("http", "grpc"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{at}")
        for kit in (http, grpc):
            assert "without the proxy of HTTPS_PROXY" in looks(kit)["port"]
        assert proxy.asked_for == []
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{at}")
        looked = looks(grpc)
        assert "through the proxy of https_proxy, which gRPC uses" in looked["port"]
        assert "have the same root" in looked["kit's generation"]
        assert proxy.asked_for == [f"localhost:{port}"] * 2
        monkeypatch.setenv("no_proxy", "localhost")
        assert "no proxy is configured" in looks(grpc)["port"]
        monkeypatch.setenv("no_grpc_proxy", "elsewhere.org")  # gRPC then ignores no_proxy
        assert "through the proxy of https_proxy" in looks(grpc)["port"]
        monkeypatch.setenv("no_grpc_proxy", "elsewhere.org, host")
        assert "no proxy is configured" in looks(grpc)["port"]


def test_a_proxy_that_refuses_is_named_with_its_status(
    generations: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lines.listening(lines.Proxy(407)) as at:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{at}")
        check = dict(server_checks(kit_for(generations[0], 9, tmp_path, "grpc")))["port"]
        with refused(NoRouteError, "proxy_refused", proxy=f"127.0.0.1:{at}", status="407") as caught:
            check()
    assert "give the right user and password in its URL" in str(caught.value)


def test_a_closed_way_that_only_a_proxy_would_open_is_named(
    generations: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(address: ServerAddress) -> None:
        raise NoRouteError("server_unreachable", "a firewall stops it")

    monkeypatch.setattr("medfl_flare.sites.preflight.server.connect_directly", shut)
    with lines.server(generations[0] / "localhost") as port, lines.listening(lines.Proxy()) as at:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{at}")
        http, grpc = (kit_for(generations[0], port, tmp_path, scheme) for scheme in ("http", "grpc"))
        assert "NVFlare's http uses no proxy: have the port opened, or" in looks(http)["port"]
        assert "gRPC reads lower-case variables only: set https_proxy" in looks(grpc)["port"]


def test_grpc_itself_goes_through_the_proxy_that_is_named_in_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the documentation of gRPC's proxy variables with gRPC itself."""
    pytest.importorskip("grpc")
    import subprocess

    code = (
        "import grpc, sys; from concurrent import futures\n"
        "server = grpc.server(futures.ThreadPoolExecutor(1)); port = server.add_insecure_port('127.0.0.1:0')\n"
        "server.start(); print(port, flush=True)\n"
        "channel = grpc.insecure_channel(f'localhost:{port}'); grpc.channel_ready_future(channel).result(30)\n"
        "channel.close(); server.stop(None)\n"
    )
    for name, used in (("https_proxy", True), ("HTTPS_PROXY", False)):
        proxy = lines.Proxy()
        with lines.listening(proxy) as at:
            env = os.environ | {name: f"http://127.0.0.1:{at}"}
            port = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert proxy.asked_for == ([f"localhost:{port.stdout.strip()}"] if used else [])
