"""What FedTPF and FedFed refuse before a run begins, and what they warn of."""

import logging

import pytest
from fedtpf_toys import fed, server_of, tpf, with_scale
from refusals import refused

from medfl.errors import SettingsError
from medfl.task import Scale


@pytest.mark.parametrize(
    ("make", "args", "message"),
    [
        (tpf, {"variance": 0.0}, "variance"),
        (tpf, {"clip": 0.0}, "clip"),
        (fed, {"clip": -1.0}, "clip"),
        (fed, {"noise_std": (0.1, 0.0)}, "standard deviation in"),
        (fed, {"noise_std": ()}, "standard deviation in"),
        (tpf, {"share_fraction": 1.5}, "share_fraction"),
        (tpf, {"distil_rounds": 0}, "distil_rounds"),
        (tpf, {"decay": "slow"}, "decay"),
        (tpf, {"share": "x"}, "share"),
        (tpf, {"variance": float("inf")}, "variance"),
    ],
)
def test_impossible_settings_are_refused(make, args, message):
    with pytest.raises(ValueError, match=message):
        make(**args)


@pytest.mark.parametrize("make", [tpf, fed])
def test_images_that_no_generator_takes_are_refused_at_the_start(tmp_path, make):
    with refused(SettingsError, "image_too_small", minimum=4, found=[3, 3]):
        server_of(make(), tmp_path, task=with_scale(Scale((1, 3, 3))))
    with refused(SettingsError, "missing_scale"):
        server_of(make(), tmp_path, task=with_scale(None))


@pytest.mark.parametrize("latent", [4, 1])
def test_tp_03_a_latent_has_the_size_of_the_prototypes(tmp_path, latent):
    """Or nothing can be pulled: 4 numbers against 24 fail at the first site, and 1 is compared with each of the 24."""
    with refused(SettingsError, "setting_out_of_range", setting="latent", expected=24, found=latent):
        server_of(tpf(latent=latent), tmp_path)


def test_tp_03_where_nothing_is_pulled_the_latent_is_free(tmp_path):
    for args in ({"prototype": "none"}, {"prototype_weight": 0.0}, {"latent": 24}):
        assert server_of(tpf(**({"latent": 4} | args)), tmp_path).state.tensors


def test_a_run_without_a_second_stage_warns(tmp_path, caplog):
    server_of(tpf(distil_rounds=9), tmp_path)
    assert any("nothing will be shared" in line for line in caplog.messages)
    caplog.clear()
    server_of(tpf(distil_rounds=8), tmp_path)
    server_of(tpf(distil_rounds=9, share_fraction=0.0), tmp_path)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
