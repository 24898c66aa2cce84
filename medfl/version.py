"""Version and name of the installed project.

``__version__`` is the version of medfl.
"""

__version__ = "0.1.0"

DISTRIBUTION = "medfl-monai"
"""Name of this project on the Python package index, where `medfl` is another project (MEDfl)."""
