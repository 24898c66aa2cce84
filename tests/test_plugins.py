"""Tests of plugins: each kind of broken plugin is reported and does not affect others."""

import dataclasses
import importlib.metadata
import inspect
import logging
import subprocess
import sys
import textwrap

import pytest
from refusals import refused

from medfl import hooks
from medfl.contract import Method
from medfl.data.ingest.spec import DatasetSpec, ImageSpec
from medfl.errors import PluginError, SettingsError
from medfl.plugins import MethodRecord, load_plugins

HEAD = """
from typing import ClassVar
from medfl.plugins import MethodRecord, NetworkRecord, PartitionRecord, hookimpl
"""

METHOD = """
from medfl.toolkit.averaging import Averaging

class Toy(Averaging):
    supports = frozenset()
    presets: ClassVar[dict] = {"paper": {"mu": 0.5, "tau": 2.0}}
    mu: float = 0.1
    tau: float = 1.0

@hookimpl
def medfl_methods():
    return [MethodRecord("toy", f"{__name__}:Toy", "averaging", "", {"model/": "update"})]
"""

NETWORK = """
@hookimpl
def medfl_networks():
    return [NetworkRecord("net", f"{__name__}:Net")]

class Net: pass
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv("MEDFL_DISABLE", raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("medfl_plugin_"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    def write(name, *parts):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + "".join(textwrap.dedent(part) for part in parts))
        return path

    return write


def problem(registry, *words):
    """Check that exactly one problem contains all the words."""
    matching = [text for text in registry.problems if all(word in text for word in words)]
    assert len(matching) == 1, f"expected one problem with {words}, got {registry.problems}"
    return matching[0]


# ---- hooks


@pytest.mark.parametrize("name", hooks.HOOKS)
def test_every_hook_is_documented_with_its_exact_signature(name):
    function = getattr(hooks.Hooks, name)
    signature = str(inspect.signature(function)).replace("'", "").replace("(self, ", "(").replace("(self)", "()")
    assert f"\n    {name}{signature}\n" in hooks.__doc__
    assert function.__doc__


def test_the_documentation_names_no_hook_that_is_none():
    documented = [line.strip().split("(")[0] for line in hooks.__doc__.splitlines() if line.startswith("    medfl_")]
    assert documented == list(hooks.HOOKS)


# ---- what comes with medfl


def test_a_file_without_a_hook_is_named(write):
    (problem,) = load_plugins([write("mine", "class MyProx: pass\n")]).problems
    assert "Plugin 'mine' has no hook" in problem


def test_first_party_plugins_are_found_without_problems():
    registry = load_plugins()
    assert registry.problems == []
    assert {"centralized", "local", "fedavg", "fedprox", "fedbn"} <= set(registry.methods)
    assert {"cnn4"} <= set(registry.networks)
    assert {"iid", "dirichlet_class_balanced"} <= set(registry.partitions)


def test_the_list_of_methods_says_what_their_classes_do():
    registry = load_plugins()
    for name, record in registry.methods.items():
        kind = registry.method_class(name)
        assert dataclasses.replace(record, target="") == dataclasses.replace(MethodRecord.of(kind), target=""), name
        assert ("pooled_data" in kind.needs) == ("pooled" in record.summary), name


def test_the_list_of_data_sets_says_what_their_classes_do():
    registry = load_plugins()
    assert {"ham10000", "medmnist", "bloodcells", "folder"} <= set(registry.datasets)
    for name, record in registry.datasets.items():
        kind = registry.dataset(name)
        assert issubclass(kind, DatasetSpec)
        assert kind.dataset == name
        assert inspect.getdoc(kind).replace("\n", " ").startswith(record.summary)
        assert all(field.description for field in kind.model_fields.values()), name
        assert not issubclass(kind, ImageSpec) or kind.terms == record.licence
        assert callable(registry.synthetic(name)), "each has a synthetic release"


def test_a_data_set_without_a_made_up_release_is_reported(write):
    plugin = """
    from medfl.plugins import DatasetRecord

    @hookimpl
    def medfl_datasets():
        return [DatasetRecord("toy", f"{__name__}:Toy")]
    """
    with refused(PluginError, "missing_synthetic_release", dataset="toy"):
        load_plugins([write("mine", plugin)]).synthetic("toy")


def test_an_attack_on_runs_has_a_class_of_options_and_one_of_results(write):
    plugin = """
    from medfl.plugins import AttackRecord

    @hookimpl
    def medfl_attacks():
        return [
            AttackRecord("guess_it", f"{__name__}:Options", f"{__name__}:Results", {}),
            AttackRecord("without", f"{__name__}:Options", f"{__name__}:Resluts", {}),
        ]

    class Options: pass
    class Results: pass
    """
    registry = load_plugins([write("mine", plugin)])
    assert registry.attack_options("guess_it").__name__ == "Options"
    assert registry.attack_results("guess_it").__name__ == "Results"
    with refused(PluginError, "missing_attribute", plugin="mine", attribute="Resluts"):
        registry.attack_results("without")
    for look_up in (registry.attack_options, registry.attack_results):
        with refused(PluginError, "unknown_choice", what="attack", choice="gues_it") as caught:
            look_up("gues_it")
        assert "Did you mean 'guess_it'" in str(caught.value)


def test_loading_plugins_imports_nothing_heavy():
    code = (
        "import sys, medfl_methods, medfl_datasets, medfl.builtin;"
        "from medfl.plugins import load_plugins; load_plugins();"
        "print(sorted({'torch', 'monai', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- files


def test_a_file_becomes_a_plugin(write):
    registry = load_plugins([write("mine", METHOD, NETWORK)])
    assert registry.problems == []
    assert registry.methods["toy"].target == "medfl_plugin_mine:Toy"
    assert registry.plugins_listing("method", "toy") == ["mine"]
    assert registry.network("net").__name__ == "Net"
    assert sys.modules["medfl_plugin_mine"].Net is registry.network("net")


def test_two_registries_keep_their_own_file_of_the_same_name(tmp_path, write):
    first = load_plugins([write("mine", METHOD)])
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "mine.py"
    other.write_text(HEAD + METHOD.replace("mu: float = 0.1", "mu: float = 0.9"))
    second = load_plugins([other])
    assert (first.make_method("toy", {}).mu, second.make_method("toy", {}).mu) == (0.1, 0.9)


@pytest.mark.parametrize("name", ["absent.py", "plugin.txt"])
def test_a_file_that_is_no_plugin_file_is_refused(tmp_path, name):
    (tmp_path / "plugin.txt").write_text("")
    with refused(PluginError, "missing_file", path=str(tmp_path / name)):
        load_plugins([tmp_path / name])


def test_a_file_with_the_name_of_another_plugin_is_refused(write):
    path = write("medfl_methods", METHOD)
    with refused(PluginError, "duplicate_name", path=str(path), name="medfl_methods") as caught:
        load_plugins([path])
    assert caught.value.fields["origin"].startswith("medfl-monai ")


# ---- broken plugins


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("this is no python", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_plugin_that_fails_to_import_is_named_and_the_rest_continues(write, text, message):
    registry = load_plugins([write("broken", text), write("mine", METHOD)])
    assert "--no-plugin broken" in problem(registry, "'broken'", message)
    assert "fedavg" in registry.methods
    assert "toy" in registry.methods
    assert "medfl_plugin_broken" not in sys.modules


def test_the_error_for_an_unknown_method_names_plugins_that_failed(write):
    registry = load_plugins([write("broken", "import no_such_module_at_all")])
    with refused(PluginError, "unknown_choice", what="method", choice="toy") as caught:
        registry.method_class("toy")
    (text,) = caught.value.fields["problems"]
    assert "'broken'" in text
    assert "no_such_module_at_all" in text


def test_a_misspelt_hook_is_named_and_the_other_hooks_work(write):
    registry = load_plugins([write("mine", METHOD, "@hookimpl\ndef medfl_netwroks(): return []\n")])
    assert "Did you mean 'medfl_networks'?" in problem(registry, "'mine'", "'medfl_netwroks'")
    assert "toy" in registry.methods


def test_a_hook_without_its_mark_is_named(write):
    registry = load_plugins([write("mine", METHOD, "def medfl_networks(): return []\n")])
    problem(registry, "'mine'", "'medfl_networks' without @hookimpl")


def test_an_imported_helper_is_not_taken_for_a_misspelt_hook(write, tmp_path, monkeypatch):
    (tmp_path / "helpers.py").write_text("def medfl_version(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_plugins([write("mine", METHOD, "from helpers import medfl_version\n")]).problems == []


def test_a_hook_with_wrong_arguments_leaves_its_plugin_out(write):
    wrong = "@hookimpl\ndef medfl_round_ended(run_folder, rounds): pass\n"
    registry = load_plugins([write("wrong", METHOD, wrong), write("mine", NETWORK)])
    problem(registry, "'wrong'", "rounds", "not loaded")
    assert "toy" not in registry.methods
    assert "net" in registry.networks
    registry.notify("medfl_round_ended", run_folder="runs/a", round=1, rows=[])


def test_a_hook_that_raises_is_named_and_the_other_hooks_work(write):
    registry = load_plugins([write("mine", NETWORK, "@hookimpl\ndef medfl_methods(): raise OSError('no disk')\n")])
    problem(registry, "medfl_methods", "'mine'", "OSError: no disk")
    assert "net" in registry.networks


@pytest.mark.parametrize("item", ["'toy'", "NetworkRecord('toy', 'a:B')", "MethodRecord('toy', 'a.B', '', '', {})"])
def test_what_is_no_record_is_named_and_the_others_are_taken(write, item):
    text = f"good = MethodRecord('good', 'a:B', '', '', {{}})\n@hookimpl\ndef medfl_methods(): return [{item}, good]\n"
    registry = load_plugins([write("mine", text)])
    problem(registry, "medfl_methods", "'mine'", "MethodRecord", "toy")
    assert "good" in registry.methods


# ---- two plugins with one name


def test_an_ambiguous_name_is_an_error_only_when_it_is_used(write):
    registry = load_plugins([write("one", METHOD), write("two", METHOD)])
    with refused(PluginError, "ambiguous_name", what="method", name="toy", plugins=["one", "two"]) as caught:
        registry.method_class("toy")
    for text in (problem(registry, "'toy'"), str(caught.value)):
        assert "'one', 'two'" in text
        assert "--no-plugin two or MEDFL_DISABLE=two" in text
    assert "toy" not in registry.methods
    assert "fedavg" in registry.methods


def test_switching_one_off_settles_it(write):
    registry = load_plugins([write("one", METHOD), write("two", METHOD)], disabled=["two"])
    assert registry.problems == []
    assert registry.method_class("toy").__module__ == "medfl_plugin_one"


def test_a_plugin_that_lists_a_name_twice_is_named(write):
    registry = load_plugins(
        [write("mine", "@hookimpl\ndef medfl_networks(): return [NetworkRecord('net', 'a:B')] * 2\n")]
    )
    problem(registry, "'net'", "listed twice by plugin 'mine'")


def test_two_packages_with_one_plugin_name_are_named(tmp_path, monkeypatch):
    for package in ("dist_one", "dist_two"):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[medfl]\nsame = {package}\n")
        (tmp_path / f"{package}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(importlib.metadata.entry_points(group="medfl", name="same")) == 2
    registry = load_plugins()
    problem(registry, "'same'", "dist_one 1.0", "dist_two 1.0")
    assert registry.plugins["same"] == "dist_one 1.0"


# ---- switching off


def test_a_disabled_plugin_is_not_even_imported(write, tmp_path):
    path = write("loud", f"open({str(tmp_path / 'seen')!r}, 'w')\n")
    registry = load_plugins([path], disabled=["loud", "medfl_methods"])
    assert not (tmp_path / "seen").exists()
    assert registry.methods == {}


def test_the_environment_disables_too(monkeypatch):
    monkeypatch.setenv("MEDFL_DISABLE", " medfl_methods, ,")
    registry = load_plugins()
    assert registry.methods == {}
    assert "cnn4" in registry.networks


def test_an_unknown_disabled_name_is_an_error(monkeypatch):
    with refused(PluginError, "unknown_choice", what="plugin", choice="medfl_method"):
        load_plugins(disabled=["medfl_method"])
    monkeypatch.setenv("MEDFL_DISABLE", "medfl_builtins")
    with refused(PluginError, "unknown_choice", what="plugin", choice="medfl_builtins") as caught:
        load_plugins()
    assert "(disabled by MEDFL_DISABLE)" in str(caught.value)


# ---- looking names up


@pytest.mark.parametrize(
    ("look_up", "typo", "meant"),
    [("method_class", "fedavgg", "fedavg"), ("network", "cnn5", "cnn4"), ("partition", "idd", "iid")],
)
def test_an_unknown_name_comes_with_the_nearest(look_up, typo, meant):
    with refused(PluginError, "unknown_choice", choice=typo) as caught:
        getattr(load_plugins(), look_up)(typo)
    assert f"'{typo}'. Did you mean '{meant}'" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "code", "fields"),
    [
        ("no_such_module_at_all:Net", "failed_import", {"cause": "ModuleNotFoundError"}),
        ("medfl.errors:MedflEror", "missing_attribute", {"attribute": "MedflEror"}),
    ],
)
def test_a_target_that_is_not_there_is_an_error_on_use_only(write, target, code, fields):
    text = f"@hookimpl\ndef medfl_networks(): return [NetworkRecord('net', {target!r})]\n"
    registry = load_plugins([write("mine", text)])
    assert registry.problems == []
    with refused(PluginError, code, target=target, plugin="mine", **fields) as caught:
        registry.network("net")
    assert "network 'net' of plugin 'mine'" in str(caught.value)


# ---- making a method


@pytest.mark.parametrize(
    ("args", "mu", "tau"),
    [
        ({}, 0.1, 1.0),
        ({"mu": 3}, 3.0, 1.0),
        ({"preset": "paper"}, 0.5, 2.0),
        ({"preset": "paper", "mu": 3}, 3.0, 2.0),
        ({"preset": None}, 0.1, 1.0),
    ],
)
def test_settings_win_over_a_preset_and_it_over_the_defaults(write, args, mu, tau):
    unchanged = dict(args)
    method = load_plugins([write("mine", METHOD)]).make_method("toy", args)
    assert (method.mu, method.tau) == (mu, tau)
    assert args == unchanged, "the caller's settings were changed"


@pytest.mark.parametrize(
    ("args", "code", "fields"),
    [
        ({"preset": "papre"}, "unknown_choice", {"what": "preset", "choice": "papre", "method": "toy"}),
        ({"preset": ["paper"]}, "unknown_choice", {"what": "preset", "choice": "['paper']", "method": "toy"}),
        ({"muu": 1}, "unknown_setting", {"where": "method 'toy'", "settings": ["muu"]}),
    ],
)
def test_unknown_settings_and_presets_are_refused(write, args, code, fields):
    with refused(SettingsError, code, **fields):
        load_plugins([write("mine", METHOD)]).make_method("toy", args)


def test_a_method_that_is_no_model_of_settings_is_refused(write):
    text = "@hookimpl\ndef medfl_methods(): return [MethodRecord('bad', 'builtins:dict', '', '', {})]\n"
    with refused(PluginError, "wrong_type", method="bad", found="<class 'dict'>"):
        load_plugins([write("mine", text)]).make_method("bad", {})


OWN = """
from pydantic import BaseModel, ConfigDict

class Own(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    gradient_clip: float | None = None
    def plan(self, server): ...

class Heir(Own): pass

@hookimpl
def medfl_methods(): return [MethodRecord(name.lower(), f"{__name__}:{name}", "", "", {}) for name in ("Own", "Heir")]

"""


def test_an_error_lists_all_that_a_method_without_the_toolkit_lacks(write):
    """The message does not list members that the class has: fields, functions, and members of every pydantic model."""
    with refused(PluginError, "missing_members", method="own") as caught:
        load_plugins([write("mine", OWN)]).make_method("own", {})
    assert set(caught.value.fields["members"]) == set(hooks.METHOD_MEMBERS) - {"gradient_clip", "plan", "model_dump"}


def test_a_method_declares_itself_what_it_supports(write):
    rest = "".join(f"setattr(Own, {name!r}, None)\n" for name in hooks.METHOD_MEMBERS)
    registry = load_plugins([write("mine", OWN, rest)])
    assert registry.method_class("own").supports is None
    with refused(PluginError, "missing_members", method="heir", members=["supports"]) as caught:
        registry.method_class("heir")
    assert "supports = frozenset()" in str(caught.value)


def test_what_is_asked_of_methods_is_what_the_contract_names():
    named = {name for name in vars(Method) if not name.startswith("_")} | set(Method.__annotations__)
    assert named == set(hooks.METHOD_MEMBERS)
    assert len(hooks.METHOD_MEMBERS) == len(named)


# ---- observing


def test_observers_get_copies_and_may_take_fewer_arguments(write):
    registry = load_plugins(
        [write("eyes", "seen = []\n@hookimpl\ndef medfl_round_ended(rows):\n    seen.append(rows)\n")]
    )
    rows = [{"round": 1, "value": 0.5}]
    registry.notify("medfl_round_ended", run_folder="runs/a", round=1, rows=rows)
    seen = sys.modules["medfl_plugin_eyes"].seen
    assert seen == [rows]
    seen[0][0]["value"] = 1.0
    assert rows[0]["value"] == 0.5


@pytest.mark.parametrize("failure", ["1 / 0", "raise SystemExit(1)"])
def test_an_observer_that_fails_is_logged_by_name_and_the_others_are_called(write, caplog, failure):
    bad = write("bad", f"@hookimpl\ndef medfl_run_ended(status): {failure}\n")
    good = "seen = []\n@hookimpl\ndef medfl_run_ended(run_folder, status): seen.append((run_folder, status))\n"
    registry = load_plugins([write("a_good", good), bad, write("z_good", good)])
    with caplog.at_level(logging.WARNING):
        registry.notify("medfl_run_ended", run_folder="runs/a", status="finished")
    assert "Plugin 'bad' failed in medfl_run_ended" in caplog.text
    for name in ("a_good", "z_good"):
        assert sys.modules[f"medfl_plugin_{name}"].seen == [("runs/a", "finished")]
