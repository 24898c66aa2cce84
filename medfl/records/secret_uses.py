"""Register of the uses of a site's secrets under secure aggregation, in ``secure_aggregation.json`` of its folder."""

from __future__ import annotations

from typing import ClassVar

from medfl.records.record import FileRecord, Record


class SecretUse(Record):
    """A use of a round's secrets.

    Attributes:
        round: Number of the round.
        use: Name of the use, such as ``participants``.
        digest: Digest of the content for which the secrets were used.
    """

    round: int
    use: str
    digest: str


class SecretUses(FileRecord):
    """All uses of a site's secrets in a run. A use is never removed.

    Attributes:
        nonce: Random digits from which, with the site's own secret, all secrets of the run are derived; None before
            they are drawn.
        uses: The uses, in the order in which they were recorded.
    """

    NAME: ClassVar[str] = "secure_aggregation.json"
    HAS_CHECKSUM: ClassVar[bool] = True
    REPAIR: ClassVar[str] = (
        "Without it, a repeated use of a secret can't be detected: restore it from a copy, or start the run in a new "
        "folder."
    )

    nonce: str | None = None
    uses: tuple[SecretUse, ...] = ()
