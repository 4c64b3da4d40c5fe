"""The commands: parse, call the API, turn errors into exit codes. Heavy modules are imported when they are needed."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock import __version__
from penstock.cli.flags import (
    GroupedCommand,
    evaluation_options,
    fit_options,
    job_options,
    options_from_flags,
    output_options,
    plan_command,
    some_options,
)
from penstock.cli.machine import as_fault, let_go_of_streams_that_refuse, open_standard_streams
from penstock.commands.interrupts import let_go_of_lost_terminal, stopping_signals
from penstock.core.figures import counted, on_nodes
from penstock.errors import Interrupted, OutputError, PenstockError, UsageError
from penstock.options.fit_records import make_fit
from penstock.options.records import PredictOptions
from penstock.options.spelling import in_shell
from penstock.options.table import read_given
from penstock.options.training_records import make_evaluation

if TYPE_CHECKING:
    from penstock.telemetry.progress import Progress


_OTHER_NAMES = {
    **dict.fromkeys(("train", "training", "learn"), "fit"),
    **dict.fromkeys(("eval", "evaluation", "test", "score", "metrics"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "run"), "predict"),
    "continue": "resume",
}
"""What other tools call a command."""


class _Commands(click.Group):
    """Turns every error into one message and its exit code. Only bugs of penstock show a stack trace.

    With --json, the error is the one document on stdout.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_standard_streams()
        for number in stopping_signals():
            if number != signal.SIGINT:
                signal.signal(number, _terminate)
        given = args[0] if args else kwargs.get("args")
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", sys.argv[1:] if given is None else given)
        try:
            code = self._run(as_json, *args, **kwargs)
            let_go_of_streams_that_refuse()
            sys.exit(code)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named.

        Raises:
            UsageError: There is none of this name.
        """
        name = args[0]
        if name in self.commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        meant = [_OTHER_NAMES[name.lower()]] if name.lower() in _OTHER_NAMES else []
        meant = meant or difflib.get_close_matches(name.lower(), self.commands, n=1)
        raise UsageError(
            "there is no such command",
            received=f"penstock {name}",
            allowed=", ".join(self.commands),
            hint=f"did you mean penstock {meant[0]}?" if meant else "penstock --help",
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its whole first sentence; click itself would cut it to fit one line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command.help)) for name, command in self.commands.items()])

    def _run(self, as_json: bool, *args: Any, **kwargs: Any) -> int:
        try:
            result = super().main(*args, **(kwargs | {"standalone_mode": False}))
            return result if isinstance(result, int) else 0
        except PenstockError as error:
            _ignore_signals()
            failure = in_shell(error) if isinstance(error, UsageError) else error
            _print_error(failure)
        except click.ClickException as error:
            error.show()
            failure = _as_usage_error(error)
        except (KeyboardInterrupt, click.Abort):
            _ignore_signals()
            click.echo("interrupted", err=True)
            failure = Interrupted("interrupted")
        except BrokenPipeError:
            raise
        except Exception as error:
            fault = as_fault(error) if isinstance(error, OSError) else None
            if fault is not None:
                return _refused(fault, as_json=as_json)
            if as_json:
                bug = PenstockError("this is a bug in penstock", received=f"{type(error).__name__}: {error}")
                click.echo(json.dumps(bug.as_json()))
            raise
        if as_json:
            click.echo(json.dumps(failure.as_json()))
        return failure.exit_code


def _first_sentence(text: str | None) -> str:
    sentence, _, _ = " ".join((text or "").split()).partition(". ")
    return sentence.rstrip(".") + "."


def _print_error(error: PenstockError) -> None:
    problem, *rest = str(error).splitlines()
    with contextlib.suppress(OSError):  # standard error may be what refuses
        click.echo("\n".join([f"error: {problem}", *rest]), err=True)


def _refused(fault: PenstockError, *, as_json: bool) -> int:
    """Print a fault of the machine, as far as printing still works, and return its exit code."""
    _ignore_signals()
    _print_error(fault)
    if as_json:
        with contextlib.suppress(OSError):
            click.echo(json.dumps(fault.as_json()))
    return fault.exit_code


def _as_usage_error(error: click.ClickException) -> UsageError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "penstock"
    received = allowed = None
    if isinstance(error, click.BadParameter) and error.param is not None:
        refused = re.fullmatch(r"(?P<value>'.*'|\".*\") is not (?:one of|a valid) (?P<allowed>.+?)\.?", error.message)
        if refused is not None:
            received, allowed = f"{error.param.opts[0]} {refused['value']}", refused["allowed"]
    elif isinstance(error, click.NoSuchOption):
        received = error.option_name
    return UsageError(error.format_message().rstrip("."), received=received, allowed=allowed, hint=f"{path} --help")


def _terminate(number: int, frame: object) -> None:
    let_go_of_lost_terminal()
    raise Interrupted.by_signal(number, "terminated")


def _ignore_signals() -> None:
    """A second signal must not end the command before its error is printed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """Run TensorFlow and Keras models over large data, train and evaluate them, on every device there is."""
    # `module:function` is looked up in the user's folder, which is not on the path of a console script.
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed", hint="change to a folder that is there: cd") from None
    if folder not in sys.path:
        sys.path.append(folder)


@main.command(cls=GroupedCommand)
@click.argument("model_and_input", metavar="MODEL INPUT...", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    metavar="FOLDER",
    help="Where to write (required): a folder or a URL. The same job there is resumed.",
)
@job_options
@click.option("--overwrite", is_flag=True, help="Remove another job of penstock that is in the folder.")
@click.option("--append", is_flag=True, help="Predict the files that the finished job in the folder does not have yet.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done, write nothing.")
@output_options
def predict(
    model_and_input: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    append: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **values: Any,
) -> int:
    """Predict every row of INPUT with MODEL, in order, on every device, into a folder.

    MODEL is a file (.keras, .h5, .onnx, .tflite, a frozen .pb, StableHLO), a SavedModel folder (Keras, tf.estimator,
    TF-Hub), or module:function that builds a Keras model. INPUT is tables (.parquet, .arrow, .feather, .csv, .tsv,
    .jsonl), arrays (.npy, .npz), images, .tar, .tfrecord, .txt or audio (.wav, .flac): files, folders, globs, or
    their URLs (s3://…).

    \b
      penstock predict model.keras rows.parquet --output predictions/
      penstock predict model.keras photos/ -o predictions/ --preset imagenet-tf
      penstock predict saved_model/ 'logs/*.csv' -o out/ --input 'x=f*' --keep id
      penstock predict model.onnx photos/ -o out/ --top-k 5 --labels classes.txt
      penstock predict --estimator my:model_fn --checkpoint dir/ x.parquet -o out/
    """
    began = time.perf_counter()
    options = options_from_flags(values)
    model, input_ = _model_and_input("predict", model_and_input, values["estimator"])
    from penstock.commands import appending, on_cluster, to_folder
    from penstock.commands.folder_job import make_task

    if append:
        appending.check_request(options, has_output=output is not None, overwrite=overwrite)
    if output is None or dry_run:
        return _dry_run(model, input_, output, options, append=append, as_json=as_json, is_asked=dry_run)
    task = replace(make_task(model, input_, output, options), overwrite=overwrite, append=append, is_verbose=verbose)
    task = replace(task, plan_command=plan_command(click.get_current_context()))
    summary = to_folder.run(task, _progress(quiet), began, on_cluster.runner_of(options))
    return _report(summary, as_json=as_json, quiet=quiet)


class _TypedPath(os.PathLike[str]):
    """A path, glob or URL exactly as it was typed. A plain list of strings could be rows of text."""

    def __init__(self, typed: str) -> None:
        self._typed = typed

    def __fspath__(self) -> str:
        return self._typed


_WITHOUT_MODEL = dict.fromkeys(("predict", "plan"), "; with --estimator there is no MODEL")


def _model_and_input(command: str, given: tuple[str, ...], estimator: str | None) -> tuple[str, list[_TypedPath]]:
    """The model and the paths of the input. With --estimator, every argument is part of the input."""
    model, *input_ = (estimator, *given) if estimator is not None else given
    if not input_:
        raise UsageError(
            "INPUT is missing",
            received=f"MODEL {model}",
            hint=f"penstock {command} MODEL INPUT …" + _WITHOUT_MODEL.get(command, ""),
        )
    return model, [_TypedPath(path) for path in input_]


def _dry_run(
    model: str,
    input_: Any,
    output: str | None,
    options: PredictOptions,
    *,
    append: bool,
    as_json: bool,
    is_asked: bool,
) -> int:
    """Print what the job would do: for --dry-run, and, followed by an error, for a job without an output folder."""
    from penstock.commands.dry_run import describe, in_words

    description = describe(model, input_, output, options, append=append)
    if is_asked:
        click.echo(json.dumps(description) if as_json else in_words(description))
        return 0
    missing = UsageError("nothing was written: --output is missing", hint="add --output FOLDER")
    click.echo(json.dumps(description | missing.as_json()) if as_json else in_words(description))
    _print_error(missing)
    return missing.exit_code


@main.command(cls=GroupedCommand)
@click.argument("model_and_input", metavar="MODEL INPUT...", nargs=-1, required=True)
@click.option("--fresh", is_flag=True, help="Search again, even where a plan is known.")
@job_options
@output_options
def plan(
    model_and_input: tuple[str, ...], fresh: bool, as_json: bool, quiet: bool, verbose: bool, **values: Any
) -> int:
    """The fastest safe way to run MODEL on INPUT here, found by measuring, and why. Writes no predictions.

    Every runtime that is installed and gives the same answers is tried at growing batch sizes, for at most two
    minutes. The plan is kept, and `penstock predict` goes by it. What --json prints can be given to predict as --plan.

    \b
      penstock plan model.keras photos/
      penstock plan model.keras rows.parquet --json > plan.json
    """
    from penstock import api
    from penstock.core.plans import in_words

    options = options_from_flags(values)
    model, input_ = _model_and_input("plan", model_and_input, values["estimator"])
    chosen = api.plan_for(model, input_, options, progress=_progress(quiet), is_fresh=fresh, is_verbose=verbose)
    click.echo(json.dumps(chosen.as_json(), indent=1) if as_json else in_words(chosen, has_every_size=verbose))
    return 0


@main.command(cls=GroupedCommand)
@click.argument("model_and_input", metavar="MODEL INPUT...", nargs=-1)
@click.option("--output", "-o", metavar="FOLDER", help="Write the predictions there, too; the same job is resumed.")
@evaluation_options
@click.option("--overwrite", is_flag=True, help="Remove another job of penstock that is in the folder.")
@output_options
def evaluate(
    model_and_input: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **values: Any,
) -> int:
    """How well MODEL answers for INPUT: its compiled loss and metrics, or others by name, on every device.

    The result is that of model.evaluate, whatever the devices are: replicas predict, and their answers are folded in
    order into the metrics of Keras. Rows that fail are counted and left out.

    \b
      penstock evaluate model.keras rows.parquet --label y
      penstock evaluate model.keras photos/ --label @folder --per-class --confusion
      penstock evaluate model.onnx rows.parquet --label y --metrics accuracy,auc
      penstock evaluate --from-predictions predictions/ --label y --metrics accuracy
    """
    from penstock.commands.evaluate_folder import evaluate_by_column
    from penstock.commands.in_memory import Wanted

    options, asked = make_evaluation(values)
    model, input_ = None, None
    if asked.from_predictions is None or len(model_and_input) > 1:
        if not model_and_input:
            raise UsageError("MODEL and INPUT are missing", hint="penstock evaluate MODEL INPUT … --label COLUMN")
        model, input_ = _model_and_input("evaluate", model_and_input, None)
    elif model_and_input:
        model = model_and_input[0]
    wanted = Wanted(progress=_progress(quiet), is_verbose=verbose)
    found = evaluate_by_column(model, input_, options, asked, wanted, output=output, overwrite=overwrite)
    return _report(found, as_json=as_json, quiet=False)  # the metrics are what was asked for


@main.command(cls=GroupedCommand)
@click.argument("model_and_input", metavar="MODEL INPUT...", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    metavar="FOLDER",
    required=True,
    help="Where the model, checkpoints and history are written (required). The same job there is resumed.",
)
@fit_options
@click.option("--overwrite", is_flag=True, help="Remove another training job that is in the folder.")
@output_options
def fit(
    model_and_input: tuple[str, ...],
    output: str,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **values: Any,
) -> int:
    """Train MODEL on INPUT, on every device, with checkpoints: FOLDER/model.keras is what it learned.

    MODEL is a .keras or .h5 file, compiled or not, or module:function that builds a Keras model. INPUT is what predict
    takes, with a column of true answers. A batch is divided over the devices, and its size is that of all together.

    \b
      penstock fit model.keras rows.parquet --label y --epochs 10 -o trained/
      penstock fit my:build photos/ --label @folder --epochs 5 -o trained/
      penstock fit model.keras rows/ --label y --validation-split 0.1 -o trained/
      penstock resume trained/
    """
    began = time.perf_counter()
    options, asked = make_fit(values)
    model, input_ = _model_and_input("fit", model_and_input, None)
    from penstock.commands.fit import fit_files
    from penstock.commands.fit_task import make_fit_task

    task = make_fit_task(model, input_, output, options, asked)
    trained = fit_files(replace(task, overwrite=overwrite, is_verbose=verbose), _progress(quiet), began)
    return _report(trained, as_json=as_json, quiet=quiet)


@main.command()
@click.argument("output")
@some_options("devices", "engine", "address", "resources", "max_nodes", "workers")
@click.option(
    "--max-failures", type=float, metavar="SHARE", help="As in predict and fit. Default: as the job was begun with."
)
@click.option(
    "--verify", is_flag=True, help="Of predictions: read all parts first; flipped bits are predicted again, too."
)
@output_options
def resume(output: str, as_json: bool, quiet: bool, **values: Any) -> int:
    """Go on with the job of predict, fit or evaluate in the folder OUTPUT after a kill, a crash or a Ctrl-C.

    Training goes on from its newest checkpoint. Predictions go on behind the last part that was written, and parts that
    are missing or damaged are predicted again. Of evaluate --output these are the predictions: its own line, given
    again, then has the metrics without predicting anything twice.

    \b
      penstock resume predictions/
      penstock resume trained/
    """
    from penstock import api

    summary = api.resume(output, progress=_progress(quiet), **values)
    return _report(summary, as_json=as_json, quiet=quiet)


@main.command()
@click.argument("output")
@some_options("devices", "preprocess", "preprocess_row")
@output_options
def retry(output: str, as_json: bool, quiet: bool, **values: Any) -> int:
    """Predict the failed rows of the finished job in OUTPUT again, after the data or the function was mended.

    Each row runs at its old place in its batch and is put into its part; no other row changes. Files in which no row
    failed must be as they were, and every file must have the rows that it had, in the same order.
    """
    from penstock import api

    return _report(api.retry(output, progress=_progress(quiet), **values), as_json=as_json, quiet=quiet)


@main.command()
@click.argument("output")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def status(output: str, as_json: bool) -> int:
    """How far the job in the folder OUTPUT is."""
    from penstock import api

    progress = api.status(output)
    if as_json:
        click.echo(json.dumps(progress))
        return 0
    if progress.get("kind") == "fit":
        return _fit_status(progress)
    done = progress["committed"] + progress["failed"]
    share = done / max(1, progress["rows"])
    by = f", {'held ' if progress['state'] == 'finished' else ''}by {progress['run']}" if progress["run"] else ""
    click.echo(f"{progress['state']}: {done:,} of {counted(progress['rows'], 'row')} done ({share:.0%}){by}")
    if progress["state"] == "running" and progress["rows_per_s"]:
        rate = progress["rows_per_s"]
        left = counted(progress["left"], "row")
        click.echo(f"{left} left, at {rate:,.0f} rows/s about {progress['left'] / rate:,.0f} s")
    parts = counted(progress["parts"], "part")
    where = f" ({on_nodes(progress['failed_on'])})" if progress["failed_on"] else ""
    written = f"{progress['committed']:,} written in {parts}, {progress['failed']:,} failed{where}"
    click.echo(f"{written}, model {progress['model'] or 'in memory'}")
    if progress["state"] == "unfinished":
        click.echo(("go on with: " if progress["resumable"] else "the job cannot be resumed: ") + progress["hint"])
    return 0


def _fit_status(progress: dict[str, Any]) -> int:
    by = f", by {progress['run']}" if progress["run"] else ""
    done = f"{progress['epochs_done']} of {counted(progress['epochs'], 'epoch')} done"
    kept = counted(progress["steps_kept"], "step") + " in the newest checkpoint"
    click.echo(f"{progress['state']}: {done}, {kept if progress['steps_kept'] else 'no checkpoint yet'}{by}")
    if progress["last"]:
        last = {name: value for name, value in progress["last"].items() if name != "epoch"}
        click.echo("last epoch: " + ", ".join(f"{name} {float(value):.6g}" for name, value in last.items()))
    if progress["state"] == "unfinished":
        click.echo(f"go on with: {progress['hint']}")
    return 0


@main.command()
@click.argument("output")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def verify(output: str, as_json: bool) -> int:
    """Compare every part in the folder OUTPUT with its record: size, checksum, rows. Something wrong is exit code 7."""
    from penstock import api

    found = api.verify(output)
    if as_json:
        click.echo(json.dumps(found))
        return 0 if found["is_whole"] else OutputError.exit_code
    for each in found["problems"]:
        click.echo(f"{each['name']}: {each['problem']}")
    parts = f"{found['parts']} part{'s' if found['parts'] != 1 else ''}"
    count = len(found["problems"])
    verdict = "every part is whole" if not count else f"{count} problem{'s' if count != 1 else ''}"
    click.echo(f"{verdict}: {found['committed']:,} rows in {parts}, {found['failed']:,} failed ({found['state']})")
    if count:
        click.echo(
            f"hint: penstock resume {output} --verify predicts again what is damaged, and nothing else", err=True
        )
    return OutputError.exit_code if count else 0


@main.command()
@click.argument("target", metavar="MODEL|INPUT")
@some_options("signature", "runtime", "custom_objects", "weights", "constants", "trust_model")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def inspect(target: str, as_json: bool, **values: Any) -> int:
    """What MODEL takes and gives, what wrote it, what it does that needs trust; or what INPUT holds."""
    from penstock import api

    description = api.inspect(target, **read_given(PredictOptions, values))
    if as_json:
        click.echo(json.dumps(description))
        return 0
    for line in _in_words(description):
        click.echo(line)
    return 0


def _in_words(description: dict[str, Any], indent: str = "") -> list[str]:
    """A description, one line for each entry that is not empty. Names inside it stay as they are."""
    lines: list[str] = []
    for key, value in description.items():
        name = f"{indent}{key}:" if indent else f"{key.replace('_', ' ')}:"
        if value is None or value == [] or value == {}:
            continue
        if isinstance(value, dict):
            lines += [name, *_in_words(value, indent + "  ")]
        elif isinstance(value, list) and key in ("notes", "needs_trust"):
            lines += [name, *(f"{indent}  {entry}" for entry in value)]
        else:
            shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
            lines.append(f"{name} {shown}")
    return lines


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def devices(as_json: bool) -> int:
    """Every device here, its memory, and which runtimes can use it."""
    from penstock import api

    listed = api.devices()
    if as_json:
        click.echo(json.dumps(listed))
        return 0
    for device in listed:
        memory = f"{device['free_bytes'] / 2**30:.1f} of {device['memory_bytes'] / 2**30:.1f} GiB free"
        cores = f", {device['cores']} cores" if device["cores"] else ""
        near = f", near cores {device['near_cores']}" if device["near_cores"] else ""
        click.echo(f"{device['device']}  {device['name']}{cores}, {memory}{near}")
        for name, verdict in device["runtimes"].items():
            click.echo(f"  {name:<16}{verdict}")
    return 0


@main.command()
@click.option("--clear", is_flag=True, help="Remove it, but for what running jobs need.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def cache(clear: bool, as_json: bool) -> int:
    """What is kept to start sooner: plans, converted models and compiled steps. All of it can be made anew."""
    from penstock import private_cache

    if clear:
        private_cache.clear()
    click.echo(json.dumps(private_cache.as_json()) if as_json else private_cache.in_words())
    return 0


def _progress(is_quiet: bool) -> Progress:
    from penstock.telemetry.progress import Bars, Lines, Silent

    if is_quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


def _report(summary: Any, *, as_json: bool, quiet: bool) -> int:
    let_go_of_lost_terminal()  # a run that ignores SIGHUP outlives its terminal
    if as_json:
        click.echo(json.dumps(summary.as_json()))
    elif not quiet:
        click.echo(str(summary))
    return 3 if summary.failed else 0


if __name__ == "__main__":
    main()
