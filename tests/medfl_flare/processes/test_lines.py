"""A real server and a site with a slow or interrupted connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lines
import pytest
from loopback import write_site_file

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.testing.synthetic import make_cohort
from medfl_flare import kit as kits
from medfl_flare.offer import make_offer
from medfl_flare.provision import Project, provision
from medfl_flare.session import Submission, submit

pytestmark = [pytest.mark.flare, pytest.mark.slow]

SITE, ME, BUNDLE = "site-01", "me@hospital.org", "medmnist_classification"
MESSAGE = 6_650_000
"""Size in bytes of a message with the bundle's network."""

LARGE = 4
"""Number of such messages in a run of one round: request, reply, model to score and model to install."""


@dataclass
class Running:
    """A federation with one site and a running server."""

    root: Path
    port: int
    kits: dict[str, Path]

    def behind(self, port: int) -> None:
        """Let the site reach the server at another port."""
        path = self.kits[SITE] / "startup" / "fed_client.json"
        client = json.loads(path.read_text())
        client["servers"][0]["service"]["target"] = f"localhost:{port}"
        path.write_text(json.dumps(client))

    def run(self, name: str, proxy: lines.Proxy) -> dict:
        """Run one round over a connection and return the summary."""
        with lines.listening(lambda connection: proxy.pipe(connection, ("127.0.0.1", self.port))) as port:
            self.behind(port)
            kits.start(self.kits[SITE], restart=False, patience=300)
            try:
                facts = {"num_classes": 4, "in_channels": 3, "size": 28, "spatial_dims": 2, "image_reading": None}
                settings = {"method": "fedavg", "rounds": 1, "steps": 2}
                offer = make_offer(shipped_bundles()[BUNDLE], settings | facts, name, [SITE], 600)
                out = self.root / "out" / name
                submit(Submission(offer, self.kits[ME], out))
            finally:
                kits.stop(self.kits[SITE])
        return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("l")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made = provision(Project("localhost", (SITE,), ME, port=port), root / "kits")
    names = {"server": made["localhost"], SITE: made[SITE], ME: made[ME]}
    make_cohort(root / "data", sites=1, images_per_site=40)
    for who in ("server", SITE):
        data = None if who == "server" else root / "data" / SITE
        entry = {"folder": str(shipped_bundles()[BUNDLE])} | ({} if data is None else {"data": str(data)})
        own = write_site_file(
            root / who, who, shipped_bundles()[BUNDLE], data, methods=["fedavg"], **{f"bundles.{BUNDLE}": entry}
        )
        (names[who] / "local" / "medfl-site.toml").write_text(own.read_text())
    kits.start(names["server"], restart=False, patience=300)
    try:
        yield Running(root, port, names)
    finally:
        kits.stop(names["server"])


def test_a_slow_line_carries_each_message_once(running: Running) -> None:
    """NVFlare's defaults repeat data that such a connection has not acknowledged after five seconds."""
    proxy = lines.Proxy(rate=800e3)
    assert running.run("slow", proxy)["status"] == "finished"
    assert LARGE * MESSAGE <= proxy.passed < 1.15 * LARGE * MESSAGE


def test_a_run_survives_a_proxy_that_cuts_connections(running: Running) -> None:
    """The proxy cuts connections while requests arrive.

    A cut at the end of a reply may cost `reply_timeout`, see docs/deploy.md.
    """
    proxy = lines.Proxy(cut=5 * 10**6, cuts=3)
    summary = running.run("cut", proxy)
    assert (summary["status"], summary["unavailable_reasons"]) == ("finished", {})
    assert proxy.passed >= LARGE * MESSAGE
