"""The site's part of a drill: it answers the server as in a run, with made-up data, and measures what that costs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.provenance import bundle_values
from medfl.errors import MedflError, RefusedError
from medfl_flare.backend.messages import Limits, Message, unpack
from medfl_flare.drill import words
from medfl_flare.drill.made_up import make_site
from medfl_flare.drill.rehearsed import STEPS, without_data
from medfl_flare.sites.file import SiteFile
from medfl_flare.sites.service import SiteService

Ask = Callable[[str, bytes], tuple[str, bytes]]
"""Says something to the server and brings its answer: (kind, blob) to (kind, blob), as `medfl_flare.drill.words`."""

POLL = 0.2
"""Seconds between two questions whether there is a message."""

PATIENCE = 300.0
"""Seconds to wait for one."""

BATCH = 32
"""Cases of a batch where a bundle does not say it."""


@dataclass
class Measured:
    """What a drill has cost.

    Attributes:
        shape: Of a made-up case.
        cases: How many of them.
        batch: Cases in a batch.
        down: Bytes of the largest message to the site.
        up: Bytes of its largest answer.
        step_seconds: Of each order: training, saving, and scoring where there is something to score.
        rounds: Rounds that were finished.
        method: Which method.
        round_trip: Seconds for a message without content and its answer.
        down_rate: Bytes a second to the site.
        up_rate: Bytes a second from it.
    """

    shape: tuple[int, ...] = ()
    cases: int = 0
    batch: int = BATCH
    down: int = 0
    up: int = 0
    step_seconds: list[float] = field(default_factory=list)
    rounds: int = 0
    method: str = ""
    round_trip: float = math.nan
    down_rate: float = math.nan
    up_rate: float = math.nan

    @property
    def transfer(self) -> float:
        """Seconds that the messages of a round are on their way."""
        return 2 * self.round_trip + self.down / self.down_rate + self.up / self.up_rate

    @property
    def batch_seconds(self) -> float:
        """Seconds for a batch, at most: what else the last order takes is counted in."""
        return self.step_seconds[-1] / STEPS


def drill(site_file: SiteFile, bundle: str, ask: Ask) -> Measured:
    """Rehearse a run with the server. Nothing of the site's data, state, secret or ledger is touched.

    Args:
        site_file: The site's own file.
        bundle: Which of its bundles.
        ask: Brings what is said to the server.

    Raises:
        MedflError: If the run can't be: what either side refuses, or that the server does not answer.
    """
    entry = site_file.bundle(bundle)
    values = bundle_values(entry.folder)
    batch = values["batch_size"] if type(values.get("batch_size")) is int else BATCH
    measured = Measured(cases=max(batch, site_file.min_count, 2), batch=batch)
    with tempfile.TemporaryDirectory(prefix="medfl-drill-") as folder:
        data = Path(folder) / "data" / site_file.site
        measured.shape = make_site(entry, data, measured.cases)
        own = without_data(site_file, Path(folder) / "state", data)
        service = SiteService(own, lambda to, blob, patience: False)
        wish = {"site": site_file.site, "bundle": bundle, "methods": list(site_file.methods)}
        try:
            _converse(service, json.dumps(wish).encode(), ask, measured)
        finally:
            service.close()
            with contextlib.suppress(MedflError):  # the server ends it by itself, later
                ask(words.LEAVE, b"")
    _measure_line(ask, measured)
    return measured


def _converse(service: SiteService, wish: bytes, ask: Ask, measured: Measured) -> None:
    """Answer the server's messages until it has no more."""
    kind, blob = ask(words.BEGIN, wish)
    since = time.monotonic()
    while kind != words.OVER:
        if kind == words.REFUSED:
            raise RefusedError("drill_refused", f"the server refuses the drill: {_text(blob)}", reason=_text(blob))
        if kind == words.WAIT:
            if time.monotonic() - since > PATIENCE:
                raise MedflError(
                    "server_not_responding",
                    f"the server has said nothing in the drill for {PATIENCE:g} s; look at its console.log",
                    seconds=PATIENCE,
                )
            time.sleep(POLL)
            kind, blob = ask(words.ANSWER, b"")
            continue
        kind, blob = ask(words.ANSWER, _answered(service, blob, measured))
        since = time.monotonic()
    end = json.loads(blob)
    measured.rounds = int(end["rounds"])
    if end["state"] != "finished" or end["missing"]:
        why = "; ".join(str(why) for why in end["missing"].values()) or end["message"]
        raise MedflError(
            "drill_failed", f"the drill's run ended as {end['state']}: {why}", state=str(end["state"]), reason=str(why)
        )


def _answered(service: SiteService, blob: bytes, measured: Measured) -> bytes:
    begun = time.monotonic()
    answer = service.answer(blob)
    seconds = time.monotonic() - begun
    question, refused = unpack(blob, Limits(max_bytes=len(blob))), unpack(answer, Limits(max_bytes=len(answer)))
    if isinstance(refused.meta.get("refused"), str):
        raise RefusedError("site_refusal", str(refused.meta["refused"]), reason=str(refused.meta["refused"]))
    if question.kind == "hello":
        measured.method = str(question.meta.get("method"))
    if _is_order(question):
        measured.step_seconds.append(seconds)
        measured.down, measured.up = max(measured.down, len(blob)), max(measured.up, len(answer))
    return answer


def _is_order(message: Message) -> bool:
    return message.kind == "step" and message.meta.get("order") is not None


def _measure_line(ask: Ask, measured: Measured) -> None:
    """Send and fetch as much as a round does, but no more than `words.MAX_LINE`."""

    def seconds(sent: int, wanted: int) -> float:
        begun = time.monotonic()
        kind, blob = ask(words.LINE, wanted.to_bytes(8, "little") + os.urandom(sent))
        if kind != words.LINE or len(blob) != wanted:
            raise MedflError(
                "line_not_measured",
                f"the server did not answer the question how fast the line is: {_text(blob)}",
                reason=_text(blob),
            )
        return time.monotonic() - begun

    down, up = (max(min(size, words.MAX_LINE), 2**16) for size in (measured.down, measured.up))
    measured.round_trip = min(seconds(0, 0) for _ in range(3))
    measured.down_rate = down / max(seconds(0, down) - measured.round_trip, 1e-6)
    measured.up_rate = up / max(seconds(up, 0) - measured.round_trip, 1e-6)


def _text(blob: bytes) -> str:
    return blob[:2000].decode(errors="replace")


def in_words(measured: Measured) -> list[tuple[str, str]]:
    """What a drill has shown, as titles and sentences, and what a round will cost."""
    mega, bits = 1e6, 8e-6
    shape = " x ".join(map(str, measured.shape))
    hundred = 100 * measured.batch_seconds
    return [
        ("run", f"{measured.rounds} rounds of '{measured.method}' with the server, which keeps nothing of them"),
        ("training", f"{STEPS} batches of {measured.batch} cases of {shape} take {measured.step_seconds[-1]:.2f} s"),
        ("messages", f"an order has {measured.down / mega:.2f} MB, the answer {measured.up / mega:.2f} MB"),
        (
            "line",
            f"{measured.down_rate * bits:.1f} Mbit/s down, {measured.up_rate * bits:.1f} Mbit/s up, "
            f"{1000 * measured.round_trip:.0f} ms there and back",
        ),
        (
            "a round",
            f"messages take {measured.transfer:.1f} s, each 100 batches at most {hundred:.1f} s "
            f"(of the bundle's own shape and batch; a run may want others)",
        ),
    ]
