"""For all tests of commands: the made-up run folders of the tests of reports can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
