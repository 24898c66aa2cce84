"""``medfl list``, and features of all commands: quick start, and errors without a traceback."""

import subprocess
import sys
import types

import pytest
from refusals import refused

import medfl
from medfl.cli import main as cli
from medfl.cli.list import UNMET_NEEDS
from medfl.cli.run import check_method
from medfl.engine.needs import OBJECTIVE_NEEDS, unmet_objective_reason
from medfl.errors import PluginError, SettingsError
from medfl.hooks import CommandRecord
from medfl.objectives import Binary
from medfl.objectives.lookup import objective_class
from medfl.plugins import load_plugins

PLUGIN = """
from medfl.plugins import MethodRecord, hookimpl

@hookimpl
def medfl_methods():
    return [MethodRecord("{name}", "a:B", "personal", "Doe, 2030", {sends}, summary="[bold]not markup[/bold]")]
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    monkeypatch.delenv("MEDFL_DISABLE", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def command(monkeypatch):
    """Register a function as the command ``try``."""

    def register(function):
        module = types.ModuleType("medfl_command_of_a_test")
        module.command = function
        monkeypatch.setitem(sys.modules, module.__name__, module)
        record = CommandRecord("try", f"{module.__name__}:command", "A command of a test.")
        monkeypatch.setattr(cli, "CORE_COMMANDS", (*cli.CORE_COMMANDS, record))

    return register


# ---- the list


def words(text: str) -> str:
    """Return a text with single spaces, without the layout of a table."""
    return " ".join(text.split())


def test_methods_are_listed_with_what_they_send(medfl_command):
    code, out, err = medfl_command("list", "methods", "--long")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line[1:2].strip()}
    assert "nothing" in rows["local"]
    assert "yes" in rows["local"]
    assert "model/ update" in rows["fedprox"]
    assert " no " in rows["fedprox"]
    assert "global model averaging; Li et al., MLSys 2020 " in words(out)
    assert "pooled" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("columns", ["80", "120", "500"])
def test_the_short_list_has_a_line_for_each_method(medfl_command, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = medfl_command("list", "methods")
    assert (code, err) == (0, "")
    methods = load_plugins().methods
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")].count("fedprox") == 1
    assert sorted(line.split()[0] for line in out.splitlines() if line.startswith("  ")) == sorted(methods)
    assert max(map(len, out.splitlines())) <= min(int(columns), 120)
    if columns != "80":
        assert all(record.summary in out for record in methods.values()), "a summary is cut in 120 columns"


def test_methods_are_filtered_by_text_and_task(medfl_command):
    def names(*filters):
        _, out, _ = medfl_command("list", "methods", *filters)
        return {line.split()[0] for line in out.splitlines() if line.startswith("  ")}

    assert "fedprox" in names("--search", "PROXIMAL")
    assert "fedavg" not in names("--search", "PROXIMAL")
    assert "fedprox" in names("--search", "mlsys 2020"), "the paper is searched, too"
    assert names("--search", "no such method") == set()
    assert {"fedavg", "fedproto"} <= names("--task", "classification")
    assert names("--task", "segmentation") < names("--task", "multiclass")
    assert "fedproto" not in names("--task", "segmentation")
    assert medfl_command("list", "networks", "--search", "cnn")[0] == 2


@pytest.mark.parametrize("name", sorted(UNMET_NEEDS.keys() - {"classification"}))
def test_the_filter_by_task_agrees_with_the_objectives(name):
    objective = Binary() if name == "binary" else objective_class(name).example()  # one logit, the default
    unmet = {need for need in OBJECTIVE_NEEDS if unmet_objective_reason(need, objective)}
    assert UNMET_NEEDS[name] & OBJECTIVE_NEEDS == unmet


@pytest.mark.parametrize(("kind", "name"), [("networks", "cnn4"), ("partitions", "dirichlet_class_balanced")])
def test_networks_and_partitions_are_listed_with_their_plugin(medfl_command, kind, name):
    code, out, _ = medfl_command("list", kind)
    assert code == 0
    assert f" {name} medfl_builtin " in words(out)
    assert "fedavg" not in out


def test_sections_of_the_report_are_listed_in_the_order_of_the_page(medfl_command):
    pytest.importorskip("medfl_report")
    code, out, _ = medfl_command("list", "sections")
    assert code == 0
    assert " heads medfl_methods Assignment of heads " in words(out)
    places = [out.index(f" {name} ") for name in ("gains", "clusters", "teachers", "privacy", "curves")]
    assert places == sorted(places)


def test_without_a_kind_all_are_listed(medfl_command):
    _, out, _ = medfl_command("list")
    assert all(name in out for name in ("fedavg", "cnn4", "iid", "Assignment of heads", "medmnist_classification"))


def test_bundles_are_listed_with_their_task_and_folder(medfl_command):
    code, out, _ = medfl_command("list", "bundles")
    assert code == 0
    text = "".join(line.strip() for line in out.splitlines())  # a long path is folded
    assert " medmnist_classification Classification of small medical images" in words(out)
    assert "/bundles/medmnist_classification" in text
    assert "fedavg" not in out


def test_a_narrow_terminal_does_not_squeeze_the_table(medfl_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert " centralized model/ update " in words(medfl_command("list", "methods", "--long")[1])


def test_a_plugin_file_is_listed_and_its_text_is_no_markup(medfl_command, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN.format(name="mine", sends={"head/": "weights", "proto/": "statistic"}))
    _, out, _ = medfl_command("list", "methods", "--long", "--plugin", str(path))
    assert "head/ weights" in out
    assert "proto/ statistic" in out
    assert "[bold]" in out


def test_known_weights_are_listed_with_licence_origin_and_package(medfl_command, tmp_path):
    path = tmp_path / "tiny.py"
    fields = {"title": "Tiny encoder", "licence": "CC0-1.0", "source": "Made up.", "install": "pip install tiny"}
    fields |= {"name": "tiny_encoder", "sha256": "0123456789ab" + "c" * 52, "network": "a.B", "target": "a:b"}
    path.write_text(
        "from medfl.plugins import PretrainedWeightsRecord, hookimpl\n\n\n@hookimpl\ndef medfl_pretrained_weights():\n"
        f"    return [PretrainedWeightsRecord(**{fields!r}, mean=(0.5,), std=(0.5,))]\n"
    )
    code, out, _ = medfl_command("list", "weights", "--plugin", str(path))
    assert code == 0
    expected = ["tiny_encoder", *(fields[name] for name in ("title", "licence", "source", "install")), "0123456789ab"]
    assert all(text in words(out) for text in expected)
    path.write_text(path.read_text().replace("0123456789ab", "0"))
    _, out, err = medfl_command("list", "weights", "--plugin", str(path))
    assert "tiny_encoder" not in out
    assert "64 hexadecimal digits" in err


def test_known_weights_say_whether_this_machine_has_their_file(medfl_command, tmp_path, monkeypatch):
    (tmp_path / "tiny_weights.py").write_text(
        "from pathlib import Path\n\nfrom medfl.errors import SettingsError\n\n\n"
        "def present():\n    return Path(__file__)\n\n\n"
        "def absent():\n    raise SettingsError('missing_weights', 'not installed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    fields = {"title": "T", "licence": "L", "source": "S", "install": "I", "sha256": "0" * 64, "network": "a.B"}
    path = tmp_path / "tiny.py"
    path.write_text(
        "from medfl.plugins import PretrainedWeightsRecord, hookimpl\n\n\n@hookimpl\ndef medfl_pretrained_weights():\n"
        "    return [PretrainedWeightsRecord(name=n, target=f'tiny_weights:{n}', mean=(0.5,), std=(0.5,), "
        f"**{fields!r}) for n in ('present', 'absent')]\n"
    )
    _, out, _ = medfl_command("list", "weights", "--plugin", str(path))
    here = {
        line.split()[0]: line.split()[1] for line in out.splitlines() if line.split()[:1] in (["present"], ["absent"])
    }
    assert here == {"present": "yes", "absent": "no"}


def test_problems_of_plugins_are_warnings_on_stderr(medfl_command, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_at_all")
    code, out, err = medfl_command("list", "methods", "--plugin", str(path))
    assert code == 0
    assert "fedavg" in out
    assert "no_such_module_at_all" not in out
    assert err.startswith("warning: Plugin 'broken'")
    assert medfl_command("list", "methods", "--plugin", str(path), "--no-plugin", "broken")[2] == ""


def test_a_plugin_can_be_left_out(medfl_command):
    _, out, _ = medfl_command("list", "--no-plugin", "medfl_methods")
    assert "fedavg" not in out
    assert "cnn4" in out


# ---- the command line itself


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "methods", "--task", "survival"], ["list", "--help"], ["--version"]]
)
def test_what_only_looks_imports_neither_torch_nor_monai(arguments):
    code = (
        "import sys\nfrom medfl.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as ended:\n    assert ended.code == 0, ended.code\n"
        "print('heavy:', sorted({'torch', 'monai', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_a_refused_name_of_a_method_imports_neither_torch_nor_monai(tmp_path):
    code = (
        "import sys\nfrom medfl.cli.main import main\n"
        f"words = ['run', 'medmnist_classification', '--dataset-dir', {str(tmp_path)!r}, '--method', 'fedporx']\n"
        "try:\n    main(words)\nexcept SystemExit as ended:\n    assert ended.code == 2, ended.code\n"
        "print('heavy:', sorted({'torch', 'monai', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Unknown method 'fedporx'. Did you mean 'fedprox'?" in done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_a_method_that_only_the_run_can_know_is_left_to_it(tmp_path):
    configs = tmp_path / "configs"
    configs.mkdir()
    check_method(tmp_path, {"method": "fedporx"})  # there is no configuration yet
    (configs / "federate.json").write_text('{"method": "fedavg", "plugins": [], "disabled_plugins": []}')
    check_method(tmp_path, {})
    check_method(tmp_path, {"method": "$'fed' + 'avg'"})
    check_method(tmp_path, {"method": "mine", "plugins": ["mine.py"]})
    with refused(PluginError, "unknown_choice", what="method", choice="mine"):
        check_method(tmp_path, {"method": "mine"})
    with refused(PluginError, "unknown_choice", what="method", choice="fedavg"):
        check_method(tmp_path, {"disabled_plugins": ["medfl_methods"]})


def test_help_names_every_command(medfl_command):
    code, out, _ = medfl_command("--help")
    assert code == 0
    for name, record in cli.all_commands().items():
        assert f"  {name} " in out
        assert record.summary in out, "a help line is cut in 80 columns"


def test_version(medfl_command):
    assert medfl_command("--version") == (0, f"medfl {medfl.__version__}\n", "")


def test_an_unknown_command_comes_with_the_nearest(medfl_command):
    code, _, err = medfl_command("lst")
    assert code == 2
    assert "Did you mean 'list'" in err


def test_the_help_of_a_command_is_its_docstring_for_users(medfl_command, command):
    def function(count: int = 1) -> None:
        """Do it.

        Args:
            count: For programmers.
        """

    command(function)
    _, out, _ = medfl_command("try", "--help")
    assert "Usage: medfl try" in out
    assert "Do it." in out
    assert "For programmers" not in out


def test_a_command_gets_its_options_and_succeeds(medfl_command, command):
    seen = []
    command(lambda: seen.append("called"))
    assert medfl_command("try")[0] == 0
    assert seen == ["called"]


def fail_for_the_user():
    raise SettingsError("wrong_value", "expected a, got b")


def fail_unexpectedly():
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("function", "code", "line"),
    [
        (fail_for_the_user, 2, "error: expected a, got b"),
        (fail_unexpectedly, 1, "unexpected error: ZeroDivisionError: by zero"),
    ],
)
def test_an_error_is_one_line_and_a_traceback_on_demand(medfl_command, command, function, code, line):
    command(function)
    status, out, err = medfl_command("try")
    assert (status, out) == (code, "")
    assert err.startswith(line)
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    for arguments in (["--debug", "try"], ["try", "--debug"]):
        status, _, err = medfl_command(*arguments)
        assert status == code
        assert "Traceback" in err
        assert function.__name__ in err
        assert err.splitlines()[-1] == line


def test_an_interruption_says_how_to_continue(medfl_command, command):
    def interrupted() -> None:
        raise KeyboardInterrupt

    command(interrupted)
    assert medfl_command("try") == (130, "", "stopped; give the same command again\n")
