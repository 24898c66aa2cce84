"""Conformance suite: checks whether a method follows the contract in `medfl.contract`.

In a test of your method:

    from medfl.testing import check_method

    def test_my_method_keeps_the_contract():
        check_method("my_method", plugins=["my_method.py"])

It runs dozens of tiny federations in a few seconds. `CHECKS` has all checks; `check_method` runs them and reports all
failures.
"""

from medfl.testing import checks, dishonest_sites, objective_checks, schedule_checks  # noqa: F401 - importing them fills CHECKS
from medfl.testing.suite import CHECKS, check_method

__all__ = ["CHECKS", "check_method"]
