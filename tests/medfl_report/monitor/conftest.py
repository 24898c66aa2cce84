"""The command line, for tests of `medfl monitor`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from medfl.cli.main import main


@pytest.fixture
def medfl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; gives its status, and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run
