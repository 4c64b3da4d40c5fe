"""The options of the commands, and what they make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.errors import UsageError
from penstock.options.parsing import (
    parse_constants,
    parse_features,
    parse_inputs,
    parse_numbers,
    parse_params,
    parse_renames,
    parse_size,
    read_labels,
)
from penstock.options.records import (
    COLORS,
    FORMATS,
    HEADERS,
    INTERPOLATIONS,
    PADDINGS,
    PRECISIONS,
    PRESETS,
    RESIZES,
    RUNTIMES,
    DeviceRequest,
    ModelOptions,
    Nulls,
    PredictOptions,
    ReadOptions,
)

Command = TypeVar("Command", bound=Callable[..., Any])
_Option = Callable[[Any], Any]

ESTIMATOR = "--estimator"

_MODEL: list[_Option] = [
    click.option(
        "--signature",
        metavar="NAME",
        help="Which signature of a SavedModel; default: serving_default, or the only one.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(("auto", *RUNTIMES)),
        default="auto",
        help="What executes the model. Default auto: the fastest that is installed and gives the same answers.",
    ),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="model",
        show_default=True,
        help="What the model computes in. Never lowered unless asked for here.",
    ),
    click.option("--weights", metavar="FILE", help="A file of weights only, for MODEL given as module:function."),
    click.option(
        "--custom-objects",
        multiple=True,
        metavar="MODULE",
        help="A module that holds the model's own classes. Repeatable.",
    ),
    click.option(
        "--constant",
        "constants",
        multiple=True,
        metavar="NAME=VALUE",
        help="The value of an input that is not one for each row. Repeatable.",
    ),
    click.option(
        ESTIMATOR,
        metavar="MODULE:FUNCTION",
        help="In place of MODEL: the model_fn of a tf.estimator, or a function that gives an Estimator.",
    ),
    click.option("--checkpoint", metavar="DIR", help="The model_dir of --estimator, or one checkpoint in it."),
    click.option("--params", metavar="JSON|FILE", help="The params of --estimator's model_fn."),
    click.option("--trust-model", is_flag=True, help="Load models that contain code (Lambda layers, …)."),
    click.option(
        "--check", is_flag=True, help="First compare some answers with the model's own framework on one CPU device."
    ),
    click.option(
        "--tolerance",
        type=float,
        default=1e-4,
        show_default=True,
        metavar="SHARE",
        help="How far two runtimes may differ, as a share of an output's spread.",
    ),
]

_FED: list[_Option] = [
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=COLUMN[,…]",
        help="Which column feeds which input; several columns, or prefix*, are stacked. Repeatable.",
    ),
    click.option(
        "--as-example/--no-as-example",
        default=None,
        help="Put columns into tf.train.Example records. Default: where the model parses them.",
    ),
    click.option(
        "--preprocess",
        metavar="MODULE:FUNCTION",
        help="A function from a block of columns (a dict of arrays) to another, run in the loaders.",
    ),
    click.option("--preprocess-row", metavar="MODULE:FUNCTION", help="As --preprocess, row by row."),
    click.option("--preset", type=click.Choice(PRESETS), help="A usual scaling of images, on the device."),
    click.option("--scale", metavar="X[,…]", help="Multiply inputs on the device: one number, or one a channel."),
    click.option("--offset", metavar="X,…", help="Add this after --scale."),
    click.option("--image-size", metavar="HxW", help="Resize images. Default: what the model takes."),
    click.option(
        "--resize", type=click.Choice(RESIZES), default="stretch", show_default=True, help="How images reach that size."
    ),
    click.option(
        "--interpolation",
        type=click.Choice(INTERPOLATIONS),
        default="keras",
        show_default=True,
        help="Whose decoding and resizing: the library's that the model was trained with.",
    ),
    click.option(
        "--fast-decode",
        is_flag=True,
        help="Decode JPEGs at a half, a quarter or an eighth where that is large enough: faster, other pixels.",
    ),
    click.option("--color", type=click.Choice(COLORS), help="Default: by the model's channels."),
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="COLUMN",
        help="A column of encoded images, or of their paths. Default: found where the model takes images.",
    ),
    click.option(
        "--feature",
        "features",
        multiple=True,
        metavar="NAME=DTYPE[SHAPE]",
        help="A feature of TFRecords. Default: inferred from the first records. Repeatable.",
    ),
    click.option(
        "--nulls",
        multiple=True,
        metavar="fail|nan|VALUE|empty",
        help="Missing values: failed rows (the default), NaN or a number; for text the empty text. Repeatable.",
    ),
    click.option(
        "--header",
        type=click.Choice(HEADERS),
        default="auto",
        show_default=True,
        help="Whether CSV begins with the names of its columns; no: they are called f0, f1, ….",
    ),
    click.option(
        "--buckets", metavar="N,N,…", help="What lists of different lengths are padded to. Default: by the data."
    ),
    click.option(
        "--padding",
        type=click.Choice(PADDINGS),
        default="auto",
        show_default=True,
        help="Whether rows of different sizes are padded to share a batch; auto: where that changes no answer.",
    ),
]

_ROWS: list[_Option] = [
    click.option("--limit", type=int, metavar="N", help="Take at most N rows."),
    click.option("--skip", type=int, default=0, metavar="N", help="Leave out the first N rows."),
    click.option("--sample", type=int, metavar="N", help="Try the job on N rows from all over the input."),
    click.option("--sample-by", metavar="COLUMN", help="Every value of COLUMN keeps its share in the sample."),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Decides the sample, and what a random model draws.",
    ),
]

_WRITTEN: list[_Option] = [
    click.option("--outputs", metavar="NAME,…", help="Write only these outputs of the model."),
    click.option("--top-k", type=int, metavar="K", help="Write the K best classes and their scores, not all values."),
    click.option("--argmax", is_flag=True, help="Write the best class, not all values."),
    click.option("--labels", metavar="FILE", help="The names of the classes: one a line, or JSON."),
    click.option(
        "--postprocess",
        metavar="MODULE:FUNCTION",
        help="A function from outputs and kept columns (a dict of arrays) to the columns that are written.",
    ),
    click.option("--squeeze", is_flag=True, help="Write an output of one value a row as a plain column."),
    click.option(
        "--keep",
        multiple=True,
        metavar="COLUMN",
        help="Write this column, too; @folder is the name of a photo's folder. Repeatable.",
    ),
    click.option("--rename", multiple=True, metavar="OLD=NEW", help="Write a column under another name. Repeatable."),
    click.option(
        "--format", "format_", type=click.Choice(FORMATS), default="parquet", show_default=True, help="What to write."
    ),
    click.option(
        "--part-rows",
        type=int,
        metavar="N",
        help="Most rows of one file, but at least a batch. Default: 64 MB, or what is expected in 30 s.",
    ),
    click.option(
        "--max-failures",
        type=float,
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="Stop when more than this share of rows failed, once 100 were seen.",
    ),
]

_RUN: list[_Option] = [
    click.option(
        "--batch-size",
        default="auto",
        metavar="N|auto",
        show_default=True,
        help="Rows a device sees in one step; auto measures, where the job is long enough.",
    ),
    click.option(
        "--devices",
        default="all",
        metavar="WHICH",
        show_default=True,
        help="all (every GPU, or the CPU), cpu, gpu, cpu:4 (four CPU replicas), gpu:0,2.",
    ),
    click.option(
        "--replicas-per-device",
        default="auto",
        metavar="N|auto",
        show_default=True,
        help="Processes that share each device; auto takes more than one where measuring shows a gain.",
    ),
    click.option(
        "--memory-fraction",
        type=float,
        default=0.85,
        show_default=True,
        metavar="SHARE",
        help="The share of a device's free memory that may be taken.",
    ),
    click.option(
        "--plan",
        metavar="FILE|off",
        help="Go by this plan of `penstock plan --json`; off: by rules of thumb. Default: a cached one, or a search.",
    ),
    click.option("--trace", metavar="FILE", help="Write a trace of every stage, batch and device, for Perfetto."),
    click.option("--threads", default="auto", metavar="N|auto", show_default=True, help="CPU threads of each replica."),
    click.option(
        "--loaders",
        default="auto",
        metavar="N|auto",
        show_default=True,
        help="Processes that decode and preprocess (or threads of each replica, where that is enough).",
    ),
    click.option(
        "--row-timeout",
        type=float,
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="How long one row, or one call of your function, may take; then it is a failed row.",
    ),
]


_GROUPS = {
    "The model": _MODEL,
    "What it is fed": _FED,
    "Which rows": _ROWS,
    "What is written": _WRITTEN,
    "How it runs": _RUN,
}


_MOST_USED = (
    "output", "inputs", "keep", "preset", "preprocess", "top_k", "batch_size", "devices", "limit", "dry_run",
)  # fmt: skip
"""What the help begins with; each option is shown once."""


def job_options(command: Command) -> Command:
    """The options of a prediction job."""
    for option in reversed([option for group in _GROUPS.values() for option in group]):
        command = option(command)
    return command


class GroupedCommand(click.Command):
    """A command whose help shows the options of a job under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        entries = {option.name: entry for option in options if (entry := option.get_help_record(ctx))}
        groups = {heading: _names(group) for heading, group in _GROUPS.items()}
        grouped = {name for names in groups.values() for name in names}
        groups["Other options"] = {name for name in entries if name not in grouped}
        used = [name for name in _MOST_USED if name in entries]
        with formatter.section("Options most used"):
            formatter.write_dl([entries[name] for name in used])
        for heading, names in groups.items():
            with formatter.section(heading):
                formatter.write_dl([entry for name, entry in entries.items() if name in names and name not in used])


def _names(options: list[_Option]) -> set[str | None]:
    def command() -> None:
        pass

    for option in options:
        option(command)
    return {param.name for param in command.__click_params__}  # type: ignore[attr-defined]


def output_options(command: Command) -> Command:
    """How a command talks."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, all else on stderr."),
        click.option("--verbose", is_flag=True, help="Let the frameworks write all they want to the log."),
        click.option("--quiet", is_flag=True, help="Show errors only."),
    ):
        command = option(command)
    return command


_TAKEN_AS_THEY_ARE = (
    "signature", "precision", "memory_fraction", "plan", "trace", "trust_model",
    "check", "tolerance", "as_example", "top_k", "argmax", "squeeze",
    "part_rows", "max_failures", "preprocess", "preprocess_row", "postprocess", "preset", "row_timeout",
    "padding", "limit", "skip", "sample", "sample_by", "seed",
)  # fmt: skip


def make_options(values: dict[str, Any]) -> PredictOptions:
    scale, offset, buckets, outputs = (values[name] for name in ("scale", "offset", "buckets", "outputs"))
    return PredictOptions(
        inputs=parse_inputs(values["inputs"]),
        keep=tuple(values["keep"]),
        rename=parse_renames(values["rename"]),
        devices=DeviceRequest.parse(values["devices"]),
        runtime=None if values["runtime"] == "auto" else values["runtime"],
        batch_size=_count("batch-size", values["batch_size"]),
        replicas_per_device=_count("replicas-per-device", values["replicas_per_device"]),
        threads=_count("threads", values["threads"]),
        loaders=_count("loaders", values["loaders"]),
        format=values["format_"],
        scale=parse_numbers(scale, "--scale") if scale is not None else None,
        offset=parse_numbers(offset, "--offset") if offset is not None else None,
        buckets=tuple(int(n) for n in parse_numbers(buckets, "--buckets")) if buckets is not None else None,
        outputs=tuple(name.strip() for name in outputs.split(",")) if outputs is not None else (),
        labels=read_labels(values["labels"]) if values["labels"] is not None else (),
        nulls=Nulls.parse(values["nulls"]),
        loading=_loading(values),
        reading=_reading(values),
        **{name: values[name] for name in _TAKEN_AS_THEY_ARE},
    )


def _loading(values: dict[str, Any]) -> ModelOptions:
    return ModelOptions(
        weights=values["weights"],
        custom_objects=tuple(values["custom_objects"]),
        constants=parse_constants(values["constants"]),
        estimator=values["estimator"] is not None,
        checkpoint=values["checkpoint"],
        params=parse_params(values["params"]) if values["params"] is not None else None,
    )


def _reading(values: dict[str, Any]) -> ReadOptions:
    size = values["image_size"]
    return ReadOptions(
        image_size=parse_size(size) if size is not None else None,
        resize=values["resize"],
        interpolation=values["interpolation"],
        fast_decode=values["fast_decode"],
        color=values["color"],
        images=tuple(values["images"]),
        features=parse_features(values["features"]),
        header=values["header"],
    )


def _count(name: str, text: str) -> int | None:
    if text != "auto" and not text.isdigit():
        raise UsageError(f"--{name} is not understood", received=f"{name}={text!r}", allowed="auto, 1, 2, 3, …")
    return None if text == "auto" else int(text)
