"""``medfl prep folder`` on the command line, with hostile files, names and letters that a terminal can't write."""

from __future__ import annotations

import os

import numpy as np
import pytest
from dicom_maker import make_dicom
from hostile_checks import COLUMN_OPTIONS, SECRETS
from image_makers import picture


@pytest.fixture
def command(tmp_path):
    """Write four images into a folder whose name has a terminal's code, and return the arguments of the command."""
    images = tmp_path / "a\x1b[31mb"
    images.mkdir()
    for number in range(4):
        picture(images / f"{number}.png", np.full((4, 4), number, np.uint8))
    table = tmp_path / "labels.csv"
    table.write_text("file,diagnosis\n" + "".join(f"{number},{'سליم'[number % 2]}\n" for number in range(4)), "utf-8")
    return ("prep", "folder", images, "--table", table, *COLUMN_OPTIONS, "--size", 4, "--workers", 1)


def test_a_hostile_file_gives_a_message_that_discloses_nothing(medfl, command, tmp_path):
    (command[2] / "1.png").unlink()
    make_dicom(command[2] / "1.dcm", np.zeros((4, 4), np.uint16), meaning="SECRET SALLY")
    before = sorted(os.listdir(tmp_path))
    status, out, err = medfl(*command, "--out", tmp_path / "P")
    assert (status, out) == (2, "")
    message = err.splitlines()[-1]
    assert message.startswith("error: 1 of 4 images can't be read: ")
    assert "(table row 3)" in message
    assert "Traceback" not in err
    assert "\x1b" not in message
    assert not [word for word in SECRETS if word in err.lower()]
    assert sorted(os.listdir(tmp_path)) == before, "nothing is left behind"


def test_names_that_the_terminal_can_not_write_are_escaped(medfl, command, tmp_path):
    status, out, err = medfl(*command, "--out", tmp_path / os.fsdecode(b"P\xff"))
    assert status == 0, err
    assert "P\\udcff: 4 training" in out
