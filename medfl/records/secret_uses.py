"""Register of the uses of a site's secrets under secure aggregation, in ``secure_aggregation.json`` of its folder.

The secrets of a round hide the site's update. Used for two different contents, they would reveal it. So the site
records each use before anything leaves it, and refuses a second use of another content.
"""

from __future__ import annotations

from typing import ClassVar

from medfl.records.record import FileRecord, Record


class SecretUse(Record):
    """One use of a site's secrets in a round.

    Attributes:
        round: Number of the round.
        use: Name of the use, such as ``participants`` (the list of participants that the secrets belong to).
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
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = (
        "Without it, a repeated use of a secret can't be detected: restore it from a copy, or start the run in a new "
        "folder."
    )
    """Sentence that tells a user what to do about a damaged file."""

    nonce: str | None = None
    uses: tuple[SecretUse, ...] = ()
