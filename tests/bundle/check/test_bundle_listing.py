"""Code listing of ``medfl check-bundle``: it is complete, and the check runs no code of the bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from damage import edit, put

from medfl.bundle.check import check_bundle
from medfl.cli.check_bundle import report_lines
from medfl.cli.main import main

SHIPPED = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


def listed(report, kind):
    return {(code.file, code.id): code for code in report.code if code.kind == kind}


# ---- what is sound


def test_the_shipped_bundle_is_sound_and_its_merges_are_named():
    report = check_bundle(SHIPPED)
    assert (report.errors, report.warnings) == ([], [])
    assert "configs/train.json: all references resolve" in report.notes
    assert "configs/train.json + federate.json: all references resolve" in report.notes
    assert "configs/train.json + evaluate.json: all references resolve" in report.notes
    assert "configs/inference.json: all references resolve" in report.notes
    assert report.title == "MedMNIST classification 0.1.0"


def test_every_target_and_every_expression_is_listed():
    """Compare with counts from the text of the files."""
    report = check_bundle(SHIPPED)
    for path in (SHIPPED / "configs").glob("*.json"):
        file, text = f"configs/{path.name}", path.read_text()
        targets = [code for code in report.code if code.file == file and code.kind == "target"]
        dollars = [code for code in report.code if code.file == file and code.text.startswith("$")]
        assert len(targets) == text.count('"_target_"'), path.name
        assert len(dollars) == text.count('"$'), path.name


def test_a_bundle_in_yaml_is_read_alike(bundle):
    import yaml

    content = json.loads((bundle / "configs" / "train.json").read_text())
    (bundle / "configs" / "train.json").unlink()
    put(bundle, "configs/train.yaml", yaml.safe_dump(content, sort_keys=False))
    before, after = check_bundle(SHIPPED), check_bundle(bundle)
    assert after.errors == []
    want = {(code.id, code.text) for code in before.code if code.file == "configs/train.json"}
    assert {(code.id, code.text) for code in after.code if code.file == "configs/train.yaml"} == want


# ---- a foreign bundle


FOREIGN = {
    "imports": ["$import os", "$from evil.sub import thing"],
    "a": "$__import__('os').system('touch {file}')",
    "b": {"_target_": "os.system", "command": "touch {file}", "_disabled_": True},
    "c": {"_target_": "eval", "source": "1"},
    "d": {"_target_": "scripts.net.Net", "_mode_": "debug", "_requires_": ["$print('first')"]},
    "e": {"_target_": "$@d.forward"},
    "f": {"_target_": "LoadImaged", "keys": "image"},
    "g": "%a",
    "h": "%configs/more/other.json#deep",
    "i": ["plain", {"deep": "$'tail'"}],
}


@pytest.fixture
def foreign(tmp_path):
    root, marker = tmp_path / "foreign", tmp_path / "ran"
    text = json.dumps(FOREIGN).replace("{file}", str(marker))
    put(root, "configs/run.json", text)
    put(root, "configs/more/other.json", json.dumps({"deep": "$open('secret')"}))
    put(root, "configs/logging.conf", f"[handlers]\nkeys=a\n[handler_a]\nclass=os.system('touch {marker}')\nargs=()\n")
    put(root, "configs/metadata.json", json.dumps({"task": f"$import pathlib; pathlib.Path('{marker}').touch()"}))
    put(root, "scripts/__init__.py", f"open({str(marker)!r}, 'w')")
    put(root, "scripts/net.py", "")
    return root, marker


def test_foreign_code_is_listed_and_does_not_run(foreign):
    root, marker = foreign
    report = check_bundle(root)
    assert not marker.exists()
    run = "configs/run.json"
    expressions = listed(report, "expression")
    assert expressions[run, "a"].text == f"$__import__('os').system('touch {marker}')"
    assert expressions[run, "i#1#deep"].text == "$'tail'"
    assert expressions["configs/more/other.json", "deep"].text == "$open('secret')"
    packages = {id_: code.package for (_, id_), code in listed(report, "target").items()}
    assert packages == {
        "b#_target_": "python",
        "c#_target_": "python",
        "d#_target_": "this bundle",
        "e#_target_": "computed",
        "f#_target_": "monai",
    }
    imports = {id_: code.package for (_, id_), code in listed(report, "import").items()}
    assert imports == {"imports#0": "python", "imports#1": "evil", "task": "python"}
    assert [code.text for code in listed(report, "mode").values()] == ["debug"]
    assert [code.text for code in listed(report, "disabled").values()] == ["true"]
    assert [code.text for code in listed(report, "requires").values()] == ["$print('first')"]
    assert {code.text for code in listed(report, "macro").values()} == {"%a", "%configs/more/other.json#deep"}
    logging_code = listed(report, "logging")
    assert logging_code["configs/logging.conf", "handler_a#class"].text == f"os.system('touch {marker}')"
    assert [note.path for note in report.files] == ["scripts/__init__.py", "scripts/net.py"]


def test_the_command_prints_it_and_ends_with_2(foreign, capsys):
    root, marker = foreign
    with pytest.raises(SystemExit) as ended:
        main(["check-bundle", str(root)])
    out = capsys.readouterr().out
    assert ended.value.code == 2
    assert not marker.exists()
    assert f"$__import__('os').system('touch {marker}')" in out
    assert "  python (other package)\n" in out
    assert "  evil (other package)\n" in out
    assert "  monai\n    1 x LoadImaged\n" in out
    assert "scripts/net.py: Python code; read it before you run the bundle" in out


def test_the_command_ends_with_0_on_a_shipped_bundle_by_name(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check-bundle", "medmnist_classification"])
    assert ended.value.code == 0
    assert "Errors: none" in capsys.readouterr().out


def test_what_a_terminal_would_hide_is_written_out(bundle):
    edit(bundle, "train.json", lambda c: c.update(sly="$evil()\x1b[2K\r\u202e  # harmless"))
    text = "\n".join(report_lines(check_bundle(bundle)))
    assert r"$evil()\x1b[2K\r\u202e  # harmless" in text
    assert "\x1b" not in text
