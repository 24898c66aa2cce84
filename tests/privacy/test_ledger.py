"""Test the privacy account of a data set: each release counts exactly once, and a spent budget is refused."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import RefusedError, SettingsError, StoreError
from medfl.privacy import gaussian
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.privacy.ledger import Account, hash_dataset, open_account
from medfl.records.ledger import Ledger
from medfl.settings import Privacy, Settings, read_settings
from medfl.testing.cohort import make_data
from medfl.utils.locks import hold_lock

PRIVACY = {"epsilon": 4.0, "clip": 1.0, "adjacency": "add_remove"}


def account(
    folder: Path, run: str = "one", planned: int = 3, step: NoisedReleases | None = None, **privacy: object
) -> Account:
    settings = Privacy(**(PRIVACY | {"ledger": folder} | privacy))
    if step is None:
        step = NoisedReleases(gaussian.noise_multiplier(settings, planned), 1)
    return Account(folder / "data.json", "north", run, settings, step, planned)


def spend(site_account: Account, count: int | None = None) -> Account:
    site_account.check()
    for number in range(site_account.planned if count is None else count):
        site_account.release(f"{site_account.run} {number}")
    return site_account


def test_one_run_composes_to_its_budget(tmp_path: Path) -> None:
    site_account = spend(account(tmp_path))
    report = site_account.report()
    assert (report.releases, report.planned, report.runs) == (3, 3, 1)
    assert report.epsilon == report.composed == pytest.approx(4.0, rel=1e-9)
    assert spend(account(tmp_path, "two"), 1).report().epsilon < 4.0, "one of three releases costs less"


def test_gaussian_runs_compose_exactly(tmp_path: Path) -> None:
    spend(account(tmp_path))
    two = spend(account(tmp_path, "two", planned=5, epsilon=2.0))
    mus = [gaussian.calibrate(budget, 1, 1e-5) for budget in (4.0, 2.0)]
    expected = gaussian.epsilon((sum(sigma**-2 for sigma in mus)) ** -0.5, 1, 1e-5)
    assert two.report().composed == pytest.approx(expected, rel=1e-6)
    assert 4.0 < expected < 6.0, "less than the sum"
    assert two.report().runs == 2
    replaced = account(tmp_path, "two", planned=5, step=two.step, epsilon=2.0, adjacency="replace").report().composed
    assert replaced > 1.9 * expected, "the same noise, for another promise"


def test_what_would_exceed_the_total_is_refused_with_numbers(tmp_path: Path) -> None:
    spend(account(tmp_path, total_epsilon=5.0))
    other = account(tmp_path, "two", total_epsilon=5.0)
    numbers = {"spent": pytest.approx(4.0), "total_epsilon": 5.0, "epsilon": 4.0, "runs": 1}
    with refused(SettingsError, "budget_spent", site="north", **numbers) as refusal:
        other.check()
    for part in (
        "holds 4 of a total epsilon of 5",
        "'add_remove', delta 1e-05",
        "epsilon 4 would make it 5.9",
        "Lower epsilon, or raise 'total_epsilon'",
    ):
        assert part in str(refusal.value)
    account(tmp_path, "two", total_epsilon=5.0, epsilon=1.0).check()
    account(tmp_path, "two", total_epsilon=6.0).check()
    account(tmp_path, "two").check()


def test_a_resumed_run_pays_once(tmp_path: Path) -> None:
    spend(account(tmp_path, total_epsilon=4.0), 2)
    again = spend(account(tmp_path, total_epsilon=4.0))
    again.release("one 0")
    assert again.report().releases == 3
    assert again.report().composed == pytest.approx(4.0, rel=1e-9)


def test_two_runs_at_once_can_not_both_spend_the_rest(tmp_path: Path) -> None:
    pair = [account(tmp_path, run, total_epsilon=5.0) for run in ("one", "two")]
    for site_account in pair:
        site_account.check()  # each would fit alone
    refusals = []
    for number in range(3):
        for site_account in pair:
            try:
                site_account.release(str(number))
            except RefusedError as error:
                refusals.append(str(error))
    assert 0 < len(refusals) < 6
    assert all("site 'north' is spent" in refusal for refusal in refusals)
    assert pair[0].report().composed <= 5.0


def test_a_kill_never_loses_a_release(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()

    def release_for_ever() -> None:
        site_account = account(tmp_path, planned=10**6)
        for number in range(site_account.planned):
            site_account.release(str(number))
            there.send(number)

    process = multiprocessing.get_context("fork").Process(target=release_for_ever)
    process.start()
    done = [here.recv() for _ in range(20)]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while here.poll():
        done.append(here.recv())
    (entry,) = Ledger.read(tmp_path / "data.json").entries.values()
    written = entry.releases
    assert written[: len(done)] == tuple(str(number) for number in done)
    assert len(written) <= len(done) + 1, "one too many at most"
    account(tmp_path, planned=10**6).release("after the kill")


def test_no_more_than_planned(tmp_path: Path) -> None:
    site_account = spend(account(tmp_path))
    with refused(RefusedError, "releases_exhausted", site="north", maximum=3) as refusal:
        site_account.release("once more")
    for cause in (
        "another device, number of threads or version",
        "start a run with another seed",
        "more than one reply in a round",
    ):
        assert cause in str(refusal.value)
    assert site_account.report().releases == 3


def test_releases_at_the_same_time_are_all_written(tmp_path: Path) -> None:
    accounts = [account(tmp_path, run, planned=4) for run in ("one", "two", "three")]
    threads = [threading.Thread(target=spend, args=(site_account,)) for site_account in accounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [site_account.report().releases for site_account in accounts] == [4, 4, 4]


def test_a_ledger_that_is_held_is_waited_for_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medfl.privacy.ledger.LOCK_SECONDS", 0.05)
    path = tmp_path / "data.json"
    with hold_lock(path.with_suffix(".lock")), refused(StoreError, "file_in_use", site="north", path=str(path)):
        account(tmp_path).release("a")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 1, "entries": {"a": {}}}', "damage"])
def test_a_damaged_ledger_stops_everything_and_stays(tmp_path: Path, content: str) -> None:
    site_account = spend(account(tmp_path, total_epsilon=9.0), 1)
    if content == "damage":
        content = site_account.path.read_text().replace('"version": 1', '"version": 2')
    site_account.path.write_text(content)
    for act in (site_account.check, site_account.report, lambda: site_account.release("b")):
        with refused(StoreError, "damaged_file", site="north", path=str(site_account.path)) as caught:
            act()
        assert "releases nothing until the file can be read again or is restored from a copy" in str(caught.value)
    assert site_account.path.read_text() == content


def test_a_ledger_of_another_version_or_without_permission_stops_everything(tmp_path: Path) -> None:
    site_account = spend(account(tmp_path, total_epsilon=9.0), 1)

    class LaterLedger(Ledger):
        VERSION = 2

    LaterLedger(entries=Ledger.read(site_account.path).entries).write(site_account.path)
    with refused(StoreError, "other_version", site="north", path=str(site_account.path)) as caught:
        site_account.release("b")
    assert "releases nothing" in str(caught.value)
    site_account.path.unlink()
    site_account.path.mkdir()
    with refused(StoreError, "unreadable_file", site="north", path=str(site_account.path)) as caught:
        site_account.release("b")
    assert "releases nothing" in str(caught.value)


def test_a_ledger_that_can_not_be_written_stops_the_release(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(StoreError, "unwritable_file", site="north", path=str(tmp_path / "file" / "data.json")):
        account(tmp_path / "file").release("a")


def test_units_do_not_mix_for_free(tmp_path: Path) -> None:
    def of_images(run: str) -> Account:
        return account(tmp_path, run, unit="sample", accountant="prv", step=NoisedReleases(3.0, 4, 0.2))

    drawn = spend(of_images("one"))
    alone = drawn.report().composed
    assert alone == pytest.approx(epsilon((NoisedReleases(3.0, 12, 0.2),), 1e-5), rel=1e-9)
    by_site = spend(account(tmp_path, "two", epsilon=1.0))
    assert by_site.report().composed is None, "trainings that hide images promise a site nothing"
    with refused(SettingsError, "budget_spent", spent=math.inf, total_epsilon=90.0):
        account(tmp_path, "three", total_epsilon=90.0).check()
    doubled = NoisedReleases(by_site.step.sigma / 2, 3)  # an image moves a clipped update by twice the bound at most
    expected = epsilon((NoisedReleases(3.0, 12, 0.2), doubled), 1e-5)
    assert of_images("one").report().composed == pytest.approx(expected, rel=1e-9)
    assert expected > alone


def test_the_key_of_a_run_stays_the_same(tmp_path: Path) -> None:
    """Check the key of a run: another key would count the releases of a stored run again."""
    settings = Privacy(**PRIVACY)
    fixed = Account(tmp_path / "data.json", "north", "run", settings, NoisedReleases(1.25, 4, 0.5), 3)
    assert fixed.key == "d3eaa50e8eaa75ad"


def test_a_data_set_is_known_by_its_content(tmp_path: Path) -> None:
    data = make_data(9, "x")
    settings = Settings(rounds=3, privacy=PRIVACY | {"ledger": tmp_path})
    path = open_account(settings, data, "", "a", "run", tmp_path / "elsewhere").path
    assert path == open_account(settings, make_data(9, "x"), "", "b", "other", tmp_path).path
    assert path.parent == tmp_path
    changed = replace_label(data)
    assert hash_dataset(changed) != hash_dataset(data) == path.stem
    assert open_account(settings, data, "given", "a", "run", tmp_path).path == tmp_path / "given.json"
    private = Settings(rounds=3, privacy=PRIVACY)
    assert open_account(private, data, "given", "a", "run", tmp_path / "a").path == tmp_path / "a" / "privacy.json"
    assert open_account(private, make_data(0, "x"), "", "a", "run", tmp_path) is None
    assert open_account(Settings(rounds=3), data, "", "a", "run", tmp_path) is None


def test_sites_with_the_same_data_each_pay(tmp_path: Path) -> None:
    spend(account(tmp_path))
    other = dataclasses.replace(account(tmp_path), site="south")
    assert spend(other).report().runs == 2


def test_an_image_moves_a_replaced_update_by_twice_the_bound_and_no_more(tmp_path: Path) -> None:
    by_site = spend(account(tmp_path, epsilon=1.0, adjacency="replace"))
    of_images = account(
        tmp_path, "two", unit="sample", accountant="prv", step=NoisedReleases(3.0, 4), adjacency="replace"
    )
    assert of_images.report().composed == pytest.approx(1.0, rel=1e-9)
    expected = epsilon((NoisedReleases(by_site.step.sigma, 3), NoisedReleases(3.0, 12)), 1e-5, "replace")
    assert spend(of_images).report().composed == pytest.approx(expected, rel=1e-9)


def in_run(tmp_path: Path, ledger: Path | None, **more: object) -> Account:
    settings = Settings(rounds=3, privacy=PRIVACY | {"ledger": ledger} | more)
    return open_account(settings, make_data(9, "x"), "list", "a", "run", tmp_path / "state")


def test_another_ledger_takes_along_what_was_released(tmp_path: Path) -> None:
    spend(in_run(tmp_path, None), 2)
    assert in_run(tmp_path, tmp_path / "L").report().releases == 2
    stored = Ledger.read(tmp_path / "L" / "list.json")
    assert stored.copy_of is None
    assert [len(entry.releases) for entry in stored.entries.values()] == [2], "at once, for the runs to come"
    copy = Ledger.read(tmp_path / "state" / Ledger.NAME)
    assert copy == Ledger(entries=stored.entries, copy_of=tmp_path / "L" / "list.json")
    (tmp_path / "L" / "list.json").unlink()
    assert spend(in_run(tmp_path, tmp_path / "L")).report().releases == 3, "a lost one, too"
    (tmp_path / "L").rename(tmp_path / "moved")
    assert in_run(tmp_path, tmp_path / "moved").report().releases == 3
    assert in_run(tmp_path, None).report().releases == 3


@pytest.mark.parametrize("ledger", [None, "other"])
def test_a_run_does_not_leave_its_ledger_behind(tmp_path: Path, ledger: str | None) -> None:
    folder = ledger and tmp_path / ledger
    spend(in_run(tmp_path, tmp_path / "L"), 2)
    with refused(SettingsError, "other_ledger", site="a", expected=str(tmp_path / "L")):
        in_run(tmp_path, folder)
    spend(in_run(tmp_path, tmp_path / "L"))
    assert in_run(tmp_path, folder).report().releases == 3, "nothing more is released"


def test_a_ledger_is_the_same_folder_wherever_a_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Privacy(**PRIVACY, ledger="L").ledger == tmp_path.resolve() / "L"


def replace_label(data):
    changed = make_data(9, "x")
    changed.class_labels[4] = (changed.class_labels[4] + 1) % 3
    return changed


@pytest.mark.parametrize(
    ("privacy", "problem"),
    [
        ({"total_epsilon": 9.0}, "needs 'ledger', their common folder"),
        ({"total_epsilon": 3.0, "ledger": "x"}, "total_epsilon 3 is less than this run's epsilon 4"),
    ],
)
def test_settings_that_do_not_fit_together(privacy: dict, problem: str) -> None:
    with refused(SettingsError, "invalid_setting", settings=["privacy"]) as caught:
        read_settings(Settings, {"rounds": 1, "privacy": PRIVACY | privacy}, "the run")
    assert problem in str(caught.value)


def test_the_ledger_is_no_part_of_what_a_run_is() -> None:
    privacy = Privacy(**PRIVACY, ledger=Path("somewhere"), total_epsilon=9.0)
    assert privacy.model_dump(mode="json") == Privacy(**PRIVACY).model_dump(mode="json")
