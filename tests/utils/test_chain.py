"""A chain of lines: whatever is done to it afterwards is seen."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import StoreError
from medfl.utils.chain import START, Chain, add_line, read


def chain_of(path: Path, lines: int = 5) -> list[str]:
    return [add_line(path, {"event": "step", "number": number}) for number in range(lines)]


def rewrite(path: Path, lines: list[bytes]) -> Chain:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return read(path)


def test_each_line_has_the_hash_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    hashes = chain_of(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["before"] for line in lines] == [START, *hashes[:-1]]
    assert read(path) == Chain([{"event": "step", "number": number} for number in range(5)], hashes)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_changed_removed_moved_or_inserted_line_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    chain_of(path)
    lines = path.read_bytes().splitlines()
    for place in range(5):
        assert rewrite(path, [line.replace(f": {place},".encode(), b": 9,") for line in lines]).broken[:1] == [
            place + 1
        ]
    assert rewrite(path, lines[1:]).broken == [1]
    assert rewrite(path, lines[:2] + lines[3:]).broken == [3]
    assert rewrite(path, [lines[0], lines[2], lines[1], *lines[3:]]).broken == [2, 3, 4]
    assert rewrite(path, [*lines[:2], lines[1], *lines[2:]]).broken == [3]


def test_a_line_that_was_sealed_anew_does_not_fit_the_next(tmp_path: Path) -> None:
    path, other = tmp_path / "audit.jsonl", tmp_path / "other.jsonl"
    chain_of(path)
    chain_of(other, 2)
    add_line(other, {"event": "step", "number": 9})
    lines = path.read_bytes().splitlines()
    lines[2] = other.read_bytes().splitlines()[2]
    assert rewrite(path, lines).broken == [4]


def test_lines_that_are_missing_at_the_end_show_by_a_hash_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    noted = chain_of(path)[-1]
    shorter = rewrite(path, path.read_bytes().splitlines()[:-1])
    assert not shorter.broken
    assert noted not in shorter.hashes


def test_a_thousand_changed_bytes_are_seen(tmp_path: Path) -> None:
    path, draw = tmp_path / "audit.jsonl", random.Random(0)
    chain_of(path, 20)
    whole = path.read_bytes()
    for _ in range(1000):
        place = draw.randrange(len(whole) - 1)
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        chain = read(path)
        assert chain.broken or chain.torn, (place, whole[place], changed[place])


@pytest.mark.parametrize("kept", [1, 40, 150])
def test_a_line_that_was_cut_off_stays_and_the_chain_goes_on(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "audit.jsonl"
    chain_of(path, 2)
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines()[1][:kept])
    add_line(path, {"event": "end"})
    chain = read(path)
    assert (chain.torn, chain.broken, chain.entries[2:]) == ([3], [], [{}, {"event": "end"}])


def _add_some(path: Path, who: int) -> None:
    for number in range(20):
        add_line(path, {"who": who, "number": number})


def test_several_processes_add_to_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add_some, args=(path, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    chain = read(path)
    assert (len(chain.entries), chain.broken, chain.torn) == (60, [], [])


def test_long_lines_are_added_to_as_well(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        add_line(path, {"names": ["layer.weight"] * 5000})
    assert not read(path).broken


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "audit.jsonl"
    with refused(StoreError, "unwritable_file", path=str(path), reason="No space left on device"):
        add_line(path, {})
    with refused(StoreError, "unreadable_file", path=str(tmp_path / "nothing")):
        read(tmp_path / "nothing")
