"""Messages in parts: complete despite losses and duplicates, never above the limit, never completely in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from loopback import Loopback
from refusals import refused
from remote_cases import local_outcome, mini_place, offered, outcome

from medfl.errors import RefusedError, StoreError
from medfl.utils.wire import Blob
from medfl_flare.backend import message_transfer
from medfl_flare.backend.message_transfer import MessageTransfer, PartExchange, fetch_message, send_reply
from medfl_flare.backend.messages import Limits

PART = 1000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_transfer, "PART_BYTES", PART)


def some(size: int) -> bytes:
    return bytes(place * 7 % 251 for place in range(size))


def carried(
    message: bytes, answer: bytes, folder: Path, line: Callable[[PartExchange], PartExchange] = lambda ask: ask
) -> tuple[Any, Any]:
    """Return the message that arrives at the site and the reply that arrives at the server."""
    transfer = MessageTransfer(message, folder / "answer", Limits())
    ask = line(transfer.exchange_part)
    came = fetch_message(ask, len(message), folder / "message")
    send_reply(ask, answer)
    return came, transfer.answer(len(answer))


@pytest.mark.parametrize("size", [1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
def test_message_and_reply_arrive_whole_and_leave_no_file(tmp_path: Path, size: int) -> None:
    came, answered = carried(some(size), some(size + 5), tmp_path)
    assert (bytes(came), bytes(answered)) == (some(size), some(size + 5))
    assert not list(tmp_path.iterdir())


def test_no_end_has_more_than_a_part_of_either_in_its_hands(tmp_path: Path) -> None:
    sizes: list[int] = []

    def line(ask: PartExchange) -> PartExchange:
        def measured(offset: int, part: bytes) -> tuple[int, bytes] | None:
            brought = ask(offset, part)
            assert brought is not None
            sizes.extend((len(part), len(brought[1])))
            return brought

        return measured

    carried(some(10 * PART), some(20 * PART), tmp_path, line)
    assert max(sizes) == PART
    assert sum(sizes) == 30 * PART, "and each byte once"


def test_what_comes_twice_or_too_late_changes_nothing(tmp_path: Path) -> None:
    def line(ask: PartExchange) -> PartExchange:
        sent: list[tuple[int, bytes]] = []

        def doubled(offset: int, part: bytes) -> tuple[int, bytes] | None:
            answer = ask(offset, part)
            if part:
                for earlier in sent[-3:]:  # a line that was cut brings some of them again
                    ask(*earlier)
                sent.append((offset, part))
            return answer

        return doubled

    came, answered = carried(some(4 * PART), some(9 * PART + 3), tmp_path, line)
    assert (bytes(came), bytes(answered)) == (some(4 * PART), some(9 * PART + 3))


def test_a_restarted_site_replies_again(tmp_path: Path) -> None:
    """A process that ended during its reply is followed by one whose reply may differ."""
    transfer = MessageTransfer(some(PART), tmp_path / "answer", Limits())
    assert fetch_message(transfer.exchange_part, PART, tmp_path / "message") is not None
    transfer.exchange_part(0, b"x" * PART)
    assert fetch_message(transfer.exchange_part, PART, tmp_path / "message") is not None
    send_reply(transfer.exchange_part, some(3 * PART))
    assert bytes(transfer.answer(3 * PART)) == some(3 * PART)


def test_a_reply_above_the_limit_is_not_taken_and_refused_with_both_sizes(tmp_path: Path) -> None:
    transfer = MessageTransfer(b"", tmp_path / "answer", Limits(max_bytes=5 * PART))
    send_reply(transfer.exchange_part, some(50 * PART))
    assert (tmp_path / "answer").stat().st_size <= 5 * PART
    with refused(RefusedError, "message_too_large", maximum=5 * PART, found=f"{50 * PART}"):
        transfer.answer(50 * PART)
    transfer.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (0, "incomplete_answer"),
        (-1, "incomplete_answer"),
        (PART, "incomplete_answer"),
        (2 * PART + 1, "incomplete_answer"),
        (10**30, "message_too_large"),
    ],
)
def test_a_reply_of_another_size_than_its_site_says_is_refused(tmp_path: Path, size: int, code: str) -> None:
    transfer = MessageTransfer(b"", tmp_path / "answer", Limits())
    send_reply(transfer.exchange_part, some(2 * PART))
    with refused(RefusedError, code):
        transfer.answer(size)


@pytest.mark.parametrize("brought", [None, (0, b""), (-1, b"")])
def test_a_site_stops_where_the_server_is_gone_or_wants_no_more(tmp_path: Path, brought: Any) -> None:
    assert fetch_message(lambda offset, part: brought, PART, tmp_path / "message") is None
    send_reply(lambda offset, part: brought, some(PART))
    assert not list(tmp_path.iterdir())


def test_after_the_end_nothing_is_taken(tmp_path: Path) -> None:
    transfer = MessageTransfer(some(PART), tmp_path / "answer", Limits())
    transfer.close()
    assert transfer.exchange_part(0, some(3)) == transfer.exchange_part(0, b"") == (-1, b"")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_at_the_server_is_no_fault_of_the_site(tmp_path: Path) -> None:
    transfer = MessageTransfer(b"", tmp_path / "answer", Limits())
    with mock.patch.object(
        message_transfer, "open", side_effect=OSError(errno.ENOSPC, "No space left on device"), create=True
    ):
        send_reply(transfer.exchange_part, some(2 * PART))
    assert isinstance(transfer.failed, StoreError)
    assert (transfer.failed.code, transfer.failed.fields["path"]) == ("unwritable_file", str(tmp_path / "answer"))


class InParts(Loopback):
    """Transport of messages and replies in parts through files, as over NVFlare."""

    def listen(self, hear: Any, folder: Path, limits: Limits) -> None:
        super().listen(hear, folder, limits)
        self._parts, self._limits = folder, limits

    def ask(self, requests: Any, patience: float, exchange_part: Callable[[str, Blob], None]) -> dict[str, str]:
        self._parts.mkdir(parents=True, exist_ok=True)
        for site, blob in requests.items():
            transfer = MessageTransfer(blob, self._parts / "answer", self._limits)
            message = fetch_message(transfer.exchange_part, len(blob), self._parts / "message")
            assert message is not None
            answer = self.services[site].answer(message)
            send_reply(transfer.exchange_part, answer)
            exchange_part(site, transfer.answer(len(answer)))
        return {}


def test_a_run_whose_messages_lie_in_files_has_the_bits_of_one_machine(tmp_path: Path) -> None:
    place = mini_place(tmp_path)
    files, offer = place.files("parts"), offered(place, best_round=True)
    folder, progress = InParts(files).serve(offer)
    assert progress.state == "finished", progress.message
    place.local(offer, files, tmp_path / "local")
    local = local_outcome(tmp_path / "local")
    assert outcome(folder, files) == {name: local[name] for name in outcome(folder, files)}
