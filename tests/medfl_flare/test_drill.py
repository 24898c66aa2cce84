"""``medfl site check --drill``: a run is rehearsed on made-up data, measured, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest
from drilling import Here
from loopback import BUNDLE, SITES, Place, make_place
from refusals import refused
from zoo_shapes import tools

from medfl.bundle.files import shipped
from medfl.errors import RefusedError, SettingsError
from medfl.settings import Execution
from medfl_adopt.adopting import adopt
from medfl_flare.backend.messages import Limits, pack, unpack
from medfl_flare.drill import words
from medfl_flare.drill.at_site import Measured, drill, in_words
from medfl_flare.drill.host import Host
from medfl_flare.drill.made_up import make_site
from medfl_flare.drill.rehearsed import ROUNDS
from medfl_flare.offered_bundle import source_of
from medfl_flare.sites.file import SiteBundle


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("drill"))


def picture(place: Place) -> dict[str, str]:
    """All files of all participants."""
    paths = sorted(path for path in place.root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_drill_is_a_run_that_nobody_keeps(place: Place) -> None:
    privacy = {"unit": "site", "epsilon": 1.0, "ledger": str(place.root / "ledger"), "total_epsilon": 2.0}
    files = place.files("whole", {SITES[0]: {"privacy": privacy}})
    shutil.rmtree(place.data / SITES[0])  # real data are not even looked for
    before = picture(place)
    measured = drill(files[SITES[0]], BUNDLE, Here(files["server"]))
    assert picture(place) == before
    assert (measured.rounds, measured.method) == (ROUNDS, "fedavg"), "of 'local' nothing would be sent"
    assert measured.shape == (3, 28, 28)


def test_a_drill_says_what_a_round_costs(place: Place) -> None:
    files = place.files("cost", {SITES[1]: {"methods": ["fedskd", "fedavg"]}})
    measured = drill(files[SITES[1]], BUNDLE, Here(files["server"]))
    assert measured.method == "fedavg", "a method of parcels needs more sites"
    assert measured.down == pytest.approx(measured.up, rel=0.05)
    assert measured.down > 4 * 10_000
    said_by = dict(in_words(measured))
    assert said_by["run"] == "2 rounds of 'fedavg' with the server, which keeps nothing of them"
    assert f"{measured.down / 1e6:.2f} MB" in said_by["messages"]


def test_the_cost_of_a_round_in_closed_form() -> None:
    measured = Measured(down=10**6, up=2 * 10**6, step_seconds=[9.0, 4.0], round_trip=0.5, down_rate=1e6, up_rate=5e5)
    assert measured.transfer == 2 * 0.5 + 1 + 4
    assert measured.batch_seconds == 1.0
    assert math.isclose(measured.transfer, 6.0)


def test_what_the_server_has_otherwise_is_named(place: Place) -> None:
    files = place.files("unlike", {SITES[0]: {"methods": ["fedprox"]}, "server": {"methods": ["fedavg"]}})
    with refused(RefusedError, "drill_refused") as caught:
        drill(files[SITES[0]], BUNDLE, Here(files["server"]))
    reason = caught.value.fields["reason"]
    assert "no method in common for a drill" in reason
    assert "the site allows fedprox, the server fedavg" in reason
    changed = Path(shutil.copytree(place.bundle, place.root / "changed"))
    path = changed / "configs" / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"batch_size": 7}))
    files = place.files("hashes", {SITES[0]: {"entry": {"folder": str(changed)}}})
    with refused(RefusedError, "site_refusal") as caught:
        drill(files[SITES[0]], BUNDLE, Here(files["server"]))
    assert "hash of the bundle's configurations" in caught.value.fields["reason"]


def test_an_order_that_was_changed_on_its_way_is_refused(place: Place) -> None:
    def flipped(blob: bytes) -> bytes:
        message = unpack(blob, Limits())
        if message.kind == "step":
            message.tensors = {name: tensor + 1 for name, tensor in message.tensors.items()}
        return pack(message)

    files = place.files("flipped", {SITES[0]: {"methods": ["fedavg"]}})
    with refused(RefusedError, "site_refusal") as caught:
        drill(files[SITES[0]], BUNDLE, Here(files["server"], flipped))
    assert "expected the tensors of the order's digest, got others" in caught.value.fields["reason"]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_cases_are_made_up_for_every_bundle(name: str, tmp_path: Path) -> None:
    """They pass the checks that a site's own cases pass."""
    bundle = SiteBundle(shipped()[name])
    shape = make_site(bundle, tmp_path / "site-01", 4)
    source, _ = source_of(bundle, tmp_path)
    data = source.site(tmp_path / "site-01", Execution())
    assert (len(data.train), data.shape) == (4, shape)


def test_of_an_adopted_bundle_no_case_can_be_made_up(tmp_path: Path) -> None:
    adopt(tools(tmp_path / "stock"), tmp_path / "own")
    with refused(SettingsError, "data_not_supported", path=str(tmp_path / "own")):
        make_site(SiteBundle(tmp_path / "own"), tmp_path / "site-01", 4)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"site": 1}', b"x" * 70_000, b'{"site":"a","bundle":"b","methods":"c"}']
)
def test_what_is_no_wish_is_refused(raw: bytes, tmp_path: Path) -> None:
    host = Host(tmp_path / "none.toml")
    assert host.answer("key", words.BEGIN, raw)[0] == words.REFUSED
    assert host.answer("key", words.ANSWER, b"")[0] == words.REFUSED
    assert host.answer("key", "nonsense", b"")[0] == words.REFUSED


def test_the_line_is_measured_up_to_a_limit(tmp_path: Path) -> None:
    host = Host(tmp_path / "none.toml")
    assert len(host.answer("key", words.LINE, (100).to_bytes(8, "little"))[1]) == 100
    assert len(host.answer("key", words.LINE, (2**62).to_bytes(8, "little"))[1]) == words.MAX_LINE


@pytest.mark.slow
def test_a_drill_has_a_process_of_its_own(place: Place) -> None:
    files = place.files("process", {SITES[2]: {"methods": ["fedavg"]}})
    host = Host(files["server"].path)
    measured = drill(files[SITES[2]], BUNDLE, lambda kind, blob: host.answer("key", kind, blob))
    assert measured.rounds == ROUNDS
    wish = json.dumps({"site": "a", "bundle": BUNDLE, "methods": ["fedavg"]}).encode()
    assert [host.answer(str(number), words.BEGIN, wish)[0] for number in range(3)] == ["wait", "wait", "refused"]
    host.close()
