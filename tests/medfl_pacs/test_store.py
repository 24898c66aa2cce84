"""Tests of the store: interruptions at every point, quarantine, review, and a full disk."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pydicom
import pytest
from pacs_images import ROOT, SECRETS, Corpus, Place, content_of, plain_instance
from pydicom import Dataset
from pydicom.uid import CTImageStorage
from refusals import refused

from medfl.errors import DamagedError, DataError, SettingsError, StoreError

pytest.importorskip("dicomanonymizer", reason="needs dicom-anonymizer, from the extra pacs")

from medfl_pacs import image_store as store_module  # noqa: E402
from medfl_pacs import retrieval, store_journal
from medfl_pacs.image_store import open_store  # noqa: E402
from medfl_pacs.pace import Pace  # noqa: E402
from medfl_pacs.pacs_source import InstanceReference, SeriesReference  # noqa: E402
from medfl_pacs.pseudonyms import Pseudonyms  # noqa: E402
from medfl_pacs.retrieval import Retrieval, RetrievalCounts  # noqa: E402
from medfl_pacs.review import apply_review  # noqa: E402

PSEUDONYMS = Pseudonyms(b"k" * 32)


class Killed(BaseException):
    """The process ends here."""


class MemorySource:
    """A PACS in memory that counts its answers."""

    def __init__(self, contents: dict[Place, bytes], class_uid: str = CTImageStorage) -> None:
        self.contents, self.class_uid = contents, class_uid
        self.retrieved: Counter[str] = Counter()
        self.failures: dict[str, list[DataError]] = {}

    def find_studies(self) -> list[str]:
        return list(dict.fromkeys(place.study_uid for place in self.contents))

    def find_series(self, study_uid: str) -> list[SeriesReference]:
        names = dict.fromkeys(place.series_uid for place in self.contents if place.study_uid == study_uid)
        return [SeriesReference(study_uid, name) for name in names]

    def find_instances(self, series: SeriesReference) -> list[InstanceReference]:
        places = [place for place in self.contents if place.series_uid == series.series_uid]
        return [InstanceReference(series, place.instance_uid, self.class_uid) for place in places]

    def retrieve(self, instance: InstanceReference) -> Dataset:
        self.retrieved[instance.instance_uid] += 1
        if self.failures.get(instance.instance_uid):
            raise self.failures[instance.instance_uid].pop(0)
        content = next(c for place, c in self.contents.items() if place.instance_uid == instance.instance_uid)
        return pydicom.dcmread(io.BytesIO(content))

    def close(self) -> None:
        pass


def fetch(folder: Path, source: MemorySource, **options: bool) -> RetrievalCounts:
    sleeps: list[float] = []
    with open_store(folder, PSEUDONYMS, **options) as opened:
        pace = Pace(None, None, lambda line: None, sleep=sleeps.append)
        return Retrieval(source, opened, pace, lambda line: None).run()


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("journal.jsonl", ".lock")
    }


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def decide(folder: Path, *decisions: str) -> None:
    table = rows(folder / "review.csv")
    assert len(table) == len(decisions)
    with (folder / "review.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows({**row, "decision": decision} for row, decision in zip(table, decisions, strict=True))


@pytest.fixture
def contents() -> dict[Place, bytes]:
    return Corpus(patients=2, series=1, instances=2).content()


def test_a_store(tmp_path: Path, contents: dict[Place, bytes]):
    source = MemorySource(contents)
    counts = fetch(tmp_path / "store", source)
    assert counts == RetrievalCounts(series=2, stored=4)
    table = rows(tmp_path / "store" / "images.csv")
    assert [(row["patient"], row["modality"], row["plane"]) for row in table] == sorted(
        (PSEUDONYMS.patient(f"PID-7312-X{number}"), "CT", "axial") for number in (1, 2)
    )
    for row in table:
        spacing = [float(row[f"{name}_spacing_mm"]) for name in ("row", "column", "slice")]
        assert spacing == [0.5, 0.75, 2.5]
        assert (row["images"], row["slices"], row["burned_in"], row["refused"]) == ("2", "2", "no", "0")
        assert row["folder"] == f"images/{row['study']}/{row['series']}"
        assert len(list((tmp_path / "store" / row["folder"]).glob("*.dcm"))) == 2
        assert len(row["date"]) == 8
        assert row["date"] < "20200317"
    assert rows(tmp_path / "store" / "review.csv") == []
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_no_original_value_is_in_any_file_or_name(tmp_path: Path, contents: dict[Place, bytes]):
    fetch(tmp_path / "store", MemorySource(contents))
    texts = [text.lower().encode() for text in (*SECRETS, ROOT)]
    for path in (tmp_path / "store").rglob("*"):
        content = str(path).encode() + (path.read_bytes() if path.is_file() else b"")
        assert [text for text in texts if text in content.lower()] == [], path


def test_the_same_command_again_retrieves_nothing(tmp_path: Path, contents: dict[Place, bytes]):
    source = MemorySource(contents)
    fetch(tmp_path / "store", source)
    before = files(tmp_path / "store")
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, present=4)
    assert files(tmp_path / "store") == before
    assert set(source.retrieved.values()) == {1}


def test_new_instances_join_their_series(tmp_path: Path, contents: dict[Place, bytes]):
    fetch(tmp_path / "store", MemorySource(contents))
    more = contents | {Place(1, 1, 1, 3): content_of(plain_instance(Place(1, 1, 1, 3)))}
    assert fetch(tmp_path / "store", MemorySource(more)) == RetrievalCounts(series=2, stored=1, present=4)
    fetch(tmp_path / "other", MemorySource(more))
    assert files(tmp_path / "store") == files(tmp_path / "other")


@pytest.mark.parametrize("function", ["write_atomic", "append", "replace"])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_point_loses_nothing(
    tmp_path: Path, contents: dict[Place, bytes], monkeypatch: pytest.MonkeyPatch, function: str, after: bool
):
    """Kill at each call in turn, before or after it, and continue."""
    owner = {"append": store_journal.StoreJournal, "write_atomic": store_module, "replace": store_module.os}[function]
    real = getattr(owner, function)
    fetch(tmp_path / "whole", MemorySource(contents))
    expected = files(tmp_path / "whole")
    for number in range(100):
        calls = iter(range(1000))

        def killed(*arguments: object, calls=calls, number=number) -> object:
            is_last = next(calls) == number
            if is_last and not after:
                raise Killed
            result = real(*arguments)
            if is_last:
                raise Killed
            return result

        folder, source = tmp_path / str(number), MemorySource(contents)
        with monkeypatch.context() as patch:
            patch.setattr(owner, function, killed)
            try:
                fetch(folder, source)
            except Killed:
                pass
            else:
                break
        fetch(folder, source)
        assert files(folder) == expected
        assert sum(source.retrieved.values()) <= 5
    assert number >= 4


def test_an_incomplete_line_of_the_journal_is_dropped(tmp_path: Path, contents: dict[Place, bytes]):
    fetch(tmp_path / "store", MemorySource(contents))
    before, path = files(tmp_path / "store"), tmp_path / "store" / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    source = MemorySource(contents)
    fetch(tmp_path / "store", source)
    assert files(tmp_path / "store") == before
    assert not source.retrieved
    path.write_bytes(b"no json\n" + path.read_bytes())
    with refused(DamagedError, "damaged_file", line=1):
        fetch(tmp_path / "store", source)


def test_a_missing_file_is_retrieved_again(tmp_path: Path, contents: dict[Place, bytes]):
    fetch(tmp_path / "store", MemorySource(contents))
    before = files(tmp_path / "store")
    next((tmp_path / "store").rglob("*.dcm")).unlink()
    assert fetch(tmp_path / "store", MemorySource(contents)).stored == 1
    assert files(tmp_path / "store") == before


def test_a_full_disk_keeps_what_is_there(tmp_path: Path, contents: dict[Place, bytes], monkeypatch: pytest.MonkeyPatch):
    real, calls = store_module.write_atomic, []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise StoreError("unwritable_file", f"Could not write '{path}': No space left on device", path=path)
        real(path, data)

    monkeypatch.setattr(store_module, "write_atomic", full)
    source = MemorySource(contents)
    with refused(StoreError, "unwritable_file") as caught:
        fetch(tmp_path / "store", source)
    assert ROOT not in str(caught.value)
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, stored=2, present=2)


def test_a_line_that_does_not_fit_on_the_disk_is_removed(
    tmp_path: Path, contents: dict[Place, bytes], monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    source = MemorySource(contents)
    with monkeypatch.context() as patch:
        patch.setattr(store_journal, "os", SimpleNamespace(**{**vars(store_journal.os), "fsync": full}))
        with refused(StoreError, "unwritable_file"):
            fetch(tmp_path / "store", source)
    assert len((tmp_path / "store" / "journal.jsonl").read_bytes().splitlines()) == 1
    assert fetch(tmp_path / "store", source).stored == 3
    fetch(tmp_path / "whole", MemorySource(contents))
    assert files(tmp_path / "store") == files(tmp_path / "whole")


def test_suspicious_series_wait_in_quarantine(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content() | {
        Place(2): content_of(plain_instance(Place(2)))
    }
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    assert [row["modality"] for row in rows(folder / "images.csv")] == ["CT"]
    review = rows(folder / "review.csv")
    assert [(row["signs"], row["decision"], (folder / row["file"]).is_file()) for row in review] == [
        ("modality_US", "", True)
    ] * 2
    assert all(row["file"].startswith("quarantine/") for row in review)
    decide(folder, "keep", "")
    with open_store(folder, PSEUDONYMS) as opened:
        assert apply_review(opened).undecided == 1
    assert [row["decision"] for row in rows(folder / "review.csv")] == ["keep", ""]
    assert len(rows(folder / "images.csv")) == 1
    decide(folder, "keep", "delete")
    with open_store(folder, PSEUDONYMS) as opened:
        counts = apply_review(opened)
    assert (counts.kept, counts.deleted, counts.released) == (1, 1, 1)
    images = {row["modality"]: row for row in rows(folder / "images.csv")}
    assert (images["US"]["images"], images["US"]["burned_in"]) == ("1", "reviewed")
    assert not list((folder / "quarantine").rglob("*.dcm"))
    source = MemorySource(contents)
    assert fetch(folder, source).present == 3
    assert not source.retrieved


def test_suspicious_series_are_marked_if_they_are_kept(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content()
    fetch(tmp_path / "store", MemorySource(contents), keep_burned_in=True)
    assert [row["burned_in"] for row in rows(tmp_path / "store" / "images.csv")] == ["suspected"]
    assert len(rows(tmp_path / "store" / "review.csv")) == 2


def test_decisions_survive_another_retrieval_and_a_spreadsheet(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content()
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    decide(folder, "keep", "")
    text = (folder / "review.csv").read_text().replace(",", ";")
    (folder / "review.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    fetch(folder, MemorySource(contents))
    assert [row["decision"] for row in rows(folder / "review.csv")] == ["keep", ""]


def test_a_decision_about_a_refusal_does_not_release_the_image_that_is_retrieved_later(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content()
    folder, source = tmp_path / "store", MemorySource(contents)
    source.failures[Place(1, 1, 1, 2).instance_uid] = [DataError("not_dicom", "no")]
    fetch(folder, source)
    decide(folder, "keep", "keep")
    with open_store(folder, PSEUDONYMS) as opened:
        assert apply_review(opened).released == 1
    assert fetch(folder, source).stored == 1
    assert rows(folder / "images.csv") == []
    assert [row["decision"] for row in rows(folder / "review.csv")] == ["keep", ""]
    with open_store(folder, PSEUDONYMS) as opened:
        counts = apply_review(opened)
    assert (counts.kept, counts.undecided, counts.released) == (1, 1, 0)


def test_a_review_leaves_undecided_series_where_they_are(tmp_path: Path):
    contents = Corpus(patients=2, series=1, instances=1, modality="US").content()
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents), keep_burned_in=True)
    decide(folder, "keep", "")
    size = (folder / "journal.jsonl").stat().st_size
    with open_store(folder, PSEUDONYMS) as opened:
        apply_review(opened)
    assert sorted(row["burned_in"] for row in rows(folder / "images.csv")) == ["reviewed", "suspected"]
    grown = (folder / "journal.jsonl").stat().st_size
    assert grown > size
    with open_store(folder, PSEUDONYMS) as opened:
        apply_review(opened)
    assert (folder / "journal.jsonl").stat().st_size == grown, "a second review changes nothing"


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_review_never_releases_a_deleted_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content()
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    decide(folder, "delete", "keep")
    bad = rows(folder / "review.csv")[0]["instance"]
    real = Path.unlink

    def killed(path: Path, *arguments: object, **options: object) -> None:
        if path.stem == bad:
            if after:
                real(path)
            raise Killed
        real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed), open_store(folder, PSEUDONYMS) as opened:
            apply_review(opened)
    with open_store(folder, PSEUDONYMS) as opened:
        assert apply_review(opened).released == 1
    assert [row["images"] for row in rows(folder / "images.csv")] == ["1"]
    assert not list(folder.rglob(f"{bad}.dcm"))
    assert fetch(folder, MemorySource(contents)).stored == 0


def test_a_file_without_a_line_in_the_journal_is_not_released(tmp_path: Path, contents: dict[Place, bytes]):
    """A retrieval was killed between file and journal, and the PACS has deleted the instance since."""
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    stray = folder / "incoming" / Path(rows(folder / "images.csv")[0]["folder"]).relative_to("images") / "2.25.1.dcm"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(next(folder.rglob("*.dcm")).read_bytes())
    before = (folder / "images.csv").read_text()
    fetch(folder, MemorySource(contents))
    assert not list(folder.rglob("2.25.1.dcm"))
    assert (folder / "images.csv").read_text() == before


def test_a_series_that_was_deleted_by_hand_leaves_the_table(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=2, modality="US").content()
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    decide(folder, "keep", "keep")
    for path in (folder / "quarantine").rglob("*.dcm"):
        path.unlink()
    with open_store(folder, PSEUDONYMS) as opened:
        assert apply_review(opened).released == 0
    assert rows(folder / "images.csv") == []
    assert fetch(folder, MemorySource(contents)).stored == 2
    assert [row["images"] for row in rows(folder / "images.csv")] == ["2"]


def test_a_damaged_file_of_the_store_is_named(tmp_path: Path):
    contents = Corpus(patients=1, series=1, instances=1, modality="US").content()
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    decide(folder, "keep")
    next(folder.rglob("*.dcm")).write_bytes(b"no DICOM")
    with refused(DamagedError, "damaged_file"), open_store(folder, PSEUDONYMS) as opened:
        apply_review(opened)


def test_an_unknown_decision_is_refused(tmp_path: Path):
    folder = tmp_path / "store"
    fetch(folder, MemorySource(Corpus(patients=1, series=1, instances=1, modality="US").content()))
    decide(folder, "perhaps")
    with refused(DataError, "unknown_decision", row=2), open_store(folder, PSEUDONYMS) as opened:
        apply_review(opened)


def test_an_unreadable_instance_puts_its_series_into_quarantine_until_it_can_be_read(
    tmp_path: Path, contents: dict[Place, bytes]
):
    bad, folder = Place(1, 1, 1, 1), tmp_path / "store"
    source = MemorySource(contents)
    source.failures[bad.instance_uid] = [DataError("not_dicom", "no")]
    assert fetch(folder, source) == RetrievalCounts(series=2, stored=3, refused=1)
    assert len(rows(folder / "images.csv")) == 1
    assert [(row["signs"], row["file"]) for row in rows(folder / "review.csv")] == [("not_dicom", "")]
    assert fetch(folder, source) == RetrievalCounts(series=2, stored=1, present=3)
    fetch(tmp_path / "other", MemorySource(contents))
    assert files(folder) == files(tmp_path / "other")


def test_another_instance_than_the_requested_one_is_refused(tmp_path: Path, contents: dict[Place, bytes]):
    first, second = list(contents)[:2]
    contents[first] = contents[second]
    assert fetch(tmp_path / "store", MemorySource(contents)) == RetrievalCounts(series=2, stored=3, refused=1)
    assert rows(tmp_path / "store" / "review.csv")[0]["signs"] == "other_instance"


def test_reports_are_left_out(tmp_path: Path, contents: dict[Place, bytes]):
    report = "1.2.840.10008.5.1.4.1.1.88.11"
    source = MemorySource(contents, class_uid=report)
    assert fetch(tmp_path / "told before", source) == RetrievalCounts(series=2, skipped=4)
    assert not source.retrieved
    dataset = pydicom.dcmread(io.BytesIO(contents[Place()]))
    dataset.SOPClassUID = report
    source = MemorySource({Place(): content_of(dataset)}, class_uid="")
    assert fetch(tmp_path / "seen after", source) == RetrievalCounts(series=1, skipped=1)
    assert rows(tmp_path / "seen after" / "images.csv") == []


def test_failures_that_pass_are_repeated(tmp_path: Path, contents: dict[Place, bytes]):
    source = MemorySource(contents)
    source.failures[Place().instance_uid] = [DataError("pacs_timeout", "slow"), DataError("pacs_unreachable", "gone")]
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, stored=4)
    assert source.retrieved[Place().instance_uid] == 3


def test_a_lost_connection_stops_after_a_few_attempts(tmp_path: Path, contents: dict[Place, bytes]):
    source = MemorySource(contents)
    place = list(contents)[1]
    source.failures[place.instance_uid] = [DataError("pacs_unreachable", "gone")] * 4
    with refused(DataError, "pacs_unreachable"):
        fetch(tmp_path / "store", source)
    assert source.retrieved[place.instance_uid] == 1 + len(retrieval.RETRY_SECONDS)
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, stored=3, present=1)


def test_too_many_refusals_in_a_row_stop(tmp_path: Path):
    contents = Corpus(patients=2, series=2, instances=5, size=2).content()
    source = MemorySource(contents)
    for place in contents:
        source.failures[place.instance_uid] = [DataError("pacs_server_error", "no")] * 4
    with refused(DataError, "too_many_refused", count=11):
        fetch(tmp_path / "store", source)
    attempts = 1 + len(retrieval.RETRY_SECONDS)
    assert sum(source.retrieved.values()) == 10 * attempts + 1, "requests are no longer repeated when many have failed"


def test_one_damaged_series_does_not_stop_the_retrieval(tmp_path: Path):
    contents = Corpus(patients=1, series=2, instances=20, size=2).content()
    source = MemorySource(contents)
    for place in contents:
        if place.series == 1:
            source.failures[place.instance_uid] = [DataError("not_dicom", "no")] * 9
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, stored=20, refused=20)
    assert fetch(tmp_path / "store", source) == RetrievalCounts(series=2, present=20, refused=20)


def test_images_with_an_identity_in_the_pixels_do_not_stop_the_retrieval(tmp_path: Path):
    contents = {}
    for patient in range(1, 13):
        dataset = plain_instance(Place(patient))
        dataset.PixelData = b"PID-7312-X" + dataset.PixelData[10:]
        dataset.PatientID = "PID-7312-X"
        contents[Place(patient)] = content_of(dataset)
    contents[Place(20)] = content_of(plain_instance(Place(20)))
    assert fetch(tmp_path / "store", MemorySource(contents)) == RetrievalCounts(series=13, stored=1, refused=12)


def test_a_store_has_one_key_and_one_set_of_settings(tmp_path: Path, contents: dict[Place, bytes]):
    folder = tmp_path / "store"
    fetch(folder, MemorySource(contents))
    with refused(SettingsError, "other_store_settings", setting="keep_characteristics"):
        fetch(folder, MemorySource(contents), keep_characteristics=True)
    with (
        refused(SettingsError, "other_store_settings", setting="key"),
        open_store(folder, Pseudonyms(b"l" * 32)),
    ):
        pass


def test_a_folder_with_other_files_and_a_store_in_use_are_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with refused(DataError, "folder_not_empty"), open_store(tmp_path, PSEUDONYMS):
        pass
    foreign = tmp_path / ".document.tmp"
    foreign.touch()
    with refused(DataError, "folder_not_empty"), open_store(tmp_path, PSEUDONYMS):
        pass
    assert foreign.exists(), "files of other programs stay"
    folder = tmp_path / "store"
    with open_store(folder, PSEUDONYMS), refused(StoreError, "store_in_use"), open_store(folder, PSEUDONYMS):
        pass


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from medfl_pacs import profile_actions

    monkeypatch.setitem(__import__("sys").modules, "dicomanonymizer.dicom_anonymization_databases", SimpleNamespace())
    profile_actions.load_actions.cache_clear()
    with refused(SettingsError, "missing_package", extra="pacs"):
        profile_actions.load_actions()
    monkeypatch.undo()
    assert profile_actions.load_actions().by_tag
