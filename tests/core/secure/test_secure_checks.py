"""Which methods and settings go with secure aggregation; the others are refused by name, with what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medfl.core.checks import check_plan
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, bits, make_task

REGISTRY = load_plugins()
SITES = ("site-1", "site-2", "site-3")


def check(method: str, args: dict[str, Any] | None = None, **more: Any) -> None:
    values = {"rounds": 1, "norm_sync": "params", "steps": 1, "secure_aggregation": {"threshold": 2}}
    settings = Settings.model_validate(values | more)
    check_plan(method, REGISTRY.make_method(method, args or {}), make_task("plain"), settings, SITES, True)


ACCEPTED = {
    *("apfl", "ditto", "fedadagrad", "fedadam", "fedavg", "fedavgm", "fedbabu", "fedbn", "feddyn", "feddr_plus"),
    *("fedntd", "fedper", "fedprox", "fedrep", "fedrod", "fedyogi", "fenda", "flash", "lg_fedavg", "moon", "mr_mtl"),
    *("per_fedavg", "perfcl", "pfedme", "scaffold", "gpfl", "fedala"),
}
REFUSED = {
    "centralized": "it has the data themselves",
    "fedcross": "sites send their models to each other",
    "fedmd": "no updates",
    "feddisco": "it weighs replies by what sites say",
    "local": "sites send nothing, and no updates",
}


def test_every_method_is_accepted_or_refused_by_name() -> None:
    refused = {}
    for name in REGISTRY.methods:
        try:
            check(name)
        except SettingsError as error:
            refused[name] = str(error)
    assert {*REGISTRY.methods} - refused.keys() == ACCEPTED
    for name, words in refused.items():
        assert f"ethod '{name}'" in words
        assert words.endswith("leave 'secure_aggregation' out.")


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_said(name: str) -> None:
    with pytest.raises(SettingsError, match=REFUSED[name]):
        check(name)


def test_a_setting_of_a_method_decides() -> None:
    check("fedper")
    with pytest.raises(SettingsError, match=r"'head/' \(|several means"):
        check("fedper", {"global_head": "average"})


PRIVACY = {"epsilon": 5.0, "clip": 1.0}
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "robust": ({"robust": {"rule": "median"}}, "'median' compares the updates of single sites"),
    "bits": ({"compression": {"bits": 8}}, "numbers of unlike scales have no sum"),
    "attackers": ({"poison": {"attack": "sign_flip", "sites": ["site-1"]}}, "'poison' changes replies"),
    "images": ({"privacy": PRIVACY | {"unit": "sample"}}, "unit 'sample' adds each site's own noise"),
    "clip": (
        {"privacy": PRIVACY, "secure_aggregation": {"threshold": 2, "clip": 2.0}},
        "'secure_aggregation.clip' is 2 and 'privacy.clip' 1",
    ),
    "few": (
        {"secure_aggregation": {"threshold": 4}},
        "threshold' is 4, and 3 of the run's 3 sites take part in a round: expected 2 to 3",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_settings_that_contradict_it_are_refused(case: str) -> None:
    settings, words = CONTRADICTIONS[case]
    with pytest.raises(SettingsError, match=words):
        check("fedavg", **settings)


@pytest.mark.parametrize(("sites", "expected"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (10, 7)])
def test_the_default_threshold_is_the_smallest_above_two_thirds(sites: int, expected: int) -> None:
    settings = Settings.model_validate({"rounds": 1, "secure_aggregation": {}}).for_sites(sites)
    assert settings.secure_aggregation is not None
    assert settings.secure_aggregation.threshold == expected
    half = Settings.model_validate({"rounds": 1, "fraction": 0.5, "secure_aggregation": {}}).for_sites(2 * sites)
    assert half.secure_aggregation == settings.secure_aggregation


@pytest.mark.parametrize(("count", "threshold", "fraction"), [(4, 2, 1.0), (5, 2, 1.0), (10, 5, 1.0), (10, 2, 0.5)])
def test_half_of_the_participants_is_no_threshold(count: int, threshold: int, fraction: float) -> None:
    names = [f"site-{number}" for number in range(count)]
    for value, possible in ((threshold, False), (threshold + 1, True)):
        settings = Settings.model_validate(
            {"rounds": 1, "norm_sync": "params", "fraction": fraction, "secure_aggregation": {"threshold": value}}
        )
        parts = (REGISTRY.make_method("fedavg", {}), make_task("plain"), settings, names, True)
        if possible:
            check_plan("fedavg", *parts)
            continue
        with pytest.raises(SettingsError, match=f"threshold' is {value}.*could have two halves"):
            check_plan("fedavg", *parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_an_accepted_method_ends_where_the_plain_run_does(name: str, tmp_path: Path) -> None:
    """Within the rounding, which optimisers of a server that divide by small numbers make larger."""
    case = Case(REGISTRY, name, {}, {"rounds": 2, "norm_sync": "params", "steps": 2, "moments": ["aggregated"]})
    task = {"task": make_task("plain")}
    left, right = (
        bits(case.run(tmp_path / str(number), secure_aggregation=secure, **task))
        for number, secure in enumerate((None, {"threshold": 2}))
    )
    assert left.keys() == right.keys()
    far = [float((left[k][n].double() - right[k][n].double()).abs().max()) for k in left for n in left[k]]
    assert max(far) < (1e-2 if name in ("fedadam", "fedadagrad", "fedyogi", "flash") else 1e-3)
