"""Training on files: `penstock fit`. The coordinator opens the input and holds the folder; a process trains."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.cluster.gang import GangHold, Machines
from penstock.cluster.transport import ClusterLost
from penstock.commands.fit_display import TrainingDisplay
from penstock.commands.fit_folder import FitFolder, checkpoints_in
from penstock.commands.fit_labels import LabelPlan, plan_labels
from penstock.commands.fit_on_cluster import cluster_backend, connect_machines
from penstock.commands.fit_summary import FitSummary
from penstock.commands.fit_task import FitTask, make_fit_task, options_as_json
from penstock.commands.folder_job import fingerprint, other_job
from penstock.commands.interrupts import graceful
from penstock.commands.to_folder import check_place
from penstock.core.figures import counted
from penstock.core.protocols import ShowLine
from penstock.core.records import Device
from penstock.core.source import FileGone
from penstock.errors import InputError, Interrupted, OutputError, PenstockError, UsageError, WorkersDied
from penstock.evaluation.targets import LABELS_FILE
from penstock.jobs.placement import leased
from penstock.jobs.run_context import RunContext
from penstock.jobs.settled import changed_versions, versions
from penstock.jobs.trained_with import fed_otherwise
from penstock.options.class_names import ClassNames
from penstock.options.fit_records import BACKENDS, make_fit
from penstock.options.records import RAY, ClusterOptions, DeviceRequest
from penstock.options.table import Decides, make, options_of
from penstock.pool.devices import inventory
from penstock.runtimes.keras.backends import backend_for
from penstock.storage.disk import INTERNAL, output_errors
from penstock.storage.fit_manifest import RESULT, FitManifest, load_fit_manifest, read_result
from penstock.storage.manifest import MANIFEST, changed_files, load_manifest
from penstock.storage.places import Place, place_of
from penstock.telemetry.progress import Progress
from penstock.telemetry.trace import trace_to
from penstock.training.fit_job import MODEL, EndReport, FitJob, Report
from penstock.training.held_back import write_held_back
from penstock.training.history import HISTORY
from penstock.training.input_digests import check_same_bytes, digested_meanwhile
from penstock.training.trainer_hold import TrainerHold

_STOPPING = "stopping after the step that is under way, with a checkpoint (again to stop at once, without one)"
_STOPPING_EARLY = (
    "stopping: training has not begun, and ends after its first step at the latest, with a checkpoint "
    "(again to stop at once, without one)"
)
_STAYS = "the job that was to be replaced is as it was"
_STOPPING_FOR_ANOTHER = f"stopping: training has not begun; {_STAYS} (again to stop at once)"
_LOGGED = (PenstockError.exit_code, WorkersDied.exit_code)
_ON_ONE_DEVICE = "torch"
"""The backend of Keras that trains on one device."""
_WHERE = ("devices", "engine", "address", "resources", "workers")
"""Options that a resumed job does not take from its manifest: it may go on at another place."""


Connect = Callable[[ClusterOptions, ShowLine], Machines]


def fit_files(task: FitTask, progress: Progress, began: float, connect: Connect = connect_machines) -> FitSummary:
    """Train to the end, or go on with the job in the folder, or return the result of a finished one.

    `connect` gives the machines of a cluster, where training runs on one.

    Raises:
        OutputError: The folder holds another job, or is locked.
        InputError: The input was changed since the job began.
    """
    place = place_of(task.output)
    if "://" in place.address():
        raise UsageError(
            "training writes to a folder of this machine",
            received=f"--output {task.output}",
            hint="--output FOLDER, and copy model.keras and labels.json from there when training has ended",
        )
    check_place(place, overwrite=task.overwrite)
    _check_apart(task, place)
    existed = place.children() is not None
    with place.lock():
        FitFolder(place, None, replaces=False).recover(None if task.overwrite else _mark_of(task))
        check_place(place, overwrite=task.overwrite)
        existing = load_fit_manifest(place)
        if existing is None:
            load_manifest(place)  # raises the right error if a manifest is damaged or of another kind
            if not _is_free(place):
                raise OutputError(
                    "the output folder holds predictions", received=task.output, hint="choose another --output"
                )
        replaces = task.overwrite and existing is not None
        existing = None if task.overwrite else existing
        folder = FitFolder(place, existing, replaces=replaces)
        if existing is not None:
            result = read_result(place)
            is_finished = result is not None and os.path.isfile(os.path.join(place.address(), MODEL))
            _check_same(task, place, existing, progress, is_finished=is_finished)
            if result is not None and is_finished:
                return replace(FitSummary(**result), is_old=True, seconds=time.perf_counter() - began)
        with (
            trace_to(task.options.trace, began) as trace,
            contextlib.closing(TrainingDisplay(progress, task.asked.epochs, trace)) as display,
        ):
            try:
                return _train(task, folder, display, began, connect)
            except BaseException as error:
                is_left = not folder.is_aside and (existing is not None or display.has_begun)
                go_on = f"go on with: {_resume_line(task)}"
                if isinstance(error, Interrupted) and error.hint is None:
                    error.hint = go_on if is_left else "training had not begun, and nothing of it is left: begin again"
                elif isinstance(error, FileGone) and is_left:
                    error.hint = f"put the file back; {go_on}"
                elif isinstance(error, ClusterLost) and is_left:
                    error.hint = f"{error.hint}; {go_on}"
                if not is_left:
                    folder.give_up()
                    # The log stays if it has more information than the error.
                    is_told = isinstance(error, PenstockError) and error.exit_code not in _LOGGED
                    if is_told and not folder.holds_another:
                        place.leave_no_trace(existed=existed)
                raise


@dataclass
class _EarlyStop:
    """What to say at the first Ctrl-C, and whether it came before training began."""

    display: TrainingDisplay
    folder: FitFolder
    is_stop: bool = False

    def words(self) -> str:
        self.is_stop = not self.display.has_begun
        if self.is_stop and self.folder.holds_another:
            return _STOPPING_FOR_ANOTHER
        return _STOPPING_EARLY if self.is_stop else _STOPPING


def _mark_of(task: FitTask) -> str:
    """What tells the job of a task from other jobs."""
    return fingerprint(task.model.digest, task.fragments, task.request)


def _resume_line(task: FitTask) -> str:
    return task.options.cluster.resume_line(task.output, task.asked.workers)


def _check_apart(task: FitTask, place: Place) -> None:
    """Refuse to train the model that training writes: it might be removed before it is read.

    Raises:
        UsageError: The model to train is the one in the output folder.
    """
    written = os.path.join(place.address(), MODEL)
    if task.model.kind != "builder" and os.path.realpath(task.model.location) == os.path.realpath(written):
        raise UsageError(
            "the model that is trained is the one that training writes",
            received=f"{task.model.location}, --output {task.output}",
            hint="choose another --output",
        )


def _is_free(place: Place) -> bool:
    return MANIFEST not in place.sizes(INTERNAL)


def _check_same(task: FitTask, place: Place, existing: FitManifest, progress: Progress, *, is_finished: bool) -> None:
    """Check that the job in the folder is the requested one. Files of a finished job are not read for this.

    Raises:
        OutputError: It is another job.
        InputError: The input has changed.
    """
    digest = task.model.digest
    if fingerprint(digest, task.fragments, task.request) == existing.fingerprint:
        return
    if fingerprint(digest, existing.fragments, task.request) != existing.fingerprint:
        raise other_job(task.output, existing.request, task.request, "fit", is_resumed=task.is_resumed)
    anew = "`penstock fit … --output NEW`" if task.is_resumed else "with another --output, or with --overwrite"
    changes = changed_files(existing, task.fragments)
    for path, how in changes.items():
        if how is not None:
            raise InputError(
                f"the input changed since training began: {path}",
                received=how,
                hint=f"put it back, or begin again: {anew}",
            )
    if is_finished:
        return
    check_same_bytes(place, task.files(), min(changes), f"put back what was changed, or begin again: {anew}")
    progress.note("the input was touched since the job began; it has the same bytes: going on")


def _train(task: FitTask, folder: FitFolder, display: TrainingDisplay, began: float, connect: Connect) -> FitSummary:
    place, existing = folder.place, folder.existing
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(place.log())
        early = _EarlyStop(display, folder)
        stop = stack.enter_context(graceful(display.note, early.words))
        for line in (*task.notes, *fed_otherwise(task.request["model"], task.request)):
            display.note(line)
        backend = _backend(task, existing)
        lines: list[str] = []  # shown only after all checks that come before the process starts
        labels = plan_labels(task, existing.classes if existing is not None else None, lines.append)
        machines: Machines | None = None
        workers = 0
        if task.options.cluster.engine == RAY:
            machines = connect(task.options.cluster, display.note)
            stack.callback(machines.close)
            workers = task.asked.workers or max(1, len(machines.rooms()))
        job, manifest = _placed(task, existing, labels, backend, workers, display.note)
        hold: TrainerHold
        if machines is not None:
            hold = GangHold(job, log, stop, display.note, machines=machines, workers=workers)
        else:
            context = RunContext(log, stop, display.note, task.is_verbose)
            devices = leased(list(job.devices), task.model, task.options.memory_fraction, context)
            job = replace(job, devices=tuple(stack.enter_context(devices)))
            hold = TrainerHold(job, log, stop, display.note)
        if existing is None:
            folder.begin(manifest)
        else:
            display.note(
                "going on from the newest checkpoint"
                if folder.has_checkpoint
                else "no checkpoint yet: training begins again"
            )
        _write_labels(place, manifest.classes)
        if labels.validation is not None and labels.validation.rows is not None:
            with output_errors():
                write_held_back(place.address(), labels.validation.rows)
        stop.check()
        for line in lines:
            display.note(line)

        def hear(report: Report) -> None:
            display.hear(report)
            if folder.is_aside and not early.is_stop and folder.has_checkpoint:
                folder.keep()

        with digested_meanwhile(place, manifest.fragments, task.files):
            ended = hold.train(hear)
        display.take_times(ended.times)
        if ended.is_stopped:
            number = stop.signal_number
            assert number is not None
            if folder.is_aside and early.is_stop:
                raise Interrupted.by_signal(number, "stopped before training began", hint=_STAYS)
            folder.keep()
            kept = "with a checkpoint" if ended.kept == ended.step else f"the last checkpoint is of step {ended.kept:,}"
            raise Interrupted.by_signal(
                number,
                f"stopped after step {ended.step:,}, {kept}",
                hint=f"go on with: {_resume_line(task)}",
            )
    trained = _summary(task, job, ended, display, time.perf_counter() - began)
    folder.keep()
    with output_errors():
        place.write(RESULT, json.dumps(asdict(trained)).encode())
    return trained


def _write_labels(place: Place, classes: ClassNames) -> None:
    """Write the names of classes, unless the file has them: a run that was killed may have left it out."""
    content = json.dumps(classes, ensure_ascii=False).encode()
    with output_errors():
        if classes and place.read(LABELS_FILE) != content:
            place.write(LABELS_FILE, content)


def _placed(
    task: FitTask,
    existing: FitManifest | None,
    labels: LabelPlan,
    backend: str,
    workers: int,
    note: Callable[[str], None],
) -> tuple[FitJob, FitManifest]:
    """The job with its devices and threads, and its manifest.

    A resumed job has the devices and threads of its manifest, unless the user asks for others. The `workers` of a
    cluster choose their devices and threads themselves.
    """
    options = task.options
    wanted = options.devices
    if existing is not None and wanted.kind == "all":
        wanted = DeviceRequest.parse(existing.devices)
    devices = [] if workers else _devices(wanted, backend, note)
    threads = options.threads or (existing.threads if existing is not None else 0) or inventory.usable_cores()
    if existing is not None and existing.workers != workers:
        before, now = (counted(each, "worker") if each else "one machine" for each in (existing.workers, workers))
        note(f"it began on {before}, and goes on with {now}: the steps are the same, the last bits may differ")
    recorded = versions(backend, labels.train.source.traits.packages)
    if existing is not None and (changed := changed_versions(existing.versions, recorded)):
        note(f"since training began, {changed}: the last bits may differ")
    mark = _mark_of(task)
    manifest = existing or FitManifest(
        request=task.request,
        others=options_as_json(options, task.asked, Decides.SPEED, Decides.NOTHING),
        model_digest=task.model.digest,
        fingerprint=mark,
        fragments=task.fragments,
        devices=str(wanted) if workers else _as_request(devices),
        threads=0 if workers else threads,
        backend=backend,
        classes=labels.classes,
        versions=recorded,
        workers=workers,
    )
    job = FitJob(
        task.model,
        labels.train,
        labels.validation,
        options,
        task.asked,
        os.path.abspath(task.output),
        tuple(devices),
        threads,
        backend,
        _count_classes(labels.classes),
        labels.class_weights,
        manifest.fingerprint,
        task.is_verbose,
    )
    return job, manifest


def _devices(wanted: DeviceRequest, backend: str, note: Callable[[str], None]) -> list[Device]:
    devices = inventory.choose(wanted)
    if backend == _ON_ONE_DEVICE and len(devices) > 1:
        used = f"{devices[0]} of {len(devices)}"
        note(f"Keras on {backend} trains on one device: {used}; on TensorFlow or JAX it uses all")
        return devices[:1]
    return devices


def _as_request(devices: Sequence[Device]) -> str:
    """These devices in the notation of `--devices`."""
    is_cpu = devices[0].kind == "cpu"
    return f"cpu:{len(devices)}" if is_cpu else "gpu:" + ",".join(str(each.index) for each in devices)


def _count_classes(names: ClassNames) -> dict[str, int]:
    """The number of classes of every output with labels of text; "" is the only output."""
    if isinstance(names, Mapping):
        return {output: len(each) for output, each in names.items()}
    return {"": len(names)} if names else {}


def _backend(task: FitTask, existing: FitManifest | None) -> str:
    """The backend of Keras: of the existing job, else requested, else of the environment, else the best installed one.

    Raises:
        UsageError: The requested one is no backend, or does not train on a cluster.
    """
    runtime = existing.backend if existing is not None else task.options.runtime
    if task.options.cluster.engine == RAY:
        return cluster_backend(runtime)
    if existing is not None:
        return existing.backend
    if runtime is not None and runtime not in BACKENDS:
        raise UsageError("this runtime does not train", received=f"runtime={runtime}", allowed=", ".join(BACKENDS))
    return backend_for(runtime or os.environ.get("KERAS_BACKEND"))


def _summary(task: FitTask, job: FitJob, ended: EndReport, display: TrainingDisplay, seconds: float) -> FitSummary:
    begun = display.start
    history = [dict(row) for row in ended.history] or [{}]
    made = (ended.step - begun.step) * begun.rows / max(1, begun.batches)
    return FitSummary(
        output=task.output,
        model=os.path.join(task.output, MODEL),
        epochs=ended.epoch,
        steps=ended.step,
        rows=ended.rows,
        failed=ended.failed,
        metrics={name: value for name, value in history[-1].items() if name not in ("epoch", "step")},
        history=history,
        seconds=seconds,
        rows_per_s=made / max(1e-9, time.monotonic() - display.began),
        waited=display.waited,
        where=display.where,
        bottleneck=display.bottleneck(),
        trace=task.options.trace,
        steps_before=begun.step,
        epoch_s=display.epoch_s,
        devices=begun.devices or tuple(map(str, job.devices)),
        example=ended.first_failure,
        inputs=dict(begun.inputs),
    )


def resume_fit(output: str, progress: Progress, began: float, given: Mapping[str, Any]) -> FitSummary:
    """Go on with the training job in a folder. `given` are options that may differ."""
    is_verbose = bool(given.get("verbose"))
    place = place_of(output)
    manifest = load_fit_manifest(place)
    assert manifest is not None
    if manifest.request.get("model") is None:
        raise OutputError(
            "the model of this job was a function of the script that began it",
            received=output,
            hint="call penstock.fit again with the same arguments",
        )
    request = dict(manifest.request)
    model, data = request.pop("model"), request.pop("data")
    changes = {name: given[name] for name in (*_WHERE, "max_failures") if given.get(name) is not None}
    # The devices come from the manifest, unless the user asks for others.
    others = {name: value for name, value in manifest.others.items() if name not in _WHERE}
    options, asked = make_fit({**others, **request, **changes})
    paths = [_Path(path) for path in data]
    task = make_fit_task(model, paths, output, options, asked)
    return fit_files(replace(task, is_verbose=is_verbose, is_resumed=True), progress, began)


class _Path(os.PathLike[str]):
    """A path from a manifest, as an object that is no text: a list of texts could be taken for rows."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


def _as_begun(output: str, manifest: FitManifest) -> str:
    """The command that goes on with a job, on the same kind of engine with which it began."""
    try:
        where = make(ClusterOptions, {name: manifest.others.get(name) for name in options_of(ClusterOptions)})
    except UsageError:  # another version of penstock, with other allowed values, began the job
        return f"penstock resume {output}"
    return where.resume_line(output, manifest.workers or None)


def fit_status(output: str) -> dict[str, Any] | None:
    """How far the training job in a folder has come; None where there is no such job."""
    place = place_of(output)
    manifest = load_fit_manifest(place)
    if manifest is None:
        return None
    result, holder = read_result(place), place.holder()
    state = "finished" if result is not None else "running" if holder is not None else "unfinished"
    names = checkpoints_in(place)
    history = (place.read(HISTORY) or b"").decode().splitlines()
    steps_done = 0
    with suppress(IndexError, ValueError):
        steps_done = int(names[-1].removeprefix("step-").partition(".")[0])
    last = dict(zip(history[0].split(","), history[-1].split(","), strict=False)) if len(history) > 1 else {}
    return {
        "output": output,
        "kind": "fit",
        "state": state,
        "epochs": manifest.request["epochs"],
        "epochs_done": result["epochs"] if result is not None else max(0, len(history) - 1),
        "steps_kept": steps_done,
        "last": last,
        "run": holder,
        "model": manifest.request.get("model"),
        "resumable": state != "finished" and manifest.request.get("model") is not None,
        "hint": "the job is finished: there is nothing to do" if state == "finished" else _as_begun(output, manifest),
        **({"replaces": aside} if (aside := FitFolder(place, None, replaces=False).aside) else {}),
    }
