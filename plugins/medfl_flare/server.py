"""One federated run at the server, with sites on other machines. The server loop is the same as on one machine.

An offer is the server's proposal of a run, with bundle, method, settings and sites. An opened run is an offer together
with everything that the server built for it from its own copy of the bundle.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from medfl.data.cohort import load_public
from medfl.data.harmonisation.combat import PooledMoments, pool_sums
from medfl.data.partition_file import check_unchanged
from medfl.data.sites import SiteData, load_site
from medfl.engine.backend import Evaluation, EventListener, ignore_event
from medfl.engine.checks import check_plan, check_privacy, check_shared_test, check_validation, warn_of_preset
from medfl.engine.evaluation import MetricRow, Predictors, add_frozen_tensors
from medfl.engine.journal import RunOutcome
from medfl.engine.plan import ServerData
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.features.feature_harmonisation import (
    MIN_SITES,
    check_feature_harmonisation,
    count_features,
    describe_harmonisation,
)
from medfl.engine.runs.lifecycle import REMOTE_LOCK_SECONDS, RunParticipants, RunWriter, run_federation
from medfl.engine.runs.provenance import bundle_values, setting_origins
from medfl.engine.runs.site_bundles import export_global
from medfl.engine.store import Store, lock_for_writing
from medfl.errors import DamagedError, DataError, MedflError, RefusedError, SettingsError, StoreError
from medfl.privacy.ledger import hash_dataset
from medfl.privacy.policy import policy_of
from medfl.records.run_file import DataOrigin, Provenance
from medfl.records.summary import Summary
from medfl.types import GLOBAL, PUBLIC, SERVER, Dataset, Meta
from medfl.utils import wire
from medfl.utils.files import write_atomic
from medfl.utils.memory import keep_freed_memory
from medfl_flare.backend.feature_messages import moments_to_tensors, read_moments
from medfl_flare.backend.messages import Limits
from medfl_flare.backend.remote_backend import FlareBackend
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.backend.site_replies import ReplyRules
from medfl_flare.backend.transport import Transport
from medfl_flare.joining import AgreedNetworks, agree_networks
from medfl_flare.observers import Observers
from medfl_flare.offered_bundle import OfferedRun, open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites.policy import check_networks
from medfl_flare.sites.site_file import SiteFile

logger = logging.getLogger(__name__)

HELLO_SECONDS = 180.0
"""Seconds to wait for the sites to accept the offer: their processes must first start and import torch."""

MOMENTS_FILE = "feature_moments.safetensors"
"""Name of the file in the server's state with the moments that harmonise the features of a run."""


def serve(
    offer: Offer,
    site_file: SiteFile,
    transport: Transport,
    progress: RunStatus,
    on_round: Callable[[int, list[MetricRow]], None] = lambda round_, rows: None,
) -> Path:
    """Run a federation to its end, or resume it from the state of its folder.

    Args:
        offer: Offer of the run.
        site_file: The server's own file ``medfl-site.toml``, with its folders and limits.
        transport: Transport of the messages to the sites.
        progress: Status of the run, updated in place.
        on_round: Function that is called after each round, with the round and its rows of metrics.

    Returns:
        The run's folder at the server.

    Raises:
        MedflError: If the run can't begin, or if the method fails.
    """
    keep_freed_memory()
    torch.set_num_threads(site_file.threads)
    opened = open_offer(offer, site_file)
    progress.rounds = opened.settings.rounds
    folder = site_file.state / "runs" / offer.run
    limits = Limits(max_bytes=site_file.max_message_mb * 10**6)
    backend = FlareBackend(transport, offer.sites, folder / "replies", limits, offer.reply_timeout)
    progress.missing = backend.missing
    data = _ServerTestData(opened, site_file)
    answers = backend.hello(offer.to_json(), HELLO_SECONDS)
    with lock_for_writing(folder, REMOTE_LOCK_SECONDS):  # an earlier job of this run may not have ended yet
        agreed = agree_networks(opened, answers, backend, folder, data.public_without_classes)
    participants = _RemoteParticipants(agreed, folder, backend, data, progress, on_round)
    participants.check(site_file)
    outcome = run_federation(participants.writer, participants)
    progress.message, progress.round, progress.state = outcome.reason, outcome.rounds, outcome.status
    return folder


class _RemoteParticipants(RunParticipants):
    """The sites of a run on other machines, as the run's lifecycle uses them at the server.

    Args:
        agreed: The run with the networks of all sites.
        folder: The run's folder at the server.
        backend: Backend that exchanges the messages.
        data: The server's own data.
        progress: Status of the run, updated in place.
        on_round: Function that is called after each round.
    """

    backend = "flare"
    """Name of the backend, for ``run.json``."""

    patience = REMOTE_LOCK_SECONDS
    """Seconds to wait for the lock of the run folder, which an earlier job of the run may still hold."""

    def __init__(
        self,
        agreed: AgreedNetworks,
        folder: Path,
        backend: FlareBackend,
        data: _ServerTestData,
        progress: RunStatus,
        on_round: Callable[[int, list[MetricRow]], None],
    ) -> None:
        self._agreed, self._opened, self._backend, self._data = agreed, agreed.opened, backend, data
        self._progress, self._on_round = progress, on_round
        self.writer = _make_writer(self._opened, folder)
        self._observers = Observers(self._opened.registry, folder)
        self._about: Meta = {}
        self._networks: list[nn.Module] = []

    def check(self, site_file: SiteFile) -> None:
        """Raise if the run is not possible. This check needs no data of the sites.

        Args:
            site_file: The server's own file.

        Raises:
            MedflError: If the run is not possible.
        """
        opened, offer, tests = self._opened, self._opened.offer, self._data.tests
        named = opened.settings.networks_by_site
        check_networks(site_file, opened.task, {named.get(site, opened.task.network) for site in offer.sites})
        method, has_public = opened.make_method(), self._data.has_public
        self._networks = check_plan(offer.method, method, opened.task, opened.settings, offer.sites, has_public)
        check_feature_harmonisation(offer.method, method, self._networks, opened.settings, {}, len(offer.sites))
        check_shared_test(opened.settings, GLOBAL in tests)
        warn_of_preset(offer.method, method, opened.built.method_args, opened.settings)
        if "pooled_data" in method.needs:
            raise SettingsError(
                "method_not_supported",
                f"Method '{offer.method}' pools the sites' data, which no site sends to another machine.",
                method=offer.method,
            )

    def prepare(self) -> Provenance:
        """Return the provenance for ``run.json``: the origin of settings, code and networks."""
        self._provenance = _provenance(self._agreed)
        return self._provenance

    def start(self) -> None:
        """Announce the start of the run to the observers."""
        self._observers.run_started(self._provenance)

    @property
    def missing(self) -> Mapping[str, str]:
        """Maps each unavailable site to the reason."""
        return self._backend.missing

    def connect(self, note: EventListener) -> FlareBackend:
        """Request that the sites load their data, check that they fit together, and return the backend.

        Args:
            note: Callback that appends a progress event.

        Raises:
            MedflError: If the sites do not fit the run.
        """
        backend, opened, data = self._backend, self._opened, self._data
        self._progress.folder = self.writer.folder
        backend.note = note
        backend.begin(opened.settings.networks_by_site, _reply_rules(opened), self._agreed.joined)
        self._about = _drop_other_data(backend)
        _drop_other_shared_tests(backend, data.tests.get(GLOBAL))
        data.load_public_data(tuple(self._about.get("classes", ())))
        backend.set_viewers(data.make_scorer(self.writer))
        facts_by_site = {site: facts["facts"] for site, facts in backend.greetings.items()}
        check_validation(opened.settings, [site for site, facts in facts_by_site.items() if facts["validates"]])
        training = sum(bool(facts.get("trainable", True)) for facts in facts_by_site.values())
        check_privacy(opened.settings, opened.make_method(), self._networks, {}, training)
        self._networks = []  # whole networks; free their memory
        if opened.settings.harmonise_features == "combat":
            backend.send_feature_moments(_agree_moments(backend, opened, self.writer.folder / "state" / SERVER))
        self._progress.state = "running"
        return backend

    @property
    def server_data(self) -> ServerData:
        """The server's own public data and test sets. It is available after `connect`."""
        return self._data.server_data

    def end_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Report a committed round to the researcher who follows the run, and to the observers.

        Args:
            round_: Number of the round.
            rows: Rows of metrics of the round, and scores of the previous round.
        """
        self._progress.round, self._progress.scores = round_, _mean_scores(rows) or self._progress.scores
        self._observers.round_ended(round_, rows)
        self._on_round(round_, rows)

    def export(self, outcome: RunOutcome) -> Summary:
        """Request that the sites export their bundles, export the server's bundle, and return the summary of the run.

        Args:
            outcome: Result of the run at the server.
        """
        backend, opened = self._backend, self._opened
        blamed = dict(backend.missing) if outcome.status == "incomplete" else {}  # a site may reply again to `install`
        accounts = backend.install(outcome.published, outcome.step, outcome.round)
        names = tuple(str(name) for name in self._about.get("names", []))
        site_export = SiteExport(
            bundle_root=opened.folder,
            values=opened.built.site_values,
            shape=opened.shape,
            classes=[str(name) for name in self._about.get("classes", [])],
            data=str(self._about.get("name", "")),
            names=names,
            objective=opened.task.objective,
            stock=opened.built.source.weights,
            harmonisation=self._provenance.data.harmonisation,
        )
        method = opened.make_method()
        export_global(self.writer.folder, site_export, add_frozen_tensors(method, opened.task, outcome.models), method)
        backend.missing |= {site: why for site, why in blamed.items() if site not in backend.missing}
        missing = dict(sorted(backend.missing.items()))
        known_accounts = {site: account for site, account in accounts.items() if account is not None}
        further = {"unavailable_reasons": missing, "names": names, "privacy": known_accounts}
        return self.writer.summarise(outcome, missing).model_copy(update=further)

    def end(self, outcome: RunOutcome) -> None:
        """Announce the end of the run to the observers and the sites.

        Args:
            outcome: Result of the run at the server.
        """
        self._observers.run_ended(outcome.status)
        self._backend.note = ignore_event  # the end of the run is recorded; the last messages are not part of it
        self._backend.end()


def _make_writer(opened: OfferedRun, folder: Path) -> RunWriter:
    """Return the writer of the run's folder at the server. The sites check their data themselves."""
    data = hashlib.sha256(repr(("held by", opened.offer.sites)).encode()).hexdigest()
    return RunWriter(opened.plan(data), folder, opened.execution)


def _provenance(agreed: AgreedNetworks) -> Provenance:
    """Return the origin of the settings, the code and the networks of the run."""
    opened = agreed.opened
    settings = setting_origins(
        opened.task,
        bundle_values(opened.folder),
        opened.offer.given_by,
        settings=opened.settings,
        execution=opened.execution,
        method=opened.make_method(),
        method_args=opened.built.method_args,
    )
    if "min_replies" not in opened.built.settings:
        origin = "default between machines"
        settings["min_replies"] = settings["min_replies"].model_copy(update={"origin": origin})
    harmonisation = describe_harmonisation(opened.built.site_values.get("image_reading"), opened.settings)
    return Provenance(
        settings=settings,
        data=DataOrigin(harmonisation=harmonisation),
        plugins=dict(sorted(opened.registry.plugins.items())),
        assigned_networks=agreed.assigned,
        offer=opened.offer.to_json(),
        joined=agreed.joined,
    )


def _agree_moments(backend: FlareBackend, opened: OfferedRun, folder: Path) -> PooledMoments:
    """Return the moments that harmonise a run's features: from the run's state, or else from the sums of the sites.

    A run keeps its moments, so each site computes the same map whenever the run continues. A site that joins later
    gets the same moments, and sends no sums.

    Args:
        backend: Backend of the run, after the sites have begun.
        opened: The opened run.
        folder: Folder of the server's state; new moments are written into it.

    Raises:
        MedflError: If too few sites sent sums.
        StoreError: If the moments in the state can't be read.
    """
    features, path = count_features(opened.task), folder / MOMENTS_FILE
    if path.exists() or Store(folder).steps():  # a run that has begun needs the moments with which it began
        try:
            return read_moments(wire.decode(path.read_bytes())[0], features, "the server's state")
        except (OSError, DamagedError, RefusedError) as error:
            raise StoreError(
                "unreadable_file",
                f"The moments of the run's features in '{path}' can't be read: {error}. Restore the file, or start "
                "the run under another name.",
                path=path,
            ) from error
    sums = backend.collect_feature_sums(features)
    needed = max(min(opened.settings.min_replies, len(opened.offer.sites)), MIN_SITES)
    if len(sums) < needed:
        reasons = "; ".join(f"{site}: {why}" for site, why in sorted(backend.missing.items()))
        raise MedflError(
            "missing_feature_sums",
            f"Expected the sums of at least {needed} sites to harmonise their features before round 1, got "
            f"{len(sums)}. Unavailable: {reasons}.",
            expected=needed,
            found=len(sums),
            sites=sorted(backend.missing),
        )
    pooled = pool_sums([sums[site] for site in sorted(sums)])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, wire.encode(moments_to_tensors(pooled), {}))
    return pooled


def _drop_other_data(backend: FlareBackend) -> Meta:
    """Return the data set's description, and drop each site with other classes or names than most sites."""
    if not backend.greetings:
        return {}
    data_by_site = {site: greetings["data"] for site, greetings in sorted(backend.greetings.items())}
    names_by_site = {site: tuple(about["names"] or about["classes"]) for site, about in data_by_site.items()}
    common = Counter(names_by_site.values()).most_common(1)[0][0]
    for site, names in names_by_site.items():
        if names != common:
            backend.exclude_site(site, f"its classes are {list(names)}, most sites have the classes {list(common)}")
    return next(data_by_site[site] for site, names in names_by_site.items() if names == common)


def _drop_other_shared_tests(backend: FlareBackend, test: Dataset | None) -> None:
    """Drop each site whose shared test set differs from the server's."""
    for site, greetings in sorted(backend.greetings.items()):
        site_test = greetings["data"]["shared_test"]
        if site_test is not None and (test is None or site_test != hash_dataset(test)):
            backend.exclude_site(
                site, "its shared test set has other images or labels than the server's shared test set"
            )


def _reply_rules(opened: OfferedRun) -> ReplyRules:
    """Return the rules for the sites' replies."""
    policy = policy_of(opened.settings)
    bound = None if policy.noises_updates else opened.settings.norm_bound  # noise may exceed the bound after clipping
    return ReplyRules(opened.plan().make_method(), opened.task, bound, policy.is_private)


def _mean_scores(rows: list[MetricRow]) -> dict[str, float]:
    """Return the mean over the sites of each validation score, computed with the model that each site keeps.

    A site with a personal model keeps that one; its score of the global model is ignored.
    """
    scores: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: row.model == "personal"):  # the personal model's score comes last and stays
        is_own = row.split == "val" and row.moment == "aggregated" and row.model in ("global", "personal")
        if is_own and row.value == row.value:
            scores.setdefault(row.metric, {})[row.site] = row.value
    return {metric: sum(values.values()) / len(values) for metric, values in sorted(scores.items())}


class _ServerTestData:
    """The server's own data: a test set and public data, each only if the server's own file names a folder with it."""

    def __init__(self, opened: OfferedRun, site_file: SiteFile) -> None:
        self._opened, self._entry = opened, site_file.bundle(opened.offer.bundle)
        folder, built = self._entry.data, opened.built
        self.test = None if folder is None else built.source.shared_test(folder, opened.execution)
        self.has_public = folder is not None and (folder / PUBLIC).is_dir()
        self.public: SiteData | None = None
        self._check(self.test)

    def load_public_data(self, classes: tuple[str, ...]) -> None:
        """Compare the test set with the names of the sites' classes, and load the public data with these names.

        Args:
            classes: Names of the classes, from label 0; empty if no site has reported them.

        Raises:
            DataError: If the test set has other classes.
        """
        if self.test is not None and classes and self.test.classes != classes:
            raise DataError(
                "different_classes",
                f"The server's test set has the classes {list(self.test.classes)}, the sites have {list(classes)}. "
                "Write the same 'labels' into the data list of the test set.",
                expected=classes,
                found=self.test.classes,
            )
        if self._entry.data is not None and self.has_public:
            path, scale = self._entry.data / PUBLIC, (self._opened.built.mean, self._opened.built.std)
            objective = self._opened.task.objective
            self.public = (
                load_public(path, objective, classes, *scale)[0] if classes else load_site(path, objective, *scale)
            )
            self._check(self.public)

    def public_without_classes(self) -> Dataset | None:
        """Load and return the public training data before any site has reported class names; None if there are none."""
        self.load_public_data(())
        return None if self.public is None else self.public.train

    def _check(self, data: SiteData | None) -> None:
        """Raise if the data changed since they were partitioned, or if they have another shape than the run."""
        if data is None or self._entry.data is None:
            return
        check_unchanged(self._entry.data, [data], self._entry.allow_changes)
        if data.shape != self._opened.shape:
            raise DataError(
                "wrong_shape",
                f"The server's data '{data.name}' have images of shape {list(data.shape)}, but the run expects "
                f"{list(self._opened.shape)} (channels, edges).",
                dataset=data.name,
                expected=self._opened.shape,
                found=data.shape,
            )

    @property
    def tests(self) -> dict[str, Dataset]:
        """Maps the name of each of the server's test sets to the test set."""
        held = {GLOBAL: self.test, PUBLIC: self.public}
        return {name: data.test for name, data in held.items() if data and len(data.test)}

    @property
    def server_data(self) -> ServerData:
        """The server's data for the server loop."""
        return ServerData(public=None if self.public is None else self.public.train, tests=self.tests)

    def make_scorer(self, writer: RunWriter) -> Callable[[Evaluation], list[MetricRow]]:
        """Return a function that scores the server's models on the server's test sets."""
        opened = self._opened
        hosts = [writer.viewer(name, test) for name, test in self.tests.items()]

        def view(evaluation: Evaluation) -> list[MetricRow]:
            shared: Predictors = {}
            rows: list[MetricRow] = []
            for host in hosts:
                method = opened.make_method()
                rows += host.evaluate(method, evaluation.published, evaluation.step, evaluation.round, shared)
            return rows

        return view
