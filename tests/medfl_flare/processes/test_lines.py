"""A real server and a site with a slow or interrupted connection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lines
import pytest
from one_site import SITE, OneSite, one_site

pytestmark = [pytest.mark.flare, pytest.mark.slow]

HELPERS = Path(__file__).parents[2] / "helpers"
MESSAGE = 6_650_000
"""Size in bytes of a message with the bundle's network."""

LARGE = 4
"""Number of such messages in a run of one round: request, reply, model to score and model to install."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneSite]:
    with one_site(tmp_path_factory.mktemp("l")) as running:
        yield running


def run(running: OneSite, name: str, proxy: lines.Proxy) -> dict[str, Any]:
    """Run one round over a connection and return the summary."""
    with lines.listening(lambda connection: proxy.pipe(connection, ("127.0.0.1", running.port))) as port:
        running.behind(port)
        return running.run(name)


def test_a_slow_line_carries_each_message_once(running: OneSite) -> None:
    """NVFlare's defaults repeat data that such a connection has not acknowledged after five seconds."""
    proxy = lines.Proxy(rate=800e3)
    assert run(running, "slow", proxy)["status"] == "finished"
    assert LARGE * MESSAGE <= proxy.passed < 1.15 * LARGE * MESSAGE


def test_a_run_survives_a_proxy_that_cuts_connections(running: OneSite) -> None:
    """The proxy cuts connections while requests arrive."""
    proxy = lines.Proxy(cut=5 * 10**6, cuts=3)
    summary = run(running, "cut", proxy)
    assert (summary["status"], summary["unavailable_reasons"]) == ("finished", {})
    assert proxy.passed >= LARGE * MESSAGE


LOST = ("submit 1", "get 4", "submit 3")
"""Requests of the site's job whose answers are lost: the results of tasks, and a request for a task."""


def test_lost_answers_are_asked_for_once_more(running: OneSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NVFlare's own `communication_timeout` the site waits for each lost answer for 300 s; here for 5 s."""
    lost_answers = pytest.importorskip("lost_answers")

    def lose(resources: dict[str, Any]) -> None:
        component = {"id": "loss", "path": "lost_answers.LossSignal", "args": {"port": signals, "requests": LOST}}
        resources["components"].append(component)
        resources["class_allow_list"].append(component["path"])
        resources["client"]["communication_timeout"] = 5.0

    relay = lost_answers.LosingRelay(running.port)
    monkeypatch.setenv("PYTHONPATH", f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with lines.listening(relay) as port, lines.listening(relay.lose) as signals:
        running.behind(port)
        running.change_resources(lose)
        summary = running.run("lost")
    assert (summary["status"], summary["unavailable_reasons"]) == ("finished", {})
    assert relay.cuts >= len(LOST)
    logs = [path.read_text() for path in running.kits[SITE].glob("*/log.txt")]
    assert max(log.count("failed to send task result to server - will try again") for log in logs) == 2
    assert running.has_bits_of_one_machine("lost")
