"""The file ``evidence.json``: the content of a model card as data, and the SHA-256 of each file of the card's bundle.

In a distributed run the sites run on their own machines, and each has its own run folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator

from medfl.records.record import FileRecord, Record
from medfl.records.run_file import RunIdentity, Versions
from medfl_report.cards.card_record import CardFacts
from medfl_report.cards.card_scores import CardScores


def _check_plain_name(name: str) -> str:
    """Return the name; raise ValueError if it is empty, contains a folder, or leads to one."""
    if not name or name == ".." or Path(name).name != name:
        raise ValueError("expected a name without a folder")
    return name


PlainName = Annotated[str, AfterValidator(_check_plain_name)]
"""Name of a file or a site, without a folder, so that a forged file can't lead to other folders."""


class CardFile(Record):
    """File of the model card.

    Attributes:
        name: Name of the file in the bundle.
        medfl_version: Version of medfl that wrote the card.
    """

    name: PlainName
    medfl_version: str


class CodeVersions(Record):
    """Versions of the code of the run and of the card.

    Attributes:
        versions: Versions of the software in the run.
        plugins: Maps each plugin of the run to its origin; empty in the run folder of a site of a distributed run.
        card_source: SHA-256 over the source files of the medfl that wrote the card.
    """

    versions: Versions
    plugins: dict[str, str]
    card_source: str


class Evidence(FileRecord):
    """Content of ``evidence.json``.

    The serialisation is canonical, and the reader accepts no other bytes. So it also detects changes that a JSON parser
    would ignore. The checksum detects damage and careless changes; it does not authenticate the file. For that, publish
    the SHA-256 of the file, which ``medfl verify`` prints.

    Attributes:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
        card: Name of the card's Markdown file, and version of medfl that wrote the card.
        files: Mapping from the path of each file of the bundle, except ``evidence.json``, to the file's SHA-256, and
            from each symbolic link to the link's target.
        files_digest: SHA-256 over `files`.
        predictions: Maps each site to the SHA-256 of its file of predictions, from which the scores were computed.
        data_digests: Maps each site, and any other owner of data, to the digest of its data; empty in the run folder of
            a site of a distributed run. `facts` has the digest of all data and the hashes of the data lists.
        code: Versions of the code.
        identity: Settings and data digest that identify the run, as in ``run.json``.
        identity_digest: SHA-256 over `identity`.
        run_files: Maps each file of the run folder that was used for the card to its SHA-256.
    """

    NAME: ClassVar[str] = "evidence.json"
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file contains a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = "Fetch the bundle again, or write its card again with `medfl card RUN`."
    """Advice for a user whose file is damaged; part of the error message."""

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
        """Parse the content of a file; raise unless every byte is as medfl would write it.

        Args:
            content: Bytes of the file.
            path: Path of the file, for messages.

        Raises:
            StoreError: If the content is invalid (``damaged_file``) or of another format version (``other_version``).
        """
        try:
            evidence = super().from_bytes(content, path)
            is_canonical = evidence.to_bytes() == content
        except RecursionError:
            is_canonical = False
        if not is_canonical:
            raise cls._damaged(path, "its bytes differ from those that medfl writes")
        return evidence
