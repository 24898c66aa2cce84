"""Signed peer messages (messages from site to site): each is signed for one receiver in one run.

The sender signs with the private key of its startup kit, the folder with which it connects to the federation.
The server relays peer messages and is not trusted with their content. A signed peer message consists of a prefix, the
sender's certificate, a signature and the packed message. The signature covers the run, the sender, the receiver and the
SHA-256 of the packed message, which contains the step and the message's purpose. So the server can't alter a message,
forge one, replay one from another run, or redirect one to another site. Delivering the same message twice has no
effect: the receiver stores it once. On a single machine no one relays messages, and they are not signed.
"""

from __future__ import annotations

import hashlib
import json

from medfl.errors import RefusedError
from medfl.privacy.signatures import MAX_CERTIFICATE, Signer
from medfl.types import Meta

PREFIX = b"medfl signed peer message 1\0"
"""First bytes of every signed peer message; the number is the version of the format."""

PURPOSE = "peer message"
"""Purpose that each signature covers, so that a signature for another purpose is rejected."""

_LENGTH_BYTES = 2
"""Size of a length field in bytes."""


class PeerMessageSigner:
    """Signs a site's own peer messages and verifies the peer messages of other sites, in one run.

    Args:
        signer: The site's own key and certificate.
        run: JSON values that identify the run: equal for all its participants, different for every other run.
    """

    def __init__(self, signer: Signer, run: Meta) -> None:
        self._signer = signer
        self._run = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()

    def sign(self, blob: bytes, to: str) -> bytes:
        """Return a packed message with a signature for one receiver.

        Args:
            blob: The packed message.
            to: Name of the receiving site.
        """
        signature = self._signer.sign(PURPOSE, self._signed_bytes(self._signer.name, to, blob))
        parts = (self._signer.certificate, signature)
        return b"".join([PREFIX, *(len(part).to_bytes(_LENGTH_BYTES) + part for part in parts), blob])

    def verify(self, signed: bytes, sender: str) -> bytes:
        """Verify a signed peer message, whose bytes are untrusted, and return the packed message in it.

        Args:
            signed: Received bytes.
            sender: Name of the sender, as the transport reports it.

        Raises:
            RefusedError: If the message is unsigned or incomplete, or `sender` did not sign it for this site and run.
        """
        if not signed.startswith(PREFIX):
            raise RefusedError(
                "missing_signature",
                f"expected a peer message that is signed by '{sender}', got one without a signature",
                site=sender,
            )
        certificate, start = _read_part(signed, len(PREFIX))
        signature, start = _read_part(signed, start)
        blob = signed[start:]
        self._signer.verify(
            PURPOSE, self._signed_bytes(sender, self._signer.name, blob), signature, certificate, sender
        )
        return blob

    def _signed_bytes(self, sender: str, to: str, blob: bytes) -> bytes:
        """Return the bytes that the signature covers."""
        return json.dumps([self._run, sender, to, hashlib.sha256(blob).hexdigest()]).encode()


def _read_part(signed: bytes, start: int) -> tuple[bytes, int]:
    """Return the part that follows a length field at `start`, and the position of the next part."""
    begin = start + _LENGTH_BYTES
    length = int.from_bytes(signed[start:begin])
    if len(signed) < begin + length or length > MAX_CERTIFICATE:
        raise RefusedError("truncated_peer_message", "expected a signed peer message, got an incomplete one")
    return signed[begin : begin + length], begin + length
