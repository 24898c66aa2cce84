"""ABIDE that is downloaded from a server on this machine."""

from __future__ import annotations

import contextlib
import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from abide_maker import TWO, make_release, map_of, prepare, used_rows
from refusals import refused
from web import Web, serving

from medfl.cli.main import main
from medfl.errors import DataError
from medfl_datasets.abide.download import fetch_maps
from medfl_datasets.abide.tables import PHENOTYPE_FILE, read_phenotypes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("abide") / "R")


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("medfl.data.ingest.download.time.sleep", lambda _: None)


@contextlib.contextmanager
def bucket(folder, paths):
    """Serve a folder, and record the requested paths in a list."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            super().do_GET()

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_empty_folder_becomes_the_release(made, tmp_path):
    paths: list[str] = []
    lines: list[str] = []
    with bucket(made, paths) as url:
        fetched = prepare(
            tmp_path / "D", tmp_path / "P", maps=TWO, size=8, download=True, url=url + "/", say=lines.append
        )
        assert lines[0].startswith("abide: licence"), "the licence comes before anything is fetched"
        assert "downloading: 40 of 40 maps" in lines
        assert len(paths) == 41, "the table and the maps of those who are used, each once"
        again = prepare(tmp_path / "D", tmp_path / "Q", maps=TWO, size=8, download=True, url=url)
        assert len(paths) == 41, "nothing twice"
    assert fetched == again == prepare(made, tmp_path / "R", maps=TWO, size=8)
    whole = files(made)
    assert files(tmp_path / "D").items() <= whole.items()
    assert not any(row["FILE_ID"] in line for row in used_rows(made) for line in lines)


def test_only_what_is_missing_is_fetched_and_what_no_one_has_is_reported(made, tmp_path):
    row, lost = map_of(made, 4)
    other, kept = map_of(made, 5)
    bytes_of_lost = lost.read_bytes()
    source = tmp_path / "D"
    paths: list[str] = []
    lines: list[str] = []
    lost.unlink()
    try:
        with bucket(made, paths) as url:
            (source / "flat").mkdir(parents=True)
            (source / kept.name).write_bytes(kept.read_bytes())
            options = {"maps": TWO, "size": 8, "download": True, "url": url, "say": lines.append}
            datalist = prepare(source, tmp_path / "P", **options)
    finally:
        lost.write_bytes(bytes_of_lost)
    assert not any(kept.name in path for path in paths)
    assert len(datalist.splits["training"]) == 19
    assert "downloading: 39 of 39 maps, 1 are not on the server" in lines
    assert f"warning: no reho map of 1 of 20 subjects: table row {row}" in lines


def test_a_cut_download_continues(made, tmp_path):
    subject = read_phenotypes(made / PHENOTYPE_FILE).subjects[0]
    content = map_of(made, 0)[1].read_bytes()
    half = len(content) // 2
    with serving(Web(content, cut=[half])) as web:
        fetch_maps(tmp_path, TWO, [(subject, "reho")], web.url, lambda line: None)
        assert web.requests == [(None, None), (f"bytes={half}-", '"one"')]
    assert files(tmp_path) == {f"{TWO.folder('reho')}/{subject.file_id}_reho.nii.gz": content}


def test_a_server_that_fails_names_the_row_and_keeps_what_came(made, tmp_path):
    subject = read_phenotypes(made / PHENOTYPE_FILE).subjects[0]
    content = map_of(made, 0)[1].read_bytes()
    with serving(Web(content, cut=[500, 0, 0, 0, 0])) as web:
        with refused(DataError, "incomplete_download", row=subject.row, derivative="reho") as error:
            fetch_maps(tmp_path, TWO, [(subject, "reho")], web.url, lambda line: None)
        assert subject.file_id not in f"{error.value} {error.value.fields}"
        assert "<FILE_ID>_reho.nii.gz" in str(error.value)
        web.cut, web.requests[:] = [], []
        fetch_maps(tmp_path, TWO, [(subject, "reho")], web.url, lambda line: None)
        assert web.requests == [("bytes=500-", '"one"')]
    assert list(files(tmp_path).values()) == [content]
    with (
        serving(Web(content, status=[400])) as web,
        refused(DataError, "http_error", row=2, derivative="lfcd", status=400),
    ):
        fetch_maps(tmp_path, TWO, [(subject, "lfcd")], web.url, lambda line: None)


def test_the_command_line_downloads(made, tmp_path, capsys):
    words = ["prep", "abide", "--source", str(tmp_path / "D"), "--out", str(tmp_path / "P"), "--derivatives", "lfcd"]
    with bucket(made, []) as url:
        for more, code in ((["--download", "--url", url, "--size", "8"], 0), (["--download", "--url", f"{url}/no"], 2)):
            with pytest.raises(SystemExit) as end:
                main([*words, *more])
            assert end.value.code == code
            words[words.index("--source") + 1] = str(tmp_path / "other")
            words[words.index("--out") + 1] = str(tmp_path / "Q")
    printed = capsys.readouterr()
    assert "20 training" in printed.out
    assert "the server answered 404" in printed.err
    assert "Traceback" not in printed.err
