"""medfl: federated learning on medical images.

Start with `medfl.contract`, the one file between a method and whatever carries its messages. This package imports
nothing on its own, so that `medfl --help` is quick: import what you need from its modules.
"""

__version__ = "0.1.0"

DISTRIBUTION = "medfl-monai"
"""Name of this project on the Python package index, where `medfl` is another project (MEDfl)."""
