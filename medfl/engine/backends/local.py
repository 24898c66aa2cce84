"""Local backend: all sites of a federation on this machine.

Without workers, the sites are trained in this process. Otherwise one process is forked for each device. The workers
share the data copy-on-write, and messages are sent as safetensors blobs through pipes. The largest site of a step
starts first, and a worker that is free gets the next one. The evaluation of the previous round fills the gaps; it is
divided by site and, on the server's test sets, by case. No result depends on which job ends first: replies are
aggregated in the order of the sites' names.

Sites are trained, and models are evaluated, on the worker's device. The server aggregates replies on the CPU. If a
method trains a model at the server, it does so in this process, on the first device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from medfl.contract import Replies, Request
from medfl.engine.backend import Evaluation, EventListener, MethodFactory, SiteResult, StepResult, ignore_event
from medfl.engine.backends.jobs import BackendJob, CrossSiteJob, EvaluateJob, PredictJob, StepJob
from medfl.engine.backends.pool import JobResult, Stage, WorkerPool, describe_bug
from medfl.engine.evaluation import (
    MetricRow,
    Predictors,
    predict_dataset,
    score_dataset,
    score_predictions,
    scores_to_rows,
)
from medfl.engine.replies import StoredReplies
from medfl.engine.site import SiteRunner
from medfl.engine.store import StepNumbers
from medfl.errors import MedflError
from medfl.privacy.policy import policy_of
from medfl.records.progress import Heartbeat, JobEnd, JobStart
from medfl.training.batches import SCORING, TRAINING
from medfl.training.checkpoints import delete_checkpoints
from medfl.training.devices import MemoryWatch, use_device
from medfl.training.predict import evaluation_batch
from medfl.types import NON_SITE_NAMES, Meta, Tensors, is_self_scoring
from medfl.utils import wire
from medfl.utils.files import flush_files
from medfl.utils.heartbeat import HeartbeatSender, HeartbeatSignal, HeartbeatThread

ACTIVITY_BY_JOB: dict[type[BackendJob], str] = {
    StepJob: TRAINING,
    EvaluateJob: SCORING,
    PredictJob: SCORING,
    CrossSiteJob: "cross-site evaluation",
}
"""Maps each kind of job to the activity, in words, in the progress event at the start of such a job."""

JOBS_PER_WORKER = 3
"""Number of jobs per worker into which an evaluation is divided, so that all workers end at about the same time."""


class LocalBackend:
    """Backend that runs the requests of a server at sites on one machine.

    Args:
        hosts: Maps the name of each site that trains to its runner, which executes the site's requests.
        viewers: Maps the name of each participant that only has test data, for example the server's test set, to its
            runner. The global model is scored on these data.
        make_method: Factory that returns a new method object.
        devices: Devices of the worker processes, ``cpu`` or ``cuda:N``, one process for each; empty trains in this
            process.
        threads: Number of threads of each process, >= 1.
        unavailable: Function that returns whether a site is unavailable in a step, given the site's name and the step
            number; for tests and simulations of drop-outs.
        note: Callback that receives progress events.
    """

    def __init__(
        self,
        hosts: dict[str, SiteRunner],
        make_method: MethodFactory,
        viewers: dict[str, SiteRunner] | None = None,
        devices: Sequence[str] = (),
        threads: int = 1,
        unavailable: Callable[[str, int], bool] = lambda site, step: False,
        note: EventListener = ignore_event,
    ) -> None:
        self.hosts, self.viewers = hosts, viewers or {}
        self._make_method, self._is_unavailable, self._note = make_method, unavailable, note
        self._hides_counts = any(policy_of(host.settings).is_private for host in hosts.values())
        for host in hosts.values():
            host.store.flushes = False  # `step` flushes the files of all sites at once
        self._memory_watch = _watch_memory([*hosts.values(), *self.viewers.values()], devices)
        self._pool = WorkerPool(self._run_watched, devices, threads) if devices else None
        if devices:
            use_device(devices[0])  # only now: workers are forked before this process uses a GPU

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can receive requests, sorted."""
        return sorted(self.hosts)

    def site_info(self) -> dict[str, Meta]:
        """Return the information that each site discloses about itself at the start of the run, by site.

        For example, it says whether the site can train, and how many training images it has.
        """
        return {name: self.hosts[name].site_info() for name in self.sites}

    def newest(self, site: str) -> int:
        """Return the number of the newest valid step on a site's disk, or 0. Rename damaged files to ``*.damaged``."""
        return self.hosts[site].store.set_damaged_aside()

    def step(
        self,
        step: int,
        round_: int,
        requests: list[Request],
        evaluation: Evaluation | None = None,
        keep: StepNumbers = (),
    ) -> StepResult:
        """Execute the requests of a step, and at the same time the evaluation of an earlier round.

        Args:
            step: Number of the step.
            round_: Round that the step belongs to.
            requests: Requests, at most one for each site.
            evaluation: Round to score, or None.
            keep: Numbers of earlier steps whose states the sites must not delete.

        Returns:
            Results of the sites, sorted by name; names of the unavailable sites; and the rows of the evaluation.
        """
        unavailable = [request.to for request in requests if self._is_unavailable(request.to, step)]
        jobs = self._step_jobs(step, round_, [request for request in requests if request.to not in unavailable], keep)
        scoring = self._evaluation_jobs(evaluation) if evaluation else []
        results = self._run_all([*jobs, *scoring])
        answers = [_answer_from_json(result) for result, _ in results[: len(jobs)]]
        stores = [self.hosts[answer.site].store for answer in answers]
        flush_files([store.path(answer.step) for store, answer in zip(stores, answers, strict=True)])
        for store in stores:  # only now: after a power cut the checkpoint or the step is on the disk
            delete_checkpoints(store.folder)
        rows = self._evaluation_rows(scoring, results[len(jobs) :])
        answers.sort(key=lambda answer: answer.site)
        return StepResult(answers, unavailable, sorted(rows, key=lambda row: row.site))

    def replies(self, answers: list[SiteResult], missing: list[str]) -> Replies:
        """Return the replies that belong to results without a refusal. They are read from the sites' step files.

        Args:
            answers: Results of the sites that replied.
            missing: Names of the sites that received a request and sent no usable reply.
        """
        return StoredReplies(lambda answer: self.hosts[answer.site].store.read(answer.step, "reply/"), answers, missing)

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[MetricRow]:
        """Run the cross-site evaluation: score each site's model on every site's test data.

        Args:
            evaluation: Round to score.

        Returns:
            One row for each model, site and metric. For each model, the rows of the site that owns it come first.
        """
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        jobs = [CrossSiteJob(owner=name, step=step, round=round_, tensors=published) for name in self._tested_sites()]
        results = self._run_all(jobs)
        return [MetricRow(*row) for result, _ in results for row in result["rows"]]

    def _tested_sites(self) -> list[str]:
        """Return the sites that export a model, sorted.

        If one participant holds the pooled training data, these are the sites that only have test data.
        """
        return sorted(name for name in self.viewers if name not in NON_SITE_NAMES) or self.sites

    def _runner(self, name: str) -> SiteRunner:
        """Return the runner of a site that trains, or of a participant that only has test data."""
        return self.hosts.get(name) or self.viewers[name]

    def close(self) -> None:
        """Stop the worker processes, if there are any."""
        if self._pool is not None:
            self._pool.close()

    # ---- jobs

    def _step_jobs(self, step: int, round_: int, requests: list[Request], keep: StepNumbers) -> list[StepJob]:
        """Return one job for each request. The largest sites come first."""
        digests: dict[int, str] = {}  # most requests of a step share their tensors
        jobs = []
        for request in sorted(requests, key=lambda request: (-len(self.hosts[request.to].data.train), request.to)):
            if id(request.tensors) not in digests:
                digests[id(request.tensors)] = wire.digest(request.tensors)
            jobs.append(
                StepJob(
                    request={"to": request.to, "op": request.op, "meta": request.meta},
                    digest=digests[id(request.tensors)],
                    step=step,
                    round=round_,
                    keep=list(keep),
                    tensors=request.tensors,
                )
            )
        return jobs

    def _evaluation_jobs(self, evaluation: Evaluation) -> list[EvaluateJob | PredictJob]:
        """Divide an evaluation into jobs with about equal numbers of images.

        A test set of the server that is larger than such a job is divided at the borders of batches.
        """
        runners = self.hosts | self.viewers
        sizes = {name: len(runner.data.test) + len(runner.data.val) for name, runner in runners.items()}
        count = 1 if self._pool is None else JOBS_PER_WORKER * len(self._pool)
        share = -(-sum(sizes.values()) // count)
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        jobs: list[EvaluateJob | PredictJob] = []
        for name, viewer in self.viewers.items():
            if name in NON_SITE_NAMES and sizes[name] > share and not is_self_scoring(viewer.data.test):
                batch = evaluation_batch(viewer.task.objective)
                cuts = [*range(0, sizes[name], max(1, share // batch) * batch), sizes.pop(name)]
                for cases in pairwise(cuts):
                    jobs.append(PredictJob(test_set=name, cases=cases, step=step, round=round_, tensors=published))
        chunks: list[list[str]] = [[] for _ in range(min(len(sizes), count))]
        filled = [0] * len(chunks)
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            smallest = filled.index(min(filled))
            chunks[smallest].append(name)
            filled[smallest] += sizes[name]
        for chunk in chunks:
            caches = {name: runners[name].score_cache for name in chunk}
            jobs.append(EvaluateJob(sites=chunk, score_caches=caches, step=step, round=round_, tensors=published))
        return jobs

    def _evaluation_rows(
        self, jobs: Sequence[EvaluateJob | PredictJob], results: Sequence[JobResult]
    ) -> list[MetricRow]:
        """Return the rows of an evaluation. Score the divided test sets here, and update the sites' score caches."""
        rows: list[MetricRow] = []
        parts: dict[str, list[Tensors]] = {}
        for job, (result, predicted) in zip(jobs, results, strict=True):
            rows += [MetricRow(*row) for row in result["rows"]]
            for name, cache in result["score_caches"].items():
                self._runner(name).score_cache = cache
            if isinstance(job, PredictJob) and predicted:
                parts.setdefault(job.test_set, []).append(predicted)
        for name, tensors in parts.items():
            predictions, targets = (torch.cat([part[key] for part in tensors]) for key in ("predictions", "targets"))
            scores = score_predictions(predictions, targets, self.viewers[name].task)
            rows += scores_to_rows(scores, jobs[0].round, name, "global", "test", "aggregated")
        return rows

    def _run_all(self, jobs: Sequence[BackendJob]) -> list[JobResult]:
        if self._pool is not None:
            return self._pool.run(jobs, self._note_stage)
        with HeartbeatThread() as thread:
            return [self._run_here(job.copy(), thread) for job in jobs]

    def _run_here(self, job: BackendJob, thread: HeartbeatThread) -> JobResult:
        """Run a job in this process, and record its stages. The thread sends the job's heartbeats."""
        self._note_stage(job, "start")
        try:
            with HeartbeatSender(lambda beat: self._note_stage(job, beat), thread):
                result = self._run_watched(job)
        except MedflError:
            raise
        except Exception as error:
            raise RuntimeError(describe_bug(error, job)) from error
        self._note_stage(job, "end")
        return result

    def _note_stage(self, job: BackendJob, stage: Stage) -> None:
        """Record a stage of a job. With a privacy setting the numbers of batches are left out: they reveal a count."""
        sites = tuple(job.participants)
        match stage:
            case "start":
                activity = ACTIVITY_BY_JOB[type(job)]
                self._note(JobStart(sites=sites, job=job.name, activity=activity, round=job.round, step=job.step))
            case "end":
                self._note(JobEnd(sites=sites, job=job.name))
            case HeartbeatSignal() as beat:
                beat = beat.without_counts() if self._hides_counts else beat
                self._note(
                    Heartbeat(
                        sites=sites,
                        job=job.name,
                        activity=beat.doing,
                        batch=beat.batch,
                        batches=beat.batches,
                        has_progressed=beat.moved,
                    )
                )

    def _run_watched(self, job: BackendJob) -> JobResult:
        """Run one job, in a worker or in this process, and watch the memory of its GPU."""
        with self._memory_watch.watch(job.participants_text):
            return self._run(job)

    def _run(self, job: BackendJob) -> JobResult:
        match job:
            case StepJob():
                at = (job.step, job.round, job.digest, job.keep)
                return vars(self.hosts[job.request["to"]].step(self._make_method, job.to_request(), *at)), {}
            case EvaluateJob():
                rows = self._evaluate(job)
                caches = {name: self._runner(name).score_cache for name in job.sites}
                return {"rows": rows, "score_caches": caches}, {}
            case PredictJob():
                return {"rows": [], "score_caches": {}}, self._predict(job)
            case CrossSiteJob():
                return {"rows": self._evaluate_across_sites(job)}, {}
        raise TypeError(f"expected a job of the local backend, got {job}")

    def _evaluate(self, job: EvaluateJob) -> list[MetricRow]:
        method = self._make_method()
        shared: Predictors = {}
        rows: list[MetricRow] = []
        for name in sorted(job.sites):
            runner = self._runner(name)
            runner.score_cache = job.score_caches[name]
            rows += runner.evaluate(method, job.tensors, job.step, job.round, shared)
        return rows

    def _predict(self, job: PredictJob) -> Tensors:
        """Predict some cases with the global model.

        Returns:
            A mapping with the keys ``predictions`` and ``targets``; empty if the method has no global model.
        """
        method, viewer = self._make_method(), self.viewers[job.test_set]
        model = viewer.models(method, job.tensors, job.step, job.round).get("global")
        if model is None:
            return {}
        predictor = viewer.scorer.predictor(method, "global", model, {})
        predictions, targets = predict_dataset(predictor, viewer.data.test, viewer.task, viewer.settings, job.cases)
        return {"predictions": predictions, "targets": targets}

    def _evaluate_across_sites(self, job: CrossSiteJob) -> list[MetricRow]:
        method, runners, names = self._make_method(), self.hosts | self.viewers, self._tested_sites()
        models = runners[job.owner].models(method, job.tensors, job.step, job.round)
        kind = "personal" if "personal" in models else "global"
        predictor = runners[job.owner].scorer.predictor(method, kind, models[kind], {})
        start = names.index(job.owner)
        rows = []
        for name in names[start:] + names[:start]:
            runner = runners[name]
            scores = score_dataset(predictor, runner.data.test, runner.task, runner.settings)
            rows += scores_to_rows(scores, job.round, name, f"{kind}@{job.owner}", "test", "aggregated")
        return rows


def _watch_memory(runners: Sequence[SiteRunner], devices: Sequence[str]) -> MemoryWatch:
    """Return the watcher of the memory in which the runners compute."""
    device, batch_size = runners[0].task.device, runners[0].settings.batch_size
    return MemoryWatch(device=device, devices=devices, batch_size=batch_size)


def _answer_from_json(result: Meta) -> SiteResult:
    return SiteResult(**(result | {"rows": [MetricRow(*row) for row in result["rows"]]}))
