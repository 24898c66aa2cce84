"""The conformance suite: does a method keep the promises of `medfl.contract`?

In a test of your method::

    from medfl.testing import check_method

    def test_my_method_keeps_the_contract():
        check_method("my_method", plugins=["my_method.py"])

It runs dozens of tiny federations and takes seconds. `CHECKS` lists what is checked; `check_method` runs them all and
reports every failure at once.
"""

from medfl.testing import checks, dishonest, objective_checks, schedules  # noqa: F401 - importing them fills CHECKS
from medfl.testing.suite import CHECKS, check_method

__all__ = ["CHECKS", "check_method"]
