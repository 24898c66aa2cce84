"""The page about threats names tests, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "threats.md"


def named() -> list[tuple[str, str]]:
    """File and test, or an empty text for a whole file, of each test that the page names."""
    return re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(named()) > 80
    for file, name in named():
        path = TESTS / file
        if file.startswith("medfl_") and not (TESTS / Path(file).parts[0]).exists():
            continue  # the package was deleted
        assert path.is_file(), file
        assert not name or re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE), (
            f"{file}::{name}"
        )


def test_every_attack_has_a_test_and_every_test_of_threats_is_on_the_page() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    attacks = [row for row in rows if not row.startswith(("| asset", "| ---"))]
    assert [row for row in attacks if not re.search(r"\w\.py", row)] == []
    assert [row for row in attacks if row.count("|") != 5] == []
    on_page = {file for file, _ in named()}
    own = {path.relative_to(TESTS).as_posix() for path in Path(__file__).parent.glob("test_*.py")}
    assert own - on_page == {Path(__file__).relative_to(TESTS).as_posix()}
