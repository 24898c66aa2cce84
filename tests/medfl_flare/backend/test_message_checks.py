"""Guarantees for a method: declared names, known shapes, finite numbers, matching codecs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.engine.filters import CODEC_KEY, decode
from medfl.engine.quantization import pack as pack_codes
from medfl.engine.quantization import quantise
from medfl.errors import RefusedError, SettingsError
from medfl.testing.cohort import make_task
from medfl_flare.backend.messages import Limits, Message, check_codec, check_tensors, pack, tensor_forms, unpack

WHO = "site 'site-01'"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check(tensors, prefixes=("model/",), shapes=None, norm_bound=None):
    check_tensors(tensors, prefixes=prefixes, shapes=shapes or {}, norm_bound=norm_bound, who=WHO)


def tensors_refused(code, arguments, **fields):
    with refused(RefusedError, code, sender=WHO, **fields) as caught:
        check(**arguments)
    return str(caught.value)


# ---- tensors


def test_names_begin_with_a_declared_prefix_or_are_refused():
    tensor = torch.ones(1)
    check({"model/a": tensor, "proto/3": tensor}, ["model/", "proto/"])
    check({"anything": tensor}, None)
    check({}, [])
    code, declared = "undeclared_tensor", ["model/"]
    tensors_refused(code, {"tensors": {"model/a": tensor, "other": tensor}}, tensor="'other'", declared=declared)
    tensors_refused(code, {"tensors": {"model/a": tensor}, "prefixes": []}, tensor="'model/a'", declared=[])
    tensors_refused(code, {"tensors": {"my_model/a": tensor}}, tensor="'my_model/a'", declared=declared)


@pytest.mark.parametrize("network", ["norm", "plain", "wide"])
def test_every_network_of_the_run_passes_by_its_own_tensors_and_no_other_does(network):
    task = make_task()
    state = {f"model/{name}": tensor for name, tensor in task.build(network).state_dict().items()}
    check(state, shapes=tensor_forms(task, ["norm", "plain", "wide"]))
    if network == "wide":
        fields = {"expected": "'model/body.0.bias' as float32 [6]", "found": "float32 [9]"}
        tensors_refused("wrong_shape", {"tensors": state, "shapes": tensor_forms(task, ["norm", "plain"])}, **fields)


def test_shapes_are_those_of_all_networks_together():
    task, before = make_task(), torch.get_rng_state()
    both = tensor_forms(task, ["norm", "wide", "wide"], prefix="m/")
    assert torch.equal(torch.get_rng_state(), before)
    assert both["m/head.weight"] == {((3, 24), torch.float32), ((3, 36), torch.float32)}
    assert both["m/body.1.num_batches_tracked"] == {((), torch.int64)}
    assert both.keys() == {f"m/{name}" for name in task.names("norm")}
    assert tensor_forms(task, []) == {}
    left = tensor_forms(task, ["plain"], leave_out=["head.weight", "head.bias"])
    assert set(left) == {"model/body.0.weight", "model/body.0.bias"}
    with refused(SettingsError, "unknown_choice", what="network", choice="none"):
        tensor_forms(task, ["none"])


def test_shape_and_dtype_are_one_pair():
    shapes = {"model/a": [((2,), torch.float32), ((3,), torch.int64)]}
    check({"model/a": torch.ones(2)}, shapes=shapes)
    check({"model/a": torch.ones(3, dtype=torch.int64), "model/free": torch.ones(9, 9)}, shapes=shapes)
    expected = "'model/a' as float32 [2] or int64 [3]"
    for other in (torch.ones(3), torch.ones(2, dtype=torch.int64), torch.ones(2, 1), torch.ones(2).double()):
        tensors_refused("wrong_shape", {"tensors": {"model/a": other}, "shapes": shapes}, expected=expected)
    arguments = {"tensors": {"model/a": torch.ones(1)}, "shapes": {"model/a": []}}
    tensors_refused("wrong_shape", arguments, expected="'model/a' as nothing")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_single_number_that_is_not_finite_is_found(dtype, bad):
    tensor = torch.zeros(3, 4, 5, dtype=dtype)
    check({"model/a": tensor})
    tensor[2, 3, 4] = bad
    tensors_refused("not_finite", {"tensors": {"model/a": tensor}}, tensor="'model/a'")


def test_the_norm_goes_over_all_floating_tensors_together():
    tensors = {"model/a": torch.tensor([3.0]), "model/b": torch.tensor([[4.0]]), "model/n": torch.tensor([10**6])}
    check(tensors, norm_bound=5.0)
    tensors_refused("norm_too_large", {"tensors": tensors, "norm_bound": 4.999}, maximum=4.999, found="5")
    endless = {"model/a": torch.full((4,), 1.7e308, dtype=torch.float64)}
    tensors_refused("norm_too_large", {"tensors": endless}, maximum=None, found="inf")


def test_a_sentence_shows_a_name_cut_short_and_printable():
    text = tensors_refused("undeclared_tensor", {"tensors": {"x" * 10_000: torch.tensor([123.456])}})
    assert len(text) < 400
    assert "123" not in text
    text = tensors_refused("undeclared_tensor", {"tensors": {"\ud800\n": torch.ones(1)}}, tensor="'\\ud800\\n'")
    assert text.isprintable()


# ---- codecs


def quantised(bits=4, dtype=torch.float32, shape=(3, 5)):
    """Return a reply in the format of the filters, and the decoded reply."""
    values = torch.linspace(-1, 2, math.prod(shape)).reshape(shape).to(dtype)
    codes, lo, hi = quantise(values, bits)
    facts = [lo, hi, str(dtype).removeprefix("torch."), list(shape)]
    return {"model/a": pack_codes(codes, bits)}, {CODEC_KEY: {"bits": bits, "tensors": {"model/a": facts}}}, values


@settings(max_examples=40, deadline=None)
@given(
    bits=some.sampled_from([4, 8, 16]),
    dtype=some.sampled_from(FLOATS),
    shape=some.lists(some.integers(0, 4), max_size=4).map(tuple),
)
def test_a_codec_of_the_filters_passes_and_decodes(bits, dtype, shape):
    tensors, meta, values = quantised(bits, dtype, shape)
    arrived = unpack(pack(Message("step", tensors, meta)), Limits())
    check_codec(arrived.tensors, arrived.meta, Limits())
    decoded, left = decode(arrived.tensors, arrived.meta)
    assert left == {}
    form = {((shape), dtype)}
    check(decoded, shapes={"model/a": form})
    assert torch.allclose(decoded["model/a"].double(), values.double(), atol=3 / (2**bits - 1))


def test_meta_without_a_codec_passes():
    check_codec({"model/a": torch.ones(2)}, {"size": 3}, Limits())


def fact(place, value):
    def change(codec):
        codec["tensors"]["model/a"][place] = value

    return change


def whole(**changes):
    return lambda codec: codec.update(changes)


ENTRY = {"tensor": "'model/a'"}
CODECS = {
    "a key more": (whole(more=1), "invalid_codec", {}),
    "no tensors": (lambda codec: codec.pop("tensors"), "invalid_codec", {}),
    "no bits": (lambda codec: codec.pop("bits"), "invalid_codec", {}),
    "tensors in a list": (whole(tensors=[]), "invalid_codec", {}),
    **{
        f"bits {bits!r}": (whole(bits=bits), "unsupported_bits", {})
        for bits in (0, 3, 32, -4, True, 4.0, "4", None, [4], 10**9)
    },
    "an absent tensor": (
        lambda codec: codec["tensors"].update({"x": [0.0, 1.0, "float32", [1]]}),
        "unknown_codec_tensor",
        {"tensor": "'x'"},
    ),
    "facts of another number": (whole(tensors={"model/a": [0.0, 1.0, "float32"]}), "invalid_codec_entry", ENTRY),
    "facts in a dict": (whole(tensors={"model/a": {}}), "invalid_codec_entry", ENTRY),
    "facts of text": (whole(tensors={"model/a": "abcd"}), "invalid_codec_entry", ENTRY),
    "lo above hi": (fact(0, 2.5), "invalid_codec_range", ENTRY),
    **{
        f"lo {low!r}": (fact(0, low), "invalid_codec_range", ENTRY)
        for low in (math.nan, -math.inf, True, None, "0", -1, -(10**400))
    },
    **{f"hi {high!r}": (fact(1, high), "invalid_codec_range", ENTRY) for high in (math.nan, math.inf, [2.0], 3)},
    **{
        f"dtype {kind!r}": (fact(2, kind), "unsupported_dtype", ENTRY)
        for kind in (
            "int64",
            "uint8",
            "bool",
            "load",
            "__class__",
            "float32.x",
            "torch.float32",
            "complex64",
            None,
            [],
            5,
        )
    },
    "another shape": (fact(3, [3, 3]), "wrong_shape", ENTRY | {"bits": 4, "found": "uint8 [8]"}),
    "an endless shape": (fact(3, [10**9, 10**9]), "too_many_elements", ENTRY | {"maximum": 1000}),
    "an endless empty shape": (fact(3, [0, 2**62, 2**62]), "too_many_elements", ENTRY | {"maximum": 1000}),
    "a negative shape": (fact(3, [-3, -5]), "invalid_tensor_shape", ENTRY),
    "a shape of bools": (fact(3, [True, 15]), "invalid_tensor_shape", ENTRY),
    "a shape of floats": (fact(3, [3.0, 5.0]), "invalid_tensor_shape", ENTRY),
    "no shape": (fact(3, None), "invalid_tensor_shape", ENTRY),
    "many dimensions": (fact(3, [1] * 8 + [15]), "too_many_dimensions", ENTRY | {"maximum": 8, "found": "9"}),
}


@pytest.mark.parametrize("case", CODECS)
def test_an_abused_codec_is_refused_before_it_is_used(case):
    change, code, fields = CODECS[case]
    tensors, meta, _ = quantised()
    check_codec(tensors, meta, Limits(max_bytes=1000))
    change(meta[CODEC_KEY])
    with refused(RefusedError, code, **fields):
        check_codec(tensors, meta, Limits(max_bytes=1000))


@pytest.mark.parametrize("codec", [None, [], 4, "4", {}])
def test_a_codec_that_is_no_description_is_refused(codec):
    with refused(RefusedError, "invalid_codec"):
        check_codec({}, {CODEC_KEY: codec}, Limits())


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_codes_of_another_dtype_or_shape_are_refused(bits):
    tensors, meta, _ = quantised(bits)
    codes = tensors["model/a"]
    for other in (codes.float(), codes.to(torch.int8), codes.reshape(-1)[:-1], codes.reshape(1, -1)):
        with refused(RefusedError, "wrong_shape", tensor="'model/a'", bits=bits):
            check_codec({"model/a": other}, meta, Limits())


def test_what_codes_stand_for_counts_against_the_limit_on_bytes():
    tensors, meta, _ = quantised(dtype=torch.float64, shape=(16,))
    tensors["model/plain"] = torch.ones(8)
    check_codec(tensors, meta, Limits(max_bytes=16 * 8 + 8 * 4))
    with refused(RefusedError, "decoded_message_too_large", maximum=159, found="160"):
        check_codec(tensors, meta, Limits(max_bytes=159))
