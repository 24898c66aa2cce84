"""A site that reaches its server only through a proxy with a password, with NVFlare's processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from one_site import SITE, OneSite, one_site
from refusals import refused
from tiny_proxy import TinyProxy, tiny_proxy

from medfl.errors import MedflError
from medfl_flare import kit as kits

pytestmark = [pytest.mark.flare, pytest.mark.slow]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyProxy]:
    with tiny_proxy(tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, proxy: TinyProxy) -> Iterator[OneSite]:
    with one_site(tmp_path_factory.mktemp("p"), scheme="grpc") as running:
        yield running


def test_a_site_behind_a_proxy_completes_a_run(running: OneSite, proxy: TinyProxy) -> None:
    summary = running.run("proxied", grpc_proxy=proxy.url())
    assert (summary["status"], summary["unavailable_reasons"]) == ("finished", {})
    assert proxy.connections() >= 2, "the site's process and its job"
    assert running.has_bits_of_one_machine("proxied")


def test_a_start_with_a_wrong_password_says_so(
    running: OneSite, proxy: TinyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", proxy.url("wrong"))
    try:
        with refused(MedflError, "start_timeout", path=str(running.kits[SITE]), seconds=20.0) as caught:
            kits.start(running.kits[SITE], restart=False, patience=20.0)
    finally:
        kits.stop(running.kits[SITE])
    assert f"the proxy 127.0.0.1:{proxy.port} refuses (status 401)" in str(caught.value)
