"""Test attacks of a malicious server on the code of real sites with real certificates.

Without the protection, each of these attacks recovered one site's update with a largest error of 1e-5 at norm 0.12. The
protection: a site takes part in one aggregation of a round, derives its secrets from the list of participants, and
confirms the list of survivors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit_keys import Root
from refusals import refused
from site_refusals import raise_refusal, recorded_refusals

from medfl.contract import Method, Request
from medfl.engine.secure.fixed_point import to_signed, unpack_words
from medfl.engine.secure.keys import public_key
from medfl.engine.secure.masks import Words, add_mask
from medfl.engine.secure.method import wrap_method
from medfl.engine.secure.ops import (
    CERTIFICATE,
    CONFIRM,
    CONFIRMED,
    CONFIRMED_SIGNATURE,
    KEYS,
    MASKED,
    NUMBERS,
    PUBLIC,
    REVEALED,
    SEALED,
    SHARES,
    SIGNATURE,
    UNMASK,
    AggregationMeta,
    by_site,
    digest,
    layout_of,
    numbers_of,
    to_bytes,
    to_tensor,
)
from medfl.engine.secure.shamir import combine
from medfl.engine.secure.site import KEYS_PURPOSE, SURVIVORS_PURPOSE
from medfl.engine.secure.weights import fixed_point
from medfl.engine.site import SiteOptions, SiteRunner
from medfl.errors import RefusedError
from medfl.plugins import load_plugins
from medfl.privacy.signatures import Signer, read_signer
from medfl.records.secret_uses import SecretUses
from medfl.settings import Settings
from medfl.testing.cohort import make_plan, make_site, make_task
from medfl.types import Tensors
from medfl.utils import wire

REGISTRY = load_plugins()
NAMES = tuple(f"site-{number:02d}" for number in range(1, 11))
VICTIM = NAMES[0]
PLAIN = {"rounds": 2, "batch_size": 5, "norm_sync": "params"}


def fedavg() -> Method:
    return REGISTRY.make_method("fedavg", {})


def model(seed: int = 7) -> Tensors:
    tensors = make_task().initial(seed)
    return {f"model/{name}": tensor for name, tensor in tensors.items() if "running" not in name and "num_" not in name}


LAYOUT = layout_of(model(), fedavg().sends)


@dataclass
class Server:
    """Malicious server, which can send each site any request and combine all replies."""

    folder: Path
    names: tuple[str, ...]
    threshold: int
    signers: dict[str, Signer]
    more: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    impostors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        secure = {"secure_aggregation": {"threshold": self.threshold}}
        self.settings = Settings.model_validate(PLAIN | self.more | secure)
        self.plan = make_plan(self.settings, sites=(*self.names, *self.impostors))
        self.runners = {
            name: SiteRunner(
                name=name,
                data=make_site(6, name),
                folder=self.folder / name,
                plan=self.plan,
                post=lambda *_: None,
                options=SiteOptions(signer=self.signers[name]),
            )
            for name in self.names
        }

    def ask(self, name: str, op: str, about: AggregationMeta, tensors: Tensors, round_: int = 1) -> Tensors:
        """Send a request, and return the tensors of the reply; raise the error of a refusal."""
        self.steps += 1
        request = Request(name, op, dict(tensors), about.meta())
        with recorded_refusals() as errors:
            answer = self.runners[name].step(
                wrap_method(fedavg, self.settings), request, self.steps, round_, wire.digest(tensors)
            )
        left = self.runners[name].store.read(self.steps, "reply/")
        if answer.refused is not None:
            assert not left
            raise_refusal(answer, errors)
        return left

    def keys(self, about: AggregationMeta, round_: int = 1) -> Tensors:
        held = {}
        for name in about.sites:
            sent = self.ask(name, KEYS, about, {}, round_)
            held |= {f"{what}/{name}": sent[what] for what in (PUBLIC, SIGNATURE, CERTIFICATE)}
        return held

    def shares(self, about: AggregationMeta, keys: Tensors, round_: int = 1) -> dict[str, Tensors]:
        """Return the shares that the other sites encrypted for each receiver."""
        sent = {name: by_site(self.ask(name, SHARES, about, keys, round_), SEALED) for name in about.sites}
        return {to: {f"{SEALED}/{name}": sent[name][to] for name in about.sites if name != to} for to in about.sites}

    def confirmations(self, about: AggregationMeta, keys: Tensors, names: Iterable[str]) -> Tensors:
        held = {}
        for name in names:
            sent = self.ask(name, CONFIRM, about, keys)
            held |= {f"{what}/{name}": sent[what] for what in (CONFIRMED, CONFIRMED_SIGNATURE)}
        return held

    def aggregate(self, about: AggregationMeta, models: dict[str, Tensors] | None = None, round_: int = 1) -> Words:
        """Run a whole aggregation, and return the numbers of the sum."""
        keys = self.keys(about, round_)
        sealed = self.shares(about, keys, round_)
        about = replace(about, peers=about.sites, op="fit")
        sent = {
            name: self.ask(name, MASKED, about, (models or {}).get(name, model()) | keys, round_)[NUMBERS]
            for name in about.sites
        }
        about = replace(about, masked=about.sites, op="")
        held = self.confirmations(about, keys, about.sites)
        revealed = {
            name: by_site(self.ask(name, UNMASK, about, keys | sealed[name] | held, round_), REVEALED)
            for name in about.sites
        }
        total = unpack_words(sent[VICTIM], 40) * 0
        for name in about.sites:
            shares = {place: to_bytes(revealed[site][name]) for place, site in enumerate(about.sites, 1)}
            total += unpack_words(sent[name], 40)
            add_mask(total, combine(shares, self.threshold), -1)
        return total

    def values(self, words: Words) -> torch.Tensor:
        """Return the sum of the weighted updates."""
        point, heaviest = fixed_point(fedavg(), self.settings, len(self.names), numbers_of(LAYOUT))
        return point.values(words[:-1]) * heaviest


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


@pytest.fixture(scope="module")
def signers(root: Root, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signer]:
    folder = tmp_path_factory.mktemp("kits")
    return {name: read_signer(root.kit(folder / name, name)) for name in NAMES}


def plain_update(name: str, folder: Path) -> torch.Tensor:
    """Return a site's update as it leaves without secure aggregation."""
    settings = Settings.model_validate(PLAIN)
    runner = SiteRunner(name, make_site(6, name), folder, make_plan(settings), lambda *_: None)
    runner.step(fedavg, Request(name, "fit", model()), 1, 1, wire.digest(model()))
    tensors = runner.store.read(1, "reply/")
    return torch.cat([tensors[name].double().flatten() for name, _, _ in LAYOUT])


# ---- a second aggregation of the same payload


@pytest.mark.parametrize(("count", "threshold"), [(5, 3), (10, 7)])
def test_a_replayed_round_is_refused(count: int, threshold: int, signers: dict[str, Signer], tmp_path: Path) -> None:
    """Repeat a round without one site: the difference of both sums would be the update of that site."""
    server = Server(tmp_path, NAMES[:count], threshold, signers)
    everyone, others = AggregationMeta(server.names), AggregationMeta(server.names[1:])
    total = server.aggregate(everyone)
    expected = 6 * sum(plain_update(name, tmp_path / "plain" / name) for name in server.names)
    assert float((server.values(total) - expected).abs().max()) < 1e-3
    assert int(to_signed(total[-1:], 40)[0]) == 6 * count, "this server knows how to unmask a sum"
    for name in others.sites:
        with refused(RefusedError, "repeated_aggregation", round=1, use="participants"):
            server.ask(name, KEYS, others, {})
    keys = server.keys(everyone)  # the same keys as before, and so no fresh masks
    fewer = {name: tensor for name, tensor in keys.items() if VICTIM not in name}
    peers = replace(everyone, peers=others.sites, op="fit")
    masked = replace(everyone, peers=everyone.sites, masked=others.sites)
    for op, about, tensors, use in (
        (SHARES, everyone, fewer, "keys of others"),
        (MASKED, peers, model() | keys, "peers"),
        (CONFIRM, masked, keys, "drop-outs"),
        (UNMASK, masked, keys, "drop-outs"),
    ):
        with refused(RefusedError, "repeated_aggregation", round=1, use=use):
            server.ask(others.sites[0], op, about, tensors)


def test_the_same_model_in_another_round_is_refused(signers: dict[str, Signer], tmp_path: Path) -> None:
    server = Server(tmp_path, NAMES[:5], 3, signers)
    server.aggregate(AggregationMeta(server.names))
    others = AggregationMeta(server.names[1:])
    keys = server.keys(others, round_=2)
    server.shares(others, keys, round_=2)
    for name in others.sites:
        with refused(RefusedError, "repeated_model", round=2, earlier=1):
            server.ask(name, MASKED, replace(others, peers=others.sites, op="fit"), model() | keys, 2)


# ---- different lists for different sites

CROWDS = [(5, 3), (7, 4), (9, 5)]


@pytest.mark.parametrize(("count", "threshold"), CROWDS)
def test_unlike_lists_of_survivors_reveal_nothing(
    count: int, threshold: int, signers: dict[str, Signer], tmp_path: Path
) -> None:
    """Send a different list of drop-outs to each site that shares a mask with the victim.

    Each site replies to one list. Together they would reveal the keys of all masks of the victim, and its own mask.
    """
    server = Server(tmp_path, NAMES[:count], threshold, signers)
    about = AggregationMeta(server.names)
    keys = server.keys(about)
    sealed = server.shares(about, keys)
    few, rest = server.names[:threshold], server.names[threshold:]
    server.ask(VICTIM, MASKED, replace(about, peers=few, op="fit"), model() | keys)
    lists = {
        name: replace(about, peers=server.names, masked=tuple(sorted({VICTIM, name, *rest})))
        for name in server.names[1:]
    }
    held: Tensors = {}
    for name, own in lists.items():
        held |= server.confirmations(own, keys, [name])
    for name, own in lists.items():
        among = {what: vote for what, vote in held.items() if what.rpartition("/")[2] in own.masked}
        agreeing = {what: vote for what, vote in among.items() if lists[what.rpartition("/")[2]] == own}
        with pytest.raises(RefusedError) as caught:
            server.ask(name, UNMASK, own, keys | sealed[name] | among)
        assert caught.value.code in ("inconsistent_participants", "too_few_confirmations")
        with refused(RefusedError, "too_few_confirmations", minimum=threshold):
            server.ask(name, UNMASK, own, keys | sealed[name] | agreeing)


def test_a_confirmation_can_not_be_forged(signers: dict[str, Signer], tmp_path: Path) -> None:
    """Let the server forge a confirmation: with its own key, with another signature of the site, or without any."""
    server = Server(tmp_path, NAMES[:5], 3, signers)
    about = replace(AggregationMeta(server.names), peers=server.names)
    keys = server.keys(about)
    sealed = server.shares(about, keys)
    about = replace(about, masked=server.names[:3])
    held = server.confirmations(about, keys, server.names[:2])
    name = server.names[2]
    vote = server.confirmations(about, keys, [name])[f"{CONFIRMED}/{name}"]
    own = read_signer(Root().kit(tmp_path / "own", name))
    statement = to_bytes(vote).hex().encode()
    for signature, code in (
        (to_tensor(own.sign(SURVIVORS_PURPOSE, statement)), "invalid_signature"),
        (keys[f"{SIGNATURE}/{name}"], "invalid_signature"),
        (held[f"{CONFIRMED_SIGNATURE}/{server.names[1]}"], "invalid_signature"),
        (None, "missing_signature"),
    ):
        votes = held | {f"{CONFIRMED}/{name}": vote}
        votes |= {} if signature is None else {f"{CONFIRMED_SIGNATURE}/{name}": signature}
        with refused(RefusedError, code):
            server.ask(VICTIM, UNMASK, about, keys | sealed[VICTIM] | votes)


@pytest.mark.parametrize(("count", "threshold"), CROWDS)
def test_unlike_lists_of_keys_give_secrets_that_fit_nowhere(
    count: int, threshold: int, signers: dict[str, Signer], tmp_path: Path
) -> None:
    """Send different lists of keys: shares that were encrypted for one list can't be decrypted with another."""
    server = Server(tmp_path, NAMES[:count], threshold, signers)
    about = AggregationMeta(server.names)
    keys = server.keys(about)
    few = server.names[:threshold]
    fewer = {name: tensor for name, tensor in keys.items() if name.rpartition("/")[2] in few}
    sent = {
        name: by_site(server.ask(name, SHARES, about, fewer if name == VICTIM else keys), SEALED)
        for name in server.names
    }
    others = server.names[1:]
    about = replace(about, peers=server.names, masked=others)
    held = server.confirmations(about, keys, others)
    for name in others:
        sealed = {f"{SEALED}/{other}": made[name] for other, made in sent.items() if name in made}
        with refused(RefusedError, "undecryptable_share" if name in few else "wrong_sealed_shares"):
            server.ask(name, UNMASK, about, keys | sealed | held)


def test_a_sum_over_unlike_models_is_noise(signers: dict[str, Signer], tmp_path: Path) -> None:
    """Send all other sites a model that does not train: the sum would be the victim's update."""
    server = Server(tmp_path, NAMES[:5], 3, signers)
    dead = {name: torch.zeros_like(tensor) for name, tensor in model().items()}
    total = server.aggregate(AggregationMeta(server.names), dict.fromkeys(server.names[1:], dead))
    assert abs(int(to_signed(total[-1:], 40)[0])) > 30, "not the sum of the weights either"
    assert float(server.values(total).abs().median()) > 1000


# ---- invented participants


@pytest.fixture(scope="module")
def impostors(root: Root, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Signer]]:
    """Return keys that a server can have without the root's private key, by their origin."""
    own, folder = Root(), tmp_path_factory.mktemp("impostors")
    host = read_signer(root.kit(folder / "host", "host", "server"))
    return {
        "of its own root": [read_signer(own.kit(folder / name, name)) for name in ("site-11", NAMES[1])],
        "of users": [read_signer(root.kit(folder / name, name, role="project_admin")) for name in ("user-1", "user-2")],
        "of the server": [host, replace(host, name="host-2")],
    }


CODES: dict[str, tuple[str, dict[str, str]]] = {
    "of its own root": ("foreign_certificate", {}),
    "of users": ("not_a_site", {"owner": "user"}),
    "of the server": ("not_a_site", {"owner": "server"}),
}


@pytest.mark.parametrize("kind", CODES)
def test_participants_can_not_be_invented(
    kind: str, impostors: dict[str, list[Signer]], signers: dict[str, Signer], tmp_path: Path
) -> None:
    """Add two sites of the server: it would know all masks of the victim."""
    signers = {name: replace(signer, server="host") for name, signer in signers.items()}
    invented = tuple(signer.name for signer in impostors[kind])
    server = Server(tmp_path / "run", NAMES[:5], 3, signers, impostors=invented)  # the run's list of sites is invented
    about = AggregationMeta(tuple(sorted({VICTIM, *invented})))
    sent = server.ask(VICTIM, KEYS, about, {})
    keys = {f"{what}/{VICTIM}": sent[what] for what in (PUBLIC, SIGNATURE, CERTIFICATE)}
    for signer in impostors[kind]:
        public = public_key(signer.name.encode().ljust(32)) * 2
        statement = digest("keys", signer.name, server.plan.run_id, 1, public.hex()).encode()
        proof = {PUBLIC: public, SIGNATURE: signer.sign(KEYS_PURPOSE, statement), CERTIFICATE: signer.certificate}
        keys |= {f"{what}/{signer.name}": to_tensor(content) for what, content in proof.items()}
    masking = replace(about, peers=about.sites, op="fit")
    code, fields = CODES[kind]
    for op, request, tensors in ((SHARES, about, keys), (MASKED, masking, model() | keys)):
        with refused(RefusedError, code, **fields):
            server.ask(VICTIM, op, request, tensors)


# ---- the ledger

PRIVACY = {"privacy": {"epsilon": 20.0, "clip": 0.5}}


def releases(server: Server) -> set[int]:
    """Return the number of releases in the accounts of the sites."""
    accounts = [runner.account for runner in server.runners.values()]
    return {account.report().releases for account in accounts if account is not None}


def test_a_replay_releases_once_and_is_charged_once(signers: dict[str, Signer], tmp_path: Path) -> None:
    server = Server(tmp_path, NAMES[:5], 3, signers, PRIVACY)
    server.aggregate(AggregationMeta(server.names))
    with refused(RefusedError, "repeated_aggregation", use="participants"):
        server.aggregate(AggregationMeta(server.names[1:]))
    assert releases(server) == {1}


def test_a_release_is_charged_in_each_aggregation(signers: dict[str, Signer], tmp_path: Path) -> None:
    """Delete the registers of the sites: a repeated aggregation counts as a further release in their accounts."""
    server = Server(tmp_path, NAMES[:5], 3, signers, PRIVACY)
    for turn in (1, 2):
        server.aggregate(AggregationMeta(server.names))
        assert releases(server) == {turn}
        for name in server.names:
            (tmp_path / name / SecretUses.NAME).unlink()
    with refused(RefusedError, "releases_exhausted", maximum=2):
        server.aggregate(AggregationMeta(server.names))
    assert releases(server) == {2}
