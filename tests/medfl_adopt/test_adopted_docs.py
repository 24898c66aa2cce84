"""Commands of ``docs/adopt.md`` on a synthetic bundle and synthetic volumes."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path

import pytest
import zoo_shapes
from zoo_sites import volumes

from medfl.cli.main import main

PAGE_FILE = Path(__file__).parents[2] / "docs" / "adopt.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make a folder with the bundle and the data of the page."""
    zoo_shapes.spleen(tmp_path / "spleen_ct_segmentation")
    task = volumes(tmp_path / "Task09_Spleen", 6)
    rows = [
        {key: f"./{part}Tr/c{k}.nii.gz" for key, part in (("image", "images"), ("label", "labels"))} for k in range(6)
    ]
    (task / "dataset.json").write_text(
        json.dumps({"name": "Spleen", "training": rows, "test": ["./imagesTs/c.nii.gz"]})
    )
    monkeypatch.chdir(tmp_path)
    loggers = [logging.getLogger(name) for name in (None, "medfl", "monai")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield tmp_path
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.mark.slow
def test_the_pages_commands_run(place):
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE_FILE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "medfl"
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code, line
    for method in ("fedbn", "local"):
        assert len(list(place.glob(f"runs/{method}/sites/*/models/model.pt"))) == 2
    assert (place / "runs" / "report.html").is_file()
