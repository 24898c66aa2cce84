"""Lists, arrays, names of sites and disks that are not as they should be: one message that says what, where and what to
do; nothing of a patient in it, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medfl.utils.files
from medfl.cli.main import main
from medfl.data import folders
from medfl.data.datalists import DATALIST_FILE
from medfl.testing.synthetic import make_cohort

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
SECRET = "Doe-Jane"
"""Text within each subject's name, and within every value that a case puts into a list."""

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of four classes, as somebody may write them without a partition."""
    folder = tmp_path_factory.mktemp("whole") / "D"
    make_cohort(folder, sites=3, images_per_site=12, classes=4, size=12, seed=1)
    (folder / "partition.json").unlink()
    for path in folder.glob(f"*/{DATALIST_FILE}"):
        path.write_text(path.read_text().replace('"subject_id": "', f'"subject_id": "{SECRET}-'))
    return folder


@pytest.fixture
def cohort(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "D"))


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit status and what was said on stderr."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    error = capsys.readouterr().err
    assert "unexpected error" not in error
    assert "Traceback" not in error
    assert SECRET not in error
    return int(ended.value.code or 0), error


def run(cohort: Path) -> tuple[object, ...]:
    """The words of a smallest run, into a folder whose name would be mark-up on a terminal."""
    out = cohort.parent / "run" / "[" / "b]"
    return ("run", BUNDLE, "--dataset-dir", cohort, "--output-dir", out, "--rounds", 1, "--steps", 1)


def written(content: bytes) -> Damage:
    """Another content of a site's list."""
    return lambda cohort: (cohort / "site-01" / DATALIST_FILE).write_bytes(content)


def head(**change: Any) -> Damage:
    """Other keys of a site's list."""

    def damage(cohort: Path) -> None:
        path = cohort / "site-01" / DATALIST_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return damage


def record(**change: Any) -> Damage:
    """Other keys of a site's first record."""

    def damage(cohort: Path) -> None:
        path = cohort / "site-01" / DATALIST_FILE
        content = json.loads(path.read_text())
        content["training"][0] |= change
        path.write_text(json.dumps(content))

    return damage


def pipe(name: str) -> Damage:
    """A pipe in place of a file: opening it for reading would wait for ever."""

    def damage(cohort: Path) -> None:
        (cohort / name).unlink()
        os.mkfifo(cohort / name)

    return damage


def pixel(value: float, kind: type) -> Damage:
    """An array of floating numbers with one pixel that is none."""

    def damage(cohort: Path) -> None:
        images = np.load(cohort / "images.npy").astype(kind) / 255
        images[_first_row(cohort)].flat[3] = value
        np.save(cohort / "images.npy", images)

    return damage


def _first_row(cohort: Path) -> int:
    return int(json.loads((cohort / "site-01" / DATALIST_FILE).read_text())["training"][0]["image"])


def array(images: Any) -> Damage:
    """Another array."""
    return lambda cohort: np.save(cohort / "images.npy", images)


def called(name: str | bytes) -> Damage:
    """A site's folder with another name."""
    return lambda cohort: os.rename(
        os.fsencode(cohort / "site-01"), os.path.join(os.fsencode(cohort), os.fsencode(name))
    )


def beside(*names: str) -> Damage:
    """More sites."""
    return lambda cohort: [shutil.copytree(cohort / "site-01", cohort / name) for name in names]


RULE = "expected 1 to 63 letters a to z, digits, '_' or '-', a letter or digit first. Rename it."

CASES: dict[str, tuple[Damage, str]] = {
    "a list nested to death": (written(b"[" * 100_000), f"site-01/{DATALIST_FILE} is nested too deep"),
    "an object nested to death": (written(b'{"a":' * 100_000), f"site-01/{DATALIST_FILE} is nested too deep"),
    "a number of 5000 digits": (written(b'{"num_classes": 1' + b"0" * 5000 + b"}"), "is no valid JSON"),
    "no UTF-8 in a list": (written(b'{"name": "\xff"}'), "is no valid JSON"),
    "half a character in a list": (head(labels={"0": "\ud800"}), "is no valid JSON: 'utf-8' codec can't encode"),
    "a list that is a pipe": (
        pipe(f"site-01/{DATALIST_FILE}"),
        f"expected a data list .*site-01/{DATALIST_FILE}, there is none",
    ),
    "more classes than 64 bits": (
        head(num_classes=10**30),
        "'num_classes' in 2..10000 in .* got a number of more digits",
    ),
    "a billion classes": (head(num_classes=10**8), "expected 'num_classes' in 2..10000 in .*, got 100000000"),
    "no class": (head(num_classes=0), "expected 'num_classes' in 2..10000 in .*, got 0"),
    "fewer than no class": (head(num_classes=-1), "expected 'num_classes' in 2..10000 in .*, got -1"),
    "true classes": (head(num_classes=True), "expected 'num_classes' of type int in .*, got bool"),
    "a name in place of classes": (head(num_classes=SECRET), "expected 'num_classes' of type int in .*, got str"),
    "another number of classes": (head(num_classes=3), "'labels' of .*, got another key. Correct 'labels' or 'num_cl"),
    "numbers as names of classes": (head(labels={"0": 1}), "'labels' of .*site-01/.*, got int as a name"),
    "lists as names of classes": (head(labels={"0": [SECRET]}), "'labels' of .*site-01/.*, got list as a name"),
    "names in place of classes' numbers": (head(labels={SECRET: "a"}), "'labels' of .*site-01/.*, got another key"),
    "classes in another order": (
        head(labels={"1": "lymphocyte", "0": "neutrophil"}),
        "expected the same classes in all lists of .* at 'site-01' and .* at 'site-02'",
    ),
    "a number as the list's name": (head(name=5), "expected text in 'name' of .*, got int"),
    "a label that is a float": (
        record(label=1.5),
        "integer in 'label' of record 0 of site 'site-01', split 'training'",
    ),
    "a label beyond 64 bits": (record(label=2**70), "64 bits in 'label' of site 'site-01', split 'training'"),
    "a row beyond 64 bits": (record(image=-(2**70)), "64 bits in 'image' of site 'site-01', split 'training'"),
    "a NUL in a path": (head(image_array=f"../{SECRET}\0.npy"), "'image_array' of .*, got one with a NUL"),
    "half a character in a path": (head(image_array="\udc80.npy"), "is no valid JSON: 'utf-8' codec can't encode"),
    "an array that is a pipe": (pipe("images.npy"), "images.npy is no file, but a folder, a pipe or a device"),
    "an array that is a device": (
        head(image_array="/dev/zero"),
        "/dev/zero is no file, but a folder, a pipe or a device",
    ),
    "an array that is a folder": (head(image_array="."), "is no file, but a folder, a pipe or a device"),
    "an array of one number": (array(np.uint8(3)), "site 'site-01': expected an array of shape .* got ()"),
    "an array of objects": (array(np.array([{}], dtype=object)), "images.npy can't be read"),
    "an infinite pixel": (pixel(np.inf, np.float32), "'site-01', split 'training': expected finite pixels, row ROW of"),
    "a pixel that is no number": (pixel(np.nan, np.float16), "split 'training': expected finite pixels, row ROW of"),
    "a pixel beyond 32 bits": (pixel(1e300, np.float64), "split 'training': expected finite pixels, row ROW of"),
    "a folder that is no UTF-8": (called(b"site-\xff"), f"A site can't be called 'site-\\udcff': {RULE}"),
    "a bracket in a name": (called("site-[1]"), f"A site can't be called 'site-[1]': {RULE}"),
    "an expression as a name": (called("$print(1)"), f"A site can't be called '$print(1)': {RULE}"),
    "a reference as a name": (called("@site"), f"A site can't be called '@site': {RULE}"),
    "a line's end in a name": (called("site-01\n"), f"A site can't be called 'site-01\\n': {RULE}"),
    "names unlike by case only": (beside("Site-01"), "'Site-01' and 'site-01' differ in upper and lower case only"),
    "a dot at the end": (beside("site-01."), f"A site can't be called 'site-01.': {RULE}"),
    "a blank at the end": (beside("site-01 "), f"A site can't be called 'site-01 ': {RULE}"),
    "two spellings of one letter": (beside("\u00e9", "e\u0301"), f"A site can't be called 'e\\u0301': {RULE}"),
    "a device's name": (beside("Con"), "A site can't be called 'Con': that name is reserved"),
    "the server's test set by another case": (beside("Global"), "A site can't be called 'Global': that name is"),
}
"""Maps each broken entry to its value and to the expected message; '.*' matches anything, ROW the row."""


def holds(error: str, wanted: str, row: str) -> bool:
    """Return True if the parts of the expected message occur in this order."""
    for part in wanted.replace("ROW", row).split(".*"):
        before, separator, error = error.partition(part)
        if not separator:
            return False
    return True


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_run_refuses(case: str, cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, wanted = CASES[case]
    row = str(_first_row(cohort))
    damage(cohort)
    code, error = command(capsys, *run(cohort))
    assert code == 2
    assert holds(error, wanted, row), error
    assert not (cohort.parent / "run").exists()


OF_A_POOL = [
    "a list nested to death",
    "more classes than 64 bits",
    "numbers as names of classes",
    "a label beyond 64 bits",
    "a NUL in a path",
    "an array that is a pipe",
    "an array of one number",
    "a pixel that is no number",
]
"""Cases of one list alone; `medfl partition` meets them in a pooled data set."""


@pytest.mark.parametrize("case", OF_A_POOL)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_partition_refuses(case: str, cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CASES[case][0](cohort)
    out = cohort.parent / "out"
    code, error = command(capsys, "partition", cohort / "site-01", "--out", out, "--sites", 2, "--server-test", "none")
    assert code == 2
    assert not out.exists()


def full(path: Any, mode: str = "r", *args: Any) -> Any:
    """`open` on a disk on which no network has room."""
    if "w" in mode and "model.pt" in str(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return open(path, mode, *args)


def test_a_disk_that_fills_while_bundles_are_written(
    cohort: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(medfl.utils.files, "open", full, raising=False)
        code, error = command(capsys, *run(cohort))
    assert code == 2
    assert "Could not write '" in error
    assert "sites/site-01/models/model.pt': No space left on device. Everything saved before is still valid" in error
    assert not list((cohort.parent / "run").rglob("*model.pt*"))
    code, error = command(capsys, *run(cohort))
    assert code == 0, error
    assert len(list((cohort.parent / "run").rglob("sites/*/models/model.pt"))) == 3


def test_a_disk_that_fills_while_a_data_set_is_written(
    cohort: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders.os, "replace", no_room)
    out = cohort.parent / "out"
    code, error = command(capsys, "partition", cohort / "site-01", "--out", out, "--sites", 2)
    assert code == 2
    assert f"could not write '{out}': No space left on device. Make room, or give another --out." in error
    assert sorted(path.name for path in cohort.parent.iterdir()) == ["D"]
