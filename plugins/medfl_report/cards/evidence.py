"""``evidence.json``: everything that a model card is made from, with the SHA-256 of each file of its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator

from medfl.records.record import FileRecord, Record
from medfl.records.run_file import RunIdentity, Versions
from medfl_report.cards.card_record import CardFacts
from medfl_report.cards.card_scores import CardScores


def _without_folder(name: str) -> str:
    """Return a name that contains no folder; raise if it does."""
    if not name or name == ".." or Path(name).name != name:
        raise ValueError("expected a name without a folder")
    return name


PlainName = Annotated[str, AfterValidator(_without_folder)]
"""Name of a file or a site; it leads to no other folder."""


class CardFile(Record):
    """The file of the card.

    Attributes:
        name: Name of the file in the bundle.
        medfl_version: Version of medfl that wrote it.
    """

    name: PlainName
    medfl_version: str


class CodeVersions(Record):
    """Versions of the code.

    Attributes:
        versions: Versions of the run.
        plugins: Maps each plugin of the run to its origin; empty in the folder of a site of a distributed run.
        card_source: SHA-256 of the source of medfl that wrote the card.
    """

    versions: Versions
    plugins: dict[str, str]
    card_source: str


class Evidence(FileRecord):
    """The content of ``evidence.json``.

    There is one way to write a record, and the reader accepts no other bytes. So it also finds a change that a JSON
    parser would not notice. The checksum shows damage and changes; it does not show who wrote the file. For that,
    publish the SHA-256 of the file, which ``medfl verify`` prints.

    Attributes:
        facts: Facts of the card beside its scores.
        scores: Scores of the card.
        card: File of the card.
        files: Maps the path of each file of the bundle, except ``evidence.json``, to its SHA-256. A link has its target
            instead.
        files_digest: Digest of `files`.
        predictions: Maps each site to the SHA-256 of the file of predictions that the scores come from.
        data_digests: Maps each holder of data to the digest of its data; empty in the folder of a site of a distributed
            run. The facts have the digest of all data and the hashes of the data lists.
        code: Versions of the code.
        identity: Settings and data that make the run this run, as ``run.json`` has them.
        identity_digest: Digest of `identity`.
        run_files: Maps each file of the run folder that the card was made from to its SHA-256.
    """

    NAME: ClassVar[str] = "evidence.json"
    HAS_CHECKSUM: ClassVar[bool] = True
    REPAIR: ClassVar[str] = "Fetch the bundle again, or write its card again with `medfl card RUN`."

    facts: CardFacts
    scores: CardScores
    card: CardFile
    files: dict[str, str]
    files_digest: str
    predictions: dict[PlainName, str]
    data_digests: dict[str, str]
    code: CodeVersions
    identity: RunIdentity
    identity_digest: str
    run_files: dict[str, str]

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Self:
        """Validate the content of a file, every byte of it.

        Args:
            content: Bytes of the file.
            path: Path of the file, for messages.

        Raises:
            StoreError: With the code ``damaged_file`` or ``other_version``.
        """
        try:
            evidence = super().from_bytes(content, path)
            is_canonical = evidence.to_bytes() == content
        except RecursionError:
            is_canonical = False
        if not is_canonical:
            raise cls._damaged(path, "its bytes differ from those that medfl writes")
        return evidence
