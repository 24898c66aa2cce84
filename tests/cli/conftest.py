"""For all tests of commands: the command line, and the made-up run folders of the tests of reports."""

from __future__ import annotations

import pytest

from medfl.cli.main import main


@pytest.fixture
def medfl(capsys):
    """Run the command line; gives its status, and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def medfl_command(capfd):
    """The same for what is printed past Python's own streams; the status is as it was given."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run
