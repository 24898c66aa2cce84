"""Lets the tests of faults import the toy methods beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
