"""Test signatures with keys of kits, which are valid for one purpose, content, signer, root and time only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from refusals import refused

pytest.importorskip("cryptography")

from kit_keys import Root

from medfl.errors import RefusedError, SettingsError
from medfl.privacy.signatures import MAX_CERTIFICATE, Signer, read_signer, verify


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


@pytest.fixture(scope="module")
def kits(root: Root, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    names = {"north": root, "south": root, "fl.hospital.org": root, "stranger": Root()}
    return {
        name: of.kit(folder / name, "north" if name == "stranger" else name, "server" if "." in name else "client")
        for name, of in names.items()
    }


@pytest.fixture(scope="module")
def north(kits: dict[str, Path]) -> Signer:
    return read_signer(kits["north"])


def test_a_signature_is_good_for_its_purpose_and_content_only(north: Signer, kits: dict[str, Path]) -> None:
    south = read_signer(kits["south"])
    signature = north.sign("peer_message", b"content")
    assert len(signature) == 256
    south.verify("peer_message", b"content", signature, north.certificate, "north")
    changed = signature[:-1] + bytes([signature[-1] ^ 1])
    others = {"key", "parcel\0content"}, {b"Content", b"", b"content\0"}, {signature[:-1], b"", changed}
    wrong = [(purpose, b"content", signature) for purpose in others[0]]
    wrong += [("peer_message", content, signature) for content in others[1]]
    wrong += [("peer_message", b"content", other) for other in others[2]]
    for purpose, content, other in wrong:
        with refused(RefusedError, "invalid_signature", name="north", purpose=purpose):
            south.verify(purpose, content, other, north.certificate, "north")


def test_purpose_and_content_do_not_run_into_each_other(north: Signer) -> None:
    signature = north.sign("a", b"b\0c")
    with refused(RefusedError, "invalid_signature", name="north", purpose="a\0b"):
        north.verify("a\0b", b"c", signature, north.certificate, "north")


def test_no_one_signs_for_another(north: Signer, kits: dict[str, Path]) -> None:
    south, stranger = read_signer(kits["south"]), read_signer(kits["stranger"])
    signature = south.sign("peer_message", b"content")
    with refused(RefusedError, "wrong_certificate_name", expected="north", found="south"):
        north.verify("peer_message", b"content", signature, south.certificate, "north")
    with refused(RefusedError, "invalid_signature", name="north", purpose="peer_message"):
        north.verify("peer_message", b"content", signature, north.certificate, "north")
    with refused(RefusedError, "foreign_certificate", name="north"):
        north.verify(
            "peer_message", b"content", stranger.sign("peer_message", b"content"), stranger.certificate, "north"
        )


def test_a_certificate_that_a_participant_issued_is_none_of_the_root(north: Signer, root: Root) -> None:
    mallory = Root("north")  # has a certificate's subject as its name, but no certificate that may issue
    certificate = mallory.certify("south", mallory.key.public_key())
    with refused(RefusedError, "foreign_certificate", name="south"):
        verify("peer_message", b"", b"", certificate, root.pem, "south")


@pytest.mark.parametrize("days", [(-10.0, -1.0), (1.0, 10.0)])
def test_a_certificate_out_of_its_time_is_refused(
    root: Root, north: Signer, tmp_path: Path, days: tuple[float, float]
) -> None:
    with refused(SettingsError, "certificate_not_current", name="old", certificate="certificate"):
        read_signer(root.kit(tmp_path / "old", "old", days=days))
    certificate = (tmp_path / "old" / "startup" / "client.crt").read_bytes()
    with refused(RefusedError, "certificate_not_current", name="old", certificate="certificate"):
        north.verify("peer_message", b"", b"", certificate, "old")


@pytest.mark.parametrize("certificate", [b"", b"-----BEGIN CERTIFICATE-----\n", b"x" * (MAX_CERTIFICATE + 1)])
def test_what_is_no_certificate_is_refused(north: Signer, certificate: bytes) -> None:
    with refused(RefusedError, "invalid_certificate", name="north"):
        north.verify("peer_message", b"", b"", certificate, "north")


def test_a_kit_whose_key_is_another_ones_is_refused(kits: dict[str, Path], tmp_path: Path) -> None:
    mixed = Path(shutil.copytree(kits["north"], tmp_path / "mixed"))
    shutil.copy(kits["south"] / "startup" / "client.key", mixed / "startup" / "client.key")
    startup = mixed / "startup"
    with refused(SettingsError, "mismatched_key", path=str(startup / "client.key"), certificate="client.crt"):
        read_signer(mixed)
    (mixed / "startup" / "client.key").unlink()
    with refused(SettingsError, "unreadable_credentials", path=str(startup)) as caught:
        read_signer(mixed)
    assert "client.key" in str(caught.value)


def test_a_servers_kit_signs_under_the_servers_name_and_no_key_is_shown(kits: dict[str, Path]) -> None:
    server = read_signer(kits["fl.hospital.org"])
    assert server.name == "fl.hospital.org"
    assert "_key" not in repr(server)
