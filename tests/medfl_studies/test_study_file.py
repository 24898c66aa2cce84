"""Schema of study files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from refusals import refused

from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl_studies.checks import check_rows
from medfl_studies.schema import slug
from medfl_studies.study_reader import read_study

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changes", "code", "fields", "hint"),
    [
        ({"row": {}}, "unknown_setting", {"settings": ["row"]}, "Did you mean 'rows'?"),
        ({"data__demo__foldr": "x"}, "unknown_setting", {"settings": ["data.demo.foldr"]}, "Did you mean 'folder'?"),
        ({"rows__alone__methd": "x"}, "unknown_setting", {"settings": ["rows.alone.methd"]}, "Did you mean 'method'?"),
        ({"scales__cpu__seed": 1}, "unknown_setting", {"settings": ["scales.cpu.seed"]}, "Did you mean 'seeds'?"),
        ({"bundle": None}, "missing_setting", {"settings": ["bundle"]}, ""),
        ({"rows": {}}, "unknown_choice", {"what": "baseline", "choice": "alone"}, ""),
        (
            {"rows__alone__baseline": "fedprox"},
            "unknown_choice",
            {"place": "rows.alone.baseline", "what": "row", "choice": "fedprox"},
            "",
        ),
        (
            {"rows__Alone!": {"method": "fedavg"}},
            "folder_name_conflict",
            {"place": "rows", "names": ["alone", "Alone!"], "folder": "alone"},
            "",
        ),
        ({"rows__!!": {"method": "fedavg"}}, "invalid_name", {"place": "rows", "name": "!!"}, ""),
        (
            {"data__Demo": {"folder": "cohort"}},
            "folder_name_conflict",
            {"place": "data", "names": ["demo", "Demo"], "folder": "demo"},
            "",
        ),
        ({"baseline": "alon"}, "unknown_choice", {"what": "baseline", "choice": "alon"}, "Did you mean 'alone'?"),
        (
            {"claims": [{"measure": "balance", "better": "alone", "than": "fedprox"}]},
            "unknown_choice",
            {"place": "claims", "what": "row", "choice": "fedprox"},
            "Did you mean 'fedprox mu=0.1'?",
        ),
        (
            {"claims": [{"measure": "ballance", "better": "alone", "than": "fedprox mu=0.1"}]},
            "unknown_choice",
            {"place": "claims", "what": "measure", "choice": "ballance"},
            "Did you mean 'balance'?",
        ),
        ({"seeds": 0}, "invalid_seeds", {"seeds": 0}, ""),
        ({"seeds": [1, 1]}, "invalid_seeds", {"seeds": [1, 1]}, ""),
        ({"seeds": [-1]}, "invalid_seeds", {"seeds": [-1]}, ""),
        ({"scales__full": {}}, "reserved_name", {"what": "scale", "name": "full"}, ""),
        ({"settings__seed": 3}, "reserved_setting", {"place": "settings", "setting": "seed"}, ""),
        (
            {"data__demo__options": {"output_dir": "x"}},
            "reserved_setting",
            {"place": "data.demo.options", "setting": "output_dir"},
            "",
        ),
        (
            {"settings__mean": ["$exit()"]},
            "expression_not_supported",
            {"place": "settings", "setting": "mean"},
            "",
        ),
        (
            {"data__demo__prep": {"dataset": "medmnist", "flag": "x"}},
            "invalid_setting",
            {"settings": ["data.demo"]},
            "expected either 'prep' or 'folder'",
        ),
        (
            {"data": {"a": {"prep": {"dataset": "medmnist", "flag": "x"}}}},
            "invalid_setting",
            {"settings": ["data.a"]},
            "expected a 'partition'",
        ),
        (
            {"data__demo__partition": {"sites": 3}},
            "invalid_setting",
            {"settings": ["data.demo.partition"]},
            "expected a 'scheme' in the partition",
        ),
    ],
)
def test_a_file_that_says_something_else_is_refused(write, changes: dict, code: str, fields: dict, hint: str) -> None:
    with refused(SettingsError, code, **fields) as caught:
        read_study(write(**changes))
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code", "fields", "reason"),
    [
        ("rows:\n  a: {method: local}\n  a: {method: fedavg}\n", "invalid_yaml", {}, "the key 'a' occurs twice"),
        ("rows: [", "invalid_yaml", {}, ""),
        ("- one\n- two\n", "wrong_type", {"found": "list"}, ""),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, text: str, code: str, fields: dict, reason: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with refused(SettingsError, code, what="study file", path=str(tmp_path / "study.yaml"), **fields) as caught:
        read_study(tmp_path / "study.yaml")
    assert reason in str(caught.value)
    missing = {"path": str(tmp_path / "studie.yaml"), "reason": "No such file or directory"}
    with refused(SettingsError, "unreadable_file", what="study file", **missing):
        read_study(tmp_path / "studie.yaml")


def test_numbers_with_an_exponent_are_numbers(write) -> None:
    file = write()
    file.write_text(file.read_text().replace("0.125", "1e-3"))
    assert read_study(file).settings["optimizer#lr"] == 0.001


def test_a_scale_replaces_settings_and_seeds(write) -> None:
    full, small = read_study(write()), read_study(write(), "cpu")
    assert (full.settings["rounds"], full.seed_list()) == (4, [0, 1])
    assert (small.settings, small.seed_list()) == ({"rounds": 1, "optimizer#lr": 0.125}, [0])
    assert read_study(write(seeds=[3, 7])).seed_list() == [3, 7]
    assert read_study(write(), "cpu", seeds=3).seed_list() == [0, 1, 2]
    with refused(SettingsError, "unknown_choice", what="scale", choice="cpuu") as caught:
        read_study(write(), "cpuu")
    assert "Did you mean 'cpu'? Known: cpu, full." in str(caught.value)


def test_one_data_set_may_be_chosen(write) -> None:
    file = write(data__other={"folder": "elsewhere"})
    assert list(read_study(file).data) == ["demo", "other"]
    assert list(read_study(file, data=["other"]).data) == ["other"]
    with refused(SettingsError, "unknown_choice", what="data set", choice="othr", path=str(file)):
        read_study(file, data=["othr"])


def test_names_become_parts_of_paths() -> None:
    assert [slug(name) for name in ("FedProx mu=0.1", "a/../b", ".hidden")] == ["fedprox-mu-0.1", "a-..-b", "hidden"]


def test_studies_of_the_papers_tables_take_its_pipeline_and_its_widths() -> None:
    """FedSKD uses the maps of CCS, and its clients have 64, 62, 60 and 58 channels in the order of table 1."""
    studies = [read_study(path) for path in sorted((ROOT / "studies").glob("fedskd_*.yaml"))]
    pipelines = {s.name: s.data["abide"].prep.pipeline for s in studies if "abide" in s.data}
    ours = ("fedskd_reho780", "fedskd_reho780_wide")
    assert {pipelines.pop(name) for name in ours} == {"cpac"}
    assert len(pipelines) == 7
    assert set(pipelines.values()) == {"ccs"}
    widths = {"US-West": "resnet10_minus2", "US-Middle": "resnet10_minus4", "US-East": "resnet10_minus6"}
    of_the_paper = [s for s in studies if s.name != "fedskd_reho780_wide"]  # half of the paper's widths
    settings = [row.settings for s in of_the_paper for row in s.rows.values()] + [s.settings for s in of_the_paper]
    networks = [options["networks_by_site"] for options in settings if "networks_by_site" in options]
    assert len([by_site for by_site in networks if by_site == widths]) + len(
        [by_site for by_site in networks if "site-02" in by_site]
    ) == len(networks)
    assert widths in networks


def test_fedkpers_table_has_the_papers_twelve_methods() -> None:
    """Every row has the paper's bound on gradients; at every scale FedKD's ranks rise to the end."""
    paper = ["fedavg", "fedcurv", "moon", "fedprox", "fedntd", "fedas", "fedala", "ditto"]
    paper += ["fedper", "fedkd", "fedbabu", "fedkper"]
    registry = load_plugins()
    for scale in ("full", "cpu"):
        study = read_study(ROOT / "studies" / "fedkper_table1.yaml", scale)
        methods = {row: registry.make_method(study.rows[row].method, study.rows[row].method_args) for row in paper}
        assert {method.gradient_clip for method in methods.values()} == {5.0}
        assert methods["fedkd"].over == study.settings["rounds"]
    papers_tpf = {"fedavg", "fedkf", "fedfa", "feddr_plus", "fedtgp", "fedfed", "fedtpf"}
    for name in ("fedtpf_table3", "fedtpf_table4", "fedtpf_table5", "fedtpf_table6", "fedtpf_fig4"):
        assert {row.method for row in read_study(ROOT / "studies" / f"{name}.yaml").rows.values()} == papers_tpf


def test_the_shipped_studies_are_valid() -> None:
    files, registry = sorted((ROOT / "studies").glob("*.yaml")), load_plugins()
    assert files
    for path in files:
        study = read_study(path)
        check_rows(study, registry)
        assert study.name == path.stem
        for scale in yaml.safe_load(path.read_text()).get("scales", {}):
            assert read_study(path, scale).settings.get("rounds", 0) <= study.settings.get("rounds", 0)
