"""Federated statistics in one process: each site's own file decides; its audit record and ledger list the release."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from loopback import BUNDLE, SITES, Loopback, Place, make_place
from refusals import refused

from medfl.errors import MedflError
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.federated_statistics.server_requests import (
    REPLY_LIMITS,
    RESULT_FILE_NAME,
    read_statistics,
    request_statistics,
)
from medfl_flare.federated_statistics.statistics_request import KIND, StatisticsRequest, is_statistics_request
from medfl_flare.job_folder import write_job
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit_log import audit_path, entry_text
from medfl_flare.statistics.disclosure import DisclosurePolicy
from medfl_flare.statistics.local_folder import compute_folder_statistics
from medfl_flare.statistics.site_statistics import DISCLOSURE_KINDS, SiteStatistics

SITE = SITES[0]
OPEN = {"disclose": list(DISCLOSURE_KINDS)}
FLOOR = {"unit": "sample", "adjacency": "replace", "epsilon": 4.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"), images=120)


def ask(
    loop: Loopback, out: Path, name: str = "before", **about: Any
) -> tuple[dict[str, SiteStatistics], dict[str, str]]:
    request = StatisticsRequest.from_meta({"statistics": name, "bundle": BUNDLE, "sites": list(SITES)} | about)
    request_statistics(request, loop, out, RunStatus())
    content = json.loads((out / RESULT_FILE_NAME).read_text())
    sites = {site: read_statistics(Message(KIND, {}, meta)) for site, meta in content["sites"].items()}
    return sites, content["missing"]


def test_the_sites_disclose_the_statistics_of_the_same_folders_here(place: Place, tmp_path: Path) -> None:
    loop = Loopback(place.files("all", dict.fromkeys(SITES, OPEN | {"min_count": 5})))
    sites, missing = ask(loop, tmp_path)
    assert missing == {}
    assert sites == compute_folder_statistics(place.data, DisclosurePolicy(min_count=5))
    assert sites[SITE].numbers[0].quantiles[2] is not None


def test_each_site_discloses_as_much_as_its_own_file_allows(place: Place, tmp_path: Path) -> None:
    own = {SITES[0]: {"disclose": ["size"]}, SITES[1]: {"disclose": []}, SITES[2]: OPEN | {"min_count": 10_000}}
    sites, _ = ask(Loopback(place.files("own", own)), tmp_path)
    first, second, third = (sites[site] for site in SITES)
    assert first.images is not None
    assert (first.tables, first.numbers, first.shape) == ([], [], None)
    assert (second.images, second.tables, second.numbers, second.shape) == (None, [], [], None)
    assert (third.images, third.tables, third.numbers) == (None, [], [])


def test_the_record_says_what_left_before_it_left(place: Place, tmp_path: Path) -> None:
    left: dict[str, bytes] = {}

    def keep(site: str, blob: bytes) -> bytes:
        left[site] = blob
        return blob

    files = place.files("audited", {SITE: OPEN, SITES[1]: {"privacy": FLOOR}})
    sites, missing = ask(Loopback(files, tamper_answer=keep), tmp_path)
    (entry,) = read_entries(audit_path(files[SITE]))
    assert (entry.kind, entry.run, entry.bundle, entry.outcome) == (KIND, "before", BUNDLE, "answered")
    assert entry.bytes == len(left[SITE])
    meta = unpack(left[SITE], REPLY_LIMITS).meta
    assert set(entry.tells) == {name for name, value in meta.items() if value not in (None, [], {})}
    assert "images" in entry.tells
    assert "before" in entry_text(entry)
    (refusal,) = read_entries(audit_path(files[SITES[1]]))
    assert refusal.outcome == "refused"
    assert "required at least: unit sample" in missing[SITES[1]]
    assert SITES[1] not in sites


def test_where_the_record_cannot_be_written_nothing_leaves(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = place.files("full", dict.fromkeys(SITES, OPEN))
    audit_path(files[SITE]).mkdir(parents=True)
    sites, missing = ask(Loopback(files), tmp_path)
    assert sites.keys() == set(SITES[1:])
    assert missing[SITE] == f"'{SITE}' can't take part: a problem with its store. See the log of the site."


def test_noise_is_charged_once_for_statistics_and_refused_beyond_the_total(place: Place, tmp_path: Path) -> None:
    floor = FLOOR | {"ledger": str(tmp_path / "ledger"), "total_epsilon": 5.0}
    files = place.files("private", dict.fromkeys(SITES, OPEN | {"privacy": floor, "min_count": 5}))
    loop, wanted = Loopback(files), {"privacy": {"epsilon": 4.0}}
    first, _ = ask(loop, tmp_path, **wanted)
    guarantee = first[SITE].guarantee
    assert guarantee is not None
    assert (guarantee.unit, guarantee.adjacency, guarantee.epsilon, guarantee.delta) == ("sample", "replace", 4.0, 1e-5)
    (entry,) = read_entries(audit_path(files[SITE]))
    assert entry.budget.composed == pytest.approx(4.0, rel=1e-6)
    loop.restart()
    again, _ = ask(loop, tmp_path, **wanted)
    assert again == first, "the same noise, so it is no second release"
    assert read_entries(audit_path(files[SITE]))[-1].budget.composed == pytest.approx(4.0, rel=1e-6)
    with refused(MedflError, "no_statistics") as caught:
        ask(loop, tmp_path, name="another", **wanted)
    assert "budget of site 'site-01' is spent" in caught.value.fields["missing"][SITE]
    with refused(MedflError, "no_statistics") as caught:
        ask(loop, tmp_path, name="third", privacy={"epsilon": 6.0})
    assert "required at least: unit sample, adjacency replace, epsilon 4.0" in caught.value.fields["missing"][SITE]


def test_a_minimum_that_hides_whole_sites_allows_no_statistics(place: Place, tmp_path: Path) -> None:
    files = place.files("whole", dict.fromkeys(SITES, {"privacy": FLOOR | {"unit": "site"}}))
    with refused(MedflError, "no_statistics") as caught:
        ask(Loopback(files), tmp_path, privacy={"epsilon": 1.0})
    assert "No noise of statistics hides a whole site" in caught.value.fields["missing"][SITE]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bundle": "another"}, r"wants the bundle 'another'; 'site-01' allows: small"),
        ({"medfl": "0.0.1"}, r"version of medfl: the request has 0\.0\.1"),
        ({"privacy": {"epsilon": -1.0}}, "epsilon"),
        ({"sites": ["site-02"]}, r"The request is for site-02; this site is 'site-01'"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_a_site_refuses(place: Place, changes: dict[str, Any], why: str) -> None:
    loop = Loopback(place.files("refuses"))
    meta = {"statistics": "one", "bundle": BUNDLE, "sites": [SITE], "privacy": None} | changes
    answer = unpack(loop.services[SITE].answer(pack(Message(KIND, {}, meta))), REPLY_LIMITS)
    assert re.search(why, answer.meta["refused"])


def test_changed_data_and_an_active_run_allow_no_statistics(place: Place, tmp_path: Path) -> None:
    data = shutil.copytree(place.data, tmp_path / "data")
    loop = Loopback(Place(place.root, place.bundle, data).files("spoiled"))
    (data / SITE / "datalist.json").write_text("{}")
    _, missing = ask(loop, tmp_path / "out")
    assert "a problem with its data" in missing[SITE]
    loop.services[SITES[1]].answer(pack(Message("hello", {}, place.offer().to_json())))
    meta = {"statistics": "one", "bundle": BUNDLE}
    assert (
        "expected 'begin'"
        in unpack(loop.services[SITES[1]].answer(pack(Message(KIND, {}, meta))), REPLY_LIMITS).meta["refused"]
    )


def test_the_server_accepts_nothing_but_statistics(place: Place, tmp_path: Path) -> None:
    lies: dict[str, dict[str, Any]] = {
        SITES[0]: {"objective": "multiclass", "min_count": 10, "images": -4},
        SITES[1]: {"objective": "x", "min_count": 1, "tables": [{"title": "t", "names": ["a", "b"], "counts": [1]}]},
    }

    def lie(site: str, blob: bytes) -> bytes:
        return pack(Message(KIND, {}, {"refused": None} | lies[site])) if site in lies else blob

    sites, missing = ask(Loopback(place.files("lies"), tamper_answer=lie), tmp_path)
    assert sites.keys() == {SITES[2]}
    assert "invalid fields: images" in missing[SITES[0]]
    assert "a count or null for each name" in missing[SITES[1]]


def test_its_job_is_known_from_that_of_a_run(place: Place, tmp_path: Path) -> None:
    request = StatisticsRequest(statistics="before", bundle=BUNDLE, sites=[SITE])
    job = write_job(request, tmp_path)
    server = json.loads((job / "app_server" / "config" / "config_fed_server.json").read_text())
    content = server["workflows"][0]["args"]["offer"]
    assert is_statistics_request(content)
    assert StatisticsRequest.from_meta(content) == request
    assert not is_statistics_request(place.offer().to_json())
