"""Measure the CPU time of one site and of the server in a secure aggregation, and the size of the masked update.

By default there are ten sites with updates of 20 MB in float32. Two of them drop out after sharing their secrets, so
the server reconstructs their masks. In a real federation the sites compute in parallel: a round takes longer by the
time of one site plus the time of the server. A simulation on one machine takes the time of all sites plus the time of
the server.

    python benchmarks/secure_aggregation.py
    python benchmarks/secure_aggregation.py --sites 30 --megabytes 100 --bits 32
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

import numpy as np
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from medfl.engine.secure.discrete_gaussian import discrete_gaussian
from medfl.engine.secure.fixed_point import FixedPoint, pack_words, to_signed, unpack_words
from medfl.engine.secure.keys import MASK, agree_key, public_key
from medfl.engine.secure.masks import add_mask, pair_sign
from medfl.engine.secure.shamir import combine, split
from medfl.privacy.signatures import Signer
from medfl.utils import wire
from medfl.utils.rng import SecretStream

CLIP = 10.0
"""L2 norm of each update."""

OPERATIONS = 4
"""Number of operations per round in which a site verifies the signatures of all sites' keys."""


def measure_signatures(sites: int) -> float:
    """Return the CPU seconds in which one site signs and verifies the keys and the survivor list in a round."""
    root, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    now, name = datetime.datetime.now(datetime.UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "site")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    own, issuer = (
        builder.public_key(private.public_key()).sign(root, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        for private in (key, root)
    )
    signer = Signer("site", own, issuer, key)
    start = time.process_time()
    for purpose, times in (("keys", OPERATIONS), ("survivors", 1)):
        signature = signer.sign(purpose, b"a statement")
        for _ in range(times * sites):
            signer.verify_site(purpose, b"a statement", signature, own, "site")
    return time.process_time() - start


def measure(sites: int, megabytes: float, bits: int, dropped: int, noise: float) -> dict[str, float]:
    """Run one aggregation, raise if its sum is wrong, and return the figures by name.

    Args:
        sites: Number of sites.
        megabytes: Size of an update in MB as float32.
        bits: Number of bits of a masked element, 32 or 40.
        dropped: Number of sites that drop out.
        noise: Noise multiplier of the sum; 0 adds no noise.

    Raises:
        AssertionError: If the unmasked sum differs from the sum of the updates.
    """
    numbers, threshold = int(megabytes * 1e6 / 4), 2 * sites // 3 + 1
    point = FixedPoint(bits, sites, CLIP, numbers, noise, threshold)
    names = [f"site-{number:03d}" for number in range(sites)]
    streams = {name: SecretStream(b"a secret of a site", name) for name in names}
    masks = {name: stream.take(32) for name, stream in streams.items()}
    own = {name: stream.take(32) for name, stream in streams.items()}
    public = {name: public_key(key) for name, key in masks.items()}

    start = time.process_time()
    shares = {name: split(own[name], sites, threshold, streams[name].take) for name in names}
    dead = {name: split(masks[name], sites, threshold, streams[name].take) for name in names}
    sharing = (time.process_time() - start) / sites

    model = torch.zeros(numbers)
    context = b""
    total, plain, spent, up = None, np.zeros(numbers, dtype=np.int64), [], 0
    staying = names[dropped:]
    for number, name in enumerate(staying):
        update = torch.randn(numbers, generator=torch.Generator().manual_seed(number)).double()
        update *= CLIP / update.norm()
        start = time.process_time()
        context = wire.digest({"model": model}).encode()
        steps = point.rounded(update, torch.Generator().manual_seed(number))
        if noise:
            steps += discrete_gaussian(point.site_noise, numbers, streams[name])
        words = point.words(steps)
        add_mask(words, own[name])
        for other in names:
            if other != name:
                add_mask(words, agree_key(masks[name], public[other], MASK, context), pair_sign(name, other))
        sent = pack_words(words, bits)
        spent.append(time.process_time() - start)
        plain, up = plain + steps.numpy(), sent.numel()
        start = time.process_time()
        words = unpack_words(sent, bits)
        total = words if total is None else total + words
        spent.append(time.process_time() - start)
    assert total is not None

    start = time.process_time()
    for name in staying:
        add_mask(total, combine(dict(enumerate(shares[name], start=1)), threshold), -1)
    for name in names[:dropped]:
        key = combine(dict(enumerate(dead[name], start=1)), threshold)
        for other in staying:
            add_mask(total, agree_key(key, public[other], MASK, context), -pair_sign(other, name))
    unmasking = time.process_time() - start + sum(spent[1::2])
    if not (to_signed(total, bits) == plain).all():
        raise AssertionError("the unmasked sum differs from the sum of the updates")
    signing = measure_signatures(sites)
    site = sum(spent[::2]) / len(staying) + sharing + signing
    return {
        "one site (s)": site,
        "of which signatures (s)": signing,
        "server (s)": unmasking,
        "a round takes longer (s)": site + unmasking,
        "all sites and the server (s)": site * sites + unmasking,
        "bytes / float32": up / (4 * numbers),
    }


def main() -> None:
    """Run the measurements and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10, help="number of sites")
    parser.add_argument("--megabytes", type=float, default=20.0, help="size of an update in MB as float32")
    parser.add_argument(
        "--bits", type=int, nargs="*", default=[32, 40], help="bits of a masked element, 32 or 40; one or more values"
    )
    parser.add_argument("--dropped", type=int, default=2, help="number of sites that drop out")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for bits in options.bits:
        for noise in (0.0, 5.0):
            name = f"{bits} bits{', noise' if noise else ''}"
            figures[name] = measure(options.sites, options.megabytes, bits, options.dropped, noise)
    columns = list(next(iter(figures.values())))
    print(f"{options.sites} sites, {options.megabytes:g} MB each, {options.dropped} dropped out\n")
    print(f"{'':18}" + "".join(f"{column:>30}" for column in columns))
    for name, row in figures.items():
        print(f"{name:18}" + "".join(f"{row[column]:>30.3f}" for column in columns))
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
