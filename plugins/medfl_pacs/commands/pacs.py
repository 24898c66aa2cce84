"""Commands ``medfl pacs``: retrieve images into a pseudonymised store, review suspicious images, and add labels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl_pacs.pseudonyms import DEFAULT_KEY

if TYPE_CHECKING:
    from medfl_pacs.image_store import ImageStore
    from medfl_pacs.pacs_source import PacsSource

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
"""Typer application with all subcommands of ``medfl pacs``."""


class RetrievalMethod(StrEnum):
    """Operation that retrieves images."""

    GET = "get"
    MOVE = "move"


Out = Annotated[Path, typer.Option(metavar="STORE", help="Folder of the store: new, or a store to continue.")]
Key = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Secret key of the site, which decides all pseudonyms; created if it does not exist. Keep a copy, and "
        "never give it away.",
    ),
]
ExistingKey = Annotated[Path, typer.Option(metavar="FILE", help="Secret key with which the store was made.")]
PerSecond = Annotated[
    float | None,
    typer.Option(min=0.001, help="Maximum number of requests per second, one request for each image."),
]
HoursOption = Annotated[
    str | None,
    typer.Option(metavar="HH:MM-HH:MM", help="Hours in which requests are allowed; the command waits outside of them."),
]
KeepCharacteristics = Annotated[
    bool,
    typer.Option("--keep-characteristics", help="Keep sex, age (up to 89 years), size and weight of patients."),
]
KeepBurnedIn = Annotated[
    bool,
    typer.Option(
        "--keep-burned-in",
        help="Put images with signs of burned-in text into `images` at once, instead of into `quarantine`.",
    ),
]
Ca = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificates (PEM) of the authorities that the server may have.")
]
Certificate = Annotated[Path | None, typer.Option(metavar="FILE", help="Client certificate (PEM).")]
SearchKeys = Annotated[
    str,
    typer.Option(
        metavar="KEYS",
        help="Search keys: DICOM keywords with values, separated by commas. Modality, SeriesDescription and other "
        "keys of a series select series, all others studies.",
    ),
]
CertificateKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the client certificate (PEM).")]


@app.callback()
def group() -> None:
    """Retrieve images from a PACS into a pseudonymised store on this machine.

    Example: medfl pacs dicomweb https://pacs/dicom-web --query "ModalitiesInStudy=CT" --out store
    """


@app.command()
def dicomweb(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the service, such as https://pacs/dicom-web.")],
    query: SearchKeys,
    out: Out,
    key: Key = DEFAULT_KEY,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with a bearer token.")] = None,
    user: Annotated[str | None, typer.Option(help="User name, for basic authentication.")] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the password.")] = None,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    ca: Ca = None,
    per_second: PerSecond = None,
    hours: HoursOption = None,
    keep_characteristics: KeepCharacteristics = False,
    keep_burned_in: KeepBurnedIn = False,
) -> None:
    """Retrieve images with DICOMweb (QIDO-RS and WADO-RS).

    The same command continues after an interruption, and retrieves new images later.

    Example: medfl pacs dicomweb https://pacs/dicom-web --query "ModalitiesInStudy=CT,StudyDate=20200101-20201231"
    --token-file token --per-second 5 --hours 20:00-06:00 --out store
    """
    from medfl_pacs.dicomweb import Credentials, DicomwebSource
    from medfl_pacs.query import parse_query

    credentials = Credentials(
        token_file=token_file,
        user=user,
        password_file=password_file,
        certificate=certificate,
        certificate_key=certificate_key,
        ca=ca,
    )
    source = DicomwebSource(url, parse_query(query), credentials)
    if url.startswith("http://") and (token_file or user) and source.host.split(":")[0] not in _LOOPBACK:
        typer.echo("warning: http:// sends the token or password, and all images, without encryption", err=True)
    _retrieve(source, out, key, per_second, hours, keep_characteristics, keep_burned_in)


_LOOPBACK = ("localhost", "127.0.0.1")


@app.command()
def dimse(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name or address of the PACS.")],
    find: SearchKeys,
    out: Out,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the PACS.")] = 104,
    aet: Annotated[str, typer.Option(metavar="TITLE", help="Application entity title of the PACS.")] = "ANY-SCP",
    own_aet: Annotated[
        str, typer.Option(metavar="TITLE", help="Application entity title of medfl, which the PACS must know.")
    ] = "MEDFL",
    method: Annotated[RetrievalMethod, typer.Option(help="Retrieval with C-GET or C-MOVE.")] = RetrievalMethod.GET,
    own_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of medfl for C-MOVE, which the PACS must know.")
    ] = 11112,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt the connection to the PACS.")] = False,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    ca: Ca = None,
    key: Key = DEFAULT_KEY,
    per_second: PerSecond = None,
    hours: HoursOption = None,
    keep_characteristics: KeepCharacteristics = False,
    keep_burned_in: KeepBurnedIn = False,
) -> None:
    """Retrieve images with the DICOM network protocol (C-FIND, and C-GET or C-MOVE).

    The same command continues after an interruption, and retrieves new images later.

    Example: medfl pacs dimse pacs.hospital --port 104 --aet PACS --find "ModalitiesInStudy=MR,PatientSex=F" --out store
    """
    from medfl.errors import SettingsError
    from medfl_pacs.dimse import DimseAddress, DimseSource, DimseTls
    from medfl_pacs.query import parse_query

    if not tls and (ca or certificate or certificate_key):
        raise SettingsError("missing_option", "--ca and --certificate need --tls.", option="--tls")
    address = DimseAddress(host=host, port=port, aet=aet, own_aet=own_aet, method=method.value, own_port=own_port)
    files = DimseTls(ca=ca, certificate=certificate, certificate_key=certificate_key) if tls else None
    source = DimseSource(address, parse_query(find), files)
    _retrieve(source, out, key, per_second, hours, keep_characteristics, keep_burned_in)


@app.command()
def review(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")],
    key: ExistingKey = DEFAULT_KEY,
) -> None:
    """Apply the decisions in review.csv: delete images, and move reviewed series from `quarantine` to `images`.

    Look at each image that review.csv lists, and write `keep` or `delete` into the column `decision`.

    Example: medfl pacs review store
    """
    from medfl_pacs.review import apply_review

    with _open_existing(store, key) as opened:
        counts = apply_review(opened)
    typer.echo(
        f"{counts.kept} images kept, {counts.deleted} deleted, {counts.undecided} without a decision; "
        f"{counts.released} series moved to images"
    )


@app.command()
def labels(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")],
    table: Annotated[
        Path, typer.Option(metavar="FILE", help="The hospital's own CSV or TSV file, with the patients' real IDs.")
    ],
    column: Annotated[
        list[str], typer.Option(metavar="COLUMN", help="Column to take over, such as the diagnosis; may be repeated.")
    ],
    patient_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the PatientID; its content is not kept.")
    ] = None,
    study_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Instead, the column with the StudyInstanceUID; its content is not kept."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that contains the store, if it will be given to medfl prep folder instead of the store.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write.  [default: labels.csv in the store]")
    ] = None,
    key: ExistingKey = DEFAULT_KEY,
) -> None:
    """Join labels from the hospital's own table with the studies of a store, under pseudonyms.

    The result has one row for each study with labels: its folder, the pseudonym of the patient, and the chosen columns.
    Columns that look like names, dates or numbers of patients are refused. A patient's row applies to all studies of
    the patient.

    Example: medfl pacs labels store --table clinic.csv --patient-column patient_id --column diagnosis
    """
    from medfl.data.table import read_table, row_list
    from medfl.errors import SettingsError
    from medfl.utils.files import write_atomic
    from medfl_pacs.label_table import join_labels

    id_column = patient_column or study_column
    if id_column is None or (patient_column and study_column):
        raise SettingsError(
            "missing_option" if id_column is None else "incompatible_settings",
            "expected --patient-column, the column of the table with the PatientID, or --study-column, the column with "
            "the StudyInstanceUID.",
            option="--patient-column",
        )
    path = out or store / "labels.csv"
    with _open_existing(store, key) as opened:
        content, counts = join_labels(
            opened,
            read_table(table),
            id_column=id_column,
            by_study=study_column is not None,
            columns=column,
            images=images or store,
        )
        write_atomic(path, content)
    typer.echo(f"{path}: {counts.labelled} studies with labels, {counts.unlabelled} without")
    if counts.unmatched:
        typer.echo(f"{len(counts.unmatched)} rows of {table} have no study in the store: {row_list(counts.unmatched)}")
    typer.echo(
        f"next: medfl prep folder {images or store} --table {path} --image-column folder --group-column patient "
        f"--target {column[0]} --size 64x64x32 --out data/NAME"
    )


@contextlib.contextmanager
def _open_existing(store: Path, key: Path) -> Iterator[ImageStore]:
    """Open a store that exists, with the key that made it, and lock it within the block.

    Raises:
        DataError: If there is no store, or no key.
    """
    from medfl.errors import DataError
    from medfl_pacs.image_store import open_store
    from medfl_pacs.pseudonyms import open_key
    from medfl_pacs.store_records import StoreFile

    if not (store / StoreFile.NAME).is_file():
        raise DataError(
            "no_store", f"'{store}' is not a store of `medfl pacs`: it has no {StoreFile.NAME}.", path=store
        )
    _require_key(store, key)
    settings = StoreFile.read(store / StoreFile.NAME)
    pseudonyms, _ = open_key(key, store)
    with open_store(store, pseudonyms, keep_characteristics=settings.keep_characteristics) as opened:
        yield opened


def _require_key(store: Path, key: Path) -> None:
    """Raise a DataError if the key of a store does not exist. A new key would not fit the store."""
    from medfl.errors import DataError

    if not key.expanduser().exists():
        raise DataError(
            "no_key",
            f"There is no key '{key}'. Name the key with which the store '{store}' was made with --key.",
            path=key,
        )


def _retrieve(
    source: PacsSource,
    out: Path,
    key: Path,
    per_second: float | None,
    hours: str | None,
    keep_characteristics: bool,
    keep_burned_in: bool,
) -> None:
    """Retrieve what a source selects into a store, and print the result."""
    from medfl_pacs.image_store import open_store
    from medfl_pacs.pace import Pace, parse_hours
    from medfl_pacs.profile_actions import load_actions
    from medfl_pacs.pseudonyms import open_key
    from medfl_pacs.retrieval import Retrieval
    from medfl_pacs.store_records import StoreFile

    def say(line: str) -> None:
        typer.echo(line, err=True)

    try:
        load_actions()  # fails before the first request if the package is missing
        pace = Pace(per_second, parse_hours(hours) if hours else None, say)
        if (out / StoreFile.NAME).is_file():
            _require_key(out, key)
        pseudonyms, is_new = open_key(key, out)
        if is_new:
            say(f"created the key {key}: keep a copy, and never give it away; without it the store can't be continued")
        with open_store(
            out, pseudonyms, keep_characteristics=keep_characteristics, keep_burned_in=keep_burned_in
        ) as store:
            counts = Retrieval(source, store, pace, say).run()
            quarantined = sum(
                bool(record.images) and record.place == "quarantine" for record in store.journal.series.values()
            )
    finally:
        source.close()
    typer.echo(
        f"{out}: {counts.stored} images retrieved, {counts.present} were there already, {counts.series} series; "
        f"{counts.skipped} documents left out, {counts.refused} images refused"
    )
    if not counts.series:
        typer.echo("no series fits the search keys: check their values, or use fewer keys")
    if quarantined:
        typer.echo(
            f"{quarantined} series are in quarantine: look at the images that {out / 'review.csv'} lists, write keep "
            f"or delete, then run: medfl pacs review {out}{'' if key == DEFAULT_KEY else f' --key {key}'}"
        )
