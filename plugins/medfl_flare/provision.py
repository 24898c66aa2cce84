"""Startup kits for the participants of a federation, made by NVFlare's own builders.

The folder ``ca/`` beside the kits holds the project's root certificate with its private key: whoever has it can make
participants. It stays with the one who provisions. A later call with more sites uses the same root.
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

ALLOWED = {"server": "medfl_flare.job.MedflController", "client": "medfl_flare.job.MedflExecutor"}
"""The one class of medfl that a job may name, at the server and at a site."""
PROJECT = "medfl"
COMM_CONFIG = "comm_config.json"
"""NVFlare's name for its settings of connections in the folder ``local`` of a kit."""

LARGE_MESSAGES: Meta = {
    "streaming_window_size": 4 * 2**20,
    "streaming_ack_interval": 2**20,
    "streaming_retry_wait": 30.0,
    "streaming_retry_timeout": 300.0,
}
"""Bytes that may be on their way, and seconds without an acknowledgement until something is sent again or given up.
By itself NVFlare has 16 MB on their way and sends all of that again after 5 s without an acknowledgement, which a line
below 25 Mbit/s can't give: a model took five times as long as the line needs. That nothing at all is acknowledged for
60 s stays NVFlare's sign of a line that was cut: the message is sent anew.
"""

CA = "ca"
SITE_FILE = """# What this participant has, and what a run may ask of it; docs/deploy.md explains every key.
# Take away the signs '#' of what you fill in; then prove it: medfl site check local/medfl-site.toml --kit .
site = "{name}"
# state = "/var/lib/medfl"        # where runs keep their state, and this participant's secret
# methods = ["fedavg"]            # methods that may run here; [] means none
# max_rounds = 200
# max_message_mb = 512
# max_network_mb = 1024
# min_count = 10                  # fewest images of which numbers may leave
# describe = ["size"]             # facts that may be told of the training data: size, label_counts; and to `medfl
#                                 # federate describe`: geometry, intensities, targets
# profile = "live"                # measures this machine for runs that ask, and tells it; default: it tells nothing
# exchange = false                # whether models of other sites may be scored here, and this site's elsewhere
# shared_test = false             # whether this site's model may be scored on a test set 'global' beside its data
# least_threshold = 3             # fewest certified sites in whose sum an update may leave (secure aggregation)
# threads = 1
# device = "cpu"                  # auto, cpu, cuda:0
# cache = "memory"                # where cases of an adopted bundle are kept: memory, disk, none
# cache_dir = "/var/lib/medfl/cache"  # of the cache on disk; default: a folder in the bundle's data
# loaders = 0                     # processes that load such cases ahead of training

# [privacy]                       # the least that a run must promise; leave the table out for no such floor
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
"""What a new kit has as ``local/medfl-site.toml``: it allows nothing until its administrator fills it in."""

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
"""The rights that NVFlare knows. ``byoc`` is code within a job; ``app_command`` asks a run how far it is."""


@dataclass(frozen=True)
class Project:
    """Who takes part.

    Attributes:
        name: Name of the project; NVFlare's participants must agree on it.
        server: Host name of the server, as the sites resolve it.
        sites: Names of the sites.
        admin: The e-mail address that names the researcher who submits runs.
        port: The one port at which the server listens, for sites and for the researcher.
        scheme: ``http`` (websockets), ``grpc`` or ``tcp``; each under mutual TLS.
        valid_days: How long a new root certificate holds; a participant's own certificate holds 360 days at most.
    """

    server: str
    sites: tuple[str, ...]
    admin: str
    name: str = PROJECT
    port: int = 8002
    scheme: str = "http"
    valid_days: int = 360

    def record(self) -> FederationFile:
        """Return the record of the participants."""
        return FederationFile(**asdict(self))

    def check(self) -> None:
        """Refuse names that certificates, folders or medfl's runs could not carry.

        Raises:
            SettingsError: Naming the first that is wrong.
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
        reserved = {CA, self.server, self.admin} & set(self.sites)
        if reserved or len(set(self.sites)) != len(self.sites):
            raise SettingsError(
                "duplicate_name",
                f"every site needs a name of its own, other than {sorted(reserved) or 'another site'}",
                names=self.sites,
                reserved=reserved,
            )

    def definition(self) -> dict[str, Any]:
        """NVFlare's project file, as a dictionary."""
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
    """Make the kits of a federation, or those of participants that joined since the last call.

    Args:
        project: Who takes part. In a later call, the new sites are enough: the earlier ones stay.
        out: The folder of the kits, ``out/<participant>``, and of ``out/ca``. A kit that is there is left as it is.

    Returns:
        The folders of the new kits, by participant. Empty if nobody is new.

    Raises:
        SettingsError: If a name is not possible, or server, researcher or port differ from those of the earlier call.
        StoreError: If the folder can't be written or NVFlare's builders failed.
    """
    project = joined(project, out / CA / FederationFile.NAME)
    project.check()
    with private_files():
        try:
            out.mkdir(parents=True, exist_ok=True)
            built = _build(project, out / CA)
            made = {}
            for participant in (project.server, *project.sites, project.admin):
                if not (out / participant).exists():
                    prepare_kit(built / participant, project, participant)
                    shutil.move(built / participant, out / participant)
                    made[participant] = out / participant
            shutil.rmtree(built)
            project.record().write(out / CA / FederationFile.NAME)
        except OSError as error:
            raise StoreError("unwritable_folder", f"the kits in '{out}' can't be written: {error}", path=out) from error
    return made


def joined(project: Project, record: Path) -> Project:
    """The federation of an earlier call with the new sites; its other entries must agree.

    Args:
        project: Who takes part, in this call.
        record: The file in which the earlier call noted who does; there may be none.

    Raises:
        SettingsError: If they don't agree.
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
                "same, or another folder for another federation",
                path=record.parent,
                setting=key,
                expected=expected,
                found=value,
            )
    sites = (*before.sites, *(site for site in project.sites if site not in before.sites))
    return replace(project, sites=sites, valid_days=before.valid_days)


class _Said:
    """What NVFlare's builders say, kept for the case that they fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str) -> None:
        self.lines.append(message)

    debug = warning = error = info


def _build(project: Project, ca: Path) -> Path:
    """Run NVFlare's builders; the folder that holds the kits of all participants."""
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
    definition, log = project.definition(), _Said()
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
    """Write medfl's files into the `local` folder of a kit: what jobs may build, who may do what, the site's file.

    Args:
        kit: A kit as NVFlare made it.
        project: Who takes part.
        participant: Whose kit it is.
        researcher: NVFlare's word for the role in the researcher's certificate.
    """
    if participant == project.admin:
        return
    is_server = participant == project.server
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    write_json(local / "resources.json", allowing(resources, is_server=is_server))
    write_json(local / "authorization.json", rights(is_server=is_server, researcher=researcher))
    write_json(local / COMM_CONFIG, LARGE_MESSAGES)
    name, data = ("server", "/data/public") if is_server else (participant, f"/data/{participant}")
    (local / "medfl-site.toml").write_text(SITE_FILE.format(name=name, data=data))


def allowing(resources: Meta, *, is_server: bool) -> Meta:
    """NVFlare's settings of a participant with medfl's line in the list of classes that a job may name.

    Args:
        resources: The content of ``resources.json.default``. What else it says is kept, but for three things: waiting
            jobs are looked at every second, a site that is silent for a minute counts as away, and no site sends its
            error log to the server.
        is_server: Whether it is the server's.
    """
    line = ALLOWED["server" if is_server else "client"]
    listed = [*(name for name in resources.get("class_allow_list", []) if name != line), line]
    changed = resources | {"class_allow_list": listed}
    if not is_server:
        return changed | {"allow_log_streaming": False}
    scheduling = {"min_schedule_interval": 1.0, "max_schedule_interval": 10.0}
    changed["components"] = [
        part | {"args": part["args"] | scheduling} if part["id"] == "job_scheduler" else part
        for part in changed["components"]
    ]
    changed["servers"] = [server | {"heart_beat_timeout": 60} for server in resources["servers"]]
    return changed


def rights(*, is_server: bool, researcher: str = "project_admin") -> Meta:
    """Who may do what at a participant: no code in jobs (byoc) and no shell commands anywhere.

    Args:
        is_server: Whether it is the server's; only there may the researcher operate NVFlare itself.
        researcher: The one of NVFlare's roles that may do anything.
    """
    none = dict.fromkeys(RIGHTS, "none")
    granted = dict.fromkeys(("app_command", "download_job", "manage_job", "submit_job", "view"), "any")
    roles = dict.fromkeys(("project_admin", "org_admin", "lead", "member"), none)
    roles[researcher] = none | granted | ({"operate": "any"} if is_server else {})
    return {"format_version": "1.0", "permissions": roles}
