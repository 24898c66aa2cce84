"""One run at one site, on the site's own machine.

A peer message goes from one site to another. An opened run is an accepted offer of a run, together with everything that
the site built for it from its own copy of the bundle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from medfl.bundle.data_fit import check_harmonisation
from medfl.contract import Capability, Model, PeerMessage, Request
from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import countable_targets
from medfl.data.sites import SiteData
from medfl.engine.checks import check_plan, check_privacy, check_targets
from medfl.engine.constant_predictions import find_constant_predictions
from medfl.engine.evaluation import MetricRow, build_predictor, score_dataset, scores_to_rows
from medfl.engine.reply_checks import EVALUATED_MODEL_SCHEMA, check_peer_message
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.features.feature_cache import cache_features, cache_folder
from medfl.engine.runs.features.feature_harmonisation import (
    check_feature_harmonisation,
    describe_harmonisation,
    models_for_images,
)
from medfl.engine.runs.lifecycle import REMOTE_LOCK_SECONDS, RunWriter
from medfl.engine.runs.progress import record_progress
from medfl.engine.runs.site_bundles import export_site, exported_model, write_predictions
from medfl.engine.site import SCORED, SiteOptions, SiteRunner, Splits
from medfl.engine.store import Inbox
from medfl.errors import RefusedError
from medfl.privacy.ledger import hash_dataset
from medfl.privacy.policy import policy_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.progress import SiteExit
from medfl.records.run_file import DataOrigin, Provenance
from medfl.types import GLOBAL, MODEL_PREFIX, Dataset, Meta, Tensors
from medfl.utils import wire
from medfl_flare.backend.messages import Message, check_tensors, tensor_forms
from medfl_flare.backend.protocol_messages import (
    PUBLISHED_PREFIX,
    REQUEST_PREFIX,
    UNDELIVERED,
    read_integer,
    read_names,
    read_steps,
    rows_to_json,
)
from medfl_flare.offered_bundle import OfferedRun
from medfl_flare.sites.data_changes import DataChangeDetector, check_same_data
from medfl_flare.sites.policy import check_counts, check_networks, disclosed_rows, disclosed_site_info, disclosed_splits
from medfl_flare.sites.site_file import SiteFile
from medfl_flare.sites.site_harmonisation import SiteHarmonisation

logger = logging.getLogger(__name__)

SendFunction = Callable[[PeerMessage, int, str], bool]
"""Type of a function that sends a peer message, called with (message, step, use); `METHOD_USE` is an example of a use.
The function returns whether the receiver has stored the message."""

METHOD_USE, EVALUATION_USE = "method", "exchange"
"""Uses of a peer message.

* ``METHOD_USE``: a message of the method.
* ``EVALUATION_USE``: a model for the cross-site evaluation, in which each site scores the models of the others.
"""

MAX_WAITING_MESSAGES = 4
"""Maximum size of one sender's waiting peer messages, as a multiple of the largest message, so that no sender can fill
the disk."""


class SiteRun:
    """A run at this site. Construction loads and checks the site's data.

    Args:
        opened: The opened run, with the networks of all sites.
        site_file: The site's own file, with its folders and its permissions for runs.
        send: Function that sends peer messages to other sites.

    Attributes:
        name: Name of this site.
        settings: Settings of the run.
        task: Task of the run.
        folder: The run's folder at this site.
        host: Runner of this site's steps (`SiteRunner`), available within `locked`.
        harmonisation: Harmonisation of this site's features within `locked`, or None if the run harmonises none.
        note: Function that records a progress event in the run's folder, available within `locked`.

    Raises:
        MedflError: If data, settings or networks don't fit.
    """

    def __init__(self, opened: OfferedRun, site_file: SiteFile, send: SendFunction) -> None:
        self._opened, self._file, self._send = opened, site_file, send
        self.name, self.settings, self.task = site_file.site, opened.settings, opened.task
        self.folder = site_file.state / "runs" / opened.offer.run
        self._source = opened.built.source
        entry = site_file.bundle(opened.offer.bundle)
        if entry.data is None:
            raise RefusedError(
                "missing_bundle_data",
                f"'{self.name}' names no data for the bundle '{opened.offer.bundle}' in its own file.",
                site=self.name,
                bundle=opened.offer.bundle,
            )
        self._check_network(entry.network)
        method = opened.make_method()
        used = {self.settings.networks_by_site.get(site, self.task.network) for site in opened.offer.sites}
        check_networks(site_file, self.task, used)
        networks = check_plan(opened.offer.method, method, self.task, self.settings, opened.offer.sites, True)
        self._data_folder = entry.data
        self._data = self._load(entry.data)
        self._changes = check_unchanged(entry.data.parent, [self._data], entry.allow_changes)
        self._change_detector = DataChangeDetector(self.name, self._data.files)
        shared = self._shared_test(entry.data, entry.allow_changes) if self.settings.shared_test else None
        self._splits = Splits(self._data.train, self._data.val, self._data.test, self._data.digest, shared)
        images = {self.name: len(self._data.train)} if len(self._data.train) else {}
        check_privacy(self.settings, method, networks, images, len(opened.offer.sites))
        check_counts(site_file, len(self._data.train))
        training, sites = {self.name: len(self._data.train)}, len(opened.offer.sites)
        check_feature_harmonisation(opened.offer.method, method, networks, self.settings, training, sites)
        self._harmonisation_text = describe_harmonisation(self._data.image_reading, self.settings)
        task = method.task_of(self.task)
        self._forms = {network: tensor_forms(task, [network]) for network in sorted(used)}
        self._shapes = {} if Capability.DIFFERENT_HEADS in method.supports else tensor_forms(task, used)
        self._undelivered: list[str] = []
        self._sends, self._sends_meta = method.sends, method.sends_meta

    def _check_network(self, own: str | None) -> None:
        """Raise if the run wants another network for this site than its own file, or if the bundle lacks a network."""
        network = self.settings.networks_by_site.get(self.name, self.task.network)
        if own is not None and network != own:
            raise RefusedError(
                "wrong_network",
                f"The run assigns network '{network}' to '{self.name}'; the site's own file names '{own}'.",
                site=self.name,
                expected=own,
                found=network,
            )
        unknown = sorted({*self.settings.networks_by_site.values(), network} - set(self.task.networks))
        if unknown:
            raise RefusedError(
                "unknown_network",
                f"The run names networks {unknown}; the bundle has {sorted(self.task.networks)}.",
                names=unknown,
                known=sorted(self.task.networks),
            )

    def _load(self, folder: Path) -> SiteData:
        """Load and check the site's data."""
        self._source.check_leaks(folder.parent, [folder.name])
        data = self._source.site(folder, self._opened.execution)
        check_targets(self.task.objective, {self.name: Splits(data.train, data.val, data.test)}, {})
        self._check_shape(data)
        check_harmonisation(self._opened.folder, [data], self._opened.built.site_values)
        return data

    def _shared_test(self, folder: Path, allow_changes: Sequence[str]) -> Dataset | None:
        """Return the shared test set beside the site's data, or None if its scores may not leave the site."""
        data = self._source.shared_test(folder.parent, self._opened.execution)
        if data is None or not len(data.test):
            raise RefusedError(
                "missing_test_set",
                f"The run wants '{self.name}' to score its model on a test set that all sites share: expected a folder "
                f"'{GLOBAL}' with the test set beside the site's data, found none.",
                site=self.name,
                name=GLOBAL,
            )
        check_targets(self.task.objective, {}, {"The shared test set": data.test})
        self._check_shape(data)
        self._changes += check_unchanged(folder.parent, [data], allow_changes)
        return data.test if disclosed_splits(self._file, {"shared": len(data.test)}) else None

    def _check_shape(self, data: SiteData) -> None:
        """Raise if the data have another shape, or other features of table rows, than the run expects."""
        if data.shape != self._opened.shape:
            raise RefusedError(
                "wrong_shape",
                f"'{self.name}' has images of shape {list(data.shape)} (channels, edges), but the run expects "
                f"{list(self._opened.shape)}. Prepare the images again, or submit the run with other --in_channels, "
                "--size and --spatial_dims.",
                site=self.name,
                expected=self._opened.shape,
                found=data.shape,
            )
        features = self._opened.built.site_values.get("features") or ()
        if features and tuple(features) != data.features:
            raise RefusedError(
                "different_features",
                f"'{self.name}' has other features than the {len(features)} of the run. Prepare its table again with "
                "the columns.json of the run (medfl prep table --columns).",
                site=self.name,
                expected=len(features),
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that locks the run's folder for writing, and sets `host` and `note`.

        Entering raises an error if the folder belongs to another run or to other data.
        """
        opened = self._opened
        data = DataOrigin(allowed_changes=tuple(self._changes), harmonisation=self._harmonisation_text)
        provenance = Provenance(offer=opened.offer.to_json(), data=data, joined=opened.joined)
        writer = RunWriter(opened.plan(self._data.digest), self.folder, opened.execution)
        with writer.held(REMOTE_LOCK_SECONDS):
            check_same_data(self.folder, self.name, self._data.digest)
            writer.claim(provenance, backend="flare")
            self.host = self._make_runner(writer)
            self.harmonisation = None if self.settings.harmonise_features == "none" else SiteHarmonisation(self.host)
            self.host.check_account()
            with record_progress(self.folder, writer.start_event([self.name], {})) as self.note:
                yield
                self.note(SiteExit())

    def _make_runner(self, writer: RunWriter) -> SiteRunner:
        """Build the runner of the site's steps, with the disclosures that the site's own file allows."""
        scored = disclosed_splits(self._file, {split: len(getattr(self._splits, split)) for split in SCORED})
        withheld = {"size", "label_counts"} - set(self._file.disclose)
        signer = None
        if self.settings.secure_aggregation is not None:
            from medfl.privacy.signatures import read_signer  # needs an extra

            signer = read_signer(self._file.path.parents[1])
        execution, method = self._opened.execution, self._opened.make_method()
        options = SiteOptions(self._file.secret(), scored, withheld, signer, execution.checkpoint_minutes)
        runner = writer.runner(self.name, self._splits, self._send_peer_message, options)
        cache = execution.cache_dir or cache_folder(self._data_folder, self.folder / "state" / self.name)
        self._caches_features = cache_features(
            [runner], method, self.task, self.settings, lambda name: cache, execution.feature_cache
        )
        return runner

    def begin_reply(self) -> Meta:
        """Return the metadata of the reply to ``begin``, the server's message at the start of a run.

        The keys are ``facts`` (information that the site's own file allows to disclose), ``data`` (names of the data
        set, its classes and outputs, its modality, and the digest of the shared test set) and ``newest`` (the newest
        valid step on this site's disk).
        """
        counts = self.task.objective.counts(countable_targets(self._data.train, self.task.objective))
        facts = disclosed_site_info(self._file, self.host.site_info(), counts)
        about: Meta = {"classes": list(self._data.classes), "name": self._data.source, "modality": self._data.modality}
        about["names"] = list(self._data.names)
        about["shared_test"] = None if self._splits.shared is None else hash_dataset(self._splits.shared)
        return {"facts": facts, "newest": self.host.store.set_damaged_aside(), "data": about}

    # ---- a step

    def step(self, message: Message) -> tuple[Tensors, Meta]:
        """Process one step: score the models of the previous round, then execute the request of the method.

        A message may contain only one of the two.

        Args:
            message: Message of the server, of the kind ``step``.

        Returns:
            Tensors of the reply; metadata with the keys ``evaluation`` and ``answer``.
        """
        request, evaluate = message.meta.get("request"), message.meta.get("evaluate")
        sent = wire.select(message.tensors, REQUEST_PREFIX)
        self._check_tensors(sent)
        self._change_detector.check()
        scores = [] if evaluate is None else self._evaluate(evaluate, message.tensors, sent)
        meta: Meta = {"evaluation": rows_to_json(scores), "answer": None}
        if request is None:
            return {}, meta
        tensors, meta["answer"] = self._execute_request(request, sent, read_steps(message.meta, "keep"))
        return tensors, meta

    def _evaluate(self, evaluate: Meta, tensors: Tensors, sent: Tensors) -> list[MetricRow]:
        """Score the published models on this site's data and return the rows that may leave."""
        same = read_names(evaluate, "same")
        if not sent.keys() >= set(same):
            raise RefusedError("unknown_tensor", "expected names of the request's tensors as 'same'")
        published = wire.select(tensors, PUBLISHED_PREFIX) | {name: sent[name].clone() for name in same}
        self._check_tensors(published)
        step, round_ = read_integer(evaluate, "step"), read_integer(evaluate, "round")
        return disclosed_rows(
            self.settings, self.host.evaluate(self._opened.make_method(), published, step, round_, {})
        )

    def _execute_request(self, request: Meta, sent: Tensors, keep: list[int]) -> tuple[Tensors, Meta]:
        """Execute a request and return the tensors and metadata of the result."""
        step, round_, digest = (
            read_integer(request, "step", 1),
            read_integer(request, "round", 1),
            request.get("digest"),
        )
        if wire.digest(sent) != digest:
            raise RefusedError("wrong_checksum", "expected tensors with the request's digest, got other tensors")
        if round_ > self.settings.rounds or not isinstance(request.get("meta"), dict):
            raise RefusedError(
                "invalid_request",
                f"expected a request of one of {self.settings.rounds} rounds, with a dict as its metadata",
                rounds=self.settings.rounds,
            )
        self._undelivered = []
        received = Request(self.name, str(request.get("op")), sent, request["meta"])
        answer = self.host.step(self._opened.plan().make_method, received, step, round_, str(digest), keep)
        tensors = {} if answer.refused is not None else self.host.store.read(step, "reply/")
        facts = {"step": step, "refused": answer.refused, "meta": answer.meta, UNDELIVERED: self._undelivered}
        return tensors, facts | {"rows": rows_to_json(disclosed_rows(self.settings, answer.rows))}

    def _send_peer_message(self, step: int, peer_message: PeerMessage) -> None:
        """Send a peer message, and remember its receiver if it was not acknowledged."""
        if not self._send(peer_message, step, METHOD_USE):
            logger.warning("The peer message to '%s' was not acknowledged.", peer_message.to)
            self._undelivered.append(peer_message.to)

    def _check_tensors(self, tensors: Tensors, prefixes: Collection[str] | None = None) -> None:
        """Raise if the tensors of a message have unexpected names, shapes, dtypes or values."""
        check_tensors(tensors, prefixes=prefixes, shapes=self._shapes, norm_bound=None, who="the run")

    def receive(self, sender: str, message: Message) -> None:
        """Check a peer message and store it in this site's inbox.

        Args:
            sender: Name of the sending site.
            message: The unpacked peer message.

        Raises:
            RefusedError: If the sender may not send such a message.
        """
        meta = message.meta
        if (
            message.kind != "peer_message"
            or meta.keys() != {"step", "use", "meta"}
            or not isinstance(meta["meta"], dict)
        ):
            raise RefusedError("invalid_message", "expected a peer message")
        step = read_integer(meta, "step", 1)
        if sender not in self._opened.offer.sites or sender == self.name:
            raise RefusedError(
                "unknown_sender", f"expected a peer message of another site of the run, got '{sender}'", sender=sender
            )
        is_evaluation = meta["use"] == EVALUATION_USE
        if not is_evaluation and Capability.PEER_MESSAGES not in self._opened.make_method().supports:
            raise RefusedError(
                "unexpected_peer_message",
                f"the method '{self._opened.offer.method}' sends no peer messages",
                method=self._opened.offer.method,
            )
        if is_evaluation:
            self._check_evaluation_allowed()
        self._check_model_tensors(message.tensors, (MODEL_PREFIX,) if is_evaluation else tuple(self._sends))
        check_peer_message(
            EVALUATED_MODEL_SCHEMA if is_evaluation else self._sends_meta,
            self.task,
            self.settings,
            meta["meta"],
            f"site '{sender}'",
        )
        inbox = Inbox(self.folder / EVALUATION_USE if is_evaluation else self.host.store.folder)
        if inbox.waiting_bytes(sender, step) > MAX_WAITING_MESSAGES * self._file.max_message_mb * 10**6:
            raise RefusedError(
                "too_many_messages",
                f"expected no more peer messages of '{sender}': too many wait here that no request has read",
                sender=sender,
            )
        inbox.post(step, sender, PeerMessage(self.name, message.tensors, meta["meta"], sender))

    def _check_model_tensors(self, tensors: Tensors, prefixes: Collection[str]) -> None:
        """Raise if the tensors are only a part of one of the run's networks, or have unexpected shapes."""
        known = tensors.keys() & self._shapes.keys()
        if known and not any(known == forms.keys() for forms in self._forms.values()):
            raise RefusedError(
                "incomplete_network",
                f"expected the tensors of one whole network out of {sorted(self._forms)}",
                networks=sorted(self._forms),
            )
        self._check_tensors(tensors, prefixes)

    def _check_evaluation_allowed(self) -> None:
        """Raise if the run or this site's own file does not allow a cross-site evaluation."""
        is_allowed = self._file.cross_site_evaluation and policy_of(self.settings).discloses("weights")
        if not is_allowed or not self.settings.cross_site_evaluation:
            raise RefusedError(
                "no_cross_site_evaluation", f"'{self.name}' allows no cross-site evaluation here", site=self.name
            )

    # ---- the end of a run

    def send_model(self, message: Message) -> tuple[Tensors, Meta]:
        """Send this site's model to other sites for the cross-site evaluation, and score it on this site's test data.

        Args:
            message: Message of the server, of the kind ``send_model``.

        Returns:
            No tensors; metadata with the scores.
        """
        self._check_evaluation_allowed()
        to = read_names(message.meta, "to")
        if not set(self._opened.offer.sites) - {self.name} >= set(to):
            raise RefusedError("unknown_recipient", "expected to send a model to other sites of the run only")
        step, round_ = read_integer(message.meta, "step"), read_integer(message.meta, "round")
        method = self._opened.make_method()
        models = self.host.models(method, message.tensors, step, round_)
        kind = "personal" if "personal" in models else "global"
        model = models[kind]
        meta = {"network": model.network, "meta": model.meta, "owner": kind}
        for receiver in to:
            self._send(PeerMessage(receiver, wire.prefixed(model.tensors, MODEL_PREFIX), meta), step, EVALUATION_USE)
        return {}, {"rows": rows_to_json(self._score(model, f"{kind}@{self.name}", round_))}

    def score_peer_model(self, message: Message) -> tuple[Tensors, Meta]:
        """Score the model of another site on this site's test data, in the cross-site evaluation.

        The model has arrived as a peer message before.

        Args:
            message: Message of the server, of the kind ``score_model``, which names the owner of the model.

        Returns:
            No tensors; metadata with the scores.
        """
        step, owner = read_integer(message.meta, "step"), message.meta.get("owner")
        inbox = Inbox(self.folder / EVALUATION_USE)
        messages = [peer_message for peer_message in inbox.read(step, step + 1) if peer_message.sender == owner]
        if not messages:
            raise RefusedError("missing_model", f"the model of '{owner}' has not arrived", owner=str(owner))
        meta = messages[0].meta
        if meta.get("network") not in self.task.networks or meta.get("owner") not in ("personal", "global"):
            raise RefusedError(
                "invalid_model",
                f"expected a model of '{owner}' with one of the networks {sorted(self.task.networks)}",
                owner=str(owner),
                networks=sorted(self.task.networks),
            )
        model = Model(meta["network"], wire.select(messages[0].tensors, MODEL_PREFIX), meta["meta"])
        rows = self._score(model, f"{meta['owner']}@{owner}", read_integer(message.meta, "round"))
        inbox.delete_messages_of(messages[0].sender)
        return {}, {"rows": rows_to_json(rows)}

    def _score(self, model: Model, name: str, round_: int) -> list[MetricRow]:
        """Return the scores of a model on this site's test data, or nothing if they may not leave."""
        if "test" not in disclosed_splits(self._file, {"test": len(self._splits.test)}):
            return []
        predictor = build_predictor(self._opened.make_method(), self.task, model)
        scores = score_dataset(predictor, self._splits.test, self.task, self.settings)
        return scores_to_rows(scores, round_, self.name, name, "test", "aggregated")

    def install(self, message: Message) -> tuple[Tensors, Meta]:
        """Export this site's own bundle, and store the model's predictions for the site's test images.

        Bundle and predictions stay at the site.

        Args:
            message: Message of the server, of the kind ``install``, with the final state that the server published.

        Returns:
            No tensors; metadata with the key ``privacy``, the site's privacy account or None.
        """
        step, round_ = read_integer(message.meta, "step"), read_integer(message.meta, "round")
        method, data = self._opened.make_method(), self._data
        models = self.host.models(method, message.tensors, step, round_)
        if models:
            built = self._opened.built
            site_export = SiteExport(
                bundle_root=self._opened.folder,
                values=built.site_values,
                shape=data.shape,
                classes=data.classes,
                data=data.source,
                modality=data.modality,
                names=data.names,
                objective=self.task.objective,
                stock=built.source.weights,
                harmonisation=self._harmonisation_text,
            )
            feature_map = None if self.harmonisation is None else self.harmonisation.feature_map
            whole = models_for_images(models, method, self.task, feature_map)
            model = export_site(self.folder / "bundle", site_export, self.name, whole, method)
            task, splits = self.task, Splits(data.train, data.val, data.test)
            if self._caches_features:  # the same predictions without the frozen body
                task, splits, model = self.host.task, self.host.data, exported_model(models)
            predictor = build_predictor(method, task, model)
            predictions = write_predictions(
                self.folder / "bundle", predictor, splits, task, self.settings, data.test_metadata
            )
            constant = find_constant_predictions(
                {self.name: predictions}, self.task.objective, data.classes, self.settings
            )
            for entry in constant:
                logger.warning("%s", entry.sentence)
            logger.info("This site's own bundle is in '%s'.", self.folder / "bundle")
        budget = self.budget()
        return {}, {"privacy": None if budget is None else policy_of(self.settings).redact(budget).to_json()}

    def budget(self) -> PrivacyAccount | None:
        """Return the site's privacy account of this run, or None if the run has no privacy setting."""
        return None if self.host.account is None else self.host.account.report()
