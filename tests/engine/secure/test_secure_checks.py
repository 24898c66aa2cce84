"""Test the methods and settings that are possible with secure aggregation, and the errors of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from medfl.engine.checks import check_plan
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
    "centralized": ("pooled_data", None),
    "fedcross": ("no_mean", None),
    "fedmd": ("no_updates", None),
    "feddisco": ("own_weights", None),
    "local": ("no_updates", {}),
}
"""Maps each refused method to the reason, and to the tensors that it sends if the test compares these."""


def test_every_method_is_accepted_or_refused_by_name() -> None:
    errors = {}
    for name in REGISTRY.methods:
        try:
            check(name)
        except SettingsError as error:
            errors[name] = error
    assert {*REGISTRY.methods} - errors.keys() == ACCEPTED
    for name, error in errors.items():
        assert error.code == "method_not_supported", f"{name}: {error}"
        assert (error.fields["feature"], error.fields["method"]) == ("secure_aggregation", name)
        assert str(error).endswith("leave 'secure_aggregation' out.")


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_said(name: str) -> None:
    cause, sends = REFUSED[name]
    feature = "secure_aggregation"
    with refused(SettingsError, "method_not_supported", feature=feature, method=name, cause=cause) as caught:
        check(name)
    assert sends is None or caught.value.fields["sends"] == sends


def test_a_setting_of_a_method_decides() -> None:
    check("fedper")
    with refused(SettingsError, "method_not_supported", feature="secure_aggregation", cause="several_means"):
        check("fedper", {"global_head": "average"})


PRIVACY = {"epsilon": 5.0, "clip": 1.0}
CONTRADICTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "robust": ({"robust": {"rule": "median"}}, ["robust", "secure_aggregation"]),
    "bits": ({"compression": {"bits": 8}}, ["compression", "secure_aggregation"]),
    "attackers": ({"adversaries": {"attack": "sign_flip", "sites": ["site-1"]}}, ["adversaries", "secure_aggregation"]),
    "images": ({"privacy": PRIVACY | {"unit": "sample"}}, ["privacy.unit", "secure_aggregation"]),
    "clip": (
        {"privacy": PRIVACY, "secure_aggregation": {"threshold": 2, "clip": 2.0}},
        ["privacy.clip", "secure_aggregation.clip"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_settings_that_contradict_it_are_refused(case: str) -> None:
    settings, names = CONTRADICTIONS[case]
    with refused(SettingsError, "incompatible_settings", settings=names):
        check("fedavg", **settings)


def test_a_threshold_above_the_number_of_participants_is_refused() -> None:
    fields = {"setting": "secure_aggregation.threshold", "found": 4, "minimum": 2, "maximum": 3}
    with refused(SettingsError, "setting_out_of_range", **fields):
        check("fedavg", secure_aggregation={"threshold": 4})


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
        with refused(
            SettingsError,
            "setting_out_of_range",
            setting="secure_aggregation.threshold",
            found=value,
            minimum=value + 1,
        ):
            check_plan("fedavg", *parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_an_accepted_method_ends_where_the_plain_run_does(name: str, tmp_path: Path) -> None:
    """Compare up to rounding errors, which server optimisers that divide by small numbers amplify."""
    case = Case(REGISTRY, name, {}, {"rounds": 2, "norm_sync": "params", "steps": 2, "moments": ["aggregated"]})
    task = {"task": make_task("plain")}
    left, right = (
        bits(case.run(tmp_path / str(number), secure_aggregation=secure, **task))
        for number, secure in enumerate((None, {"threshold": 2}))
    )
    assert left.keys() == right.keys()
    far = [float((left[k][n].double() - right[k][n].double()).abs().max()) for k in left for n in left[k]]
    assert max(far) < (1e-2 if name in ("fedadam", "fedadagrad", "fedyogi", "flash") else 1e-3)
