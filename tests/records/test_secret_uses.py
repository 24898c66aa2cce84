"""Test the register of a site's uses of its secrets: entries stay, and a damaged file is not an empty register."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.engine.secure.register import SecretUseRegister
from medfl.errors import RefusedError, StoreError
from medfl.records.secret_uses import SecretUse, SecretUses


def test_uses_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    register = SecretUseRegister(tmp_path)
    nonce = register.nonce
    register.once(1, "keys of others", "a" * 64)
    register.once(1, "keys of others", "a" * 64)
    register.model_once(2, "b" * 64)
    assert SecretUseRegister(tmp_path).nonce == nonce
    assert SecretUses.read(tmp_path / SecretUses.NAME) == SecretUses(
        nonce=nonce,
        uses=(
            SecretUse(round=1, use="keys of others", digest="a" * 32),
            SecretUse(round=2, use="model", digest="b" * 32),
        ),
    )
    with refused(RefusedError, "repeated_aggregation", round=1, use="keys of others"):
        SecretUseRegister(tmp_path).once(1, "keys of others", "c" * 64)
    with refused(RefusedError, "repeated_model", round=3, earlier=2):
        SecretUseRegister(tmp_path).model_once(3, "b" * 64)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"version": 1, "uses": [{"round": "1"}]}'])
def test_a_damaged_register_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / SecretUses.NAME
    path.write_text(content)
    for use in (
        lambda: SecretUseRegister(tmp_path).nonce,
        lambda: SecretUseRegister(tmp_path).once(1, "participants", "a" * 64),
    ):
        with pytest.raises(StoreError, match="start the run in a new folder|other version|version of medfl"):
            use()
    assert path.read_text() == content


def test_a_register_that_can_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / SecretUses.NAME).mkdir()
    with refused(StoreError, "unreadable_file"):
        SecretUseRegister(tmp_path).once(1, "participants", "a" * 64)
