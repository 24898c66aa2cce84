"""Test the messages that leave a site: declared names, finite numbers, and updates as the settings say."""

import math

import pytest
import torch
from refusals import refused

from medfl.contract import Capability
from medfl.engine.filters import CODEC_KEY, Filters, check_method, decode
from medfl.engine.quantization import dequantise, quantise
from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.privacy.gaussian import calibrate, clip_by_norm, l2_norm
from medfl.settings import Compression, Privacy, Settings
from medfl.utils import wire
from medfl.utils.metadata import Count, MetaField, Number
from medfl.utils.rng import SecretStream

SENDS = {"model/": "update", "model/head/": "weights", "proto/": "statistic"}
UPDATES = {"model/": "update"}
TELLS = {"loss": MetaField("public", Number), "size": MetaField("private", Count)}
PRIVATE = Privacy(epsilon=5.0, clip=2.5)


def run(**values) -> Settings:
    return Settings(rounds=20, **values)


def stream(payload: str, secret: bytes = b"secret of site a", round_: int = 1) -> SecretStream:
    return SecretStream(secret, "run", round_, "noise", payload)


def leave(tensors, meta=None, sends=UPDATES, site="a", streams=stream, releases=20, **values):
    filters = Filters(sends, TELLS, run(**values), releases)
    return filters.outgoing(tensors, meta or {}, site=site, stream_factory=streams)


def update(**more) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return {"model/w": torch.randn(30, 7, generator=g), "model/b": torch.randn((), generator=g), **more}


# ---- names


def test_what_is_declared_passes_unchanged():
    tensors = {"model/w": torch.randn(3), "model/head/w": torch.ones(2), "proto/3": torch.arange(4)}
    sent, meta = leave(tensors, {"loss": 0.5, "size": 9}, sends=SENDS)
    assert sorted(sent) == sorted(tensors)
    assert all(torch.equal(sent[name], tensors[name]) for name in tensors)
    assert meta == {"loss": 0.5, "size": 9}


@pytest.mark.parametrize("name", ["images/0", "mode/w", "modelw", "xmodel/w"])
def test_an_undeclared_tensor_is_named(name):
    with refused(ContractError, "undeclared_tensor", tensor=name, declared=list(SENDS)):
        leave({"model/w": torch.ones(1), name: torch.ones(1)}, sends=SENDS)


@pytest.mark.parametrize("key", ["patients", CODEC_KEY])
def test_an_undeclared_meta_key_is_named(key):
    with refused(ContractError, "undeclared_metadata", key=key, declared=list(TELLS)):
        leave(update(), {"loss": 1.0, key: 3})


def test_codec_is_never_a_methods_own_key():
    filters = Filters(UPDATES, {CODEC_KEY: MetaField("public", Number)}, run(), 1)
    with refused(ContractError, "undeclared_metadata", key=CODEC_KEY):
        filters.outgoing(update(), {CODEC_KEY: {}}, site="a", stream_factory=stream)


def test_the_longest_prefix_decides_the_kind():
    sent, meta = leave(
        {"model/w": torch.randn(9), "model/head/w": torch.randn(9)}, sends=SENDS, compression=Compression(bits=8)
    )
    assert sent["model/w"].dtype == torch.uint8
    assert sent["model/head/w"].dtype == torch.float32
    assert list(meta[CODEC_KEY]["tensors"]) == ["model/w"]


# ---- finite and bounded


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model/w", "model/head/w", "proto/1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_finite_is_refused_whatever_its_kind(bad, name, dtype):
    tensors = {"model/a": torch.ones(2), name: torch.tensor([0.0, bad]).to(dtype)}
    with refused(RefusedError, "not_finite", site="north", tensor=name):
        leave(tensors, sends=SENDS, site="north")
    with refused(RefusedError, "not_finite", site="north", tensor=name):
        Filters(SENDS, TELLS, run(), 1).outgoing_peer_message(tensors, {}, site="north")


def test_norm_bound_goes_over_all_tensors_together():
    tensors = {"model/w": torch.tensor([3.0]), "proto/1": torch.tensor([4.0])}
    leave(tensors, sends=SENDS, norm_bound=5.0)
    with refused(RefusedError, "norm_too_large", found=5.0, maximum=4.9):
        leave(tensors, sends=SENDS, norm_bound=4.9)
    with refused(RefusedError, "norm_too_large", found=5.0, maximum=4.9):
        Filters(SENDS, TELLS, run(norm_bound=4.9), 1).outgoing_peer_message(tensors, {}, site="a")


def test_a_refusal_says_no_number_of_an_update_that_is_hidden():
    large = {"model/w": torch.tensor([3.0, 4.0])}
    leave(large, norm_bound=4.9, privacy=PRIVATE)  # whether a site refuses would be told, and the clip bounds it anyway
    overflow = {"model/w": torch.full((2,), 1.2e200, dtype=torch.float64)}
    not_finite = {"model/w": torch.tensor([math.nan])}
    for code, tensors in (("norm_overflow", overflow), ("not_finite", not_finite)):
        with refused(RefusedError, code) as refusal:
            leave(tensors, privacy=PRIVATE)
        assert not any(letter.isdigit() for letter in f"{refusal.value} {refusal.value.fields}")
    by_sample = Privacy(epsilon=5.0, clip=0.1, unit="sample")
    with refused(RefusedError, "norm_too_large", maximum=4.9):
        leave(large, norm_bound=4.9, privacy=by_sample)  # it is noised already


def test_a_norm_that_overflows_only_in_single_precision_leaves():
    empty, double = torch.ones(0), torch.ones(2, dtype=torch.float64)
    tensors = {"model/w": torch.full((2,), 1e30), "model/a": double, "model/b": empty}
    sent, _ = leave(tensors, sends=SENDS)
    assert wire.tensors_equal(sent, tensors)


def test_a_norm_that_overflows_is_refused():
    with refused(RefusedError, "norm_too_large", found=math.inf, maximum=None):
        leave({"model/w": torch.full((2,), 1e200, dtype=torch.float64)})


# ---- the input stays


def test_the_input_is_not_changed():
    tensors, meta = update(), {"loss": 1.0, "size": 3}
    before = wire.digest(tensors)
    leave(tensors, meta, privacy=PRIVATE, compression=Compression(bits=4))
    assert wire.digest(tensors) == before
    assert meta == {"loss": 1.0, "size": 3}


# ---- privacy


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("add_remove", 1.0), ("replace", 2.0)])
def test_noise_is_sigma_times_clip_for_the_adjacency_and_the_releases(adjacency, sensitivity):
    privacy = Privacy(epsilon=3.0, delta=1e-6, clip=0.5, adjacency=adjacency)
    sent, _ = leave({"model/w": torch.zeros(200_000)}, privacy=privacy, releases=7)
    expected = 0.5 * calibrate(3.0, 7, 1e-6, sensitivity)
    assert float(sent["model/w"].std()) == pytest.approx(expected, rel=0.01)


def test_what_leaves_is_the_clipped_update_plus_the_stream():
    tensors = {name: 100 * t for name, t in update().items()}
    assert l2_norm(tensors) > 2.5
    sent, _ = leave(tensors, privacy=PRIVATE)
    std = 2.5 * calibrate(5.0, 20, 1e-5, 2.0)
    noise = stream(wire.digest(tensors, {"clip": 2.5, "std": std}))
    clipped = clip_by_norm({name: t.double() for name, t in tensors.items()}, 2.5)
    for name in sorted(tensors):
        expected = (clipped[name] + std * noise.normal(tuple(tensors[name].shape))).float()
        assert torch.equal(sent[name], expected)


def test_same_payload_same_noise_and_otherwise_never():
    first, _ = leave(update(), {"loss": 1.0}, privacy=PRIVATE)
    again, _ = leave(dict(reversed(update().items())), {"loss": 2.0}, privacy=PRIVATE, seed=99)
    assert wire.digest(first) == wire.digest(again), "neither the run's seed nor meta nor the order of names matters"

    def noise(tensors, **more):
        return leave(tensors, privacy=PRIVATE, **more)[0]["model/w"] - tensors["model/w"]

    small = {name: t * 1e-3 for name, t in update().items()}
    nudged = small | {"model/b": small["model/b"] + 1e-6}
    draw = noise(small)
    for other in (
        noise(nudged),
        noise(small, streams=lambda payload: stream(payload, secret=b"secret of site b")),
        noise(small, streams=lambda payload: stream(payload, round_=2)),
    ):
        assert float((draw - other).abs().mean()) > 1.0


@pytest.mark.parametrize("other", [{"epsilon": 4.0, "clip": 2.5}, {"epsilon": 5.0, "clip": 2.0}])
def test_the_same_numbers_under_another_noise_get_other_noise(other):
    # of u + z and u + 2 z anyone could work out u
    small = {"model/w": 1e-9 * torch.ones(5000)}
    noises = [leave(small, privacy=privacy)[0]["model/w"] for privacy in (PRIVATE, Privacy(**other))]
    assert abs(float(torch.corrcoef(torch.stack(noises))[0, 1])) < 0.06


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_bits_come_after_the_noise_and_there_is_no_other_order(bits):
    noised, _ = leave(update(), privacy=PRIVATE)
    codes, codec = leave(update(), privacy=PRIVATE, compression=Compression(bits=bits))
    sent, _ = decode(codes, codec)
    for name, tensor in noised.items():
        assert torch.equal(sent[name], dequantise(*quantise(tensor, bits), bits)), "the range is that of the noised"
    for settings in (Privacy, Compression):
        assert not {"request", "before", "after"} & set(settings.model_fields)


def test_a_private_training_needs_no_noise_on_its_update():
    def never(payload):
        raise AssertionError("the noise is in the training")

    privacy = Privacy(epsilon=5.0, clip=0.1, unit="sample")
    sent, meta = leave(update(**{"model/n": torch.tensor(1)}), {"size": 3}, privacy=privacy, streams=never)
    assert meta == {}
    assert sorted(sent) == ["model/b", "model/w"]
    assert all(torch.equal(sent[name], tensor) for name, tensor in update().items())


def test_noise_of_tensors_is_independent():
    sent, _ = leave({"model/a": torch.zeros(50_000), "model/b": torch.zeros(50_000)}, privacy=PRIVATE)
    assert abs(float(torch.corrcoef(torch.stack([sent["model/a"], sent["model/b"]]))[0, 1])) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtype_and_shape_stay(dtype):
    sent, _ = leave(
        {"model/w": torch.zeros(3, 0, 2, dtype=dtype), "model/b": torch.ones(4, dtype=dtype)}, privacy=PRIVATE
    )
    assert sent["model/b"].dtype == dtype
    assert sent["model/w"].shape == (3, 0, 2)


def test_integers_and_private_meta_stay_at_the_site():
    tensors = update(**{"model/count": torch.tensor(7), "model/flag": torch.tensor(True)})
    sent, meta = leave(tensors, {"loss": 1.0, "size": 30}, privacy=PRIVATE)
    assert sorted(sent) == ["model/b", "model/w"]
    assert meta == {"loss": 1.0}


def test_without_privacy_integers_leave_unchanged():
    sent, meta = leave(update(**{"model/count": torch.tensor(7)}), {"size": 30}, compression=Compression(bits=4))
    assert sent["model/count"].dtype == torch.int64
    assert sent["model/count"] == 7
    assert meta["size"] == 30


def test_an_empty_reply_draws_no_noise():
    def never(payload):
        raise AssertionError("no noise is needed")

    assert leave({}, {"loss": 1.0}, privacy=PRIVATE, streams=never) == ({}, {"loss": 1.0})
    assert leave({"model/n": torch.tensor(1)}, privacy=PRIVATE, streams=never) == ({}, {})


def test_other_kinds_and_peer_messages_are_refused_at_the_site_too():
    with refused(RefusedError, "unprotected_payload", site="a", tensor="proto/1", payload="statistic"):
        leave({"model/w": torch.ones(1), "proto/1": torch.ones(1)}, sends=SENDS, privacy=PRIVATE)
    with refused(RefusedError, "unprotected_payload", site="a", payload="peer_message"):
        Filters(UPDATES, TELLS, run(privacy=PRIVATE), 1).outgoing_peer_message(update(), {}, site="a")


# ---- compression


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_decode_gives_floats_back(bits, dtype):
    tensors = {
        name: t.to(dtype)
        for name, t in update(**{"model/odd": torch.randn(5, 3), "model/none": torch.zeros(0, 2)}).items()
    }
    sent, meta = wire.decode(wire.encode(*leave(tensors, {"loss": 1.0}, compression=Compression(bits=bits))))
    back, plain = decode(sent, meta)
    assert plain == {"loss": 1.0}
    assert sorted(back) == sorted(tensors)
    for name, original in tensors.items():
        assert back[name].dtype == dtype
        assert back[name].shape == original.shape
        if original.numel():
            span = float(original.double().max() - original.double().min())
            error = float((back[name].double() - original.double()).abs().max())
            assert error <= span / (2 * (2**bits - 1)) + 0.01 * span * (dtype == torch.bfloat16) + 1e-6


def test_a_tensor_that_would_not_shrink_is_sent_as_it_is():
    tensors = {"model/h": torch.randn(5).half(), "model/w": torch.randn(5)}
    sent, meta = leave(tensors, compression=Compression(bits=16))
    assert torch.equal(sent["model/h"], tensors["model/h"])
    assert list(meta[CODEC_KEY]["tensors"]) == ["model/w"]
    assert torch.equal(decode(sent, meta)[0]["model/h"], tensors["model/h"])


def test_without_a_codec_decode_does_nothing():
    tensors, meta = update(), {"loss": 1.0}
    assert decode(tensors, meta) == (tensors, meta)


def test_peer_messages_are_never_quantised():
    posted, meta = Filters(UPDATES, TELLS, run(compression=Compression(bits=4)), 1).outgoing_peer_message(
        update(), {"loss": 1.0}, site="a"
    )
    assert torch.equal(posted["model/w"], update()["model/w"])
    assert meta == {"loss": 1.0}


@pytest.mark.parametrize(
    ("codec", "code"),
    [
        (None, "invalid_codec"),
        ({}, "invalid_codec"),
        ({"bits": 8, "tensors": {"absent": [0.0, 1.0, "float32", [1]]}}, "invalid_codec"),
        ({"bits": 8, "tensors": {"x": [0.0, 1.0, "float32", [4]]}}, "wrong_code_count"),
        ({"bits": 8, "tensors": {"x": [0.0, 1.0, "load", [3]]}}, "invalid_codec"),
        ({"bits": 8, "tensors": {"x": [0.0, 1.0]}}, "invalid_codec"),
        ({"bits": 99, "tensors": {"x": [0.0, 1.0, "float32", [3]]}}, "unsupported_bits"),
        ({"bits": 4, "tensors": {"x": [0.0, 1.0, "float32", [-3]]}}, "wrong_code_count"),
        ({"bits": "8", "tensors": {"x": [0.0, 1.0, "float32", [3]]}}, "invalid_codec"),
    ],
)
def test_a_codec_that_does_not_fit_is_a_broken_contract(codec, code):
    with refused(ContractError, code):
        decode({"x": torch.zeros(3, dtype=torch.uint8)}, {CODEC_KEY: codec})


# ---- at configuration time


class Updates:
    """Stand-in for a method, with the attributes that the filters read."""

    sends = {"model/": "update"}
    sends_meta: dict[str, MetaField] = {}
    supports: frozenset[Capability] = frozenset()
    needs: frozenset[str] = frozenset()


class Weights(Updates):
    sends = {"model/": "update", "head/": "weights"}


class Samples(Updates):
    sends = {"shared/": "samples"}


class Prototypes(Updates):
    sends = {"proto/": "statistic"}


class Circulating(Updates):
    supports = frozenset({Capability.PEER_MESSAGES})


class Pooled(Updates):
    needs = frozenset({"pooled_data"})


class Silent(Updates):
    sends: dict[str, str] = {}


@pytest.mark.parametrize(
    ("method", "name", "sends"),
    [
        (Weights, "Weights", ["'head/' (weights)"]),
        (Samples, "Samples", ["'shared/' (samples)"]),
        (Prototypes, "Prototypes", ["'proto/' (statistic)"]),
        (Circulating, "Circulating", ["messages from site to site"]),
        (Pooled, "Pooled", ["the sites' raw data"]),
    ],
)
def test_privacy_is_refused_for_methods_that_send_more_than_updates(method, name, sends):
    with refused(SettingsError, "method_not_supported", feature="privacy", method=name, sends=sends):
        check_method(method(), run(privacy=PRIVATE))
    check_method(method(), run())


def test_the_users_name_of_the_method_is_used():
    with refused(SettingsError, "method_not_supported", feature="privacy", method="fedtpf"):
        check_method(Samples(), run(privacy=PRIVATE), "fedtpf")


def test_compression_is_refused_where_it_would_do_nothing():
    for method in (Samples, Prototypes):
        with refused(SettingsError, "method_not_supported", feature="compression", method=method.__name__):
            check_method(method(), run(compression=Compression(bits=8)))
    check_method(Weights(), run(compression=Compression(bits=8)))


@pytest.mark.parametrize("method", [Updates, Silent])
def test_updates_and_silence_run_under_anything(method):
    check_method(method(), run(privacy=PRIVATE, compression=Compression(bits=4)))
