"""Tests of the site's key, and of the pseudonyms and date shifts computed from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import uuid
from pathlib import Path

import pytest
from pydicom.uid import UID
from refusals import refused

from medfl.errors import DataError, StoreError
from medfl_pacs.deidentification import shift_date
from medfl_pacs.pseudonyms import MAX_SHIFT_DAYS, MIN_SHIFT_DAYS, Pseudonyms, open_key

KEY = bytes(range(32))


def digest(text: bytes) -> bytes:
    return hmac.new(KEY, text, hashlib.sha256).digest()


def test_pseudonyms_are_hmacs_of_the_original():
    pseudonyms = Pseudonyms(KEY)
    patient = digest(b"medfl patient\x00P1")
    assert pseudonyms.patient("P1") == "P" + base64.b32encode(patient[:10]).decode()
    number = uuid.UUID(bytes=digest(b"medfl uid\x001.2.3")[:16], version=4).int
    assert pseudonyms.uid("1.2.3") == f"2.25.{number}"
    days = int.from_bytes(digest(b"medfl date shift\x00P1")[:8], "big")
    assert pseudonyms.shift_days("P1") == MIN_SHIFT_DAYS + days % (MAX_SHIFT_DAYS - MIN_SHIFT_DAYS + 1)


def test_uids_are_valid_and_differ():
    pseudonyms = Pseudonyms(KEY)
    uids = [pseudonyms.uid(f"1.2.{number}") for number in range(2000)]
    assert len(set(uids)) == 2000
    assert all(UID(uid).is_valid and len(uid) <= 64 and uid.startswith("2.25.") for uid in uids)


def test_padding_does_not_change_a_pseudonym():
    pseudonyms = Pseudonyms(KEY)
    assert pseudonyms.uid("1.2.3\0") == pseudonyms.uid("1.2.3")
    assert pseudonyms.patient(" P1 ") == pseudonyms.patient("P1")


def test_another_key_gives_other_pseudonyms():
    first, second = Pseudonyms(KEY), Pseudonyms(KEY[::-1])
    assert first.patient("P1") != second.patient("P1")
    assert first.uid("1.2.3") != second.uid("1.2.3")
    assert first.fingerprint() != second.fingerprint()


def test_shifts_cover_their_range_and_are_never_zero():
    days = [Pseudonyms(KEY).shift_days(str(number)) for number in range(3000)]
    assert min(days) >= MIN_SHIFT_DAYS
    assert max(days) <= MAX_SHIFT_DAYS
    assert min(days) < MIN_SHIFT_DAYS + 100
    assert max(days) > MAX_SHIFT_DAYS - 100


@pytest.mark.parametrize(
    ("value", "days", "expected"),
    [
        ("20200301", 1, "20200229"),
        ("20210301", 1, "20210228"),
        ("2020.03.01", 366, "20190301"),
        ("20200101235959.123456+0100", 1, "20191231235959.123456+0100"),
        ("20200101 ", 1, "20191231"),
        ("00010101", 1, ""),
        ("20201301", 1, ""),
        ("2020", 1, ""),
        ("202003", 1, ""),
        ("20200101-20200201", 1, ""),
        ("Smith", 1, ""),
        ("20200101Smith", 1, ""),
        ("", 1, ""),
    ],
)
def test_dates_move_by_whole_days(value: str, days: int, expected: str):
    assert shift_date(value, days) == expected


def test_the_key_is_private_and_kept(tmp_path: Path):
    path = tmp_path / "folder" / "key"
    first, created = open_key(path, tmp_path / "store")
    again, created_again = open_key(path, tmp_path / "store")
    assert (created, created_again) == (True, False)
    assert first.fingerprint() == again.fingerprint()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


def test_the_key_is_private_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        open_key(tmp_path / "key", tmp_path / "store")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_two_keys_differ(tmp_path: Path):
    first, _ = open_key(tmp_path / "one", tmp_path / "store")
    second, _ = open_key(tmp_path / "two", tmp_path / "store")
    assert first.fingerprint() != second.fingerprint()


def test_a_key_in_the_store_is_refused(tmp_path: Path):
    store = tmp_path / "store"
    store.mkdir()
    with refused(DataError, "key_in_store"):
        open_key(store / "key", store)
    (tmp_path / "link").symlink_to(store)
    with refused(DataError, "key_in_store"):
        open_key(tmp_path / "link" / "key", store)
    assert list(store.iterdir()) == []


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    open_key(tmp_path / "key", tmp_path / "store")
    (tmp_path / "key").chmod(0o640)
    with refused(DataError, "open_key_file", mode="640"):
        open_key(tmp_path / "key", tmp_path / "store")


@pytest.mark.parametrize("content", ["", "abc", "g" * 64, "a" * 63, "a" * 64 + "\nb", "A" * 64])
def test_a_damaged_key_is_refused_without_its_content(tmp_path: Path, content: str):
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with refused(DataError, "invalid_key") as caught:
        open_key(path, tmp_path / "store")
    assert not content or content not in str(caught.value)


def test_a_key_in_a_file_instead_of_a_folder(tmp_path: Path):
    (tmp_path / "file").touch()
    with refused(StoreError, "unusable_key"):
        open_key(tmp_path / "file" / "key", tmp_path / "store")
