"""Files of the coordinator: the participants of a federation, and the approved keys."""

from __future__ import annotations

from typing import ClassVar

from medfl.errors import MedflError, SettingsError
from medfl.records.record import FileRecord


class FederationFile(FileRecord):
    """Content of ``federation.json`` in the folder of a federation's root certificate.

    Attributes:
        name: Name of the project.
        server: Host name of the server.
        sites: Names of the sites.
        admin: E-mail address of the researcher.
        port: Port of the server.
        scheme: ``http``, ``grpc`` or ``tcp``.
        valid_days: Days for which a new root certificate is valid.
    """

    NAME: ClassVar[str] = "federation.json"
    """Name of the file in its folder."""

    ERROR: ClassVar[type[MedflError]] = SettingsError
    """Class of the errors that the reader raises."""

    name: str
    server: str
    sites: tuple[str, ...]
    admin: str
    port: int
    scheme: str
    valid_days: int


class ApprovedKey(FileRecord):
    """File with the key that the coordinator approved for a participant; another key for the same name is refused.

    Attributes:
        name: Name of the participant.
        role: ``site``, ``server`` or ``researcher``.
        key: SHA-256 fingerprint of the public key.
        time: Time of the approval in ISO format.
    """

    ERROR: ClassVar[type[MedflError]] = SettingsError
    """Class of the errors that the reader raises."""

    name: str
    role: str
    key: str
    time: str
