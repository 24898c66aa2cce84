"""Test ``medfl partition`` with a bundle's own list: related cases stay together, and folders contain links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zoo_shapes
from damage import put
from refusals import refused

from medfl.cli.main import main
from medfl.data.partition.by_column import by_site
from medfl.data.partition.case_list import partition_cases
from medfl.data.partition.class_skew import dirichlet_class
from medfl.data.partition.iid import iid
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, SettingsError
from medfl.records.partition import CasePartition


def decathlon(folder, count=12, **columns):
    """Write a Decathlon list of synthetic cases, two for each patient, with their files, and return its path."""
    cases = []
    for number in range(count):
        case = {"image": f"./imagesTr/c{number}.nii.gz", "label": f"./labelsTr/c{number}.nii.gz"}
        for name in case.values():
            put(folder, name, f"{name}")
        case |= {"subject_id": f"p{number // 2}"} | {key: values[number] for key, values in columns.items()}
        cases.append(case)
    content = {"name": "Made up", "numTraining": count, "test": ["./imagesTs/t.nii.gz"]}
    content |= {"training": cases[2:], "validation": cases[:2]}
    put(folder, "dataset.json", json.dumps(content))
    return folder / "dataset.json"


def sites_of(out):
    return {
        path.name: json.loads((path / "dataset.json").read_text()) for path in sorted(out.iterdir()) if path.is_dir()
    }


def test_each_case_is_at_one_site_with_links_to_its_files(tmp_path):
    source = decathlon(tmp_path / "pool")
    counts = partition_cases(source, tmp_path / "out", PartitionPlan("iid", 3), iid)
    sites = sites_of(tmp_path / "out")
    assert list(sites) == ["site-01", "site-02", "site-03"] == list(counts)
    content = json.loads(source.read_text())
    for section in ("training", "validation"):
        dealt = [case for site in sites.values() for case in site[section]]
        assert sorted(case["image"] for case in dealt) == sorted(case["image"] for case in content[section])
    for name, site in sites.items():
        assert site["name"] == "Made up"
        assert site["test"] == []
        assert counts[name] == {"training": len(site["training"]), "validation": len(site["validation"])}
        files = [path for path in (tmp_path / "out" / name).rglob("*") if not path.is_dir() and path.suffix != ".json"]
        assert all(path.is_symlink() for path in files)
        named = {case[key] for part in ("training", "validation") for case in site[part] for key in ("image", "label")}
        assert {path.read_text() for path in files} == named
        patients = {case["subject_id"] for part in ("training", "validation") for case in site[part]}
        others = [case["subject_id"] for other in sites if other != name for case in sites[other]["training"]]
        assert not patients & set(others)


def test_the_links_stay_right_when_both_folders_move(tmp_path):
    source = decathlon(tmp_path / "all" / "pool")
    partition_cases(source, tmp_path / "all" / "out", PartitionPlan("iid", 2), iid)
    (tmp_path / "all").rename(tmp_path / "moved")
    links = list((tmp_path / "moved" / "out").rglob("*.nii.gz"))
    assert len(links) == 24
    assert all(path.exists() and not Path(path.readlink()).is_absolute() for path in links)


def test_cases_that_share_a_file_stay_together_over_sections(tmp_path):
    for name in "abcd":
        put(tmp_path, f"pool/{name}.nii", name)
    cases = [{"image": ["a.nii", "b.nii"]}, {"image": ["./c.nii", "./a.nii"]}, {"image": ["d.nii"]}]
    put(tmp_path, "pool/dataset.json", json.dumps({"training": cases[:1], "validation": cases[1:]}))
    partition_cases(tmp_path / "pool" / "dataset.json", tmp_path / "out", PartitionPlan("iid", 2), iid)
    together = [site for site in sites_of(tmp_path / "out").values() if site["training"]]
    assert [site["validation"] for site in together] == [cases[1:2]]


def test_sites_by_a_column_and_by_dirichlet_draws(tmp_path):
    hospitals = ["North"] * 6 + ["South"] * 6
    source = decathlon(tmp_path / "pool", hospital=hospitals)
    counts = partition_cases(source, tmp_path / "out", PartitionPlan("by_site", column="hospital"), by_site)
    assert counts == {"North": {"training": 4, "validation": 2}, "South": {"training": 6, "validation": 0}}
    with refused(SettingsError, "missing_label", scheme="dirichlet_class"):
        partition_cases(source, tmp_path / "more", PartitionPlan("dirichlet_class", 2), dirichlet_class)
    cases = [{"image": f"{number}.png", "label": number % 2} for number in range(40)]
    for case in cases:
        put(tmp_path, f"images/{case['image']}", "")
    put(tmp_path, "images/train.json", json.dumps({"training": cases}))
    plan = PartitionPlan("dirichlet_class", 2, options={"alpha": 0.1})
    counts = partition_cases(tmp_path / "images" / "train.json", tmp_path / "drawn", plan, dirichlet_class)
    assert sum(sections["training"] for sections in counts.values()) == 40
    again = partition_cases(tmp_path / "images" / "train.json", tmp_path / "again", plan, dirichlet_class)
    assert again == counts
    made = CasePartition.read(tmp_path / "drawn" / CasePartition.NAME)
    assert (made.case_list, made.scheme, made.options) == ("train.json", "dirichlet_class", {"alpha": 0.1})
    assert made.cases == counts


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("[", "invalid_json", {"cause": "JSONDecodeError"}),
        ("[]", "wrong_type", {"found": "list"}),
        ('{"training": []}', "no_cases", {}),
        ('{"training": [{"image": "Jane.nii"}]}', "no_listed_files", {}),
        (
            '{"training": [{"image": "a.nii"}, {"image": "Jane.nii"}]}',
            "missing_file",
            {"keys": ["image"], "missing": 1, "outside": 0},
        ),
        ('{"training": [{"image": "a.nii"}, {"image": "../Jane.nii"}]}', "missing_file", {"missing": 0, "outside": 1}),
    ],
)
def test_a_list_that_can_not_be_dealt_is_refused_without_a_patients_name(tmp_path, text, code, fields):
    put(tmp_path, "pool/a.nii", "")
    put(tmp_path, "Jane.nii", "")
    put(tmp_path, "pool/dataset.json", text)
    with refused(DataError, code, **fields) as error:
        partition_cases(tmp_path / "pool" / "dataset.json", tmp_path / "out", PartitionPlan("iid", 1), iid)
    assert "Jane" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_command_deals_a_list(tmp_path, capsys):
    source = decathlon(tmp_path / "pool")
    with pytest.raises(SystemExit) as end:
        main(["partition", str(source), "--out", str(tmp_path / "sites"), "--sites", "2"])
    assert not end.value.code
    assert "site-01: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["partition", str(source), "--out", str(tmp_path / "more"), "--val-fraction", "0.2", "--sites", "2"])
    assert end.value.code == 2
    assert "Expected the folder of a pooled data set with --val-fraction" in capsys.readouterr().err


def test_an_adopted_bundle_reads_the_dealt_lists(tmp_path):
    pytest.importorskip("medfl_adopt")
    from medfl_adopt.adopting import adopt
    from medfl_adopt.bundle import AdoptedBundle
    from medfl_adopt.site import AdoptedSite

    partition_cases(decathlon(tmp_path / "pool"), tmp_path / "sites", PartitionPlan("iid", 2), iid)
    adopt(zoo_shapes.spleen(tmp_path / "spleen"), tmp_path / "adopted")
    bundle = AdoptedBundle(tmp_path / "adopted")
    rows = [AdoptedSite(bundle, tmp_path / "sites" / f"site-0{n}", "s").lists()[0] for n in (1, 2)]
    assert sum(map(len, rows)) == 12
