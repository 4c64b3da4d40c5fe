"""Options of a job, checked when they are made.

How they multiply: `devices` gives the number of replicas; each replica uses `threads` CPU threads and sees batches
of `batch_size` rows. `threads` and `batch_size` belong to the recipe (they decide the bits of the answers); the
number of replicas belongs to the placement (it decides only the speed).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import UsageError

RUNTIMES = ("tensorflow", "jax", "torch")
FORMATS = ("parquet", "npy", "jsonl")
RESIZES = ("stretch", "crop", "pad")
COLORS = ("grayscale", "rgb", "rgba")
MOST_PIXELS = 1 << 26
PRESETS = ("imagenet-torch", "imagenet-tf", "imagenet-caffe", "scale-0-1", "scale-1-1")


@dataclass(frozen=True)
class DeviceRequest:
    """Which devices the user asked for: a kind, and either a count (CPU) or indices (GPU).

    `all` is every GPU, or the CPU where there is none.
    """

    kind: str = "all"
    cpu_replicas: int | None = None
    gpu_indices: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceRequest:
        """Read `all`, `cpu`, `gpu`, `cpu:4` or `gpu:0,2`.

        >>> DeviceRequest.parse("cpu:4").cpu_replicas
        4
        >>> DeviceRequest.parse("gpu:0,2").gpu_indices
        (0, 2)
        """
        if text in ("all", "cpu", "gpu"):
            return cls(text)
        if (match := re.fullmatch(r"cpu:([1-9][0-9]{0,3})", text)) is not None:
            return cls("cpu", cpu_replicas=int(match[1]))
        if (match := re.fullmatch(r"gpu:([0-9]+(?:,[0-9]+)*)", text)) is not None:
            indices = tuple(int(part) for part in match[1].split(","))
            if len(set(indices)) == len(indices):
                return cls("gpu", gpu_indices=indices)
        raise UsageError(
            "--devices is not understood",
            received=f"devices={text!r}",
            allowed="all, cpu, gpu, cpu:N (N replicas on the CPU), gpu:I,J,… (these GPUs, each once)",
        )

    def __str__(self) -> str:
        if self.cpu_replicas is not None:
            return f"cpu:{self.cpu_replicas}"
        if self.gpu_indices is not None:
            return "gpu:" + ",".join(map(str, self.gpu_indices))
        return self.kind


@dataclass(frozen=True)
class ReadOptions:
    """How sources read what files do not say themselves.

    Args:
        image_size: Height and width that images are resized to; None takes what the model wants.
        resize: `stretch` to the size, `crop` the middle of what covers it, or `pad` with black around what fits in.
        color: `grayscale`, `rgb` or `rgba`; None takes what the model's channels say.
        images: Columns of a table that hold images: encoded bytes, or paths.
        features: TFRecord feature name to `dtype[shape]`; empty where they are to be inferred.
    """

    image_size: tuple[int, int] | None = None
    resize: str = "stretch"
    color: str | None = None
    images: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("resize", self.resize, RESIZES)
        _check_choice("color", self.color, COLORS)
        height, width = self.image_size or (1, 1)
        if height < 1 or width < 1 or height * width > MOST_PIXELS:
            raise UsageError(
                "the image size is out of range",
                received=f"image_size={height}x{width}",
                allowed=f"at least 1x1, at most {MOST_PIXELS:,} pixels",
            )


@dataclass(frozen=True)
class PredictOptions:
    """What a prediction job may be told beyond its model and its input.

    Args:
        inputs: Model input name to column names; empty where the columns are to be guessed.
        keep: Columns of the input that are written beside the predictions.
        rename: Output or kept column to the name it is written under.
        signature: The signature of a SavedModel.
        runtime: `tensorflow`, `jax` or `torch`; None takes the first that is installed and can run the model.
        batch_size: Rows a device sees in one step; None takes the rule of `core.batching`.
        devices: Where to run.
        threads: CPU threads of each replica; None shares the cores.
        format: `parquet`, `npy` or `jsonl`.
        part_rows: The most rows of one output file; None takes the rule of `core.division`.
        max_failures: The share of rows that may fail before the job stops, once 100 rows were seen.
        trust_model: Load models that contain code (Lambda layers, Python operations).
        reading: How sources read what files do not say themselves.
        preprocess: A function, or `module:function`, that makes a block of columns from a block of columns.
        preprocess_row: The same for functions that take and give one row.
        preset: A usual scaling of images, on the device.
        scale: What inputs are multiplied with on the device: one number, or one for each channel.
        offset: What is added after that.
        loaders: How many loaders; None finds out while running.
        row_timeout: Seconds that one row, or one call of `preprocess`, may take in a loader process.
        buckets: Lengths that rows of different lengths are padded to; None takes them from the data.
        skip: Leave out so many rows at the beginning.
        limit: Take at most so many rows.
        sample: Take so many rows, chosen by `seed`.
        sample_by: A column of which every value keeps its share in the sample.
        seed: Decides the sample.
    """

    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    signature: str | None = None
    runtime: str | None = None
    batch_size: int | None = None
    devices: DeviceRequest = field(default_factory=DeviceRequest)
    threads: int | None = None
    format: str = "parquet"
    part_rows: int | None = None
    max_failures: float = 0.1
    trust_model: bool = False
    reading: ReadOptions = field(default_factory=ReadOptions)
    preprocess: str | Callable[..., Any] | None = None
    preprocess_row: str | Callable[..., Any] | None = None
    preset: str | None = None
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    loaders: int | None = None
    row_timeout: float = 120.0
    buckets: tuple[int, ...] | None = None
    skip: int = 0
    limit: int | None = None
    sample: int | None = None
    sample_by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice("runtime", self.runtime, RUNTIMES)
        _check_choice("format", self.format, FORMATS)
        _check_choice("preset", self.preset, PRESETS)
        for name in ("batch_size", "threads", "part_rows", "loaders", "limit", "sample"):
            _check_positive(name, getattr(self, name))
        self._check_rows()
        self._check_functions()
        if not 0 <= self.max_failures <= 1:
            raise UsageError(
                "max_failures is out of range",
                received=f"max_failures={self.max_failures!r}",
                allowed="a share from 0 (stop at the first) to 1 (never stop)",
            )
        if len(set(self.keep)) != len(self.keep):
            raise UsageError("a column is kept twice", received=f"keep={', '.join(self.keep)}")

    def _check_rows(self) -> None:
        if isinstance(self.skip, bool) or not isinstance(self.skip, int) or self.skip < 0:
            raise UsageError("skip must be a whole number", received=f"skip={self.skip!r}", allowed="0, 1, 2, …")
        if self.sample is not None and (self.skip or self.limit is not None):
            raise UsageError(
                "a sample is taken of the whole input",
                received=f"sample={self.sample}, skip={self.skip}, limit={self.limit}",
                allowed="sample, or skip and limit",
            )
        if self.sample_by is not None and self.sample is None:
            raise UsageError("sample_by says how, but not how many", hint=f"--sample N --sample-by {self.sample_by}")
        if not self.row_timeout > 0:
            raise UsageError("row_timeout must be a number of seconds", received=f"row_timeout={self.row_timeout!r}")
        grows = self.buckets is None or list(self.buckets) == sorted(set(self.buckets))
        if self.buckets is not None and (not self.buckets or not grows or self.buckets[0] < 1):
            raise UsageError(
                "buckets are lengths that grow", received=f"buckets={self.buckets!r}", allowed="for example 32,64,128"
            )

    def _check_functions(self) -> None:
        given = [value for value in (self.preprocess, self.preprocess_row) if value is not None]
        if len(given) > 1:
            raise UsageError("one function preprocesses a job", received="preprocess and preprocess_row")
        for value in given:
            if isinstance(value, str) and not re.fullmatch(r"[\w.]+:\w+", value):
                raise UsageError(
                    "the preprocessing function is not understood", received=f"{value!r}", allowed="module:function"
                )
        if self.preset is not None and (self.scale is not None or self.offset is not None):
            raise UsageError("a preset says how to scale", received=f"preset={self.preset} and scale or offset")


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"unknown {name}", received=f"{name}={value!r}", allowed=", ".join(choices))


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{name} must be a positive whole number", received=f"{name}={value!r}", allowed="1, 2, 3, …")


def parse_inputs(entries: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Turn `NAME=COLUMN`, `NAME=COL1,COL2` and `NAME=prefix*` into a mapping.

    >>> parse_inputs(("x=a,b", "y=pixels"))
    {'x': ('a', 'b'), 'y': ('pixels',)}
    """
    inputs: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, equals, columns = entry.partition("=")
        parts = tuple(part.strip() for part in columns.split(","))
        if not equals or not name.strip() or not all(parts):
            raise UsageError(
                "--input is not understood",
                received=f"--input {entry!r}",
                allowed="NAME=COLUMN, NAME=COL1,COL2,… or NAME=prefix*",
                hint="NAME is an input of the model: `penstock inspect MODEL` lists them",
            )
        if name.strip() in inputs:
            raise UsageError("an input is given twice", received=f"--input {entry!r}")
        inputs[name.strip()] = parts
    return inputs


def parse_size(text: str) -> tuple[int, int]:
    """Read `224x224` (height by width) or `224`.

    >>> parse_size("224x320"), parse_size("96")
    ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?:[x×]([1-9][0-9]{0,5}))?", text)
    if match is None:
        raise UsageError("the image size is not understood", received=f"{text!r}", allowed="HxW, for example 224x224")
    return int(match[1]), int(match[2] or match[1])


def parse_numbers(text: str, flag: str) -> tuple[float, ...]:
    """Read one number, or several with commas.

    >>> parse_numbers("0.5,1,2", "--scale")
    (0.5, 1.0, 2.0)
    """
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise UsageError(
            f"{flag} is not understood", received=repr(text), allowed="a number, or one for each channel: 1,2,3"
        )
    return numbers


def parse_features(entries: tuple[str, ...]) -> dict[str, str]:
    """Turn `NAME=dtype[shape]` entries into a mapping; what stands behind the sign is read by the source.

    >>> parse_features(("image=uint8[28,28]",))
    {'image': 'uint8[28,28]'}
    """
    features: dict[str, str] = {}
    for entry in entries:
        name, _, kind = entry.partition("=")
        if not name or not kind or name in features:
            raise UsageError(
                "--feature is not understood",
                received=f"--feature {entry!r}",
                allowed="NAME=dtype[shape], for example image=uint8[28,28], each name once",
            )
        features[name] = kind
    return features


def parse_renames(entries: tuple[str, ...]) -> dict[str, str]:
    """Turn `OLD=NEW` entries into a mapping.

    >>> parse_renames(("dense_1=score",))
    {'dense_1': 'score'}
    """
    renames: dict[str, str] = {}
    for entry in entries:
        old, _, new = entry.partition("=")
        if not old or not new:
            raise UsageError("--rename is not understood", received=f"--rename {entry!r}", allowed="OLD=NEW")
        renames[old] = new
    return renames
