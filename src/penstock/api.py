"""The Python twins of the commands."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from penstock.commands import appending, evaluate_arrays, evaluate_folder, folder_state, retrying, to_folder
from penstock.commands.dry_run import describe as dry_run_of
from penstock.commands.evaluation import Evaluation as Evaluation
from penstock.commands.fit import fit_files, fit_status, resume_fit
from penstock.commands.fit_summary import FitSummary as FitSummary
from penstock.commands.fit_task import make_fit_task
from penstock.commands.folder_job import FolderJob, make_task, resolved
from penstock.commands.gathering import check_on_error
from penstock.commands.in_memory import Wanted, predict_arrays, stream_blocks
from penstock.commands.inspect import describe_data, describe_input, describe_model
from penstock.commands.interrupts import graceful
from penstock.commands.keyword_types import EvaluateKeywords, FitFileKeywords, Keywords, PredictKeywords
from penstock.commands.on_cluster import check_local, runner_of
from penstock.core.plans import Plan
from penstock.errors import OutputError, UsageError
from penstock.jobs.open import check_size, log_without_folder, open_both, open_data
from penstock.jobs.run_context import RunContext
from penstock.jobs.steps import from_request
from penstock.models import catalog
from penstock.models.belongings import with_belongings
from penstock.options.fit_records import make_fit
from penstock.options.records import DeviceRequest, PredictOptions, ReadOptions, make_options
from penstock.options.training_records import make_evaluation
from penstock.options.value_types import WrongType, as_type
from penstock.planning.start_by_plan import make_plan
from penstock.pool.devices.runtime_probe import devices_with_runtimes
from penstock.runtimes.keras.live import is_live_keras_model
from penstock.runtimes.keras.training.given_data import DataArguments
from penstock.runtimes.keras.training.keras_trainer import StepSettings
from penstock.sources.python.streaming import Rows as Rows
from penstock.telemetry.progress import Progress
from penstock.telemetry.progress_choice import delayed, progress_for
from penstock.telemetry.summary import Summary
from penstock.training.in_memory import FitKeywords, FitRequest, fit_in_memory

_IN_A_FOLDER = {
    "on_error": "in a folder the rows that fail are recorded; max_failures=… says how many may",
    "steps": "limit=… takes some of the rows",
    "callbacks": "progress=… shows a run that writes to a folder",
}
"""Keywords that work only when predictions are returned, and what to use instead with an output folder."""


def predict(
    model: Any,
    data: Any,
    batch_size: int | str | None = None,
    verbose: bool | int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    append: bool = False,
    dry_run: bool = False,
    progress: bool | Progress | None = None,
    on_error: str | None = None,
    **keywords: Unpack[PredictKeywords],
) -> Any:
    """Predict every row of `data`, in order, on every device.

    Args:
        model: A live Keras model, a `.keras` file, a SavedModel folder, `module:function`, or a function that builds
            a Keras model.
        data: Arrays (one, or lists and dicts of them inside each other; dense, ragged or sparse), a list of rows, a
            pandas or Arrow table, a dataset or generator of batches, or paths of files, folders and globs.
        batch_size: Rows that a device sees in one step.
        verbose: As in `model.predict`: 0 shows nothing, 1 a bar, 2 lines; "auto" a bar where there is a terminal or
            a notebook, lines elsewhere, and neither for calls that are over in a moment. True also lets the
            frameworks write all they want to.
        steps: Take only so many batches, of data that may be endless.
        callbacks: Keras callbacks, whose `on_predict_…` are called with every batch of a live model. Batches then
            run one by one.
        output: The folder, or the URL of a remote prefix, to write to. Without it the predictions are returned.
        overwrite: Remove another job of penstock that is in the folder.
        append: Predict only the files that the finished job in the folder does not have yet, as further parts of it.
        dry_run: Check everything and describe what would be done, as a dict; predict and write nothing.
        progress: Whether to show progress, or the object that shows it; it overrides `verbose`.
        on_error: What to do when rows fail and predictions are returned: "raise" (the default), "skip" leaves the
            rows out, "nan" puts NaN in their place. With `output`, failed rows are recorded.
        **keywords: As the options of `penstock predict`.

    Returns:
        Without `output`, what `model.predict(data)` returns: an array, or a list or dict of them. With `output`, a
        Summary.

    Raises:
        PenstockError: See `penstock.errors` for the tree.

    Example:
        >>> y = penstock.predict(model, x)                                             # doctest: +SKIP
        >>> penstock.predict("model.keras", "rows.parquet", output="predictions/")     # doctest: +SKIP
    """
    began = time.perf_counter()
    options = make_options({**keywords, **({} if batch_size is None else {"batch_size": batch_size})}, predict)
    shown = progress_for(progress, verbose)
    if append:
        appending.check_request(options, has_output=output is not None, overwrite=overwrite)
    if dry_run:
        return dry_run_of(model, data, None if output is None else _folder(output), options, append=append)
    if output is None:
        _check_returned(options, on_error, steps)
        given = {**keywords, **({"overwrite": overwrite} if overwrite else {})}
        _refuse_unused(given, "give output=…, or leave it out", "overwrite", *_OF_FOLDERS)
        wanted = Wanted(on_error, steps, callbacks, delayed(shown), verbose is True)
        return predict_arrays(resolved(model, options), data, options, wanted)
    for name, value in (("on_error", on_error), ("steps", steps), ("callbacks", callbacks)):
        if value is not None:
            raise UsageError(
                f"{name} is for predictions that are returned",
                received=f"{name}={value!r:.60}, output={_folder(output)!r}",
                hint=_IN_A_FOLDER[name],
            )
    task = make_task(model, data, _folder(output), options)
    task = replace(task, overwrite=overwrite, append=append, is_verbose=verbose is True)
    return to_folder.run(task, shown(), began, runner_of(options))


class _FitKeywords(FitKeywords, FitFileKeywords, total=False):
    """The arguments of `model.fit` for a live model, and the options of `penstock fit` for files."""


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | str | None = None,
    epochs: int = 1,
    verbose: bool | int | str = "auto",
    callbacks: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    num_devices: int | None = None,
    accumulate: int = 1,
    on_nan: str = "stop",
    scale_lr: str | None = None,
    **keywords: Unpack[_FitKeywords],
) -> Any:
    """Train a Keras model on every device: a live one as `model.fit` does, or a file on files, with checkpoints.

    A batch is divided over the devices as evenly as possible, and every row counts once: the curves are those of
    `model.fit` on one device with the same batches. Only batch normalisation on TensorFlow differs: each device
    computes it for its own rows.

    Args:
        model: A compiled Keras model; or, to train on files, a `.keras` or `.h5` file, `module:function`, or a
            function that builds a model.
        x: Arrays (one, or lists and dicts of them), `tf.data`, a generator, a `PyDataset`; or paths of files.
        y: Targets, where `x` is arrays. In files, `label="COLUMN"` names them.
        batch_size: Rows of one step, on all devices together; by default 32. "auto" finds it by timing steps.
        epochs: How often to go through the data.
        verbose: As in `model.fit`.
        callbacks: Keras callbacks, of a live model.
        output: The folder in which a model that is trained on files is written. The same job there is resumed.
        overwrite: Remove another training job that is in the folder.
        progress: With `output`: whether to show progress, or the object that shows it; it overrides `verbose`.
        num_devices: How many devices a live model uses; by default all. Keras on torch uses one.
        accumulate: Work on each batch in this many pieces, one after the other, to save memory. The weights change
            once.
        on_nan: What to do when the loss is NaN or infinite: "stop" with an error that names step and rows,
            "skip" undoes the step, "ignore" goes on.
        scale_lr: "linear" or "sqrt" multiplies the learning rate by the number of devices, or its root, in the course
            of the first epoch. Without it the learning rate is not changed.
        **keywords: Other arguments of `model.fit`, and `step`, `all_reduce`; on files, the options of `penstock fit`.

    Returns:
        Keras's History; for training on files, a FitSummary: `model`, `epochs`, `steps`, `rows`, `failed`, `metrics`,
        `history`.

    Raises:
        ModelError: The model is not compiled, or its loss is NaN or infinite.

    Example:
        >>> history = penstock.fit(model, x, y, epochs=10)                                    # doctest: +SKIP
        >>> penstock.fit("model.keras", "rows/", label="y", epochs=10, output="trained/")     # doctest: +SKIP
    """
    if not is_live_keras_model(model):
        for_live_models = {"y": y, "callbacks": callbacks, "num_devices": num_devices}
        given = {"accumulate": accumulate, "on_nan": on_nan, "scale_lr": scale_lr, "epochs": epochs, **keywords}
        options, asked = make_fit({**given, "batch_size": batch_size}, fit)
        place = None if output is None else _folder(output)
        task = make_fit_task(model, x, place, options, asked, for_live_models)
        task = replace(task, overwrite=overwrite, is_verbose=verbose is True)
        return fit_files(task, progress_for(progress, verbose)(), time.perf_counter())
    if output is not None:
        raise UsageError(
            "a live model stays where it is", received=f"output={output!r}", hint="leave it out, then model.save(path)"
        )
    request = FitRequest(
        epochs=epochs,
        verbose=verbose,
        callbacks=callbacks,
        num_devices=num_devices,
        settings=StepSettings(accumulate, is_undoable=on_nan == "skip"),
        on_nan=on_nan,
        scale_lr=scale_lr,
    )
    return fit_in_memory(model, DataArguments(x, y, batch_size=batch_size, shuffle=True), request, keywords)


def _check_returned(options: PredictOptions, on_error: str | None, steps: int | None) -> None:
    check_on_error(on_error)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise UsageError("steps must be a positive whole number", received=f"steps={steps!r}", allowed="1, 2, 3, …")
    if options.keep:
        raise UsageError(
            "without an output folder only the predictions are returned",
            received=f"keep={', '.join(options.keep)}",
            hint="give output=…, or use penstock.stream, which yields kept columns, too",
        )
    if options.trace is not None:
        raise UsageError("a trace is written of jobs with an output folder", received=f"trace={options.trace}")


_OF_FOLDERS = ("format", "part_rows", "max_failures", "engine", "address", "resources", "max_nodes")
"""Options that say how predictions are written, and where."""


def _refuse_unused(given: Mapping[str, Any], hint: str, *names: str) -> None:
    """Refuse options that do something only with an output folder."""
    for name in names:
        if given.get(name) is not None:
            raise UsageError(
                f"{name} is for predictions that are written",
                received=f"{name}={given[name]!r:.60}",
                hint=hint,
            )


def _folder(output: str | os.PathLike[str]) -> str:
    """The folder or URL that was given.

    Raises:
        UsageError: It is neither.
    """
    try:
        return str(as_type(output, str | os.PathLike))
    except WrongType:
        raise UsageError(
            "the output is not understood", received=f"output={output!r:.80}", allowed="a path, or a URL"
        ) from None


def evaluate(
    model: Any = None,
    x: Any = None,
    y: Any = None,
    batch_size: int | str | None = None,
    verbose: bool | int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Any:
    """Measure how well a model answers, on every device: the loss and metrics that it was compiled with, or others.

    Replicas predict, and their answers are folded in order into the metrics of Keras: the result is that of
    `model.evaluate`, whatever the devices are.

    Args:
        model: As in `predict`.
        x: As `data` in `predict`; also a dataset or generator of batches `(x, y)` or `(x, y, sample_weight)`.
        y: The true answers, as `model.evaluate` takes them. Where `x` has them in a column, `label` names it instead.
        batch_size: Rows that a device sees in one step; also the batch size of losses that depend on it.
        verbose: As in `predict`.
        sample_weight: The weights of rows, as `model.evaluate` takes them.
        steps: Take only so many batches. Keras itself evaluates then.
        callbacks: Keras callbacks. Keras itself evaluates then.
        return_dict: With `y`: return a dict of metrics, not a list.
        output: Write the predictions there, too, as `predict` does: a job in that folder is resumed.
        overwrite: Remove another job of penstock that is in the folder.
        progress: Whether to show progress, or the object that shows it; it overrides `verbose`.
        **keywords: As the options of `penstock evaluate`: `label`, `weight`, `metrics`, `loss`, `per_class`,
            `confusion`, `from_predictions`, and those of `predict` that say how rows are fed.

    Returns:
        With `label` or `from_predictions`, an Evaluation: `rows`, `failed`, `metrics`, `per_class`, `confusion`. Else
        what `model.evaluate` returns: a number, a list of them, or a dict.

    Raises:
        PenstockError: See `penstock.errors` for the tree.

    Example:
        >>> loss, accuracy = penstock.evaluate(model, x, y)                                   # doctest: +SKIP
        >>> penstock.evaluate("model.keras", "rows.parquet", label="y").metrics["accuracy"]   # doctest: +SKIP
        0.973
    """
    given = {**keywords, **({} if batch_size is None else {"batch_size": batch_size})}
    options, asked = make_evaluation(given, evaluate)
    shown = progress_for(progress, verbose)
    if not asked.label and asked.from_predictions is None:
        if output is not None:
            raise UsageError("predictions are written of labels in a column", received="output", hint="label='COLUMN'")
        check_local(options)
        passed = evaluate_arrays.EvaluateArguments(x, y, sample_weight, steps, callbacks, return_dict)
        wanted = Wanted(None, None, None, delayed(shown), verbose is True)
        return evaluate_arrays.evaluate(resolved(model, options), passed, options, asked, wanted)
    for name, value in (("y", y), ("sample_weight", sample_weight), ("steps", steps), ("callbacks", callbacks)):
        if value is not None:
            raise UsageError(
                f"{name} is for labels that are passed, not for those in a column",
                received=f"{name}={type(value).__name__}",
                hint="label='COLUMN' and weight='COLUMN'",
            )
    place = None if output is None else _folder(output)
    wanted = Wanted(None, None, None, shown(), verbose is True)
    return evaluate_folder.evaluate_by_column(model, x, options, asked, wanted, output=place, overwrite=overwrite)


def resume(
    output: str | os.PathLike[str],
    *,
    devices: str = "all",
    max_failures: float | None = None,
    verify: bool = False,
    progress: bool | Progress | None = None,
    verbose: bool = False,
    engine: str = "local",
    address: str | None = None,
    resources: Mapping[str, str | float] | None = None,
    max_nodes: int | None = None,
    workers: int | None = None,
) -> Summary | FitSummary:
    """Resume the job in a folder, on the devices of the same kind that this machine has now, or on a cluster.

    A training job goes on from its newest checkpoint. Parts that are missing, or have another size than when they were
    written, are predicted again, and nothing else is touched.

    Args:
        output: The folder, or the URL of a remote prefix.
        devices: Which devices, as in `predict`.
        max_failures: As in `predict`; None takes the share that the job was begun with.
        verify: Read all parts first, and predict again those whose content changed since they were written.
        progress: Whether to show progress, or the object that shows it.
        verbose: Let the frameworks write all they want.
        engine: "local" or "ray", as in `predict`, whatever the job began with.
        address: The Ray cluster.
        resources: What the job takes on each node of the cluster, or the labels that a node must have.
        max_nodes: How many of its nodes to use at most, for predictions.
        workers: How many processes continue a training job there, as in `fit`.

    Raises:
        OutputError: The folder holds no job, or one whose model or input was in memory.
        UsageError: A function of the job was defined in the script that began it.
    """
    began = time.perf_counter()
    where = {"engine": engine, "address": address, "resources": resources}
    is_training = fit_status(_folder(output)) is not None
    name, value = ("max_nodes", max_nodes) if is_training else ("workers", workers)
    if value is not None:
        allowed = "--workers" if is_training else "--max-nodes"
        raise UsageError(f"{name} does not fit this job", received=f"{name}={value}", allowed=allowed)
    if is_training:
        changes = {"devices": devices, "max_failures": max_failures, "verbose": verbose, "workers": workers, **where}
        return resume_fit(_folder(output), progress_for(progress)(), began, changes)
    given: dict[str, Any] = {**where, "max_nodes": max_nodes}
    given |= {} if max_failures is None else {"max_failures": max_failures}
    try:
        task = _opened_again(output, is_verbose=verbose, devices=devices, **given)
    except OutputError:
        # The model or the input was in memory: where the job is finished, neither is needed.
        finished = to_folder.finished_job(_folder(output), began)
        if finished is None:
            raise
        return finished
    return to_folder.run(replace(task, verify=verify), progress_for(progress)(), began, runner_of(task.options))


def retry(
    output: str | os.PathLike[str],
    *,
    devices: str = "all",
    preprocess: Any = None,
    preprocess_row: Any = None,
    progress: bool | Progress | None = None,
    verbose: bool = False,
) -> Summary:
    """Predict the failed rows of a finished job again, after the data or the function was mended.

    A row runs at its old place in its batch, with the recipe of the job, and is put into its part; no other row
    changes. Files in which no row failed must be as they were, and every file must have as many rows as it had.

    Args:
        output: The folder, or the URL of a remote prefix.
        devices: Which devices, as in `predict`.
        preprocess: The mended function, as in `predict`; None takes the one of the job, as it is now.
        preprocess_row: The same, for a function that takes one row.
        progress: Whether to show progress, or the object that shows it.
        verbose: Let the frameworks write all they want.

    Returns:
        A Summary of the whole job. Rows that failed again are among its `failed`, with their new reasons recorded.

    Raises:
        OutputError: The folder holds no finished job, or the model of the job keeps state.
        InputError: Something other than what had failed was changed.

    Example:
        >>> penstock.retry("predictions/").failed    # doctest: +SKIP
        0
    """
    began = time.perf_counter()
    functions = {"preprocess": preprocess, "preprocess_row": preprocess_row}
    mended = {name: function for name, function in functions.items() if function is not None}
    task = _opened_again(output, is_verbose=verbose, devices=devices, max_failures=1.0, **mended)
    return retrying.run(task, progress_for(progress)(), began)


def _opened_again(output: str | os.PathLike[str], *, is_verbose: bool, **given: Any) -> FolderJob:
    """The job in a folder, with its own model, input and options; `given` replaces some of the options.

    Raises:
        OutputError: The model or the input was in memory, or an older penstock wrote the job, or there is none.
    """
    folder = _folder(output)
    place, manifest = folder_state.open_job(folder)
    refusal = folder_state.refusal_to_resume(place, manifest)
    if refusal is not None:
        raise refusal
    request = manifest.request
    options = {"max_failures": manifest.max_failures, "decoder": manifest.decoder, **given}
    del manifest  # it may be large, and is read again under the lock
    task = make_task(request["model"], request["data"], folder, from_request(request, **options))
    return replace(task, is_resumed=True, is_verbose=is_verbose)


def status(output: str | os.PathLike[str]) -> dict[str, Any]:
    """How far the job in a folder is. Changes nothing.

    Returns:
        `output`; `state`: `running`, `finished`, or `unfinished` where no run is alive; `rows`, and how many of them
        are `committed`, `failed` or `left`; `failed_on`: how many failed on each node of a cluster; `rows_per_s` over
        the last parts, None where these are too few; `run`, the living run that holds the folder, or None; `parts`,
        `model`, `recipe`, `resumable`, and `hint`: the command that resumes the job, or what to do if no command can.
        Of a training job: `output`, `kind` ("fit"), `state`, `epochs`, `epochs_done`, `steps_kept` (in the newest
        checkpoint), `last` (the last line of its history), `run`, `model`, `resumable` and `hint`.
    """
    return fit_status(_folder(output)) or folder_state.status(_folder(output))


def verify(output: str | os.PathLike[str]) -> dict[str, Any]:
    """Compare the output in a folder with its journal: every part by size, checksum and rows. Changes nothing.

    `resume` with `verify=True` predicts the damaged parts again.

    Returns:
        `output`, `state`, `rows`, `committed`, `failed`, `failed_on` and `parts` as in `status`, `is_whole`, and
        `problems`, each with the `name` of a file and what the `problem` is.

    Raises:
        OutputError: The folder holds no job, the manifest cannot be read, or a run is writing to it.

    Example:
        >>> penstock.verify("predictions/")["is_whole"]    # doctest: +SKIP
        True
    """
    return folder_state.verify(_folder(output))


def stream(
    model: Any,
    data: Any,
    *,
    verbose: bool | int | str = "auto",
    steps: int | None = None,
    progress: bool | Progress | None = None,
    on_error: str | None = None,
    **keywords: Unpack[Keywords],
) -> Iterator[dict[str, Any]]:
    """Yield predictions block by block, in order, holding no more than the plan allows.

    `verbose`, `steps` and `progress` are as in `predict`. A row that failed leaves a gap in `row` (`on_error="skip"`,
    the default), has NaN as its outputs ("nan"), or ends the stream ("raise").

    Yields:
        A dict with `row` (the index of each row in the whole input), the outputs and the kept columns.

    Example:
        >>> for block in penstock.stream("model.keras", "rows.parquet"):    # doctest: +SKIP
        ...     print(block["row"][0], block["score"].mean())
    """
    options = make_options(keywords, stream)
    _refuse_unused(keywords, "leave it out, or use penstock.predict with output=…, which writes files", *_OF_FOLDERS)
    check_on_error(on_error)
    wanted = Wanted(on_error, steps, None, delayed(progress_for(progress, verbose)), verbose is True)
    return stream_blocks(resolved(model, options), data, options, wanted)


def plan(
    model: Any,
    data: Any,
    *,
    fresh: bool = False,
    progress: bool | Progress | None = None,
    verbose: bool = False,
    **keywords: Unpack[Keywords],
) -> Plan:
    """Find the fastest safe way to run this model on this data here, by measuring: the EXPLAIN of inference.

    The plan is kept: `predict` uses it for the same model and data of the same shape.

    Args:
        model: As in `predict`, but not a live model, which runs as its framework was set up.
        data: As in `predict`, but nothing that can be read only once.
        fresh: Search again, even where a plan is known.
        progress: Whether to show what is being tried, or the object that shows it.
        verbose: Let the frameworks write all they want.
        **keywords: As the options of `penstock plan`.

    Example:
        >>> print(penstock.plan("model.keras", "photos/").choice)    # doctest: +SKIP
        openvino, batches of 8, 2 threads
    """
    shown = progress_for(progress)()
    return plan_for(model, data, make_options(keywords, plan), progress=shown, is_fresh=fresh, is_verbose=verbose)


def plan_for(
    model: Any,
    data: Any,
    options: PredictOptions,
    *,
    progress: Progress,
    is_fresh: bool = False,
    is_verbose: bool = False,
) -> Plan:
    """`plan` with options that are made already."""
    if is_live_keras_model(model):
        raise UsageError(
            "a live model runs as its framework was set up: there is nothing to plan",
            received=type(model).__name__,
            hint="save the model and give its path",
        )
    opened = open_both(resolved(model, options), data, options)
    assert opened.file is not None
    with log_without_folder(is_verbose) as log, graceful(progress.note) as stop:
        context = RunContext(log, stop, progress.note, is_verbose)
        return make_plan(opened.file, opened.source, opened.options, context, is_fresh=is_fresh)


def inspect(
    target: Any,
    *,
    signature: str | None = None,
    runtime: str | None = None,
    trust_model: bool = False,
    custom_objects: str | Sequence[str] = (),
    weights: str | None = None,
    constants: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe a model (what it takes and gives), or an input (files, or other data that `predict` takes).

    Returns:
        For a model: `kind`, `written_by`, `inputs`, `outputs`, `other_signatures`, `parameters`, `bytes`,
        `needs_trust`, `runtimes` and `run_it`, the command. For an input: `files`, `rows`, `columns`.
    """
    if not isinstance(target, (str, os.PathLike)):
        return describe_data(open_data(target, ReadOptions())[0])
    given = {"signature": signature, "runtime": runtime, "trust_model": trust_model, "weights": weights}
    options = make_options({**given, "custom_objects": custom_objects, "constants": constants})
    loading = options.loading
    target = os.fspath(target)
    check_size(target, DeviceRequest("cpu"))
    # A model that needs trust is not refused here: the description lists why, and loads none of it without trust.
    file = catalog.find_model(target, signature=options.signature, trust=True)
    if file is None and os.path.isfile(os.path.join(target, "checkpoint")):
        catalog.open_model(target)  # raises, with a hint on how to use a folder of checkpoints
    if file is None:
        return describe_input(target)
    trust, constants = options.trust_model, loading.constants
    file = replace(file, trust=trust, constants=constants)
    file = with_belongings(file, loading.weights, loading.custom_objects, trust=trust)
    return describe_model(file, options.runtime, target)


def devices() -> list[dict[str, Any]]:
    """Every device here, its memory, and which runtimes can use it, or why one cannot.

    Returns:
        For each device `device`, `name`, `memory_bytes`, `free_bytes`, `cores`, `near_cores` (those of a GPU's NUMA
        node, where there are several nodes) and `runtimes`, from names to verdicts.
    """
    return devices_with_runtimes()
