"""Kits of a federation: NVFlare's files, medfl's allow-list entry, restricted rights, private file modes."""

from __future__ import annotations

import json
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import RefusedError, SettingsError
from medfl_flare.provision import (
    ALLOWED_CLASSES,
    ANSWER_SECONDS,
    RIGHTS,
    Project,
    provision,
    role_rights,
    with_allowed_class,
)
from medfl_flare.sites.site_file import BundleEntry, MinimumPrivacy, SiteFile

ONE = Project("localhost", ("site-01",), "me@hospital.org", port=8112)


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the kits of one site, and then of one more."""
    pytest.importorskip("nvflare")
    out = tmp_path_factory.mktemp("kits") / "kits"
    first = provision(ONE, out)
    root = (first["site-01"] / "startup" / "rootCA.pem").read_text()
    marked = first["site-01"] / "local" / "medfl-site.toml"
    marked.write_text(marked.read_text() + "# edited\n")
    more = provision(replace(ONE, sites=("site-02",)), out)
    assert set(more) == {"site-02"}
    return first | more | {"out": out, "root": _file(out / "root.pem", root)}


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_later_call_keeps_the_root_and_the_kits_that_are_there(kits: dict[str, Path]) -> None:
    assert (kits["site-02"] / "startup" / "rootCA.pem").read_text() == kits["root"].read_text()
    assert (kits["site-01"] / "local" / "medfl-site.toml").read_text().endswith("# edited\n")
    assert provision(replace(ONE, sites=("site-01", "site-02")), kits["out"]) == {}


def test_all_certificates_are_of_the_root_and_carry_the_participant(kits: dict[str, Path]) -> None:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    root = x509.load_pem_x509_certificate(kits["root"].read_bytes())
    for name, file in {"localhost": "server", "site-01": "client", "site-02": "client", ONE.admin: "client"}.items():
        certificate = x509.load_pem_x509_certificate((kits[name] / "startup" / f"{file}.crt").read_bytes())
        certificate.verify_directly_issued_by(root)
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == name


def test_only_sites_certificates_stand_for_participants_of_a_secure_aggregation(kits: dict[str, Path]) -> None:
    """The root also certifies the server and the researcher; neither can add itself to the sites of a sum."""
    from medfl.privacy.signatures import read_signer

    site, other = read_signer(kits["site-01"]), read_signer(kits["site-02"])
    assert site.server == "localhost"
    site.verify_site("keys", b"mine", other.sign("keys", b"mine"), other.certificate, "site-02")
    for name, owner in (("localhost", "server"), (ONE.admin, "user")):
        signer = read_signer(kits[name])
        proof = signer.sign("keys", b"mine"), signer.certificate, name
        site.verify("keys", b"mine", *proof)
        with refused(RefusedError, "not_a_site", name=name, owner=owner):
            site.verify_site("keys", b"mine", *proof)


def test_no_one_else_can_read_a_kit_or_the_root_key(kits: dict[str, Path]) -> None:
    out = kits["out"]
    assert stat.S_IMODE((out / "ca").stat().st_mode) == 0o700
    secrets = [*out.rglob("*.key"), *out.rglob("cert.json")]
    assert len(secrets) == 5
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    assert all(stat.S_IMODE(kits[name].stat().st_mode) == 0o700 for name in ("localhost", "site-02", ONE.admin))


def test_a_kit_allows_medfls_class_beside_nvflares_and_nothing_more(kits: dict[str, Path]) -> None:
    for name, who in {"localhost": "server", "site-02": "client"}.items():
        local = kits[name] / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert json.loads((local / "resources.json.default").read_text()) == resources
        *others, own = resources["class_allow_list"]
        assert own == ALLOWED_CLASSES[who]
        assert all(name.startswith("nvflare.") for name in others)
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert {part["path"].partition(".")[0] for part in resources["components"]} == {"nvflare"}
        assert json.loads((local / "authorization.json").read_text()) == role_rights(is_server=who == "server")
    site = json.loads((kits["site-02"] / "local" / "resources.json").read_text())
    assert site["allow_log_streaming"] is False
    assert site["client"] == {"compression": "Gzip", "retry_timeout": 30, "communication_timeout": ANSWER_SECONDS}


def test_the_sites_file_names_the_site_and_allows_nothing_yet(kits: dict[str, Path]) -> None:
    for name, site in {"localhost": "server", "site-02": "site-02"}.items():
        text = (kits[name] / "local" / "medfl-site.toml").read_text()
        assert tomllib.loads(text) == {"site": site}
        opened = "\n".join(line.removeprefix("# ") for line in text.splitlines()[2:])
        assert set(tomllib.loads(opened)) == set(SiteFile.model_fields)  # the template shows every key


def test_the_page_for_administrators_explains_every_key_and_both_allow_list_lines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    keys = {*SiteFile.model_fields, *MinimumPrivacy.model_fields, *BundleEntry.model_fields} - {"privacy", "bundles"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    assert all(line in page for line in ALLOWED_CLASSES.values())


def test_another_server_in_the_same_folder_is_refused(kits: dict[str, Path]) -> None:
    with refused(SettingsError, "other_federation", setting="server", expected="localhost", found="elsewhere.org"):
        provision(replace(ONE, server="elsewhere.org"), kits["out"])


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"server": "no host"}, "invalid_host_name", {"name": "no host"}),
        ({"admin": "me"}, "invalid_email", {"address": "me"}),
        ({"port": 0}, "setting_out_of_range", {"setting": "port", "minimum": 1, "maximum": 65535, "found": 0}),
        ({"sites": ("../x",)}, "invalid_site_name", {"sites": ["../x"]}),
        ({"sites": ("a.b",)}, "invalid_site_name", {"sites": ["a.b"]}),
        ({"sites": ("a", "a")}, "duplicate_name", {"names": ["a", "a"], "reserved": []}),
        ({"sites": ("server",)}, "invalid_site_name", {"sites": ["server"]}),
        ({"sites": ("ca",)}, "duplicate_name", {"names": ["ca"], "reserved": ["ca"]}),
        ({"sites": ("North", "north")}, "invalid_site_name", {"sites": ["North", "north"]}),
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_made(
    change: dict, code: str, fields: dict, tmp_path: Path
) -> None:
    with refused(SettingsError, code, **fields):
        provision(replace(ONE, **change), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_no_role_may_send_code_or_give_shell_commands() -> None:
    for is_server in (True, False):
        roles = role_rights(is_server=is_server)["permissions"]
        assert set(roles) == {"project_admin", "org_admin", "lead", "member"}  # "any" for a whole role would open all
        for granted in roles.values():
            assert set(granted) == set(RIGHTS)
            assert granted["byoc"] == granted["shell_commands"] == granted["server-predeployed-flwr"] == "none"
    assert role_rights(is_server=False)["permissions"]["project_admin"]["operate"] == "none"


def test_the_allow_list_line_is_there_once_however_often_it_is_added() -> None:
    once = with_allowed_class({"class_allow_list": ["a.B"], "components": []}, is_server=False)
    assert once["class_allow_list"] == ["a.B", ALLOWED_CLASSES["client"]]
    assert with_allowed_class(once, is_server=False) == once
