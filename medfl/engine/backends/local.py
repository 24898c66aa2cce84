"""The local carrier: all sites of a federation on this machine.

With one worker sites are trained in this process. With more, that many processes are forked once, each with the
threads of the run; data are shared with them copy-on-write, and messages travel as safetensors blobs through pipes.
A step's largest site starts first; evaluation of the round before fills the gaps, divided by site and, on the server's
test sets, by case. Nothing depends on who finishes first: replies are folded in name order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from medfl.contract import Replies, Request
from medfl.engine.backend import Evaluation, EventListener, MethodFactory, SiteResult, StepResult, ignore_event
from medfl.engine.backends.jobs import CrossSiteJob, EvaluateJob, Job, PredictJob, StepJob
from medfl.engine.backends.pool import Pool, Result, Stage, describe_bug
from medfl.engine.evaluation import Predictors, Row, predictions, rows_of, score, score_predictions
from medfl.engine.replies import StoredReplies
from medfl.engine.site import SiteRunner
from medfl.engine.store import Steps
from medfl.errors import MedflError
from medfl.privacy.policy import policy_of
from medfl.records.progress import Heartbeat, JobEnd, JobStart
from medfl.training.batches import SCORING, TRAINING
from medfl.training.predict import evaluation_batch
from medfl.types import NO_SITES, Judged, Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import flush_files
from medfl.utils.pulse import Beat, Pulse

DOING: dict[type[Job], str] = {
    StepJob: TRAINING,
    EvaluateJob: SCORING,
    PredictJob: SCORING,
    CrossSiteJob: "global test",
}
"""Kind of a job to what its sites do, before they say more themselves."""

JOBS_OF_WORKER = 3
"""Into how many jobs for each worker an evaluation is divided."""


class LocalBackend:
    """Moves messages between a server and sites on one machine.

    Args:
        hosts: The sites that train, by name.
        viewers: Holders of test data only, such as the global test set; scored with the global model.
        make_method: Makes the method anew.
        workers: Processes, >= 1.
        threads: Threads of each process, >= 1.
        absent: Tells whether a site is absent in a step; for tests and simulations of drop-outs.
        note: Receives progress events.
    """

    def __init__(
        self,
        hosts: dict[str, SiteRunner],
        make_method: MethodFactory,
        viewers: dict[str, SiteRunner] | None = None,
        workers: int = 1,
        threads: int = 1,
        unavailable: Callable[[str, int], bool] = lambda site, step: False,
        note: EventListener = ignore_event,
    ) -> None:
        self.hosts, self.viewers = hosts, viewers or {}
        self._make_method, self._is_unavailable, self._note = make_method, unavailable, note
        self._hides_counts = any(policy_of(host.settings).is_private for host in hosts.values())
        for host in hosts.values():
            host.store.flushes = False  # `step` does it for all sites at once, before the server counts on it
        self._pool = Pool(self._run, workers, threads) if workers > 1 else None

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        return sorted(self.hosts)

    def site_info(self) -> dict[str, Meta]:
        """What each site tells about itself."""
        return {name: self.hosts[name].site_info() for name in self.sites}

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk; 0 if none. Damaged newer ones are set aside."""
        return self.hosts[site].store.mend()

    def step(
        self, step: int, round_: int, requests: list[Request], evaluation: Evaluation | None = None, keep: Steps = ()
    ) -> StepResult:
        """Carry out a step's orders, and the evaluation of the round before beside them.

        Args:
            step: Its number.
            round_: Its round.
            orders: One at most for each site.
            evaluation: What to score.
            keep: Earlier steps after which the sites' states are still needed.

        Returns:
            Answers, names of absent sites, and the rows of the evaluation.
        """
        unavailable = [request.to for request in requests if self._is_unavailable(request.to, step)]
        jobs = self._step_jobs(step, round_, [request for request in requests if request.to not in unavailable], keep)
        scoring = self._evaluation_jobs(evaluation) if evaluation else []
        results = self._do([*jobs, *scoring])
        answers = [_answer(result) for result, _ in results[: len(jobs)]]
        flush_files([self.hosts[answer.site].store.path(answer.step) for answer in answers])
        rows = self._scores(scoring, results[len(jobs) :])
        answers.sort(key=lambda answer: answer.site)
        return StepResult(answers, unavailable, sorted(rows, key=lambda row: row.site))

    def replies(self, answers: list[SiteResult], missing: list[str]) -> Replies:
        """The replies behind answers that were not refused, from the sites' step files."""
        return StoredReplies(lambda answer: self.hosts[answer.site].store.read(answer.step, "reply/"), answers, missing)

    def evaluate_cross_site(self, evaluation: Evaluation) -> list[Row]:
        """The global test: each site's model on every site's test data, in ring order."""
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        jobs = [CrossSiteJob(owner=name, step=step, round=round_, tensors=published) for name in self._tested()]
        results = self._do(jobs)
        return [Row(*row) for result, _ in results for row in result["rows"]]

    def _tested(self) -> list[str]:
        """The sites that take a model home, sorted: those that only look on where one participant pools their data."""
        return sorted(name for name in self.viewers if name not in NO_SITES) or self.sites

    def _runner(self, name: str) -> SiteRunner:
        """Who has a test set: a site, or one that only looks on."""
        return self.hosts.get(name) or self.viewers[name]

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()

    # ---- jobs

    def _step_jobs(self, step: int, round_: int, requests: list[Request], keep: Steps) -> list[StepJob]:
        """Return the jobs of the orders, those of the largest sites first."""
        digests: dict[int, str] = {}  # most orders of a step share their tensors
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
        """Jobs of about equal numbers of images, the largest first, so that they fill the gaps between workers.

        A test set of the server that is larger than such a job is divided between batches.
        """
        everyone = self.hosts | self.viewers
        sizes = {name: len(participant.data.test) + len(participant.data.val) for name, participant in everyone.items()}
        count = 1 if self._pool is None else JOBS_OF_WORKER * len(self._pool)
        share = -(-sum(sizes.values()) // count)
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        jobs: list[EvaluateJob | PredictJob] = []
        for name, viewer in self.viewers.items():
            if name in NO_SITES and sizes[name] > share and not isinstance(viewer.data.test, Judged):
                batch = evaluation_batch(viewer.task.objective)
                cuts = [*range(0, sizes[name], max(1, share // batch) * batch), sizes.pop(name)]
                for cases in pairwise(cuts):
                    jobs.append(PredictJob(participant=name, cases=cases, step=step, round=round_, tensors=published))
        chunks: list[list[str]] = [[] for _ in range(min(len(sizes), count))]
        filled = [0] * len(chunks)
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            smallest = filled.index(min(filled))
            chunks[smallest].append(name)
            filled[smallest] += sizes[name]
        for chunk in chunks:
            known = {name: everyone[name].scorer.known for name in chunk}
            jobs.append(EvaluateJob(sites=chunk, known=known, step=step, round=round_, tensors=published))
        return jobs

    def _scores(self, jobs: Sequence[EvaluateJob | PredictJob], results: Sequence[Result]) -> list[Row]:
        """The rows of an evaluation; those of divided test sets are scored here."""
        rows: list[Row] = []
        parts: dict[str, list[Tensors]] = {}
        for job, (result, predicted) in zip(jobs, results, strict=True):
            rows += [Row(*row) for row in result["rows"]]
            for name, known in result["known"].items():
                self._runner(name).scorer.known = known
            if isinstance(job, PredictJob) and predicted:
                parts.setdefault(job.participant, []).append(predicted)
        for name, tensors in parts.items():
            judged, kept = (torch.cat([part[key] for part in tensors]) for key in ("judged", "kept"))
            scores = score_predictions(judged, kept, self.viewers[name].task)
            rows += rows_of(scores, jobs[0].round, name, "global", "test", "aggregated")
        return rows

    def _do(self, jobs: Sequence[Job]) -> list[Result]:
        if self._pool is not None:
            return self._pool.run(jobs, self._tell)
        return [self._run_here(job.copy()) for job in jobs]

    def _run_here(self, job: Job) -> Result:
        self._tell(job, "start")
        try:
            with Pulse(lambda beat: self._tell(job, beat)):
                result = self._run(job)
        except MedflError:
            raise
        except Exception as error:
            raise RuntimeError(describe_bug(error, job)) from error
        self._tell(job, "end")
        return result

    def _tell(self, job: Job, stage: Stage) -> None:
        """Record a stage of a job. Under privacy the share of the batches is left out, as it tells their number."""
        sites = tuple(job.whose)
        match stage:
            case "start":
                self._note(JobStart(sites=sites, job=job.name, activity=DOING[type(job)]))
            case "end":
                self._note(JobEnd(sites=sites, job=job.name))
            case Beat(doing, share, moved):
                share = None if self._hides_counts else share
                self._note(Heartbeat(sites=sites, job=job.name, activity=doing, share=share, has_progressed=moved))

    def _run(self, job: Job) -> Result:
        """Do one job, in a worker or here."""
        match job:
            case StepJob():
                at = (job.step, job.round, job.digest, job.keep)
                return vars(self.hosts[job.request["to"]].step(self._make_method, job.unpacked(), *at)), {}
            case EvaluateJob():
                rows = self._evaluate(job)
                return {"rows": rows, "known": {name: self._runner(name).scorer.known for name in job.sites}}, {}
            case PredictJob():
                return {"rows": [], "known": {}}, self._predict(job)
            case CrossSiteJob():
                return {"rows": self._exchange(job)}, {}
        raise TypeError(f"expected a job of the local carrier, got {job}")

    def _evaluate(self, job: EvaluateJob) -> list[Row]:
        shared: Predictors = {}
        rows: list[Row] = []
        for name in sorted(job.sites):
            participant = self._runner(name)
            participant.scorer.known = job.known[name]
            rows += participant.evaluate(self._make_method(), job.tensors, job.step, job.round, shared)
        return rows

    def _predict(self, job: PredictJob) -> Tensors:
        """What scores need of the global model on some cases; empty where a method has none."""
        method, viewer = self._make_method(), self.viewers[job.participant]
        model = viewer.models(method, job.tensors, job.step, job.round).get("global")
        if model is None:
            return {}
        predictor = viewer.scorer.predictor(method, "global", model, {})
        judged, kept = predictions(predictor, viewer.data.test, viewer.task, viewer.settings, job.cases)
        return {"judged": judged, "kept": kept}

    def _exchange(self, job: CrossSiteJob) -> list[Row]:
        method, everyone, names = self._make_method(), self.hosts | self.viewers, self._tested()
        models = everyone[job.owner].models(method, job.tensors, job.step, job.round)
        kind = "personal" if "personal" in models else "global"
        predictor = everyone[job.owner].scorer.predictor(method, kind, models[kind], {})
        start = names.index(job.owner)
        rows = []
        for name in names[start:] + names[:start]:
            host = everyone[name]
            scores = score(predictor, host.data.test, host.task, host.settings)
            rows += rows_of(scores, job.round, name, f"{kind}@{job.owner}", "test", "aggregated")
        return rows


def _answer(result: Meta) -> SiteResult:
    return SiteResult(**(result | {"rows": [Row(*row) for row in result["rows"]]}))
