"""MedMNIST files that are downloaded first."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from npz_makers import write_npz
from refusals import refused
from web import Web, serving

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.errors import DataError, SettingsError
from medfl_datasets.medmnist import releases as medmnist_releases
from medfl_datasets.medmnist.releases import RELEASES
from medfl_datasets.medmnist.spec import prepare


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Serve a file whose checksum the table of releases is made to contain."""
    content = write_npz(tmp_path / "made.npz").read_bytes()
    md5 = hashlib.md5(content).hexdigest()
    releases = RELEASES | {"bloodmnist": replace(RELEASES["bloodmnist"], counts=(10, 3, 4), md5={28: md5})}
    monkeypatch.setattr(medmnist_releases, "RELEASES", releases)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("medfl.data.ingest.download.time.sleep", lambda _: None)
    with serving(Web(content)) as web:
        yield web


def test_a_missing_file_is_downloaded_and_used_again(tmp_path, official):
    official.cut = [2000]
    lines: list[str] = []
    for out in ("P", "Q"):
        prepare(
            tmp_path / "mnist", "bloodmnist", tmp_path / out, fetch=True, url=official.url + "/a/", say=lines.append
        )
    assert official.paths == ["/a/bloodmnist.npz?download=1"] * 2, "cut, continued, and then never asked for again"
    assert lines[0].startswith("bloodmnist: licence"), "the licence comes before anything is written"
    assert not any("warning" in line for line in lines), lines
    assert read_datalist(tmp_path / "P") == read_datalist(tmp_path / "Q")


def test_a_wrong_download_leaves_nothing(tmp_path, official):
    official.content = official.content[:-1] + b"?"
    with refused(DataError, "wrong_checksum", what="MD5"):
        prepare(tmp_path / "mnist", "bloodmnist", tmp_path / "P", fetch=True, url=official.url)
    assert not list((tmp_path / "mnist").iterdir())
    assert not (tmp_path / "P").exists()


def test_what_can_not_be_downloaded(tmp_path):
    with refused(SettingsError, "unknown_choice", what="MedMNIST file", choice="bloodmist"):
        prepare(tmp_path, "bloodmist", tmp_path / "P", fetch=True)
    with refused(SettingsError, "unknown_choice", what="MedMNIST file", choice="organmnist3d_128") as error:
        prepare(tmp_path, "organmnist3d_128", tmp_path / "P", fetch=True)
    assert ", organmnist3d_64" in str(error.value), "the sizes that there are"
    with refused(SettingsError, "missing_folder", path=str(tmp_path / "a.npz")):
        prepare(tmp_path / "a.npz", "bloodmnist", tmp_path / "P", fetch=True)


def test_the_command_line_downloads(tmp_path, official, capsys):
    words = ["prep", "medmnist", "--flag", "bloodmnist", "--out", str(tmp_path / "P")]
    with pytest.raises(SystemExit) as end:
        main([*words, "--source", str(tmp_path / "mnist")])
    assert end.value.code == 2
    assert "Add --download" in capsys.readouterr().err
    words += ["--url", official.url]
    with pytest.raises(SystemExit) as end:
        main([*words, "--source", str(tmp_path / "mnist"), "--download"])
    assert end.value.code == 0
    assert "10 training, 3 validation, 4 test images of 8 classes" in capsys.readouterr().out
    official.status = [404]
    with pytest.raises(SystemExit) as end:
        main([*words, "--source", str(tmp_path / "other"), "--download", "--force"])
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert "404" in printed
    assert "Traceback" not in printed


def test_what_is_read_is_never_replaced(tmp_path, official):
    out = tmp_path / "P"
    with refused(DataError, "output_contains_input", path=str(out)):
        prepare(out, "bloodmnist", out, fetch=True, url=official.url)
    assert not official.paths, "said before the download"
    assert not out.exists()
