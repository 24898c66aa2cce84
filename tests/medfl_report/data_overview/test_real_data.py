"""Known facts about real data sets are found: a copy with another class, and devices that differ."""

import os
from pathlib import Path

import pytest

from medfl.cli.main import main
from medfl_report.data_overview.cases import read_images
from medfl_report.data_overview.overview import PAIR_KINDS, DataOverview, look_at

pytestmark = pytest.mark.slow  # prepares hundreds of images

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"))


def prepare(tmp_path: Path, release: str, *arguments: object) -> DataOverview:
    """Prepare a release with `medfl prep`, and return the overview; skip without the real data."""
    if not REAL.is_dir():
        pytest.skip("MEDFL_DATA does not name a folder of real data")
    with pytest.raises(SystemExit) as end:
        main(["prep", release, *(str(argument) for argument in arguments), "--out", str(tmp_path / "out")])
    assert not end.value.code
    return look_at(read_images(tmp_path / "out"))


def test_the_copy_of_a_cell_with_another_class_is_found(tmp_path):
    source = REAL / "acevedo"
    overview = prepare(tmp_path, "acevedo", "--source", source, "--size", 64, "--preset", "paper")  # BNE_191112
    (each,) = overview.pairs
    targets = {overview.data.cases[place].target for place in (each.pair.first, each.pair.second)}
    assert targets == {"eosinophil", "band neutrophil"}
    assert (each.kind, each.pair.mirrored) == (PAIR_KINDS[0], "")
    assert overview.measured.faults == {}


def test_the_bright_and_the_dark_ultrasound_device_differ(tmp_path):
    source = REAL / "segmentation" / "breast_ultrasound"
    overview = prepare(tmp_path, "breast_ultrasound", "--source", source, "--size", 96)
    differences = {(each.group, each.larger) for each in overview.site_differences if each.feature == 0}
    assert differences == {("busbra_logiq5", True), ("busbra_usystems", False)}
    assert overview.data.scanner_column == "device"
    assert overview.scanners_of("busbra_logiq5") == ["GE Logiq 5 @10-12MHz"]
    assert overview.pairs == ()  # of 2.3 million pairs, also of one patient's two views


def test_three_groups_of_intensities_of_the_hippocampus_differ(tmp_path):
    source = REAL / "segmentation" / "hippocampus"
    table = ("--table", source / "cases.csv", "--site-column", "intensity_group")
    overview = prepare(tmp_path, "decathlon", source, *table, "--window", "1500,3000")
    assert {each.group for each in overview.site_differences} == {"A_uint8", "B_float_lt1e4", "C_float_ge1e4"}
    brightness = {each.group: each.larger for each in overview.site_differences if each.feature == 0}
    assert brightness == {"A_uint8": False, "C_float_ge1e4": True}
    faulty = {overview.data.cases[place].site for place in overview.measured.faults}
    assert faulty == {"C_float_ge1e4"}  # a window that is too low for these files
