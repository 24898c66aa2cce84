"""Hostile bundles: ``medfl check-bundle`` leaks no file, does not hang and does not crash."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import pytest
from damage import edit, put

from medfl.bundle.check import check_bundle
from medfl.bundle.check.files import MAX_PICKLE
from medfl.bundle.check.reading import MAX_BYTES
from medfl.cli.check_bundle import report_lines


@pytest.mark.parametrize("name", ["more.json", "more.yaml", "logging.conf"])
def test_a_huge_file_is_not_read(bundle, name):
    (bundle / "configs" / name).write_bytes(b" " * (MAX_BYTES + 1))
    assert check_bundle(bundle).errors == [
        f"configs/{name}: can't be read: it has more than 1 MB; no person can review that"
    ]


def test_a_pipe_does_not_make_it_wait(bundle):
    os.mkfifo(bundle / "configs" / "more.json")
    assert check_bundle(bundle).errors == ["configs/more.json: can't be read: it is not an ordinary file"]


@pytest.mark.parametrize("name", ["more.json", "logging.conf"])
def test_what_a_link_leads_to_outside_is_not_read(bundle, tmp_path, name):
    put(tmp_path, "secret", '{"a": "$secret()"}' if name == "more.json" else "[a]\nargs=$secret()\n")
    path = bundle / "configs" / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "secret")
    report = check_bundle(bundle)
    assert report.errors == [f"configs/{name}: a link that leads out of the bundle, or nowhere"]
    assert "secret()" not in "".join(report_lines(report))


def test_a_folder_of_configurations_elsewhere_is_not_read(bundle, tmp_path):
    (bundle / "configs").rename(tmp_path / "elsewhere")
    (bundle / "configs").symlink_to(tmp_path / "elsewhere")
    report = check_bundle(bundle)
    assert "configs: a link that leads out of the bundle, or nowhere" in report.errors
    assert report.code == []


def test_links_in_a_circle_and_names_too_long_are_errors(bundle):
    (bundle / "configs" / "more.json").symlink_to("more.json")
    (bundle / "configs" / "round").symlink_to("round")
    edit(
        bundle, "train.json", lambda c: c.update(a="%configs/round/x.json#a", b=f"%{'x' * 5000}.json#a", c="%\0.json#a")
    )
    errors = check_bundle(bundle).errors
    assert {error.partition(":")[0] for error in errors} >= {"configs/more.json", "configs/round"}
    (macros,) = [error for error in errors if error.startswith("configs/train.json: ")]
    assert "'a' is" in macros
    assert "'b' is" in macros
    assert "'c' is" in macros


def test_names_with_control_characters_are_written_out(bundle):
    put(bundle, "scripts/a\x1b[2K\nErrors: none.py", "")
    (bundle / "configs" / "b\x07.json").write_text("{")
    os.symlink("/", os.fsencode(bundle) + b"/docs/\xff\n")
    text = report_lines(check_bundle(bundle))
    assert not [line for line in text if not line.isprintable()]
    assert any(r"scripts/a\x1b[2K\nErrors: none.py: Python code" in line for line in text)
    assert any(r"configs/b\x07.json: can't be read" in line for line in text)
    "\n".join(text).encode()  # not even half a letter, which no terminal takes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "repeats parts by YAML aliases"),
        ("a: &a\n  <<: *a\n", "repeats parts by YAML aliases"),
        ("[" * 100_000, "is nested too deeply to be read"),
        ("{a: " * 60 + "1" + "}" * 60, "is nested too deeply to be read"),
        ("a: " + "9" * 10_000, "can't be read: Exceeds the limit"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("a: !!python/name:os.system\n", "could not determine a constructor"),
    ],
    ids=["bomb", "itself", "deep", "rather deep", "number", "two documents", "a name"],
)
def test_yaml_that_is_made_to_explode_is_an_error(bundle, text, message):
    put(bundle, "configs/more.yaml", text)
    (error,) = check_bundle(bundle).errors
    assert error.startswith("configs/more.yaml: ")
    assert message in error


def test_a_checkpoint_that_claims_to_unpack_to_gigabytes_is_not_opened(bundle):
    (bundle / "models").mkdir()
    with zipfile.ZipFile(bundle / "models" / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", pickle.dumps(1) + bytes(MAX_PICKLE))
    assert (bundle / "models" / "model.pt").stat().st_size < 100_000
    (error,) = check_bundle(bundle).errors
    assert error == "models/model.pt: its pickle has more than 50 MB; it is not opened"


def test_long_values_do_not_fill_the_screen(bundle):
    edit(bundle, "metadata.json", lambda c: c.update(authors=["x" * 100_000], version="1" * 100_000))
    put(bundle, "configs/more.json", json.dumps({"k" * 100_000: "$a", "b": ["$b"] * 100}))
    assert sum(map(len, report_lines(check_bundle(bundle)))) < 1_000_000
