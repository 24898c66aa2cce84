"""A participant's own file: values are read exactly, errors are named, and the secret stays private."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from refusals import refused

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.engine.runs.network_assignment import MachineFacts, NetworkAssignment
from medfl.errors import RefusedError, SettingsError, StoreError
from medfl.records.run_file import AssignedNetwork
from medfl.settings import Execution
from medfl_flare.sites.policy import disclosed_profile
from medfl_flare.sites.site_file import SiteFile, read_site_file

WHOLE = """
site = "site-01"
state = "state"
methods = ["fedavg", "fedkper"]
max_rounds = 20
max_message_mb = 64
min_count = 5
disclose = ["size", "label_counts"]
cross_site_evaluation = true
shared_test = true
threads = 2
device = "cuda:1"
cache = "disk"
cache_dir = "kept"
loaders = 3
checkpoint_minutes = 2.5
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
    assert (site_file.disclose, site_file.cross_site_evaluation, site_file.device) == (
        ("size", "label_counts"),
        True,
        "cuda:1",
    )
    assert site_file.shared_test
    kept = tmp_path / "local" / "kept"
    expected = Execution(threads=2, device="cuda:1", cache="disk", cache_dir=kept, loaders=3, checkpoint_minutes=2.5)
    assert site_file.execution == expected
    assert site_file.path == tmp_path / "local" / "medfl-site.toml"
    assert site_file.state == tmp_path / "local" / "state"
    assert site_file.privacy is not None
    assert (site_file.privacy.epsilon, site_file.privacy.delta, site_file.privacy.total_epsilon) == (8.0, 1e-6, 20)
    assert site_file.privacy.ledger == tmp_path / "local" / "ledger"
    assert site_file.bundles["own"].folder == tmp_path / "local" / ".." / "own"
    assert site_file.bundles["own"].data == tmp_path / "local" / "own-data"
    listed = site_file.bundle("medmnist_classification")
    assert listed.folder == shipped_bundles()["medmnist_classification"], "by default the bundle that comes with medfl"
    assert (listed.data, listed.network) == (Path("/data/breast/site-01"), "cnn4")


def test_what_is_left_out_allows_little(tmp_path: Path) -> None:
    site_file = read_site_file(write(tmp_path, LEAST))
    assert (site_file.methods, site_file.bundles, site_file.cross_site_evaluation) == ((), {}, False)
    assert site_file.execution == Execution(device="cpu")
    assert (site_file.min_count, site_file.disclose, site_file.device, site_file.privacy) == (
        10,
        ("size",),
        "cpu",
        None,
    )


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_site_file(write(tmp_path, LEAST.replace("/var/lib", "~"))).state == tmp_path / "medfl"


@pytest.mark.parametrize(
    ("text", "code", "setting"),
    [
        (LEAST.replace("site-01", "../x"), "invalid_setting", "site"),
        (LEAST.replace("site-01", "public"), "invalid_setting", "site"),
        (LEAST.replace('state = "/var/lib/medfl"', ""), "missing_setting", "state"),
        (LEAST + 'log = "x"', "unknown_setting", "log"),
        (LEAST + "max_rounds = 0", "setting_out_of_range", "max_rounds"),
        (LEAST + "min_count = 0", "setting_out_of_range", "min_count"),
        (LEAST + "max_message_mb = -1", "setting_out_of_range", "max_message_mb"),
        (LEAST + 'disclose = ["names"]', "unknown_choice", "disclose.0"),
        (LEAST + 'device = "gpu"', "invalid_setting", "device"),
        (LEAST + 'cache = "ram"', "unknown_choice", "cache"),
        (LEAST + "loaders = -1", "setting_out_of_range", "loaders"),
        (LEAST + "checkpoint_minutes = -1", "setting_out_of_range", "checkpoint_minutes"),
        (LEAST + "[privacy]\nepsilon = 1", "missing_setting", "privacy.unit"),
        (LEAST + '[privacy]\nunit = "site"\nepsilon = inf', "setting_out_of_range", "privacy.epsilon"),
        (LEAST + '[privacy]\nunit = "patient"\nepsilon = 1', "unknown_choice", "privacy.unit"),
        (LEAST + '[bundles."a/b"]\ndata = "d"', "invalid_setting", "bundles.a/b.[key]"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, code: str, setting: str) -> None:
    path = write(tmp_path, text)
    with refused(SettingsError, code, settings=[setting]) as caught:
        read_site_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "setting", "hint"),
    [
        ("max_round = 3", "max_round", "Did you mean 'max_rounds'"),
        ('[privacy]\nunit = "site"\nepsilon = 1\nepsilom = 1', "privacy.epsilom", "Did you mean 'epsilon'"),
        ('[bundles.x]\ndata = "d"\nnetworks = "cnn4"', "bundles.x.networks", "Did you mean 'network'"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(tmp_path: Path, text: str, setting: str, hint: str) -> None:
    path = write(tmp_path, LEAST + text)
    with refused(SettingsError, "unknown_setting", settings=[setting]) as caught:
        read_site_file(path)
    assert hint in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "setting", "reason"),
    [
        ('[privacy]\nunit = "site"\nepsilon = 1\ntotal_epsilon = 2', "privacy", "needs 'ledger'"),
        ('[privacy]\nunit = "site"\nepsilon = 3\nledger = "x"\ntotal_epsilon = 2', "privacy", "less than epsilon 3"),
        ('[bundles.x]\nnetwork = "cnn4"', "", "bundle 'x' needs 'data'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, text: str, setting: str, reason: str) -> None:
    path = write(tmp_path, LEAST + text)
    with refused(SettingsError, "invalid_setting", settings=[setting]) as caught:
        read_site_file(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ['site = "a"\nsite', "site = 'a'\nsite = 'b'"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with refused(SettingsError, "invalid_toml", path=str(path)):
        read_site_file(path)


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with refused(SettingsError, "unreadable_file", path=str(tmp_path / "none.toml")):
        read_site_file(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with refused(SettingsError, "invalid_toml", path=str(tmp_path / "bytes.toml")):
        read_site_file(tmp_path / "bytes.toml")


def test_a_server_needs_no_data(tmp_path: Path) -> None:
    text = LEAST.replace("site-01", "server") + "[bundles.medmnist_classification]\n"
    site_file = read_site_file(write(tmp_path, text))
    assert site_file.is_server
    assert site_file.bundle("medmnist_classification").data is None


def test_bundles_that_are_not_listed_or_not_there_are_refused_without_a_path(tmp_path: Path) -> None:
    more = f'[bundles.gone]\nfolder = "{tmp_path}/gone"\ndata = "d"\n[bundles.medmnist_classificatio]\ndata = "d"\n'
    site_file = read_site_file(write(tmp_path, LEAST + more))
    for name, code, fields in (
        ("other", "bundle_not_allowed", {"allowed": ["gone", "medmnist_classificatio"]}),
        ("gone", "invalid_bundle_folder", {}),
        ("medmnist_classificatio", "unknown_bundle", {}),
    ):
        with refused(RefusedError, code, site="site-01", bundle=name, **fields) as caught:
            site_file.bundle(name)
        assert str(tmp_path) not in str(caught.value), "a refusal travels"
    assert "Did you mean 'medmnist_classification'" in str(caught.value)


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


def test_a_secret_that_was_half_made_before_a_kill_is_made_again(site: SiteFile) -> None:
    site.state.mkdir(parents=True)
    (site.state / ".secret.tmp").write_bytes(b"half")
    assert len(site.secret()) == 32
    assert not (site.state / ".secret.tmp").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_secret_that_others_can_use_is_refused(site: SiteFile, mode: int) -> None:
    site.secret()
    (site.state / "secret").chmod(mode)
    with refused(SettingsError, "insecure_permissions", path=str(site.state / "secret"), mode=mode):
        site.secret()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(site: SiteFile, size: int) -> None:
    site.secret()
    (site.state / "secret").write_bytes(b"x" * size)
    with refused(SettingsError, "wrong_secret_length", path=str(site.state / "secret"), expected=32):
        site.secret()


def test_a_state_folder_that_can_not_be_made_is_reported(site: SiteFile) -> None:
    site.state.parent.write_text("a file")
    with refused(StoreError, "unreadable_secret", path=str(site.state / "secret")):
        site.secret()


class AsksForMemory(NetworkAssignment):
    """A network assignment that asks for the memory of each site's machine."""

    def assign(self, sites: Sequence[str], seed: int) -> dict[str, AssignedNetwork]:
        return {}

    def measure(self) -> dict[str, float]:
        return {"memory_gb": 16.0}

    def check_facts(self, facts: MachineFacts, where: str) -> None:
        if facts.keys() != {"memory_gb"}:
            raise SettingsError("wrong_names", f"{where}: expected memory_gb", place=where)


def test_information_about_the_machine_that_may_be_disclosed(tmp_path: Path) -> None:
    def read(text: str) -> SiteFile:
        (tmp_path / "medfl-site.toml").write_text('site = "site-01"\nstate = "state"\n' + text)
        return read_site_file(tmp_path / "medfl-site.toml")

    rule = AsksForMemory()
    assert disclosed_profile(read(""), rule) is None
    assert disclosed_profile(read("[profile]\nmemory_gb = 4.0\n"), rule) == {"memory_gb": 4.0}
    assert disclosed_profile(read('profile = "live"'), rule) == {"memory_gb": 16.0}
    with refused(SettingsError, "wrong_names", place="the table [profile]"):
        disclosed_profile(read("[profile]\ncpu_mhz = 1500.0\n"), rule)
    for value in ("-1.0", "nan", '"much"'):
        with refused(SettingsError, "invalid_settings"):
            read(f"[profile]\nmemory_gb = {value}\n")
