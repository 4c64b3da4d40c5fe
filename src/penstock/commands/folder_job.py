"""The description of a job that writes to a folder. The fingerprint covers it, and a resumed run reads it again."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.records import Fragment, ModelFile
from penstock.errors import InputError, OutputError
from penstock.estimator import Estimator
from penstock.estimator.opening import file_of, open_estimator
from penstock.jobs import steps
from penstock.jobs.open import open_both
from penstock.jobs.run_context import RunContext
from penstock.options.records import RAY, PredictOptions
from penstock.options.value_kinds import NO_PLAN
from penstock.planning import store
from penstock.runtimes.keras.live import LiveModel
from penstock.storage.manifest import describe_difference


@dataclass(frozen=True)
class FolderJob:
    """A prediction job with an output: a folder, or the URL of a prefix in a remote store.

    `request` describes the job in plain values; the fingerprint covers it, and the manifest keeps it.
    """

    model: ModelFile | LiveModel
    model_digest: str
    source: Any
    output: str
    options: PredictOptions
    request: dict[str, Any]
    overwrite: bool = False
    verify: bool = False
    """Whether the parts that are there are read and compared with their checksums before the job goes on."""
    is_verbose: bool = False
    append: bool = False
    """Whether files that are new since the job was finished are predicted, too."""
    is_resumed: bool = False
    """Whether the user resumes the job in the folder, without regard to new files."""
    notes: tuple[str, ...] = ()
    """Lines for the user before the job begins."""
    plan_command: str = RunContext.plan_command
    """The command that searches for the plan of this job."""
    goes_on_with: str = ""
    """What the user should do after an interruption, if it is not `penstock resume`."""

    @property
    def next_step(self) -> str:
        """What the user should do after an interruption."""
        return self.goes_on_with or self.options.cluster.resume_line(self.output)


def make_task(model: Any, data: Any, output: str, options: PredictOptions) -> FolderJob:
    """The job behind a call, with the description that its fingerprint covers."""
    if options.cluster.engine == RAY and type(data).__module__.startswith("ray.data."):
        raise not_elsewhere("a ray.data.Dataset")  # this comes before it is opened, because then Ray executes it
    opened = open_both(resolved(model, options), data, options)
    options = opened.options
    if isinstance(options.plan, str) and options.plan != NO_PLAN:
        options = replace(options, plan=store.read_plan(options.plan))  # the content of the plan is part of the request
    request = {"model": opened.location, "data": opened.arguments, **steps.as_request(options)}
    return FolderJob(opened.model, opened.digest, opened.source, output, options, request, notes=opened.notes)


def not_elsewhere(received: str) -> InputError:
    """The error for an input that only this process has."""
    return InputError(
        "this input cannot be read on other machines",
        received=f"{received} with --engine ray",
        hint="write files that all nodes see (a ray.data.Dataset: write_parquet), or leave --engine ray out",
    )


def other_job(
    output: str, then: Mapping[str, Any], request: Mapping[str, Any], command: str, *, is_resumed: bool
) -> OutputError:
    """The error for a folder whose job began with another model or with other options than those of the request.

    A resumed job gets its model and options from its manifest: there, a file or module has changed since.
    """
    received = f"{output}: {describe_difference(then, request)}"
    if is_resumed:
        hint = f"put back what was changed, and resume; or begin a new job: `penstock {command} … --output NEW`"
        return OutputError("the job cannot go on as it was begun", received=received, hint=hint)
    what = "another job" if command == "predict" else "another training job"
    hint = "choose another --output, or --overwrite to remove that job"
    return OutputError(f"the output folder holds {what}", received=received, hint=hint)


def resolved(model: Any, options: PredictOptions) -> Any:
    """An Estimator, or the place of a `model_fn`, as the description of a model; any other model as it is."""
    loading = options.loading
    if loading.estimator:
        return open_estimator(os.fspath(model), loading.checkpoint, loading.params)
    return file_of(model) if isinstance(model, Estimator) else model


def fingerprint(digest: str, fragments: Iterable[Fragment], request: Mapping[str, Any]) -> str:
    """A digest of everything that decides the output."""
    parts = [digest, [[f.path, f.size, f.mtime_ns] for f in fragments], dict(request)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
