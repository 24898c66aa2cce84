"""Checks of the conformance suite, one function for each rule of the contract.

A `Case` is a method with its settings in a tiny federation. Each check raises an AssertionError if the method violates
the rule. Models are compared bit by bit.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch

from medfl.contract import Method, Model
from medfl.data.pooled import labels_of
from medfl.engine.encoding import FILTERS_KEY
from medfl.engine.evaluation import add_frozen_tensors, build_predictor
from medfl.engine.needs import NEED_CONDITIONS
from medfl.engine.runs.simulation import SimulationResult
from medfl.engine.site import Splits
from medfl.engine.store import Store
from medfl.errors import MedflError, SettingsError
from medfl.hooks import METHOD_DECLARATIONS, Capability
from medfl.networks.parts import names_without_head
from medfl.networks.transfer.adapters.tensors import is_residual
from medfl.task import Task
from medfl.testing.cohort import (
    Case,
    TensorData,
    bits,
    folders,
    make_data,
    make_head_only_task,
    make_partly_frozen_task,
    make_site,
    make_sites,
    make_task,
    scores,
    states,
)
from medfl.testing.suite import expect, finite, promise, same
from medfl.training.checkpoints import CHECKPOINT_STEM, TrainingCheckpoint
from medfl.types import SERVER, Tensors
from medfl.utils import wire
from medfl.utils.wire import tensors_equal


@promise
def metadata_is_complete(case: Case) -> None:
    """Check that the record of `medfl list` agrees with the class, and that the class is documented and frozen.

    Its presets must be valid, and its limit cases must name known methods.
    """
    record, kind = case.registry.methods[case.name], case.kind
    declared = [fact for fact in METHOD_DECLARATIONS if fact in vars(kind)]
    for fact in (*declared, "sends", "supports", "needs"):
        ours, theirs = getattr(record, fact), getattr(kind, fact)
        expect(ours == theirs, f"the record's {fact} is {ours!r}, the class's {theirs!r}")
    for fact, known in (("needs", set(NEED_CONDITIONS)), ("supports", set(Capability))):
        unknown = sorted(set(getattr(kind, fact)) - known)
        expect(not unknown, f"unknown words in {fact}: {unknown}, there are {sorted(known)}")
    expect(
        bool(kind.__doc__) and bool(record.summary) and bool(record.family), "docstring, summary or family is missing"
    )
    for preset in kind.presets:
        case.registry.make_method(case.name, {"preset": preset})
    for limit in kind.reduces_to:
        expect(limit.equals in case.registry.methods, f"limit case names the unknown method '{limit.equals}'")
    try:
        case.make_method().a_new_attribute = 1  # type: ignore[attr-defined]
    except Exception:
        return
    raise AssertionError("the method object can be changed, but must not have state (use a frozen model)")


@promise
def run_is_deterministic(case: Case) -> None:
    """Check that the same run twice gives the same bits and scores, and that another seed gives different ones."""
    with folders(2) as (second, third):
        result, first = case.reference
        same(bits(result), bits(case.run(second)), "the same run twice")
        expect(scores(first) == scores(second), "the same run twice has other scores")
        other = bits(case.run(third, seed=8))
        expect(any(not tensors_equal(m, other[k]) for k, m in bits(result).items()), "the seed has no effect")
        expect(result.outcome.status == "finished" and result.outcome.rounds == 3, f"ended as {result.outcome}")


@promise
def method_object_has_no_state(case: Case) -> None:
    """Check that one method object for the whole run gives the same bits as a new object for each step."""
    with folders(1) as (folder,):
        method = case.make_method()
        expected = bits(case.reference[0])
        same(expected, bits(case.run(folder, make_method=lambda: method)), "one object for all steps")


BATCHES_TO_KILLS = (2, 5, 4)
"""Number of trained batches until each kill of a run. The first kill is within the first training of a site."""


class _StopError(Exception):
    """Simulated kill of the run between two steps."""


class _KilledError(BaseException):
    """Simulated kill of the run within a step, where other exceptions are reported as errors of the method."""


@promise
def run_resumes_at_every_step(case: Case) -> None:
    """Check that a run that is stopped before the execution or the commit of a step ends with the same bits and scores.

    One run is stopped at every step; a copy of it continues from its first stop to the end without further stops.
    """
    result, whole = case.reference
    last = Store(whole / "state" / SERVER).steps()[-1]
    stops = [(stop, where) for stop in range(1, last) for where in ("work", "fold")]

    def ends_alike(folder: Path, what: str) -> None:
        same(bits(result), bits(case.run(folder)), what)
        expect(scores(whole) == scores(folder), f"{what}: other rows in metrics.csv")

    with folders(2) as (once, always):
        for stop, where in stops:
            if where == "work" and stop not in case.worked:
                continue  # a step without sites
            _run_until(case, always, stop, where)
            if not once.exists():
                shutil.copytree(always, once)
                ends_alike(once, f"stopped in {where} of step {stop}")
        ends_alike(always, "stopped at every step")


def _run_until(case: Case, folder: Path, stop: int, where: str) -> None:
    """Continue the run in `folder` until the execution or the aggregation of a step."""
    folds = max(Store(folder / "state" / SERVER).steps(), default=0)

    def unavailable(site: str, step: int) -> bool:
        if where == "work" and step == stop:
            raise _StopError
        return False

    class Stopped(case.kind):  # type: ignore[name-defined]
        """The method; it stops in the aggregation of a step."""

        supports: ClassVar[Any] = case.kind.supports

        def aggregate(self, server: Any, replies: Any) -> None:
            nonlocal folds
            folds += 1
            if where == "fold" and folds == stop:
                raise _StopError
            super().aggregate(server, replies)

    try:
        case.run(folder, unavailable=unavailable, make_method=lambda: Stopped(**case.make_method().model_dump()))
    except _StopError:
        return
    raise AssertionError(f"the run has no {where} in step {stop}")


@promise
def killed_training_continues(case: Case) -> None:
    """Check that a run that is killed within trainings ends with the same bits and scores.

    Every other batch is followed by a checkpoint, so kills are after a checkpoint or a batch later. A method whose
    training can't be continued (`LocalTraining.can_continue`) writes no checkpoint.
    """
    result, whole = case.reference
    with folders(1) as (folder,):
        for batches in BATCHES_TO_KILLS:
            _run_until_batch(case, folder, batches)
        same(bits(result), bits(case.run(folder, checkpoint_minutes=0)), "killed within trainings")
        expect(scores(whole) == scores(folder), "killed within trainings: other rows in metrics.csv")
        left = [path.name for path in folder.rglob(f"{CHECKPOINT_STEM}-*")]
        expect(not left, f"checkpoints remain after the run: {left}")


def _run_until_batch(case: Case, folder: Path, batches: int) -> None:
    """Continue the run in `folder` until it has trained a number of batches, or to its end.

    Checkpoints are written after the first batch, the third, and so on.
    """
    save, count = TrainingCheckpoint.save_if_due, 0

    def save_and_stop(checkpoint: TrainingCheckpoint, *state: Any) -> None:
        nonlocal count
        count += 1
        if count % 2:
            save(checkpoint, *state)
        if count == batches:
            raise _KilledError

    with patch.object(TrainingCheckpoint, "save_if_due", save_and_stop), suppress(_KilledError):
        case.run(folder, checkpoint_minutes=0)


@promise
def site_order_and_workers_have_no_effect(case: Case) -> None:
    """Check that another order of the sites, and on the CPU two workers, give the same bits."""
    with folders(2) as (second, third):
        expected, backwards = bits(case.reference[0]), dict(reversed(make_sites().items()))
        same(expected, bits(case.run(second, sites=backwards)), "sites given in reverse order")
        if case.device == "cpu":  # this process used the GPU, so it can't fork workers
            same(expected, bits(case.run(third, workers=2)), "two workers")


@promise
def two_methods_can_alternate(case: Case) -> None:
    """Check that rounds of another method, or of the same method with another seed, in between have no effect."""
    with folders(3) as (mine, others, again):
        expected = bits(case.reference[0])
        other = Case(case.registry, "fedprox" if case.name != "fedprox" else "fedavg", device=case.device)
        for rounds in (1, 2, 3):
            result = case.run(mine, rounds=rounds)
            if rounds < 3:
                other.run(others, rounds=rounds)
                case.run(again, rounds=rounds, seed=8)
        same(expected, bits(result), "alternating with another method")


@promise
def different_sites_are_supported(case: Case) -> None:
    """Check that a run finishes with one site, an empty site, a site with one image, and a site with one class."""
    with folders(2) as (alone, odd):
        finite(bits(case.run(alone, sites=make_sites({"site-1": 12}))), "one site")
        sites = make_sites({"a": 12, "b": 9, "empty": 0, "single": 1})
        sites["same"] = make_site(7, "same", torch.ones(7, dtype=torch.int64))
        result = case.run(odd, sites=sites)
        finite(bits(result), "odd sites")
        expect(result.outcome.status == "finished", f"odd sites: ended as {result.outcome.status}")


@promise
def equal_sites_get_equal_models(case: Case) -> None:
    """Check that two sites with the same data and one full batch per round end with the same models up to rounding."""
    with folders(1) as (folder,):
        data = make_site(10, "twin")
        result = case.run(folder, sites={"a": data, "b": data}, task=make_task("plain"), batch_size=10)
        for kind, model in result.models["a"].items():
            for name, tensor in model.tensors.items():
                twin = result.models["b"][kind].tensors[name]
                expect(
                    torch.allclose(tensor.float(), twin.float(), atol=1e-5), f"{kind} models of twins differ in {name}"
                )


@promise
def sites_may_be_unavailable(case: Case) -> None:
    """Check that a run finishes with sites that are unavailable in some or all steps, or are not drawn for a round."""
    with folders(2) as (away, partial):
        result = case.run(away, unavailable=lambda site, step: site == "site-3" or (site == "site-2" and step == 1))
        expect(result.outcome.status == "finished", f"absent sites: ended as {result.outcome.status}")
        finite(bits(result), "absent sites")
        finite(bits(case.run(partial, fraction=0.4)), "partial participation")


@promise
def site_with_nan_does_not_stop_run(case: Case) -> None:
    """Check that a site whose training is not finite does not stop the run or affect other sites."""
    with folders(1) as (folder,):
        sites = make_sites()
        if "pooled_data" not in case.kind.needs:
            broken = make_data(13, "site-2")
            broken.images[:] = float("nan")
            sites["site-2"] = Splits(broken, sites["site-2"].val, sites["site-2"].test)
        result = case.run(folder, sites=sites)
        expect(result.outcome.status == "finished", f"ended as {result.outcome.status}: {result.outcome.reason}")
        finite({k: m for k, m in bits(result).items() if not k.startswith("site-2/personal")}, "beside a broken site")


@promise
def only_declared_values_leave_sites(case: Case) -> None:
    """Check that tensors and metadata that left a site are declared, and that the kinds of tensors are known."""
    kind = case.kind
    expect(set(kind.sends.values()) <= {"update", "weights", "statistic", "samples"}, f"unknown kinds in {kind.sends}")
    _, folder = case.reference
    for path in (folder / "state").iterdir():
        for step in Store(path).steps() if path.name != SERVER else []:
            record = Store(path).load(step)
            sent = [name.split("/", 1)[1] for name in record.tensors if name.startswith("reply/")]
            loose = [name for name in sent if not name.startswith(tuple(kind.sends) or ("\0",))]
            expect(not loose, f"undeclared tensors leave a site: {loose}")
            undeclared = set(record.meta["reply"]) - set(kind.sends_meta) - {FILTERS_KEY}
            expect(not undeclared, f"undeclared meta keys leave a site: {sorted(undeclared)}")


@promise
def frozen_parameters_are_not_sent(case: Case) -> None:
    """Check that frozen parameters never change, and are in no request, reply, peer message or stored state."""
    task = make_partly_frozen_task()
    with folders(1) as (folder,):
        messages = _observe_tensors(case, folder, task, rounds=2)[0]
    _expect_none_sent(messages, task)


@promise
def head_alone_can_be_trained(case: Case) -> None:
    """Check a run with the setting ``train_part: head``, or that the method declares the need ``trainable_body``.

    The body's parameters and running statistics never change and are in no message or stored state, its batch norm is
    in evaluation mode also in training. A run that is interrupted, and trains on cached features of the body, has the
    same models up to rounding; a method that changes or creates images declares the need ``raw_images``.
    """
    task = make_head_only_task()
    with folders(2) as (whole, parts):
        if "trainable_body" in case.make_method().active_needs:
            try:
                case.run(whole, task=task, train_part="head")
            except SettingsError as error:
                expect((error.code, error.fields.get("need")) == ("unmet_need", "trainable_body"), f"refused: {error}")
                return
            raise AssertionError("a run without trainable parameters in the body was not refused")
        messages, result = _observe_tensors(case, whole, task, rounds=2, train_part="head", feature_cache=False)
        _expect_none_sent(messages, task.with_training_of("head"))
        case.run(parts, task=task, rounds=1, train_part="head")
        continued = bits(case.run(parts, task=task, rounds=2, train_part="head"))
        for key, tensors in bits(result).items():
            for name, tensor in tensors.items():
                alike = torch.allclose(tensor.double(), continued[key][name].double(), rtol=1e-5, atol=1e-5)
                expect(alike, f"{key} differs in {name} on cached features; does the method need 'raw_images'?")


def _observe_tensors(case: Case, folder: Path, task: Task, **settings: Any) -> tuple[list[Tensors], SimulationResult]:
    """Run a method, and return the tensors of all requests, replies, peer messages and states, and the result."""
    messages: list[Tensors] = []

    class Observed(case.kind):  # type: ignore[name-defined]
        """The method; it records the tensors that each site receives and returns."""

        supports: ClassVar[Any] = case.kind.supports

        def execute(self, site: Any, request: Any) -> Any:
            messages.append(dict(request.tensors))
            reply = super().execute(site, request)
            messages.extend(
                [reply.tensors, site.state.tensors, *(peer_message.tensors for peer_message in reply.peer_messages)]
            )
            return reply

    arguments = case.make_method().model_dump()
    result = case.run(folder, task=task, make_method=lambda: Observed(**arguments), **settings)
    messages.append(states(folder)[SERVER])
    expect(result.outcome.status == "finished", f"ended as {result.outcome.status}: {result.outcome.reason}")
    return messages, result


def _expect_none_sent(messages: list[Tensors], task: Task) -> None:
    """Raise an AssertionError if a message has a tensor whose name ends with the name of a frozen tensor."""
    frozen = tuple(task.frozen())
    expect(bool(frozen), "the network has no frozen tensor")
    sent = {name for tensors in messages for name in tensors if name.endswith(frozen)}
    expect(not sent, f"frozen tensors are sent or stored: {sorted(sent)}")


@promise
def test_data_have_no_effect(case: Case) -> None:
    """Check that changed test labels have no effect on any model."""
    with folders(1) as (folder,):
        poisoned = {
            name: Splits(
                data.train, data.val, TensorData(data.test.batch(torch.arange(9))[0], 2 - labels_of(data.test))
            )
            for name, data in make_sites().items()
        }
        same(bits(case.reference[0]), bits(case.run(folder, sites=poisoned)), "poisoned test labels")


@promise
def limit_cases_hold(case: Case) -> None:
    """Check that each declared limit case gives the same bits as the method that it names."""
    others: dict[str, dict[str, Tensors]] = {}  # several cases may name the same run
    for limit in case.kind.reduces_to:
        for network in ("plain",) if limit.only_without_norms else ("norm", "plain"):
            named = repr((limit.equals, limit.equals_args, limit.equals_settings, network))
            with folders(2) as (mine, theirs):
                left = replace(case, args=case.args | limit.args, settings={}).run(mine, task=make_task(network))
                if named not in others:
                    other = Case(case.registry, limit.equals, limit.equals_args, device=case.device)
                    others[named] = bits(other.run(theirs, task=make_task(network), **limit.equals_settings))
                same(bits(left), others[named], f"{limit.args} against {limit.equals} on '{network}'")


@promise
def equal_models_average_to_themselves(case: Case) -> None:
    """Check that without local training each global model stays the initial one, including buffers.

    Methods whose server trains on public data are exempt. If a method exports another network than the run's, with
    another head, only the body is compared.
    """
    with folders(1) as (still,):
        method = case.make_method()
        task = method.task_of(make_task())
        start = task.initial(case.settings_of().seed)
        body = names_without_head(task.build(), list(start))
        result = case.run(still, epochs=0)
        for participant, models in {"server": result.outcome.models, **result.models}.items():
            if "global" in models and "public_data" not in case.kind.needs:
                model, key = models["global"], f"{participant}/global"
                names = start if method.network_config(model, {}) == {} else body
                begun = {name: start[name] for name in names}
                kept = {n: t for n, t in model.tensors.items() if n in begun}
                same({key: kept}, {key: begun}, "no local training")
    for key, tensors in bits(case.reference[0]).items():
        for name, tensor in tensors.items():
            expect(not name.endswith("running_var") or bool((tensor > 0).all()), f"{key}: {name} is not positive")


@promise
def exported_networks_predict_alike(case: Case) -> None:
    """Check that an exported bundle's network loads a model's weights and predicts the same as the run's predictor.

    If the method changes the run's networks, also check that their bodies have the initial tensors of the original
    network.
    """
    result, method, task = case.reference[0], case.make_method(), make_task()
    images = make_data(5, "exported").images
    for kind, model in result.models["site-1"].items():
        network = _exported_network(method, model)
        with torch.no_grad():
            outputs, expected = network(images), build_predictor(method, task, model)(images)
        expect(torch.allclose(outputs, expected, atol=1e-5), f"the exported {kind} model has other predictions")
    begun, own = task.initial(case.settings_of().seed), method.task_of(task).initial(case.settings_of().seed)
    bodies = [{n: t for n, t in tensors.items() if n.startswith("body.") and n in own} for tensors in (begun, own)]
    same({"first": bodies[0]}, {"first": bodies[1]}, "the body's first weights")


def _exported_network(method: Method, model: Model) -> torch.nn.Module:
    """Return the network of a model's exported bundle, with the model's weights, in evaluation mode."""
    from medfl.networks.bundle_parser import (
        make_parser,  # imported here, because it takes longer than all other imports
    )

    definition = method.network_config(model, {"_target_": "medfl.testing.cohort.SmallNet"})
    network: torch.nn.Module = make_parser({"network_def": definition}).get_parsed_content("network_def").eval()
    network.load_state_dict(model.tensors)
    return network


@promise
def low_rank_adapters_are_merged(case: Case) -> None:
    """Check that a run with ``train_part: lora`` exports plain models, which predict as the run's models.

    If the method declares `Capability.EXACT_ADAPTERS`, also check that exact aggregation leaves no residual in a run
    with one site, because the server's new model then is the site's.
    """
    task, method, images = make_task(), case.make_method(), make_data(5, "exported").images
    lora = {"rank": 2, "alpha": 4.0}
    with folders(2) as (merged, exact):
        result = case.run(merged, rounds=1, train_part="lora", lora=lora)
        trained = task.with_training_of("lora", case.settings_of(train_part="lora", lora=lora).lora)
        models = result.models["site-1"]
        for kind, model in add_frozen_tensors(method, trained, models).items():
            network = _exported_network(method, model)
            with torch.no_grad():
                outputs, expected = network(images), build_predictor(method, trained, models[kind])(images)
            expect(torch.allclose(outputs, expected, atol=1e-5), f"the merged {kind} model has other predictions")
        if Capability.EXACT_ADAPTERS not in method.active_supports:
            return
        sites = make_sites({"site-1": 12})
        case.run(exact, rounds=2, sites=sites, train_part="lora", lora=lora | {"aggregation": "exact"})
        residuals = [tensor for name, tensor in states(exact)[SERVER].items() if is_residual(name)]
        largest = max(float(tensor.abs().max()) for tensor in residuals)
        expect(largest < 1e-6, f"one site with exact adapters: the server's model differs from the site's by {largest}")


@promise
def states_survive_the_disk(case: Case) -> None:
    """Check that each saved state is read with the same bits."""
    for name, tensors in states(case.reference[1]).items():
        back, _ = wire.decode(wire.encode(tensors, {}))
        expect(tensors_equal(tensors, back), f"the state of {name} changes on disk")


@promise
def different_networks_are_refused_or_work(case: Case) -> None:
    """Check that a method refuses different networks before step 0, or trains all or some kinds as it declares."""
    allowed = Capability.DIFFERENT_NETWORKS in case.kind.supports
    with folders(2) as (wide, coarse):
        try:
            result = case.run(wide, networks_by_site={"site-1": "wide"})
        except MedflError as error:
            expect(isinstance(error, SettingsError), f"refused: {error}")
            if not allowed:
                return
            result = case.run(coarse, networks_by_site={"site-1": "coarse"})
        expect(allowed, "different networks are accepted, but the method does not declare this capability")
        finite(bits(result), "different networks")
