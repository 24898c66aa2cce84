"""Startup kits for the participants of a federation, made with NVFlare's builders.

A startup kit is the folder with certificate, settings and scripts with which a participant (the server, a site or a
researcher) connects to the federation.

The folder ``ca/`` beside the kits contains the project's root certificate with its private key: anyone who has it can
make participants. Only the person who provisions keeps it. A later call with more sites uses the same root.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medfl.errors import SettingsError, StoreError, pip_install
from medfl.types import Meta
from medfl.utils.files import private_files, write_json
from medfl.utils.text import name_problem
from medfl_flare.records.federation import FederationFile

ALLOWED_CLASSES = {"server": "medfl_flare.job.MedflController", "client": "medfl_flare.job.MedflExecutor"}
"""Maps each kind of participant to the only class of medfl that a job may name there."""
PROJECT = "medfl"
"""Default name of a project in the certificates."""
COMM_CONFIG = "comm_config.json"
"""NVFlare's name of the file with connection settings, in the folder ``local`` of a kit."""

STREAMING_SETTINGS: Meta = {
    "streaming_window_size": 4 * 2**20,
    "streaming_ack_interval": 2**20,
    "streaming_retry_wait": 30.0,
    "streaming_retry_timeout": 300.0,
}
"""NVFlare's settings for large messages: bytes in transit, and seconds without an acknowledgement until a retry or an
error.

By default NVFlare has 16 MB in transit and sends all of it again after 5 s without an acknowledgement. A connection
below 25 Mbit/s can't acknowledge in that time: a model took five times as long as the connection needs. NVFlare still
treats 60 s without any acknowledgement as an interrupted connection and sends the message again."""

ANSWER_SECONDS = 30.0
"""Seconds that a site waits for the answer to its request for a task, or to a task's result, before it repeats the
message. Both are small; medfl's models travel in other messages. NVFlare's default is 300, and the answer is lost if a
connection is cut before it arrives."""

CA_FOLDER_NAME = "ca"
"""Name of the folder beside the kits with the root certificate and its private key."""
SITE_FILE_TEMPLATE = """# Folders of this participant, and its permissions for runs; docs/deploy.md explains every key.
# Remove the '#' of each line that you fill in; then check it: medfl site check local/medfl-site.toml --kit .
site = "{name}"
# state = "/var/lib/medfl"        # folder for the state of runs, and for this participant's noise secret
# methods = ["fedavg"]            # methods that may run here; [] means none
# max_rounds = 200
# max_message_mb = 512
# max_network_mb = 1024
# min_count = 10                  # minimum number of images behind a number that leaves
# disclose = ["size"]             # information about the training data that may leave: size, label_counts; and for
#                                 # `medfl federate statistics`: geometry, intensities, targets; and to runs with
#                                 # harmonise_features, of each feature of the encoder: feature_sums
# profile = "live"                # measures this machine and discloses it to runs that ask; default: nothing
# cross_site_evaluation = false   # whether cross-site evaluation is allowed: models are scored at other sites
# shared_test = false             # whether this site's model may be scored on a test set 'global' beside its data
# evaluation_scores = []          # scores of finished models that `medfl federate evaluate` may get, as "auc"
# least_threshold = 3             # minimum number of certified sites in the sum in which an update leaves
# threads = 1
# device = "cpu"                  # auto, cpu, cuda:0
# cache = "memory"                # storage of an adopted bundle's cases: memory, disk, none
# cache_dir = "/var/lib/medfl/cache"  # folder of the caches on disk; default: a folder in the bundle's data
# feature_cache = true            # features of a frozen body are computed once and stored in the cache
# weights = "/srv/weights"        # folder with files of pretrained weights from which runs may start
# loaders = 0                     # number of processes that load such cases ahead of training
# checkpoint_minutes = 10         # most minutes of training in a step that a kill may lose

# [privacy]                       # minimum privacy that a run must guarantee; without this table there is no minimum
# unit = "site"
# adjacency = "replace"
# epsilon = 8.0
# delta = 1e-5
# ledger = "/var/lib/medfl/ledger"
# total_epsilon = 20.0

# [bundles.medmnist_classification]
# folder = "/opt/medfl/bundles/medmnist_classification"  # your reviewed copy; default: the one that comes with medfl
# data = "{data}"
# network = "cnn4"                # default: the bundle's own choice
"""
"""Template of ``local/medfl-site.toml`` in a new kit: it allows nothing until the administrator edits it."""

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RIGHTS = (
    "app_command",
    "byoc",
    "clone_job",
    "download_job",
    "manage_job",
    "operate",
    "server-predeployed-flwr",
    "shell_commands",
    "submit_job",
    "view",
)
"""NVFlare's rights. ``byoc`` permits code within a job; ``app_command`` permits a request for a run's progress."""


@dataclass(frozen=True)
class Project:
    """Participants of a federation and settings of its connections.

    Attributes:
        name: Name of the project, the same for all participants.
        server: Host name of the server, as the sites resolve it.
        sites: Names of the sites.
        admin: E-mail address that names the researcher who submits runs.
        port: The only port at which the server listens, for sites and for the researcher.
        scheme: ``http`` (websockets), ``grpc`` or ``tcp``; each under mutual TLS.
        valid_days: Days for which a new root certificate is valid; a participant's certificate is valid for at most 360
            days.
    """

    server: str
    sites: tuple[str, ...]
    admin: str
    name: str = PROJECT
    port: int = 8002
    scheme: str = "http"
    valid_days: int = 360

    def record(self) -> FederationFile:
        """Return the project as the record that is written to ``federation.json``."""
        return FederationFile(**asdict(self))

    def check(self) -> None:
        """Raise if a name is not possible in certificates, folders or medfl's runs.

        Raises:
            SettingsError: If a name is invalid; names the first one.
        """
        if not _HOST.fullmatch(self.server):
            raise SettingsError(
                "invalid_host_name",
                f"expected a host name as the sites resolve it for the server, got '{self.server}'",
                name=self.server,
            )
        if "@" not in self.admin.strip("@") or any(letter.isspace() or letter == "/" for letter in self.admin):
            raise SettingsError(
                "invalid_email",
                f"expected an e-mail address for the researcher, got '{self.admin}'",
                address=self.admin,
            )
        if not 1 <= self.port <= 65535:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a port from 1 to 65535, got {self.port}",
                setting="port",
                minimum=1,
                maximum=65535,
                found=self.port,
            )
        if not _PROJECT.fullmatch(self.name):
            raise SettingsError(
                "invalid_name",
                f"expected 1 to 63 letters, digits, '_' or '-' as the project's name, got '{self.name}'",
                name=self.name,
            )
        if problem := name_problem(self.sites):
            raise SettingsError("invalid_site_name", problem, sites=self.sites)
        reserved = {CA_FOLDER_NAME, self.server, self.admin} & set(self.sites)
        if reserved or len(set(self.sites)) != len(self.sites):
            raise SettingsError(
                "duplicate_name",
                f"every site needs a unique name, other than {sorted(reserved) or 'the name of another site'}",
                names=self.sites,
                reserved=reserved,
            )

    def definition(self) -> dict[str, Any]:
        """Return the project as the content of NVFlare's project file, from which NVFlare's builders make the kits."""
        org = self.name.replace("-", "_")
        participants: list[dict[str, Any]] = [
            {"name": self.server, "type": "server", "org": org, "fed_learn_port": self.port,
             "admin_port": self.port},
            *({"name": site, "type": "client", "org": site.replace("-", "_")} for site in self.sites),
            {"name": self.admin, "type": "admin", "org": org, "role": "project_admin"},
        ]  # fmt: skip
        path = "nvflare.lighter.impl"
        builders: list[dict[str, Any]] = [
            {"path": f"{path}.workspace.WorkspaceBuilder"},
            {
                "path": f"{path}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": self.scheme},
            },
            {"path": f"{path}.cert.CertBuilder", "args": {"root_valid_days": self.valid_days}},
            {"path": f"{path}.signature.SignatureBuilder"},
        ]
        return {"api_version": 3, "name": self.name, "participants": participants, "builders": builders}


def provision(project: Project, out: Path) -> dict[str, Path]:
    """Make the kits of a federation, or only the kits of participants that are new since the last call.

    Args:
        project: Participants of the federation. A later call needs only the new sites: the earlier ones are kept.
        out: Folder of the kits, ``out/<participant>``, and of ``out/ca``. An existing kit is not changed.

    Returns:
        Maps each new participant to the folder of its kit. Empty if no participant is new.

    Raises:
        SettingsError: If a name is invalid, or if server, researcher or port differ from the earlier call.
        StoreError: If the folder can't be written, or if NVFlare's builders failed.
    """
    project = with_earlier_sites(project, out / CA_FOLDER_NAME / FederationFile.NAME)
    project.check()
    with private_files():
        try:
            out.mkdir(parents=True, exist_ok=True)
            built = _build(project, out / CA_FOLDER_NAME)
            made = {}
            for participant in (project.server, *project.sites, project.admin):
                if not (out / participant).exists():
                    prepare_kit(built / participant, project, participant)
                    shutil.move(built / participant, out / participant)
                    made[participant] = out / participant
            shutil.rmtree(built)
            project.record().write(out / CA_FOLDER_NAME / FederationFile.NAME)
        except OSError as error:
            raise StoreError("unwritable_folder", f"the kits in '{out}' can't be written: {error}", path=out) from error
    return made


def with_earlier_sites(project: Project, record: Path) -> Project:
    """Return the federation of an earlier call with the new sites added; its other fields must be equal.

    Args:
        project: Participants in this call.
        record: File in which the earlier call recorded the participants; it may not exist.

    Raises:
        SettingsError: If a field differs.
    """
    if not record.is_file():
        return project
    before = FederationFile.read(record)
    for key in ("server", "admin", "name", "port", "scheme"):
        expected, value = getattr(before, key), getattr(project, key)
        if value != expected:
            raise SettingsError(
                "other_federation",
                f"'{record.parent}' belongs to a federation whose {key} is '{expected}', not '{value}'. Give the "
                "same value, or another folder for another federation",
                path=record.parent,
                setting=key,
                expected=expected,
                found=value,
            )
    sites = (*before.sites, *(site for site in project.sites if site not in before.sites))
    return replace(project, sites=sites, valid_days=before.valid_days)


class _LogCollector:
    """Collector of the log messages of NVFlare's builders, for the error if they fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str) -> None:
        self.lines.append(message)

    debug = warning = error = info


def _build(project: Project, ca: Path) -> Path:
    """Run NVFlare's builders and return the folder with the kits of all participants."""
    try:
        from nvflare.lighter.constants import CtxKey
        from nvflare.lighter.prov_utils import prepare_builders
        from nvflare.lighter.provision import prepare_project
        from nvflare.lighter.provisioner import Provisioner
    except ImportError as error:
        raise SettingsError(
            "missing_package",
            f"NVIDIA FLARE is not installed: {pip_install('flare')} ({error})",
            package="nvflare",
            extra="flare",
        ) from error
    definition, log = project.definition(), _LogCollector()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            provisioner = Provisioner(str(ca.resolve()), prepare_builders(definition))
            context = provisioner.provision(prepare_project(definition), logger=log)
        except (ValueError, RuntimeError) as error:
            raise SettingsError(
                "provisioning_failed", f"NVFlare can't provision this federation: {error}", reason=str(error)
            ) from error
    folder = context.get(CtxKey.CURRENT_PROD_DIR)
    if context.get(CtxKey.BUILD_ERROR) or not folder:
        raise StoreError(
            "provisioning_failed", f"NVFlare's builders failed: {'; '.join(log.lines[-3:])}", output=log.lines[-3:]
        )
    return Path(folder)


def prepare_kit(kit: Path, project: Project, participant: str, researcher: str = "project_admin") -> None:
    """Write medfl's files into the `local` folder of a kit: the class allow-list, the rights, and the site's own file.

    Args:
        kit: A kit as NVFlare made it.
        project: Participants of the federation.
        participant: Owner of the kit.
        researcher: NVFlare's role in the researcher's certificate.
    """
    if participant == project.admin:
        return
    is_server = participant == project.server
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources = with_allowed_class(resources, is_server=is_server)
    for name in ("resources.json", "resources.json.default"):  # `nvflare deploy prepare` starts from the default
        write_json(local / name, resources)
    write_json(local / "authorization.json", role_rights(is_server=is_server, researcher=researcher))
    write_json(local / COMM_CONFIG, STREAMING_SETTINGS)
    name, data = ("server", "/data/public") if is_server else (participant, f"/data/{participant}")
    (local / "medfl-site.toml").write_text(SITE_FILE_TEMPLATE.format(name=name, data=data))


def with_allowed_class(resources: Meta, *, is_server: bool) -> Meta:
    """Return NVFlare's settings of a participant with medfl's class in the list of classes that a job may name.

    Args:
        resources: Content of ``resources.json.default``. All other settings are kept except four: waiting jobs are
            checked every second, a site without a heartbeat for a minute is unavailable, no site sends its error log to
            the server, and a site repeats a request for a task, or a task's result, after `ANSWER_SECONDS`.
        is_server: Whether the settings are the server's.
    """
    line = ALLOWED_CLASSES["server" if is_server else "client"]
    listed = [*(name for name in resources.get("class_allow_list", []) if name != line), line]
    changed = resources | {"class_allow_list": listed}
    if not is_server:
        client = resources.get("client", {}) | {"communication_timeout": ANSWER_SECONDS}
        return changed | {"allow_log_streaming": False, "client": client}
    scheduling = {"min_schedule_interval": 1.0, "max_schedule_interval": 10.0}
    changed["components"] = [
        part | {"args": part["args"] | scheduling} if part["id"] == "job_scheduler" else part
        for part in changed["components"]
    ]
    changed["servers"] = [server | {"heart_beat_timeout": 60} for server in resources["servers"]]
    return changed


def role_rights(*, is_server: bool, researcher: str = "project_admin") -> Meta:
    """Return the rights of each role at a participant: no role may send code in jobs (byoc) or give shell commands.

    Args:
        is_server: Whether the participant is the server; only there may the researcher operate NVFlare itself.
        researcher: NVFlare's role that has all other rights.
    """
    none = dict.fromkeys(RIGHTS, "none")
    granted = dict.fromkeys(("app_command", "download_job", "manage_job", "submit_job", "view"), "any")
    roles = dict.fromkeys(("project_admin", "org_admin", "lead", "member"), none)
    roles[researcher] = none | granted | ({"operate": "any"} if is_server else {})
    return {"format_version": "1.0", "permissions": roles}
