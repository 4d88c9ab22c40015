# SPDX-License-Identifier: Apache-2.0
"""What a candidate is worth: its time and resources by the models of the hardware that would be
built, its accuracy after a short training. A job (`jobs.run_jobs`) each, kept for ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from bitwright.base.errors import ModelError, RecipeError, RunError, TargetError
from bitwright.base.progress import Progress, no_progress
from bitwright.base.records import Finite, Positive
from bitwright.base.source import code_key
from bitwright.base.store import content_key
from bitwright.explore.changes import job_arguments, recipe_of
from bitwright.jobs import Job, JobResult, run_jobs
from bitwright.papers.skynet.search.candidate import Candidate
from bitwright.papers.skynet.search.swarm import Measured
from bitwright.pipeline.recipe import Recipe

MODEL = "bundle_net"
PRELOAD = ("torch._dynamo", "bitwright.train.loop", "bitwright.quantize")
_HERE = "bitwright.papers.skynet.search.measure"
#: What a candidate's figures depend on besides itself, see `facts_of`.
_FACTS = ("data", "task", "train.float", "quant", "hardware")


class _Refused(BaseModel):
    reason: str


class _Known(BaseModel):
    accuracy: Finite
    latency_ms: Positive
    interval_ms: Positive


_KIND: TypeAdapter[_Refused | _Known] = TypeAdapter(_Refused | _Known)


def recipe_for(recipe: Recipe, candidate: Candidate, epochs: int | None = None) -> Recipe:
    """The recipe with a candidate as its model, and so many epochs of float training.

    Raises:
        RecipeError: they do not go together.
    """
    model = recipe.model.model_copy(
        update={"name": MODEL, "options": candidate.to_options(), "weights": None}
    )
    changed = recipe.model_copy(update={"model": model})
    if epochs is None:
        return changed
    training = changed.train.float_
    if training.warmup > epochs:
        training = training.model_copy(update={"warmup": float(epochs)})
    training = training.model_copy(update={"epochs": epochs})
    return changed.model_copy(
        update={"train": changed.train.model_copy(update={"float_": training})}
    )


def measure_candidate(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One candidate: what it costs, then how well it does after a short training.

    Returns:
        ``latency_ms`` of a lone image and ``interval_ms`` in the steady state at the clock, cycles,
        resources and bottleneck, all predicted; parameters; ``accuracy`` on validation images (more
        is better) and the metric's name. Of one that has no hardware or does not fit alone
        ``reason``.
    """
    from bitwright.pipeline.steps.preflight import dry_run
    from bitwright.pipeline.steps.results_hardware import MapResult
    from bitwright.pipeline.steps.workspace import Workspace
    from bitwright.train import fit

    work = Workspace(recipe_of(arguments))
    try:
        mapped = dry_run(work)
    except (TargetError, ModelError) as error:
        return {"reason": str(error)}
    if not isinstance(mapped, MapResult):
        raise RecipeError("a search needs hardware.kind: streaming", where="hardware.kind")
    clock = mapped.rate_clock_mhz
    model = work.fresh_model()
    config = work.recipe.train.float_
    fitted = fit(model, work.data.labelled(), config, run_dir=folder / "logs", task=work.task)
    if fitted.validation_metric is None:
        raise RecipeError(
            "candidates are compared on validation images, and there are none",
            where="data.validation",
            hint="a share above 0",
        )
    metric = work.task.metric
    return {
        "accuracy": metric.goodness(fitted.validation_metric),
        "metric": metric.name,
        "latency_ms": mapped.latency / clock / 1e3,
        "interval_ms": mapped.interval / clock / 1e3,
        "interval": mapped.interval,
        "latency": mapped.latency,
        "clock_mhz": clock,
        "bottleneck": mapped.bottleneck,
        "resources": mapped.resources.to_json(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


@dataclass
class Bench:
    """Measures candidates for searches; what was measured once is not measured again.

    Attributes:
        recipe: data, task, formats, training and hardware of every candidate.
        folder: of one folder a candidate and number of epochs.
        workers, threads, ray: as `jobs.run_jobs` has them.
        per: ``interval_ms`` (the rate counts) or ``latency_ms`` (a lone image's time does).
        trained: epochs that this search has asked for, whether they were done before or not.
        records: what is known, by the name of the job.
    """

    recipe: Recipe
    folder: Path
    workers: int | None = None
    threads: int | None = None
    ray: str | None = None
    per: str = "interval_ms"
    progress: Progress = no_progress
    trained: int = 0
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, candidates: Sequence[Candidate], epochs: int) -> list[Measured]:
        """What is known of each, after training those that are not known.

        Raises:
            RunError: a candidate failed for another reason than its hardware.
        """
        self.trained += epochs * len(candidates)
        jobs: dict[str, Job] = {}
        names = []
        for candidate in candidates:
            job = self._job(candidate, epochs)
            names.append(job.name)
            jobs.setdefault(job.name, job)
        results = run_jobs(
            list(jobs.values()),
            workers=self.workers,
            threads=self.threads,
            ray=self.ray,
            on_progress=self.progress,
            on_result=self._keep,
        )
        for result in results:
            if result.failure is not None:
                raise RunError(
                    result.failure.reason,
                    where=result.name,
                    hint="what was measured before is kept: the same command goes on from there",
                )
        return [self._measured(name) for name in names]

    def _job(self, candidate: Candidate, epochs: int) -> Job:
        arguments = job_arguments(recipe_for(self.recipe, candidate, epochs))
        name = f"{candidate.name}, {epochs} epochs"
        inside = hashlib.sha256(name.encode()).hexdigest()[:16]
        return Job(
            name, f"{_HERE}:measure_candidate", arguments, self.folder / inside, self._version,
            _KIND,
        )  # fmt: skip

    @cached_property
    def _version(self) -> str:
        """What is measured with: our code, the images and labels, the user's own code."""
        from bitwright.pipeline.steps.facts import facts_of
        from bitwright.pipeline.steps.workspace import Workspace

        facts = facts_of(Workspace(self.recipe))
        return content_key(code_key(_HERE), {name: facts[name] for name in _FACTS})

    def _keep(self, result: JobResult) -> None:
        if isinstance(result.value, dict):
            self.records[result.name] = result.value

    def _measured(self, name: str) -> Measured:
        known = self.records[name]
        if "reason" in known:
            return Measured(None, None, str(known["reason"]))
        return Measured(float(known["accuracy"]), float(known[self.per]))


def digest(records: Mapping[str, Any]) -> str:
    """Of all that was measured, to compare searches."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
