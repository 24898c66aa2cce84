"""What FedTPF and FedFed refuse before a run begins, and what they warn of."""

import logging

from fedtpf_toys import server_of, tpf


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
