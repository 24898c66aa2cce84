"""For all tests of faults: the toy methods beside this folder can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
