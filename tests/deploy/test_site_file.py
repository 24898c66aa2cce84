"""A participant's own file: what it says is read exactly, what is wrong is named, and its secret stays its own."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from medfl.bundle.files import shipped
from medfl.deploy.sites.file import SiteFile, read_site_file
from medfl.deploy.sites.policy import told_profile
from medfl.errors import RefusedError, SettingsError, StoreError
from medfl.runs.machines import Profile
from medfl.settings import Execution

WHOLE = """
site = "site-01"
state = "state"
methods = ["fedavg", "fedkper"]
max_rounds = 20
max_message_mb = 64
min_count = 5
describe = ["size", "label_counts"]
exchange = true
shared_test = true
threads = 2
device = "cuda:1"
cache = "disk"
cache_dir = "kept"
loaders = 3
[privacy]
unit = "site"
adjacency = "replace"
epsilon = 8.0
delta = 1e-6
ledger = "ledger"
total_epsilon = 20
[bundles.medmnist_classification]
data = "/data/breast/site-01"
network = "cnn4"
[bundles.own]
folder = "../own"
data = "own-data"
"""

LEAST = 'site = "site-01"\nstate = "/var/lib/medfl"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "medfl-site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_keys_are_read_and_relative_paths_begin_at_the_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "local").mkdir()
    write(tmp_path / "local", WHOLE)
    monkeypatch.chdir(tmp_path)
    site_file = read_site_file("local/medfl-site.toml")
    assert (site_file.site, site_file.is_server, site_file.methods) == ("site-01", False, ("fedavg", "fedkper"))
    assert (site_file.max_rounds, site_file.max_message_mb, site_file.min_count, site_file.threads) == (20, 64, 5, 2)
    assert (site_file.describe, site_file.exchange, site_file.device) == (("size", "label_counts"), True, "cuda:1")
    assert site_file.shared_test
    kept = tmp_path / "local" / "kept"
    assert site_file.execution == Execution(threads=2, device="cuda:1", cache="disk", cache_dir=kept, loaders=3)
    assert site_file.path == tmp_path / "local" / "medfl-site.toml"
    assert site_file.state == tmp_path / "local" / "state"
    assert site_file.privacy is not None
    assert (site_file.privacy.epsilon, site_file.privacy.delta, site_file.privacy.total_epsilon) == (8.0, 1e-6, 20)
    assert site_file.privacy.ledger == tmp_path / "local" / "ledger"
    assert site_file.bundles["own"].folder == tmp_path / "local" / ".." / "own"
    assert site_file.bundles["own"].data == tmp_path / "local" / "own-data"
    listed = site_file.bundle("medmnist_classification")
    assert listed.folder == shipped()["medmnist_classification"], "by default the bundle that comes with medfl"
    assert (listed.data, listed.network) == (Path("/data/breast/site-01"), "cnn4")


def test_what_is_left_out_allows_little(tmp_path: Path) -> None:
    site_file = read_site_file(write(tmp_path, LEAST))
    assert (site_file.methods, site_file.bundles, site_file.exchange) == ((), {}, False)
    assert site_file.execution == Execution(device="cpu")
    assert (site_file.min_count, site_file.describe, site_file.device, site_file.privacy) == (
        10,
        ("size",),
        "cpu",
        None,
    )


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_site_file(write(tmp_path, LEAST.replace("/var/lib", "~"))).state == tmp_path / "medfl"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (LEAST.replace("site-01", "../x"), "'site'"),
        (LEAST.replace("site-01", "public"), "'public'"),
        (LEAST.replace('state = "/var/lib/medfl"', ""), "'state' is required"),
        (LEAST + "max_round = 3", "Did you mean 'max_rounds'"),
        (LEAST + 'log = "x"', "unknown option 'log'"),
        (LEAST + "max_rounds = 0", "'max_rounds'.*got 0"),
        (LEAST + "min_count = 0", "'min_count'"),
        (LEAST + "max_message_mb = -1", "'max_message_mb'"),
        (LEAST + 'describe = ["names"]', "'describe.0'.*got 'names'"),
        (LEAST + 'device = "gpu"', "'device'.*got 'gpu'"),
        (LEAST + 'cache = "ram"', "'cache'.*got 'ram'"),
        (LEAST + "loaders = -1", "'loaders'.*got -1"),
        (LEAST + "[privacy]\nepsilon = 1", "'privacy.unit' is required"),
        (LEAST + '[privacy]\nunit = "site"\nepsilon = inf', "'privacy.epsilon'"),
        (LEAST + '[privacy]\nunit = "site"\nepsilon = 1\nepsilom = 1', "Did you mean 'epsilon'"),
        (LEAST + '[privacy]\nunit = "site"\nepsilon = 1\ntotal_epsilon = 2', "needs 'ledger'"),
        (LEAST + '[privacy]\nunit = "site"\nepsilon = 3\nledger = "x"\ntotal_epsilon = 2', "less than epsilon 3"),
        (LEAST + '[bundles.x]\ndata = "d"\nnetworks = "cnn4"', "Did you mean 'network'"),
        (LEAST + '[bundles.x]\nnetwork = "cnn4"', "bundle 'x' needs 'data'"),
        (LEAST + '[bundles."a/b"]\ndata = "d"', "bundles"),
        ('site = "a"\nsite', "no valid TOML"),
        ("site = 'a'\nsite = 'b'", "no valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, named: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError, match=f"(?s){named}") as caught:
        read_site_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Could not read.*none.toml"):
        read_site_file(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="bytes.toml"):
        read_site_file(tmp_path / "bytes.toml")


def test_a_server_needs_no_data(tmp_path: Path) -> None:
    text = LEAST.replace("site-01", "server") + "[bundles.medmnist_classification]\n"
    site_file = read_site_file(write(tmp_path, text))
    assert site_file.is_server
    assert site_file.bundle("medmnist_classification").data is None


def test_bundles_that_are_not_listed_or_not_there_are_refused_without_a_path(tmp_path: Path) -> None:
    more = f'[bundles.gone]\nfolder = "{tmp_path}/gone"\ndata = "d"\n[bundles.medmnist_classificatio]\ndata = "d"\n'
    site_file = read_site_file(write(tmp_path, LEAST + more))
    for name, message in (
        ("other", "wants the bundle 'other'; 'site-01' allows: gone, medmnist_classificatio"),
        ("gone", "has no configs/metadata.json"),
        ("medmnist_classificatio", "Did you mean 'medmnist_classification'"),
    ):
        with pytest.raises(RefusedError, match=message) as caught:
            site_file.bundle(name)
        assert str(tmp_path) not in str(caught.value), "a refusal travels"


@pytest.fixture
def site(tmp_path: Path) -> SiteFile:
    return read_site_file(write(tmp_path, LEAST.replace("/var/lib/medfl", "state/deep")))


def test_the_secret_is_made_once_private_and_kept(site: SiteFile) -> None:
    before = os.umask(0)
    try:
        first = site.secret()
    finally:
        os.umask(before)
    path = site.state / "secret"
    assert len(first) == 32
    assert site.secret() == first == path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in site.state.iterdir()] == ["secret"], "nothing else is left behind"


def test_two_sites_have_unlike_secrets(tmp_path: Path) -> None:
    texts = [LEAST.replace("/var/lib/medfl", name) for name in ("a", "b")]
    assert len({read_site_file(write(tmp_path, text)).secret() for text in texts}) == 2


def test_processes_that_begin_at_once_agree_on_one_secret(site: SiteFile) -> None:
    secrets: list[bytes] = []
    start = threading.Barrier(8)

    def read() -> None:
        start.wait()
        secrets.append(site.secret())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(secrets) == 8
    assert len(set(secrets)) == 1


def test_a_secret_that_was_half_made_before_a_kill_is_made_anew(site: SiteFile) -> None:
    site.state.mkdir(parents=True)
    (site.state / ".secret.tmp").write_bytes(b"half")
    assert len(site.secret()) == 32
    assert not (site.state / ".secret.tmp").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_secret_that_others_can_use_is_refused(site: SiteFile, mode: int) -> None:
    site.secret()
    (site.state / "secret").chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        site.secret()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(site: SiteFile, size: int) -> None:
    site.secret()
    (site.state / "secret").write_bytes(b"x" * size)
    with pytest.raises(SettingsError, match="32 bytes"):
        site.secret()


def test_a_state_folder_that_can_not_be_made_is_told(site: SiteFile) -> None:
    site.state.parent.write_text("a file")
    with pytest.raises(StoreError, match="secret"):
        site.secret()


def test_what_may_be_told_of_the_machine(tmp_path: Path) -> None:
    def read(text: str) -> SiteFile:
        (tmp_path / "medfl-site.toml").write_text('site = "site-01"\nstate = "state"\n' + text)
        return read_site_file(tmp_path / "medfl-site.toml")

    numbers = dict(zip(Profile._fields, (1500.0, 3000.0, 4.0, 16.0, 80.0, 50.0, 200.0), strict=True))
    table = "[profile]\n" + "\n".join(f"{name} = {value}" for name, value in numbers.items())
    assert told_profile(read("")) is None
    assert told_profile(read(table)) == Profile(**numbers)
    with pytest.raises(SettingsError, match="the table \\[profile\\]: expected finite numbers"):
        told_profile(read(table.replace("3000.0", "0.0")))
    with pytest.raises(SettingsError, match="'profile"):
        read(table.replace("cpu_mhz = 1500.0\n", ""))
    live = pytest.importorskip("psutil") and told_profile(read('profile = "live"'))
    assert live is not None
    assert live.memory_gb > 0
