"""One run at the server of a federation across machines: the same loop as on one machine, over a remote carrier."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from medfl.carriers.messages import Limits
from medfl.carriers.remote import Expected, RemoteCarrier
from medfl.carriers.transport import Transport
from medfl.core.carrier import Evaluation, unnoted
from medfl.core.checks import check_plan, check_privacy, check_shared_test, check_validation, warn_of_preset
from medfl.core.evaluation import Predictors, Row, completed
from medfl.core.journal import Outcome
from medfl.core.plan import ServerData
from medfl.core.server import ServerLoop
from medfl.core.store import only_writer
from medfl.data.cohort import load_public
from medfl.data.partition_file import check_unchanged
from medfl.data.sites import SiteData, load_site
from medfl.deploy.joining import Agreed, agree
from medfl.deploy.observers import Observers
from medfl.deploy.offered_bundle import OfferedRun, open_offer
from medfl.deploy.sites.file import SiteFile
from medfl.deploy.sites.policy import check_networks
from medfl.errors import DataError, SettingsError
from medfl.privacy.ledger import fingerprint
from medfl.records.offer import Offer
from medfl.records.run_file import Provenance
from medfl.runs.home import Home
from medfl.runs.lifecycle import JOB_PATIENCE, RunWriter
from medfl.runs.progress import Progress
from medfl.runs.provenance import bundle_values, setting_origins
from medfl.runs.site_bundles import export_global
from medfl.types import GLOBAL, PUBLIC, Dataset, Meta
from medfl.utils.memory import keep_freed_memory

logger = logging.getLogger(__name__)

HELLO = 180.0
"""Seconds to wait for the sites to take the offer: their processes start first, and import torch."""


def serve(
    offer: Offer,
    site_file: SiteFile,
    transport: Transport,
    progress: Progress,
    on_round: Callable[[int, list[Row]], None] = lambda round_, rows: None,
) -> Path:
    """Run a federation to its end, from wherever its folder stands.

    Args:
        offer: The run.
        site_file: The server's own file.
        transport: Brings messages to the sites.
        progress: Kept up to date.
        on_round: Called after each round.

    Returns:
        The run's folder at the server.

    Raises:
        MedflError: If the run can't begin, or the method fails.
    """
    keep_freed_memory()
    torch.set_num_threads(site_file.threads)
    opened = open_offer(offer, site_file)
    progress.rounds = opened.settings.rounds
    folder = site_file.state / "runs" / offer.run
    limits = Limits(max_bytes=site_file.max_message_mb * 10**6)
    carrier = RemoteCarrier(transport, offer.sites, folder / "replies", limits, offer.answer_timeout)
    progress.missing = carrier.missing
    data = _ServerFolder(opened, site_file)
    answers = carrier.hello(offer.to_json(), HELLO)
    with only_writer(folder, JOB_PATIENCE):  # an attempt before may not be over yet
        agreed = agree(opened, answers, carrier, folder, data.public_now)
    opened = agreed.opened
    named = opened.settings.networks_by_site
    check_networks(site_file, opened.task, {named.get(site, opened.task.network) for site in offer.sites})
    method = opened.make_method()
    built = check_plan(offer.method, method, opened.task, opened.settings, offer.sites, data.has_public)
    check_shared_test(opened.settings, GLOBAL in data.tests)
    warn_of_preset(offer.method, method, opened.built.method_args, opened.settings)
    if method.pools_data:
        raise SettingsError(
            "method_not_supported",
            f"Method '{offer.method}' pools the sites' data, which no site gives away.",
            method=offer.method,
        )
    writer = _writer_of(opened, folder)
    with writer.held(JOB_PATIENCE):
        observers = Observers(opened.registry, folder)
        observers.run_started(_claim(agreed, writer))
        writer.begin()
        progress.folder = folder
        with writer.noted(carrier.missing) as note:
            carrier.note = note
            carrier.begin(opened.settings.networks_by_site, _expected(opened), agreed.joined)
            about = _same_data(carrier)
            _same_shared_test(carrier, data.tests.get(GLOBAL))
            data.meet(tuple(about.get("classes", ())))
            carrier.set_viewers(data.viewers(writer))
            facts_by_site = {site: facts["facts"] for site, facts in carrier.facts.items()}
            check_validation(opened.settings, [site for site, facts in facts_by_site.items() if facts["validates"]])
            training = sum(bool(facts.get("trainable", True)) for facts in facts_by_site.values())
            check_privacy(opened.settings, method, built, {}, training)
            del built  # whole networks
            progress.state = "running"

            def round_ended(round_: int, rows: list[Row]) -> None:
                progress.round, progress.scores = round_, _means(rows) or progress.scores
                observers.round_ended(round_, rows)
                on_round(round_, rows)

            loop = ServerLoop(
                plan=writer.plan,
                carrier=carrier,
                folder=folder,
                data=data.server_data,
                on_round=round_ended,
                on_commit=writer.commit_noted(note),
            )
            outcome = loop.run()
            _finish(opened, carrier, outcome, writer, about)
            observers.run_ended(outcome.status)
            carrier.note = unnoted  # the end is noted, and what follows is no part of the run
            carrier.end()
    progress.message, progress.round, progress.state = outcome.reason, outcome.rounds, outcome.status
    return folder


def _writer_of(opened: OfferedRun, folder: Path) -> RunWriter:
    """The run in its folder at the server. What the sites' data are, each of them checks."""
    data = hashlib.sha256(repr(("held by", opened.offer.sites)).encode()).hexdigest()
    return RunWriter(opened.plan(data), folder, opened.execution)


def _claim(agreed: Agreed, writer: RunWriter) -> Provenance:
    """Write ``run.json``, or check that it is this run's, and return the provenance of the run."""
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
    provenance = Provenance(
        settings=settings,
        plugins=dict(sorted(opened.registry.plugins.items())),
        machines=agreed.machines,
        offer=opened.offer.to_json(),
        joined=agreed.joined,
    )
    writer.claim(provenance, backend="flare")
    return provenance


def _same_data(carrier: RemoteCarrier) -> Meta:
    """What the sites say of their data set; one whose classes or names are others than most sites' is left out."""
    if not carrier.facts:
        return {}
    data_by_site = {site: facts["data"] for site, facts in sorted(carrier.facts.items())}
    names_by_site = {site: tuple(about["names"] or about["classes"]) for site, about in data_by_site.items()}
    common = Counter(names_by_site.values()).most_common(1)[0][0]
    for site, names in names_by_site.items():
        if names != common:
            carrier.drop(site, f"its classes are {list(names)}, those of most sites {list(common)}")
    return next(data_by_site[site] for site, names in names_by_site.items() if names == common)


def _same_shared_test(carrier: RemoteCarrier, test: Dataset | None) -> None:
    """Leave out sites whose shared test set is another one than the server's."""
    for site, facts in sorted(carrier.facts.items()):
        site_test = facts["data"]["shared_test"]
        if site_test is not None and (test is None or site_test != fingerprint(test)):
            carrier.drop(site, "its shared test set has other images or labels than the server's")


def _expected(opened: OfferedRun) -> Expected:
    """What replies may hold."""
    privacy = opened.settings.privacy
    noised = privacy is not None and privacy.unit == "site"  # clipping bounds it, and noise is added
    return Expected(
        opened.plan().make_method(), opened.task, None if noised else opened.settings.norm_bound, privacy is not None
    )


def _means(rows: list[Row]) -> dict[str, float]:
    """Return the mean over the sites of each validation score, of the model that each site keeps.

    A site with a personal model keeps that one; its score of the global model is left out.
    """
    scores: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: row.model == "personal"):  # the personal model's score comes last and stays
        is_own = row.split == "val" and row.moment == "aggregated" and row.model in ("global", "personal")
        if is_own and row.value == row.value:
            scores.setdefault(row.metric, {})[row.site] = row.value
    return {metric: sum(values.values()) / len(values) for metric, values in sorted(scores.items())}


def _finish(opened: OfferedRun, carrier: RemoteCarrier, outcome: Outcome, writer: RunWriter, about: Meta) -> None:
    """Have the sites write their bundles, and write what the server has."""
    blamed = dict(carrier.missing) if outcome.status == "incomplete" else {}  # they may be back for the end
    accounts = carrier.install(outcome.published, outcome.step, outcome.round)
    built = opened.built
    classes = [str(name) for name in about.get("classes", [])]
    names = [str(name) for name in about.get("names", [])]
    home = Home(
        bundle_root=opened.folder,
        values=built.site_values,
        shape=opened.shape,
        classes=classes,
        data=str(about.get("name", "")),
        names=names,
        objective=opened.task.objective,
        stock=built.source.weights,
    )
    method = opened.make_method()
    export_global(writer.folder, home, completed(method, opened.task, outcome.models), method)
    carrier.missing |= {site: why for site, why in blamed.items() if site not in carrier.missing}
    missing = dict(sorted(carrier.missing.items()))
    known_accounts = {site: account for site, account in accounts.items() if account is not None}
    summary = writer.summarise(outcome, missing).model_copy(
        update={"unavailable_reasons": missing, "names": tuple(names), "privacy": known_accounts}
    )
    writer.finish(outcome, summary)
    writer.end_noted(carrier.note, summary)


class _ServerFolder:
    """What the server itself has: a test set and public data, each if its own file names a folder with them."""

    def __init__(self, opened: OfferedRun, site_file: SiteFile) -> None:
        self._opened, self._entry = opened, site_file.bundle(opened.offer.bundle)
        folder, built = self._entry.data, opened.built
        self.test = None if folder is None else built.source.shared_test(folder, opened.execution)
        self.has_public = folder is not None and (folder / PUBLIC).is_dir()
        self.public: SiteData | None = None
        self._check(self.test)

    def meet(self, classes: tuple[str, ...]) -> None:
        """Compare the test set with the names of the sites' classes, and load the public data with them.

        Args:
            classes: The names, from 0; empty where no site is there to tell them.
        """
        if self.test is not None and classes and self.test.classes != classes:
            raise DataError(
                "different_classes",
                f"The server's test set has the classes {list(self.test.classes)}, the sites {list(classes)}. Write "
                "the same 'labels' into its list.",
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

    def public_now(self) -> Dataset | None:
        """The public training data before any site has told the names of the classes."""
        self.meet(())
        return None if self.public is None else self.public.train

    def _check(self, data: SiteData | None) -> None:
        """Refuse data that are not as partitioned, or of another shape."""
        if data is None or self._entry.data is None:
            return
        check_unchanged(self._entry.data, [data], self._entry.allow_changes)
        if data.shape != self._opened.shape:
            raise DataError(
                "wrong_shape",
                f"The server's data '{data.name}' have images of shape {list(data.shape)}, and the run is for "
                f"{list(self._opened.shape)} (channels, edges).",
                dataset=data.name,
                expected=self._opened.shape,
                found=data.shape,
            )

    @property
    def tests(self) -> dict[str, Dataset]:
        """Its test sets by their names."""
        held = {GLOBAL: self.test, PUBLIC: self.public}
        return {name: data.test for name, data in held.items() if data and len(data.test)}

    @property
    def server_data(self) -> ServerData:
        """Its data for the server loop."""
        return ServerData(public=None if self.public is None else self.public.train, tests=self.tests)

    def viewers(self, writer: RunWriter) -> Callable[[Evaluation], list[Row]]:
        """Scores the server's model on what the server has."""
        opened = self._opened
        hosts = [writer.viewer(name, test) for name, test in self.tests.items()]

        def view(evaluation: Evaluation) -> list[Row]:
            shared: Predictors = {}
            rows: list[Row] = []
            for host in hosts:
                method = opened.make_method()
                rows += host.evaluate(method, evaluation.published, evaluation.step, evaluation.round, shared)
            return rows

        return view
