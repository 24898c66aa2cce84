"""Test a method's own filters: order of encoding and decoding, and checks that protect a site's privacy."""

from __future__ import annotations

import pytest
import torch
from refusals import refused

from medfl.contract import Request
from medfl.engine.backend import SiteResult
from medfl.engine.encoding import FILTERS_KEY, Encoder, check_filters, decode_filtered
from medfl.engine.filters import Filters, decode
from medfl.engine.replies import DecodedReplies
from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.privacy.gaussian import clip_by_norm, l2_norm, noise_multiplier
from medfl.settings import Compression, Privacy, Settings
from medfl.testing.cohort import Case, bits, make_task, scores
from medfl.toolkit.averaging import Averaging
from medfl.utils import wire
from medfl.utils.metadata import MetaField, Number
from medfl.utils.rng import SecretStream, make_generator
from medfl.utils.wire import tensors_equal

SENDS = {"model/": "update", "proto/": "statistic"}
PRIVATE = Privacy(epsilon=5.0, clip=0.5)
REGISTRY = load_plugins()


class Plus:
    """Filter that adds a number to each element."""

    kinds = ("update",)

    def __init__(self, value=1.0):
        self.value = value

    def encode(self, tensors, rng):
        return {name: tensor + self.value for name, tensor in tensors.items()}, {}

    def decode(self, tensors, meta):
        return {name: tensor - self.value for name, tensor in tensors.items()}


class Times(Plus):
    """Filter that multiplies each element by a number, and does not commute with `Plus`."""

    def encode(self, tensors, rng):
        return {name: tensor * self.value for name, tensor in tensors.items()}, {}

    def decode(self, tensors, meta):
        return {name: tensor / self.value for name, tensor in tensors.items()}


class Flat:
    """Filter that joins all tensors of a kind into one vector, without loss."""

    kinds = ("update", "statistic")

    def encode(self, tensors, rng):
        prefix = next(iter(tensors)).partition("/")[0]
        forms = [[name, list(tensor.shape), str(tensor.dtype)[6:]] for name, tensor in tensors.items()]
        return {f"{prefix}/all": torch.cat([tensor.double().flatten() for tensor in tensors.values()])}, {"of": forms}

    def decode(self, tensors, meta):
        (vector,) = tensors.values()
        parts = vector.split([torch.Size(shape).numel() for _, shape, _ in meta["of"]])
        return {
            name: part.reshape(shape).to(getattr(torch, dtype))
            for part, (name, shape, dtype) in zip(parts, meta["of"], strict=True)
        }


class Mixed(Plus):
    """Filter that multiplies by random signs and sends them as metadata, which do not depend on the data."""

    def encode(self, tensors, rng):
        signs = {name: (2 * torch.randint(2, t.shape, generator=rng) - 1) for name, t in tensors.items()}
        return {n: t * signs[n] for n, t in tensors.items()}, {n: s.flatten().tolist() for n, s in signs.items()}

    def decode(self, tensors, meta):
        return {n: t * torch.tensor(meta[n]).reshape(t.shape) for n, t in tensors.items()}


class Scaled(Plus):
    """Filter that divides by the largest element and sends that element as metadata."""

    def encode(self, tensors, rng):
        top = max(float(tensor.abs().max()) for tensor in tensors.values()) or 1.0
        return {name: tensor / top for name, tensor in tensors.items()}, {"top": top}

    def decode(self, tensors, meta):
        return {name: tensor * meta["top"] for name, tensor in tensors.items()}


def method_of(*filters, kinds=SENDS, base=Averaging):
    class Filtering(base):
        """Method with given filters."""

        sends = kinds  # noqa: RUF012

        def filters(self):
            return filters

    return Filtering()


def update():
    g = torch.Generator().manual_seed(1)
    return {"model/w": torch.randn(30, 7, generator=g), "model/b": torch.randn(4, generator=g)}


def stream(payload):
    return SecretStream(b"secret of site a", "run", 1, "noise", payload)


def rng(label):
    return make_generator("a", label)


def leave(method, tensors, meta=None, **settings):
    settings = Settings(rounds=20, **settings)
    encoder = Encoder(method.filters(), method.sends, rng)
    filters = Filters(method.sends, {"top": MetaField("public", Number)}, settings, 20, encoder)
    return filters.outgoing(tensors, meta or {}, site="a", stream_factory=stream)


def arrive(method, tensors, meta):
    return decode_filtered(method, *decode(tensors, meta))


# ---- there and back


def test_filters_apply_in_turn_and_are_undone_in_reverse():
    method, tensors = method_of(Plus(1.0), Times(4.0)), {"model/w": torch.tensor([0.5, -1.0])}
    sent, meta = leave(method, tensors, {"top": 2.0})
    assert sent["model/w"].tolist() == [6.0, 0.0]
    back, facts = arrive(method, sent, meta)
    assert back["model/w"].tolist() == [0.5, -1.0]
    assert facts == {"top": 2.0}


def test_a_filter_sees_one_kind_at_a_time_and_others_pass():
    tensors = {"model/w": torch.ones(2), "proto/1": torch.ones(3), "proto/2": torch.zeros(1, 2)}
    sent, meta = leave(method_of(Plus()), tensors)
    assert {name: tensor.sum().item() for name, tensor in sent.items()} == {"model/w": 4, "proto/1": 3, "proto/2": 0}
    sent, meta = leave(method_of(Flat()), tensors)
    assert {name: len(tensor) for name, tensor in sent.items()} == {"model/all": 2, "proto/all": 5}
    assert tensors_equal(arrive(method_of(Flat()), sent, meta)[0], tensors)


def test_without_filters_nothing_is_said_of_them():
    sent, meta = leave(method_of(), update())
    assert meta == {}
    assert tensors_equal(arrive(method_of(), sent, meta)[0], update())


def test_bits_come_last():
    """Check that encoded numbers are quantised, which are in [1, 3] instead of [-1, 1], and decoded first."""
    method, tensors = method_of(Plus(2.0)), {"model/w": torch.linspace(-1, 1, 256)}
    sent, meta = leave(method, tensors, compression=Compression(bits=8))
    assert meta["_codec"]["tensors"]["model/w"][:2] == [1.0, 3.0]
    back, facts = arrive(method, sent, meta)
    torch.testing.assert_close(back["model/w"], tensors["model/w"], atol=1 / 255, rtol=0)
    assert facts == {}


def test_replies_are_decoded_one_by_one_and_twice():
    method = method_of(Scaled())
    sent = {site: leave(method, {"model/w": factor * torch.ones(3)}) for site, factor in (("a", 2.0), ("b", 3.0))}

    class Stored:
        meta = {site: dict(meta) for site, (_, meta) in sent.items()}  # noqa: RUF012
        missing = ["c"]  # noqa: RUF012

        def __iter__(self):
            return iter([(site, tensors) for site, (tensors, _) in sent.items()])

        def __len__(self):
            return 2

    replies = DecodedReplies(method, Stored())
    assert (replies.meta, replies.missing, len(replies)) == ({"a": {}, "b": {}}, ["c"], 2)
    for _ in range(2):
        assert [(site, tensors["model/w"].tolist()) for site, tensors in replies] == [
            ("a", [2.0] * 3),
            ("b", [3.0] * 3),
        ]


def test_a_filter_that_loses_nothing_changes_no_bit_of_a_run(tmp_path):
    case = Case(REGISTRY, "fedavg")
    kind = type(case.make_method())

    class Flattened(kind):
        """Method FedAvg whose updates are sent as one vector."""

        def filters(self):
            return (Flat(), Mixed())

    plain, flat = case.run(tmp_path / "a", rounds=2), case.run(tmp_path / "b", rounds=2, make_method=Flattened)
    mine, theirs = bits(plain), bits(flat)
    assert mine.keys() == theirs.keys()
    assert all(tensors_equal(mine[name], theirs[name]) for name in mine)
    costs = ("bytes_up", "work_seconds")
    assert [r for r in scores(tmp_path / "a") if not any(c in r for c in costs)] == [
        r for r in scores(tmp_path / "b") if not any(c in r for c in costs)
    ]


# ---- privacy


def test_noise_is_on_clipped_encoded_numbers():
    """Compare with the closed form clip(x + 1) + noise - 1."""
    method = method_of(Plus())
    sent, meta = leave(method, update(), privacy=PRIVATE)
    encoded = {name: (tensor + 1).double() for name, tensor in sorted(update().items())}
    std = noise_multiplier(PRIVATE, 20) * PRIVATE.clip
    noise = stream(wire.digest({n: t.float() for n, t in encoded.items()}, {"clip": PRIVATE.clip, "std": std}))
    clipped = clip_by_norm(encoded, PRIVATE.clip)
    assert l2_norm(clipped) == pytest.approx(PRIVATE.clip)
    expected = {n: (t + std * noise.normal(tuple(t.shape))).float() for n, t in clipped.items()}
    assert tensors_equal(dict(sorted(sent.items())), expected)
    back, _ = arrive(method, sent, meta)
    assert tensors_equal(dict(sorted(back.items())), {name: tensor - 1 for name, tensor in expected.items()})


def test_facts_that_do_not_hang_on_the_data_may_leave_under_privacy():
    sent, meta = leave(method_of(Mixed()), update(), privacy=PRIVATE)
    assert meta == leave(method_of(Mixed()), {n: 5 * t for n, t in update().items()}, privacy=PRIVATE)[1]
    assert arrive(method_of(Mixed()), sent, meta)[0].keys() == update().keys()


class Sparse(Plus):
    """Filter that leaves out zeros at the end, so that shapes depend on the data."""

    def encode(self, tensors, rng):
        sent = {name: tensor.flatten()[: int(tensor.count_nonzero())] for name, tensor in tensors.items()}
        return sent, {name: list(tensor.shape) for name, tensor in tensors.items()}

    def decode(self, tensors, meta):
        whole = {name: torch.zeros(torch.Size(shape).numel()) for name, shape in meta.items()}
        for name, tensor in tensors.items():
            whole[name][: len(tensor)] = tensor
        return {name: tensor.reshape(meta[name]) for name, tensor in whole.items()}


class Signs(Plus):
    """Filter that sends the sign of each element as one byte."""

    def encode(self, tensors, rng):
        return {name: tensor.sign().to(torch.int8) for name, tensor in tensors.items()}, {}

    def decode(self, tensors, meta):
        return {name: tensor.float() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("own", "tensor"),
    [(Scaled(), None), (Sparse(), None), (Signs(), "model/b")],
)
def test_a_filter_that_would_show_something_beside_the_noise_is_refused_by_name(own, tensor):
    with refused(SettingsError, "unprotected_payload", filter=type(own).__name__, tensor=tensor):
        leave(method_of(own), update(), privacy=PRIVATE)
    leave(method_of(own), update())
    leave(method_of(own), update(), privacy=Privacy(epsilon=5.0, clip=0.5, unit="sample"))  # it is noised already


# ---- filters that break a promise


class Lost(Plus):
    def decode(self, tensors, meta):
        return {}


class Rounded(Plus):
    def decode(self, tensors, meta):
        return {name: tensor.half() for name, tensor in tensors.items()}


class Elsewhere(Plus):
    def encode(self, tensors, rng):
        return {f"proto/{name}": tensor for name, tensor in tensors.items()}, {}


class Undeclared(Plus):
    def encode(self, tensors, rng):
        return {f"images/{name}": tensor for name, tensor in tensors.items()}, {}


class Odd(Plus):
    def encode(self, tensors, rng):
        return tensors, {"it": torch.ones(1)}


@pytest.mark.parametrize(
    ("own", "code", "fields"),
    [
        (Lost(), "unlike_decoded_tensors", {"tensor": "model/b", "expected": "float32 [4]", "found": None}),
        (Rounded(), "unlike_decoded_tensors", {"tensor": "model/b", "expected": "float32 [4]", "found": "float16 [4]"}),
        (Elsewhere(), "wrong_tensor_kind", {"tensor": "proto/model/b", "expected": "update", "prefixes": ["model/"]}),
        (Undeclared(), "undeclared_tensor", {"sender": "Undeclared at Site 'a'", "tensor": "images/model/b"}),
        (Odd(), "invalid_json", {}),
    ],
)
def test_a_filter_that_breaks_a_promise_is_named_at_the_site(own, code, fields):
    own_name = {} if code == "undeclared_tensor" else {"filter": type(own).__name__}
    with refused(ContractError, code, **own_name, **fields):
        leave(method_of(own), update())


def test_a_number_that_a_filter_makes_too_large_does_not_leave():
    with refused(RefusedError, "not_finite", tensor="model/w", filter="Times"):
        leave(method_of(Times(1e30)), {"model/w": torch.full((2,), 1e10)})


@pytest.mark.parametrize("kinds", [(), ("weights",), ("update", "image")])
def test_a_filter_for_kinds_that_the_method_does_not_send_is_refused_at_the_start(kinds):
    own = Plus()
    own.kinds = kinds
    with refused(
        ContractError,
        "wrong_filter_kinds",
        filter="Plus",
        method="mine",
        found=sorted(kinds),
        expected=["statistic", "update"],
    ):
        check_filters(method_of(own), "mine")
    check_filters(method_of(Flat()), "mine")


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {FILTERS_KEY: []},
        {FILTERS_KEY: 3},
        {FILTERS_KEY: [{}]},
        {FILTERS_KEY: [{"update": {"top": "x"}}]},
        {FILTERS_KEY: [[], []]},
    ],
)
def test_what_can_not_be_decoded_is_refused_where_it_arrives(meta):
    with refused(RefusedError, "undecodable_tensors"):
        decode_filtered(method_of(Scaled()), update(), meta)


def test_filters_of_another_method_are_refused():
    with refused(RefusedError, "undecodable_tensors"):
        decode_filtered(method_of(), *leave(method_of(Scaled()), update()))


def test_a_server_far_away_checks_what_is_decoded():
    pytest.importorskip("medfl_flare")
    from medfl_flare.backend.messages import Limits, Message
    from medfl_flare.backend.site_replies import ReplyRules, RequestedStep, read_step_reply

    method, task = method_of(Scaled(), base=type(REGISTRY.make_method("fedavg", {}))), make_task("plain")
    change = {f"model/{name}": torch.ones_like(tensor) for name, tensor in task.initial(1).items()}
    request, expected = Request("a", "fit", change), ReplyRules(method, task)
    sent, meta = leave(method, change)

    def read(meta):
        answer = {"step": 1, "refused": None, "meta": meta, "rows": [], "undelivered": []}
        return read_step_reply(
            "a", Message("step", sent, {"answer": answer}), RequestedStep(1, 1, None), request, expected, Limits()
        )[0]

    assert isinstance(read(meta), SiteResult)
    for top, code in ((float("1e39"), "not_finite"), ("x", "undecodable_tensors")):
        with refused(RefusedError, code):
            read({FILTERS_KEY: [{"update": {"top": top}}]})
