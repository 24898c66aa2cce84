"""Kits whose owners made their own keys: equal to provisioned ones, no key is sent, invalid files are refused."""

from __future__ import annotations

import datetime
import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

pytest.importorskip("nvflare")

from participant_keys import Home, foreign_keys, private_keys
from typer.testing import CliRunner

from medfl.errors import SettingsError
from medfl.privacy.signatures import read_signer
from medfl_flare import kit as kits
from medfl_flare.commands import federate
from medfl_flare.keys.approval import approve, make_root
from medfl_flare.keys.certificate_request import KeyOwner, make_request, normalize_fingerprint
from medfl_flare.keys.kit_assembly import package
from medfl_flare.kit_check import kit_checks
from medfl_flare.provision import Project, provision

ADMIN = "me@hospital.org"
PROJECT = Project("localhost", ("site-01", "site-02"), ADMIN, port=8112)
ALL = ("localhost", *PROJECT.sites, ADMIN)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a federation whose kits are made."""
    made = Home(tmp_path_factory.mktemp("home"), PROJECT)
    for name in ALL:
        made.kit(name)
    return made


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Home, str]:
    """Return a federation in which site-01 has made its request, and the fingerprint of its key."""
    made = Home(tmp_path / "begun", PROJECT)
    return made, made.request("site-01")


def kits_of(home: Home) -> dict[str, Path]:
    return {name: home.folder / name / "kit" for name in ALL}


# ---- where keys lie


def test_each_private_key_lies_in_one_kit_and_the_roots_with_the_coordinator_alone(home: Home, tmp_path: Path) -> None:
    assert foreign_keys(home.folder, kits_of(home), home.root / "rootCA.key") == []
    assert len(private_keys(home.folder)) == len(ALL) + 1
    copy = tmp_path / "copy"
    shutil.copytree(home.folder, copy)
    moved = {name: copy / name / "kit" for name in ALL}
    root = copy / "coordinator" / "root" / "rootCA.key"
    key = moved["site-01"] / "startup" / "client.key"

    def leaks(leak: Callable[[], Any], undo: Path) -> list[str]:
        leak()
        problems = foreign_keys(copy, moved, root)
        undo.unlink()
        return problems

    left, listed = copy / "site-01" / "request" / "site-01.key", copy / "coordinator" / "state.json"
    archive = copy / "post" / "again.zip"
    assert leaks(lambda: shutil.copy(key, left), left) == [
        "a key lies in ['site-01/kit/startup/client.key', 'site-01/request/site-01.key']"
    ]
    assert len(leaks(lambda: listed.write_text(json.dumps({"key": key.read_text()})), listed)) == 1
    assert len(leaks(lambda: zipped(archive, key), archive)) == 1
    theirs = copy / "site-02" / "kit" / "local" / "other.key"
    assert len(leaks(lambda: shutil.copy(root, theirs), theirs)) == 1
    shutil.copy(key, moved["site-02"] / "startup" / "client.key")
    assert len(foreign_keys(copy, moved, root)) == 1


def zipped(archive: Path, file: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.write(file, file.name)


def test_kits_made_at_one_place_leave_every_key_there(tmp_path: Path) -> None:
    made = provision(PROJECT, tmp_path / "kits")
    places = private_keys(tmp_path)
    assert all("kits/ca/medfl/state/cert.json" in files for files in places.values())
    assert foreign_keys(tmp_path, made, tmp_path / "kits" / "ca" / "medfl" / "state" / "cert.json") != []


def test_messages_contain_no_key_and_no_one_else_can_read_keys(home: Home) -> None:
    assert sorted(path.name for path in home.post.iterdir()) == sorted(
        f"{name}.{what}.zip" for name in ALL for what in ("request", "signed")
    )
    assert private_keys(home.post) == {}
    for path in (*home.folder.rglob("*.key"), home.root, *(home.folder / name / "request" for name in ALL)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_nvflare_writes_nothing_into_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    Home(tmp_path / "one", PROJECT).kit("site-01")
    assert not (tmp_path / "nobody").exists()


# ---- equal in use


def test_a_kit_has_the_files_of_a_provisioned_one_and_passes_the_same_checks(home: Home, tmp_path: Path) -> None:
    provisioned = provision(PROJECT, tmp_path / "kits")
    for name, kit in kits_of(home).items():
        assert kits.read_kit_kind(kit) == kits.read_kit_kind(provisioned[name])
        assert names_in(kit) == names_in(provisioned[name])
        for path in sorted(path for path in names_in(kit) if path.suffix in (".json", ".toml", ".default", ".sh")):
            own, other = ((place / path).read_text() for place in (kit, provisioned[name]))
            if path.name == "authorization.json":
                own, other = own.replace("lead", "PROJECT"), other.replace("project_admin", "PROJECT")
                own, other = own.replace("project_admin", "lead"), other
                assert json.loads(own) == json.loads(other)
            else:
                assert own == other, path
        if name != ADMIN:
            for _, check in kit_checks(kit, None if name == "localhost" else name):
                check()
        assert read_signer(kit).name == name


def names_in(kit: Path) -> set[Path]:
    return {path.relative_to(kit) for path in kit.rglob("*") if path.is_file()}


def test_the_certificate_of_the_researcher_is_of_the_role_that_may_submit(home: Home) -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((kits_of(home)[ADMIN] / "startup" / "client.crt").read_bytes())
    (role,) = certificate.subject.get_attributes_for_oid(x509.NameOID.UNSTRUCTURED_NAME)
    for name in ("localhost", "site-01"):
        rights = json.loads((kits_of(home)[name] / "local" / "authorization.json").read_text())["permissions"]
        may = {who for who, rights_ in rights.items() if rights_["submit_job"] != "none"}
        assert may == {role.value}
        assert all(rights_["byoc"] == rights_["shell_commands"] == "none" for rights_ in rights.values())


# ---- the commands


def test_the_commands_lead_from_one_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> list[str]:
        done = CliRunner().invoke(federate.app, list(words))
        assert done.exit_code == 0, (done.output, done.exception)
        return [line.rpartition(": ")[2] if "SHA256" not in line else line[line.index("SHA256") :]
                for line in done.output.splitlines()]  # fmt: skip

    root = call("root", "--server", "fl.org", "--sites", "north, south", "--admin", ADMIN)[1]
    _, file, key = call("request", "north")
    approved = call("approve", file, "--root", "federation", "--fingerprint", key.lower().removeprefix("sha256:"))
    assert approved == ["'north' as site", "north/north.signed.zip", root]
    call("package", approved[1], "--request", "north", "--fingerprint", root, "--out", "kit")
    assert kits.read_kit_kind(tmp_path / "kit") == "client"
    assert call("root", "--server", "fl.org", "--sites", "east", "--admin", ADMIN)[1] == root
    expected = json.loads((tmp_path / "federation" / "federation.json").read_text())["sites"]
    assert expected == ["north", "south", "east"]


# ---- what the coordinator refuses


def edit(archive: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Replace one JSON or YAML file of an archive by the result of `change`."""
    with zipfile.ZipFile(archive) as before:
        contents = {member: before.read(member) for member in before.namelist()}
    contents[name] = change(contents[name])
    with zipfile.ZipFile(archive, "w") as after:
        for member, content in contents.items():
            after.writestr(member, content)


def test_a_second_key_under_a_taken_name_is_refused_and_the_same_one_is_answered_again(
    begun: tuple[Home, str], tmp_path: Path
) -> None:
    home, key = begun
    first = home.approve("site-01", key).read_bytes()
    assert home.approve("site-01", key).read_bytes() != first, "a new certificate for the same key"
    other = make_request(KeyOwner("site-01"), tmp_path / "other")
    record = home.root / "approved" / "site-01.json"
    with refused(SettingsError, "key_already_approved", name="site-01", key=key, record=str(record)):
        approve(other.file, home.root, other.fingerprint)
    record.unlink()
    approve(other.file, home.root, other.fingerprint)
    with refused(SettingsError, "refused_by_nvflare", command="package", nvflare_code="REQUEST_DIR_MISMATCH"):
        package(other.file.with_name("site-01.signed.zip"), home.folder / "site-01" / "request", home.fingerprint,
                tmp_path / "kit")  # fmt: skip


@pytest.mark.parametrize(
    ("participant", "code", "fields"),
    [
        (
            KeyOwner("site-03"),
            "unexpected_participant",
            {"name": "site-03", "expected": ["localhost", ADMIN, "site-01", "site-02"]},
        ),
        (KeyOwner("site-01", project="other"), "other_project", {"expected": "medfl", "found": "other"}),
        (KeyOwner("localhost", "site"), "wrong_role", {"name": "localhost", "expected": "server", "found": "site"}),
        (KeyOwner("site-01", "server"), "wrong_role", {"name": "site-01", "expected": "site", "found": "server"}),
        (KeyOwner(ADMIN, "researcher", "other"), "other_project", {"expected": "medfl", "found": "other"}),
    ],
)
def test_a_request_that_no_one_expects_is_refused(
    home: Home, tmp_path: Path, participant: KeyOwner, code: str, fields: dict[str, Any]
) -> None:
    made = make_request(participant, tmp_path / "request")
    with refused(SettingsError, code, **fields):
        approve(made.file, home.root, made.fingerprint)
    assert not (tmp_path / "request" / f"{participant.name}.signed.zip").exists()


def test_a_request_of_another_key_than_the_announced_one_is_refused(begun: tuple[Home, str], tmp_path: Path) -> None:
    home, key = begun
    mallory = make_request(KeyOwner("site-01"), tmp_path / "mallory")
    shutil.copy(mallory.file, home.post)
    with refused(SettingsError, "wrong_key", expected=key, found=mallory.fingerprint):
        home.approve("site-01", key)
    assert not (home.root / "approved").exists()


def words(content: bytes, change: dict[str, Any]) -> bytes:
    return json.dumps(json.loads(content) | change).encode()


@pytest.mark.parametrize(
    ("file", "change", "code", "reason"),
    [
        ("request.json", lambda text: words(text, {"kind": "user", "cert_type": "lead"}), "wrong_role", ""),
        ("request.json", lambda text: words(text, {"kind": "site", "cert_type": "project_admin"}), "wrong_role", ""),
        ("request.json", lambda text: words(text, {"name": "site-02"}), "edited_request", ""),
        ("request.json", lambda text: words(text, {"org": "elsewhere"}), "refused_by_nvflare", "'org' does not match"),
        ("request.json", lambda text: words(text, {"name": ["site-01"]}), "unexpected_participant", ""),
        ("request.json", lambda text: b"[]", "invalid_certificate_request", "expected a JSON object"),
        ("request.json", lambda text: b'{"a":' + b" " * 70_000 + b"1}", "invalid_certificate_request", "too long"),
        (
            "site.yaml",
            lambda text: text.replace(b"type: client", b"type: client\n  host_names: [fl.evil.org]"),
            "edited_request",
            "",
        ),
        ("site.yaml", lambda text: text + b"builders: []\n", "edited_request", ""),
        ("site.yaml", lambda text: b"a: [", "invalid_certificate_request", ""),
        ("site-01.csr", lambda text: text[:200] + b"AAAA" + text[204:], "refused_by_nvflare", "CSR"),
        ("site-01.key", lambda text: b"", "refused_by_nvflare", "private keys"),
    ],
)
def test_an_edited_request_is_refused(begun: tuple[Home, str], file: str, change: Any, code: str, reason: str) -> None:
    home, key = begun
    archive = home.post / "site-01.request.zip"
    if file.endswith(".key"):
        with zipfile.ZipFile(archive, "a") as out:
            out.writestr(file, change(b""))
    else:
        edit(archive, file, change)
    with refused(SettingsError, code) as caught:
        home.approve("site-01", key)
    assert reason in caught.value.fields.get("reason", "")
    assert not (home.post / "site-01.signed.zip").exists()


def test_a_csr_of_another_key_in_a_request_that_looks_right_is_refused(begun: tuple[Home, str], tmp_path: Path) -> None:
    home, key = begun
    other = make_request(KeyOwner("site-01"), tmp_path / "other")
    foreign = (tmp_path / "other" / "site-01.csr").read_bytes()
    edit(home.post / "site-01.request.zip", "site-01.csr", lambda text: foreign)
    with refused(SettingsError, "refused_by_nvflare", command="approve", nvflare_code="INVALID_ARGS") as caught:
        home.approve("site-01", key)
    assert "CSR" in caught.value.fields["reason"]
    assert other.fingerprint != key


def test_what_is_no_request_or_no_root_is_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "x.request.zip").write_bytes(b"no archive")
    key = home.fingerprint
    with refused(SettingsError, "invalid_certificate_request", path=str(tmp_path / "x.request.zip")):
        approve(tmp_path / "x.request.zip", home.root, key)
    with refused(SettingsError, "unreadable_file", path=str(tmp_path / "y.request.zip")):
        approve(tmp_path / "y.request.zip", home.root, key)
    with refused(SettingsError, "invalid_root_folder", path=str(tmp_path)):
        approve(tmp_path / "x.request.zip", tmp_path, key)
    with refused(SettingsError, "invalid_key_fingerprint", found="3F:09"):
        approve(tmp_path / "x.request.zip", home.root, "3F:09")


def test_another_server_in_the_same_root_is_refused(home: Home) -> None:
    with refused(SettingsError, "other_federation", setting="server", expected="localhost", found="elsewhere.org"):
        make_root(replace(PROJECT, server="elsewhere.org"), home.root)


@pytest.mark.parametrize(
    ("participant", "code", "fields"),
    [
        (KeyOwner("../x"), "invalid_site_name", {"sites": ["../x"]}),
        (KeyOwner("site 1"), "invalid_site_name", {"sites": ["site 1"]}),
        (KeyOwner("x", "admin"), "unknown_choice", {"what": "role", "choice": "admin"}),
        (KeyOwner("me", "researcher"), "refused_by_nvflare", {"nvflare_code": "INVALID_ARGS"}),
        (KeyOwner("a..b", "server"), "refused_by_nvflare", {"nvflare_code": "INVALID_ARGS"}),
        (KeyOwner("h" * 65, "server"), "invalid_name", {"name": "h" * 65}),
    ],
)
def test_a_request_for_a_name_that_cannot_be_is_not_made(
    tmp_path: Path, participant: KeyOwner, code: str, fields: dict[str, Any]
) -> None:
    with refused(SettingsError, code, **fields):
        make_request(participant, tmp_path / "request")
    assert not list(tmp_path.rglob("*.key"))


def test_a_key_is_never_overwritten(begun: tuple[Home, str]) -> None:
    home, _ = begun
    key = home.folder / "site-01" / "request" / "site-01.key"
    before = key.read_bytes()
    with refused(SettingsError, "refused_by_nvflare", command="request", nvflare_code="KEY_ALREADY_EXISTS"):
        home.request("site-01")
    assert key.read_bytes() == before


# ---- what the site refuses


@pytest.fixture
def answered(begun: tuple[Home, str]) -> Home:
    home, key = begun
    home.approve("site-01", key)
    return home


def check_refused(home: Home, nvflare_code: str, hint: str) -> None:
    with refused(SettingsError, "refused_by_nvflare", command="package", nvflare_code=nvflare_code) as caught:
        home.package("site-01")
    assert hint in str(caught.value)
    assert not (home.folder / "site-01" / "kit").exists()
    assert [path.name for path in (home.folder / "site-01").rglob("*.key")] == ["site-01.key"], "the key stays"


def test_an_answer_of_another_root_is_refused(answered: Home, tmp_path: Path) -> None:
    foreign = Home(tmp_path / "foreign", PROJECT)
    request = answered.folder / "site-01" / "request"
    key = normalize_fingerprint(json.loads((request / "request.json").read_text())["public_key_sha256"])
    approve(answered.post / "site-01.request.zip", foreign.root, key)  # a coordinator of another federation
    check_refused(answered, "ROOTCA_FINGERPRINT_MISMATCH", "ask the coordinator to send it again")


def test_an_answer_with_a_foreign_certificate_is_refused(answered: Home, home: Home) -> None:
    foreign = (home.folder / "site-02" / "kit" / "startup" / "client.crt").read_bytes()
    edit(answered.post / "site-01.signed.zip", "site-01.crt", lambda text: foreign)
    check_refused(answered, "INVALID_SIGNED_ZIP", "ask the coordinator to send it again")


def test_an_edited_answer_is_refused(answered: Home) -> None:
    port = b'"fed_learn_port": 8112'
    edit(answered.post / "site-01.signed.zip", "signed.json", lambda text: text.replace(port, port[:-1] + b"3"))
    check_refused(answered, "INVALID_SIGNED_ZIP", "ask the coordinator to send it again")


def test_an_answer_whose_certificate_is_at_its_end_is_refused(
    begun: tuple[Home, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, key = begun
    home.approve("site-01", key)

    class InTwoYears(datetime.datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return super().now(zone) + datetime.timedelta(days=720)

    later = SimpleNamespace(datetime=InTwoYears, timezone=datetime.timezone)
    monkeypatch.setattr("nvflare.tool.package.package_commands.datetime", later)
    check_refused(home, "CERT_EXPIRED", "have a new request approved")


def test_a_key_that_was_exchanged_is_refused(answered: Home, tmp_path: Path) -> None:
    make_request(KeyOwner("site-01"), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "site-01.key", answered.folder / "site-01" / "request")
    check_refused(answered, "KEY_CERT_MISMATCH", "name the folder in which the key of this request was made")


def test_a_kit_is_made_once_and_never_over_another(home: Home) -> None:
    with refused(SettingsError, "folder_exists", path=str(home.folder / "site-01" / "kit")):
        home.package("site-01")
    name, request = "site-01", home.folder / "site-01" / "request"
    with refused(
        SettingsError, "refused_by_nvflare", command="package", nvflare_code="REQUEST_DIR_INCOMPLETE"
    ) as caught:
        package(home.post / f"{name}.signed.zip", request, home.fingerprint, home.folder / "second")
    assert "Making a kit moves the key out" in str(caught.value)
    with refused(SettingsError, "invalid_request_folder", path=str(home.post)):
        package(home.post / f"{name}.signed.zip", home.post, home.fingerprint, home.folder / "second")
