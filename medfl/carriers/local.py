"""The local carrier: all sites of a federation on this machine.

With one worker sites are trained in this process. With more, that many processes are forked once, each with the
threads of the run; data are shared with them copy-on-write, and messages travel as safetensors blobs through pipes.
A step's largest site starts first; evaluation of the round before fills the gaps. Nothing depends on who finishes
first: replies are folded in name order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from medfl.carriers.jobs import EvaluateJob, ExchangeJob, Job, StepJob
from medfl.carriers.pool import Pool, describe_bug
from medfl.contract import Order, Replies
from medfl.core.carrier import Answer, Evaluation, MethodFactory, Note, unnoted
from medfl.core.evaluation import Row, rows_of, score
from medfl.core.replies import StoredReplies
from medfl.core.site import SiteRunner
from medfl.core.store import Steps
from medfl.errors import MedflError
from medfl.training.batches import SCORING, TRAINING
from medfl.training.together import Together
from medfl.types import NO_SITES, Meta
from medfl.utils import wire
from medfl.utils.files import flush_files
from medfl.utils.pulse import Pulse

DOING: dict[type[Job], str] = {StepJob: TRAINING, EvaluateJob: SCORING, ExchangeJob: "global test"}
"""Kind of a job to what its sites do, before they say more themselves."""


class LocalCarrier:
    """Moves messages between a server and sites on one machine.

    Args:
        hosts: The sites that train, by name.
        viewers: Holders of test data only, such as the global test set; scored with the global model.
        make_method: Makes the method anew.
        workers: Processes, >= 1.
        threads: Threads of each process, >= 1.
        absent: Tells whether a site is absent in a step; for tests and simulations of drop-outs.
        note: Hears what the sites do.
        together: Sites that take the steps of their training at once, >= 1 (`medfl.training.together`).
    """

    def __init__(
        self,
        hosts: dict[str, SiteRunner],
        make_method: MethodFactory,
        viewers: dict[str, SiteRunner] | None = None,
        workers: int = 1,
        threads: int = 1,
        absent: Callable[[str, int], bool] = lambda site, step: False,
        note: Note = unnoted,
        together: int = 1,
    ) -> None:
        self.hosts, self.viewers = hosts, viewers or {}
        self._make_method, self._absent, self._note = make_method, absent, note
        self._at_once, self._together = together, Together()
        self._hides_counts = any(host.settings.privacy is not None for host in hosts.values())
        for host in hosts.values():
            host.store.flushes = False  # `step` does it for all sites at once, before the server counts on it
        self._pool = Pool(self._run, workers, threads) if workers > 1 else None

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        return sorted(self.hosts)

    def describe(self) -> dict[str, Meta]:
        """What each site tells about itself."""
        return {name: self.hosts[name].describe() for name in self.sites}

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk; 0 if none. Damaged newer ones are set aside."""
        return self.hosts[site].store.mend()

    def step(
        self, step: int, round_: int, orders: list[Order], evaluation: Evaluation | None = None, keep: Steps = ()
    ) -> tuple[list[Answer], list[str], list[Row]]:
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
        absent = [order.to for order in orders if self._absent(order.to, step)]
        jobs = self._step_jobs(step, round_, [order for order in orders if order.to not in absent], keep)
        scoring = self._evaluation_jobs(evaluation) if evaluation else []
        results = self._do([*jobs, *scoring])
        answers = [_answer(facts) for result in results[: len(jobs)] for facts in result["answers"]]
        flush_files([self.hosts[answer.site].store.path(answer.step) for answer in answers])
        rows = [Row(*row) for result in results[len(jobs) :] for row in result["rows"]]
        return sorted(answers, key=lambda answer: answer.site), absent, sorted(rows, key=lambda row: row.site)

    def replies(self, answers: list[Answer], missing: list[str]) -> Replies:
        """The replies behind answers that were not refused, from the sites' step files."""
        return StoredReplies(lambda answer: self.hosts[answer.site].store.read(answer.step, "reply/"), answers, missing)

    def exchange(self, evaluation: Evaluation) -> list[Row]:
        """The global test: each site's model on every site's test data, in ring order."""
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        jobs = [ExchangeJob(owner=name, step=step, round=round_, tensors=published) for name in self._tested()]
        results = self._do(jobs)
        return [Row(*row) for result in results for row in result["rows"]]

    def _tested(self) -> list[str]:
        """The sites that take a model home, sorted: those that only look on where one participant pools their data."""
        return sorted(name for name in self.viewers if name not in NO_SITES) or self.sites

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()

    # ---- jobs

    def _step_jobs(self, step: int, round_: int, orders: list[Order], keep: Steps) -> list[StepJob]:
        digests: dict[int, str] = {}
        chunks: list[list[Order]] = []
        filling: dict[str, list[Order]] = {}
        for order in sorted(orders, key=lambda order: (-len(self.hosts[order.to].data.train), order.to)):
            if id(order.tensors) not in digests:  # most orders of a step share their tensors
                digests[id(order.tensors)] = wire.digest(order.tensors)
            chunk = filling.get(digests[id(order.tensors)], [])
            if len(chunk) in (0, self._at_once):
                chunks.append(chunk := [])
                filling[digests[id(order.tensors)]] = chunk
            chunk.append(order)
        return [
            StepJob(
                orders=[{"to": order.to, "op": order.op, "meta": order.meta} for order in chunk],
                digest=digests[id(chunk[0].tensors)],
                step=step,
                round=round_,
                keep=list(keep),
                tensors=chunk[0].tensors,
            )
            for chunk in chunks
        ]

    def _evaluation_jobs(self, evaluation: Evaluation) -> list[EvaluateJob]:
        """A few jobs of about equal numbers of images, so that they fill the gaps between workers."""
        everyone = self.hosts | self.viewers
        names = sorted(everyone, key=lambda name: (-len(everyone[name].data.test), name))
        count = 1 if self._pool is None else min(len(names), 3 * len(self._pool))
        chunks: list[list[str]] = [[] for _ in range(count)]
        sizes = [0] * count
        for name in names:
            smallest = sizes.index(min(sizes))
            chunks[smallest].append(name)
            sizes[smallest] += len(everyone[name].data.test) + len(everyone[name].data.val)
        step, round_, published = evaluation.step, evaluation.round, evaluation.published
        return [EvaluateJob(sites=chunk, step=step, round=round_, tensors=published) for chunk in chunks if chunk]

    def _do(self, jobs: Sequence[Job]) -> list[Meta]:
        if self._pool is not None:
            return self._pool.run(jobs, self._tell)
        return [self._run_here(job.copy()) for job in jobs]

    def _run_here(self, job: Job) -> Meta:
        self._tell("work", job, {})
        try:
            with Pulse(lambda beat: self._tell("beat", job, vars(beat))):
                result = self._run(job)
        except MedflError:
            raise
        except Exception as error:
            raise RuntimeError(describe_bug(error, job)) from error
        self._tell("done", job, {})
        return result

    def _tell(self, event: str, job: Job, facts: Meta) -> None:
        """Note how a job stands. Under privacy the share of the batches stays out, which says how many there are."""
        if event == "work":
            facts = {"doing": DOING[type(job)]}
        elif self._hides_counts:
            facts = {name: value for name, value in facts.items() if name != "share"}
        self._note(event, {"sites": job.whose, "job": job.name} | facts)

    def _run(self, job: Job) -> Meta:
        """Do one job, in a worker or here."""
        match job:
            case StepJob():
                at = (job.step, job.round, job.digest, job.keep)
                works = [partial(self.hosts[to.to].step, self._make_method, to, *at) for to in job.unpacked()]
                return {"answers": [vars(answer) for answer in self._together.run(works)]}
            case EvaluateJob():
                return {"rows": self._evaluate(job)}
            case ExchangeJob():
                return {"rows": self._exchange(job)}
        raise TypeError(f"expected a job of the local carrier, got {job}")

    def _evaluate(self, job: EvaluateJob) -> list[Row]:
        cache: dict[str, torch.nn.Module] = {}
        rows = []
        for name in sorted(job.sites):
            host = self.hosts.get(name) or self.viewers[name]
            scores = host.evaluate(self._make_method(), job.tensors, job.step, job.round, cache)
            rows += [row for row in scores if name not in NO_SITES or row.model == "global"]
        return rows

    def _exchange(self, job: ExchangeJob) -> list[Row]:
        method, everyone, names = self._make_method(), self.hosts | self.viewers, self._tested()
        predictors = everyone[job.owner].predictors(method, job.tensors, job.step, job.round, {})
        kind = "personal" if "personal" in predictors else "global"
        start = names.index(job.owner)
        rows = []
        for name in names[start:] + names[:start]:
            host = everyone[name]
            scores = score(predictors[kind], host.data.test, host.task, host.settings)
            rows += rows_of(scores, job.round, name, f"{kind}@{job.owner}", "test", "aggregated")
        return rows


def _answer(result: Meta) -> Answer:
    return Answer(**(result | {"rows": [Row(*row) for row in result["rows"]]}))
