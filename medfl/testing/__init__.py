"""The conformance suite: does a method keep the promises of `medfl.contract`?

In a test of your method::

    from medfl.testing import check_method

    def test_my_method_keeps_the_contract():
        check_method("my_method", plugins=["my_method.py"])

It runs dozens of tiny federations and takes seconds. `CHECKS` lists what is checked; `check_method` runs them all and
reports every failure at once.

Importing it hides GPUs from the process, unless they are in use already: the suite trains before it forks processes,
which torch can't where a GPU is in sight.
"""

import os

from medfl.testing import checks  # noqa: F401 - importing it fills CHECKS
from medfl.testing.suite import CHECKS, check_method

os.environ["CUDA_VISIBLE_DEVICES"] = ""

__all__ = ["CHECKS", "check_method"]
