"""Parcels that a server only passes on: signed with the sender's kit key, for one receiver in one run.

A sealed parcel is a mark, the sender's certificate, a signature, and the packed message. Signed are the run, the
sender, the receiver and the SHA-256 of the message, which says step and use itself; so whoever passes it on can alter
none of them, make one of its own, or bring one of another run or for another site. Who brings the same one twice
changes nothing: it is stored once. Within one machine nobody passes anything on, and nothing is signed.
"""

from __future__ import annotations

import hashlib
import json

from medfl.errors import RefusedError
from medfl.privacy.signatures import MAX_CERTIFICATE, Signer
from medfl.types import Meta

MARK = b"medfl sealed parcel 1\0"
PURPOSE = "peer_message"
"""What the signatures are for (`medfl.privacy.signatures`)."""

_LENGTH = 2
"""Bytes of a length."""


class Seal:
    """Seals a site's parcels, and opens those of other sites, in one run.

    Args:
        signer: The site's own key and certificate.
        run: What makes the run: the same for all its participants, another for any other run; JSON.
    """

    def __init__(self, signer: Signer, run: Meta) -> None:
        self._signer = signer
        self._run = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()

    def close(self, blob: bytes, to: str) -> bytes:
        """A packed message, sealed for a site."""
        signature = self._signer.sign(PURPOSE, self._about(self._signer.name, to, blob))
        parts = (self._signer.certificate, signature)
        return b"".join([MARK, *(len(part).to_bytes(_LENGTH) + part for part in parts), blob])

    def open(self, sealed: bytes, sender: str) -> bytes:
        """The message in a sealed parcel, from bytes that nobody has looked at yet.

        Args:
            sealed: What came.
            sender: Who sends it, as whoever brings it says.

        Raises:
            RefusedError: If it is not sealed by that site, for this one and this run.
        """
        if not sealed.startswith(MARK):
            raise RefusedError(
                "missing_signature",
                f"expected a parcel that is signed by '{sender}', got one without a signature",
                site=sender,
            )
        certificate, start = _part(sealed, len(MARK))
        signature, start = _part(sealed, start)
        blob = sealed[start:]
        self._signer.verify(PURPOSE, self._about(sender, self._signer.name, blob), signature, certificate, sender)
        return blob

    def _about(self, sender: str, to: str, blob: bytes) -> bytes:
        return json.dumps([self._run, sender, to, hashlib.sha256(blob).hexdigest()]).encode()


def _part(sealed: bytes, start: int) -> tuple[bytes, int]:
    """A part with its length before it, and where the next one begins."""
    begin = start + _LENGTH
    length = int.from_bytes(sealed[start:begin])
    if len(sealed) < begin + length or length > MAX_CERTIFICATE:
        raise RefusedError("truncated_parcel", "expected a signed parcel, got a part of one")
    return sealed[begin : begin + length], begin + length
