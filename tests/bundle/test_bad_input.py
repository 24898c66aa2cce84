"""Bad input on the command line: one message, exit status 2, no traceback, and no files left behind."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from medfl.cli.main import main
from medfl.testing.synthetic import make_cohort

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
OFFICIAL_MD5 = "750601b1f35ba3300ea97c75c52ff8f6"
"""MD5 checksum of breastmnist.npz in MedMNIST's table."""

Medfl = Callable[..., tuple[int, str]]


class Quiet(SimpleHTTPRequestHandler):
    """Web server of a folder that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Discard the message."""


@pytest.fixture
def medfl(capsys: pytest.CaptureFixture[str]) -> Medfl:
    """Run a command in this process and return its exit status and its output on stderr."""

    def run(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert "unexpected" not in error
        return int(ended.value.code or 0), error

    return run


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Start a web server of the folder `tmp_path`/web and return its address."""
    (tmp_path / "web").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def write_npz(folder: Path, **change: Any) -> Path:
    """Write a file with the name and sizes of BreastMNIST. None for an array removes it."""
    folder.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 546), ("val", 78), ("test", 156)):
        arrays[f"{part}_images"] = np.zeros((count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None] % 2
    kept = {name: value for name, value in (arrays | change).items() if value is not None}
    np.savez_compressed(folder / "breastmnist.npz", **kept)
    return folder / "breastmnist.npz"


def prep(source: Path, out: Path, *more: object) -> tuple[object, ...]:
    """Return the arguments of `medfl prep medmnist`."""
    return ("prep", "medmnist", "--source", source, "--flag", "breastmnist", "--out", out, *more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_labels": None, "test_images": None}, "missing: val_labels, test_images. It holds: train_images, "),
        ({"train_images": np.zeros((546, 28, 28, 1, 1), np.uint8)}, "got uint8 of shape (546, 28, 28, 1, 1)"),
        ({"train_labels": np.zeros((543, 1), np.uint8)}, "expected integer labels of shape (546,) or (546, 1)"),
        ({"test_images": np.zeros((156, 14, 14), np.uint8)}, "got uint8 of shape (156, 14, 14) (train has (28, 28))"),
    ],
)
def test_an_npz_with_missing_keys_or_wrong_shapes(
    medfl: Medfl, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_npz(tmp_path / "raw", **change)
    code, error = medfl(*prep(tmp_path / "raw", tmp_path / "P"))
    assert code == 2
    assert message in error
    assert not (tmp_path / "P").exists()


def test_a_subset_under_an_official_name_is_reported_with_both_sizes(medfl: Medfl, tmp_path: Path) -> None:
    few = {
        "train_images": np.zeros((100, 28, 28), np.uint8),
        "train_labels": np.arange(100, dtype=np.uint8)[:, None] % 2,
    }
    write_npz(tmp_path / "raw", **few)
    code, error = medfl(*prep(tmp_path / "raw", tmp_path / "P"))
    assert code == 0, error
    assert "100/78/156 images (train/val/test), the official release has 546/78/156" in error
    assert OFFICIAL_MD5 in error


def test_a_download_with_another_checksum_is_deleted(medfl: Medfl, web: str, tmp_path: Path) -> None:
    write_npz(tmp_path / "web")
    (tmp_path / "raw").mkdir()
    code, error = medfl(*prep(tmp_path / "raw", tmp_path / "P", "--download", "--url", web))
    assert code == 2
    assert f"expected MD5 {OFFICIAL_MD5}" in error
    assert not list((tmp_path / "raw").glob("*.npz*"))
    assert not (tmp_path / "P").exists()


def test_half_a_download_is_no_npz(medfl: Medfl, tmp_path: Path) -> None:
    whole = write_npz(tmp_path / "raw").read_bytes()
    (tmp_path / "raw" / "breastmnist.npz").write_bytes(whole[: len(whole) // 2])
    code, error = medfl(*prep(tmp_path / "raw", tmp_path / "P"))
    assert code == 2
    assert "can't be read as a .npz file" in error
    assert "Download it again" in error


def test_what_a_broken_download_left_does_not_count_as_the_file(medfl: Medfl, tmp_path: Path) -> None:
    whole = write_npz(tmp_path / "raw")
    whole.rename(whole.with_name("breastmnist.npz.part"))
    code, error = medfl(*prep(tmp_path / "raw", tmp_path / "P"))
    assert code == 2
    assert "found none. Add --download" in error


@pytest.fixture
def own(tmp_path: Path) -> tuple[object, ...]:
    """Write eight images of four patients and return the arguments of `medfl prep folder`."""
    (tmp_path / "images").mkdir()
    lines = ["file,finding,who,part"]
    for number in range(8):
        Image.fromarray(np.full((8, 8), 30 * number, np.uint8)).save(tmp_path / "images" / f"{number}.png")
        part = "test" if number > 5 else "train"
        lines.append(f"{number}.png,{'yes' if number % 2 else 'no'},Doe-{number // 2},{part}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    columns = ("--image-column", "file", "--target", "finding", "--group-column", "who", "--split-column", "part")
    return (
        "prep",
        "folder",
        tmp_path / "images",
        "--table",
        tmp_path / "labels.csv",
        *columns,
        "--size",
        8,
        "--workers",
        1,
        "--out",
    )


def test_an_image_file_that_can_not_be_read(medfl: Medfl, own: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "images" / "3.png").write_bytes(b"no picture")
    code, error = medfl(*own, tmp_path / "P")
    assert code == 2
    assert "1 of 8 images can't be read: 1 x the file is not an image of the kind that" in error
    assert "(table row 5)" in error
    assert "--skip-unreadable" in error
    assert not (tmp_path / "P").exists()


def test_a_table_with_missing_columns(medfl: Medfl, own: tuple[object, ...], tmp_path: Path) -> None:
    words = [{"file": "path", "who": "whom"}.get(str(word), word) for word in own]
    code, error = medfl(*words, tmp_path / "P")
    assert code == 2
    assert "expected the columns 'path', 'whom' in " in error
    assert "the table has the columns 'file', 'finding', 'who', 'part'" in error


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0.png,no,Doe-0,train", "2 of 9 rows name an image that another row names too: table rows 2, 10"),
        ("8.png,no,Doe-0,test", "1 of 4 patients are in several"),
    ],
    ids=["duplicate ids", "a patient on two sides"],
)
def test_a_table_that_contradicts_itself(
    medfl: Medfl, own: tuple[object, ...], tmp_path: Path, row: str, message: str
) -> None:
    shutil.copy(tmp_path / "images" / "0.png", tmp_path / "images" / "8.png")
    with (tmp_path / "labels.csv").open("a") as table:
        table.write(row + "\n")
    code, error = medfl(*own, tmp_path / "P")
    assert code == 2
    assert message in error
    assert "Doe" not in error
    assert not (tmp_path / "P").exists()


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """Write data of three sites with four classes."""
    make_cohort(tmp_path / "D", sites=3, images_per_site=24, classes=4, size=12, seed=1)
    (tmp_path / "D" / "partition.json").unlink()
    return tmp_path / "D"


def run(cohort: Path, *more: object, bundle: Path = BUNDLE) -> tuple[object, ...]:
    """Return the arguments of the shortest `medfl run`."""
    out = cohort.parent / "run"
    return ("run", bundle, "--dataset-dir", cohort, "--output-dir", out, "--rounds", 1, "--steps", 1, *more)


def no_list(cohort: Path) -> None:
    """Remove the data list of a site."""
    (cohort / "site-02" / "datalist.json").unlink()


def cut_array(cohort: Path) -> None:
    """Truncate the array of images."""
    content = (cohort / "images.npy").read_bytes()
    (cohort / "images.npy").write_bytes(content[: len(content) // 2])


def no_array(cohort: Path) -> None:
    """Replace the array by another kind of file."""
    (cohort / "images.npy").write_text("no array")


def two_sides(cohort: Path) -> None:
    """Put a patient of the training split into the test split, too."""
    path = cohort / "site-01" / "datalist.json"
    content = json.loads(path.read_text())
    content["training"][0]["subject_id"] = content["test"][0]["subject_id"] = "subject-secret"
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_list, "site-02/datalist.json, there is none"),
        (cut_array, "images.npy can't be read"),
        (no_array, "images.npy can't be read"),
        (two_sides, "subjects: 1 in both site-01/training and site-01/test"),
    ],
)
def test_sites_that_can_not_be_used(medfl: Medfl, cohort: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(cohort)
    code, error = medfl(*run(cohort))
    assert code == 2
    assert message in error
    assert "subject-secret" not in error
    assert not (cohort.parent / "run" / "state").exists()


def test_a_bundle_with_missing_properties(medfl: Medfl, cohort: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLE, bundle, ignore=shutil.ignore_patterns("models", "runs", "eval"))
    path = bundle / "configs" / "train.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in content.items() if name not in ("optimizer", "loss")}))
    code, error = medfl(*run(cohort, bundle=bundle))
    assert code == 2
    assert "lacks 2 required ids" in error
    assert "optimizer: optimiser of a site" in error
    assert "loss: loss function" in error
