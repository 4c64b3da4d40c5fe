"""Options of a job, checked when they are made.

How they multiply: `devices` gives the number of replicas; each replica uses `threads` CPU threads and sees batches
of `batch_size` rows. `threads` and `batch_size` belong to the recipe (they decide the bits of the answers); the
number of replicas belongs to the placement (it decides only the speed).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import UsageError

RUNTIMES = (
    "tensorflow", "tensorflow-xla", "jax", "torch", "torch-compiled", "tf_keras", "onnx", "onnx-tensorrt", "openvino",
    "tflite", "stablehlo",
)  # fmt: skip
PRECISIONS = ("model", "bfloat16", "float16", "int8")
NO_PLAN = "off"
"""In the place of a plan's file: the rules of thumb, without a search."""
FORMATS = ("parquet", "npy", "jsonl", "csv")
RESIZES = ("stretch", "crop", "pad")
INTERPOLATIONS = (
    "keras", "pillow-bilinear", "pillow-bicubic", "pillow-lanczos", "torchvision", "opencv-linear", "opencv-area",
)  # fmt: skip
COLORS = ("grayscale", "rgb", "rgba")
HEADERS = ("auto", "yes", "no")
MOST_PIXELS = 1 << 26
_COUNTS = ("batch_size", "threads", "replicas_per_device", "part_rows", "loaders", "limit", "sample", "top_k")
PRESETS = ("imagenet-torch", "imagenet-tf", "imagenet-caffe", "scale-0-1", "scale-1-1")
PADDINGS = ("auto", "always", "never")


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
class Nulls:
    """What is done with missing values, which are not NaN: NaN is a value.

    Args:
        numbers: `fail` for a failed row, `nan`, or the number that stands in their place.
        texts: `fail`, or `empty` for the empty text.
    """

    numbers: str = "fail"
    texts: str = "fail"

    @classmethod
    def parse(cls, given: Sequence[str | float]) -> Nulls:
        """Read `fail`, `nan`, a number, `empty`; numbers and text may each have a rule.

        >>> Nulls.parse(["nan", "empty"])
        Nulls(numbers='nan', texts='empty')
        >>> Nulls.parse([0])
        Nulls(numbers='0', texts='fail')
        """
        rules = [str(rule).strip() for rule in given if str(rule).strip() != "fail"]
        texts = [rule for rule in rules if rule == "empty"]
        numbers = [rule for rule in rules if rule != "empty"]
        if len(numbers) > 1 or not all(rule == "nan" or _is_number(rule) for rule in numbers):
            raise UsageError(
                "nulls is not understood",
                received=f"nulls={', '.join(map(str, given))}",
                allowed="fail, nan or one number for numbers; fail or empty for text",
            )
        return cls(numbers[0] if numbers else "fail", texts[0] if texts else "fail")


@dataclass(frozen=True)
class ReadOptions:
    """How sources read what files do not say themselves.

    Args:
        image_size: Height and width that images are resized to; None takes what the model wants.
        resize: `stretch` to the size, `crop` the middle of what covers it, or `pad` with black around what fits in.
        interpolation: Whose decoding and resizing: that of the library which the model was trained with.
        fast_decode: Decode JPEGs at the smallest scale that is large enough: faster, but other pixels.
        color: `grayscale`, `rgb` or `rgba`; None takes what the model's channels say.
        images: Columns of a table that hold images: encoded bytes, or paths.
        features: TFRecord feature name to `dtype[shape]`; empty where they are to be inferred.
        header: `yes` or `no`: whether CSV and TSV files begin with the names of their columns; `auto` where that is
            to be seen from the first line.
    """

    image_size: tuple[int, int] | None = None
    resize: str = "stretch"
    interpolation: str = "keras"
    fast_decode: bool = False
    color: str | None = None
    images: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    header: str = "auto"

    def __post_init__(self) -> None:
        _check_choice("header", self.header, HEADERS)
        _check_choice("resize", self.resize, RESIZES)
        _check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        if not isinstance(self.fast_decode, bool):
            raise UsageError(
                "fast_decode is on or off", received=f"fast_decode={self.fast_decode!r}", allowed="True, False"
            )
        _check_choice("color", self.color, COLORS)
        height, width = self.image_size or (1, 1)
        if height < 1 or width < 1 or height * width > MOST_PIXELS:
            raise UsageError(
                "the image size is out of range",
                received=f"image_size={height}x{width}",
                allowed=f"at least 1x1, at most {MOST_PIXELS:,} pixels",
            )


@dataclass(frozen=True)
class ModelOptions:
    """What a model may need beyond its file.

    Args:
        weights: A file of weights only, for a model that a function builds.
        custom_objects: Modules that hold or register the model's own classes.
        constants: Input name to the value it has for the whole job.
        estimator: Whether `module:function` is a `model_fn` (or gives an Estimator) rather than building a Keras model.
        checkpoint: The `model_dir` of an Estimator, or one checkpoint in it.
        params: What its `model_fn` gets as params.
    """

    weights: str | None = None
    custom_objects: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    estimator: bool = False
    checkpoint: str | None = None
    params: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("weights", "checkpoint"):
            path = getattr(self, name)
            if path is not None and "://" not in path:
                # A resumed run may be started from another folder.
                object.__setattr__(self, name, os.path.abspath(path))
        try:
            json.dumps(self.params)
        except TypeError as error:
            raise UsageError(
                "params are plain values: they are kept with the job", received=f"params={self.params!r}: {error}"
            ) from None
        for name in ("checkpoint", "params"):
            if getattr(self, name) is not None and not self.estimator:
                raise UsageError(
                    f"--{name} is for Estimators",
                    received=f"{name}={getattr(self, name)!r}",
                    hint="give --estimator, too",
                )
        if self.estimator and (self.weights is not None or self.custom_objects):
            raise UsageError(
                "an Estimator takes its weights from a checkpoint",
                received="--weights" if self.weights is not None else "--custom-objects",
                hint="--checkpoint DIR",
            )


@dataclass(frozen=True)
class PredictOptions:
    """What a prediction job may be told beyond its model and its input.

    Args:
        inputs: Model input name to column names; empty where the columns are to be guessed.
        keep: Columns of the input that are written beside the predictions.
        rename: Output or kept column to the name it is written under.
        signature: The signature of a SavedModel.
        runtime: One of RUNTIMES; None finds the fastest that gives the same answers.
        precision: What the model computes in; `model` changes nothing.
        loading: What the model needs beyond its file.
        as_example: Whether columns are put into serialized `tf.train.Example` records; None where the model says so.
        outputs: The outputs to write; empty where all are.
        top_k: Write the k best classes of every output that is a vector, instead of the vector.
        argmax: Write the best class.
        labels: What the classes are called.
        squeeze: Write an output of one value for each row as a plain column, not as vectors of one value.
        check: Compare the first rows with the model's own framework on one CPU before the job begins.
        tolerance: How far apart two runtimes may be, as a share of the spread of an output.
        batch_size: Rows a device sees in one step; None finds the fastest, or takes the rule of `core.batching`.
        devices: Where to run.
        replicas_per_device: How many replicas share each device; None takes one, or more where measuring shows a gain.
        memory_fraction: The share of a device's free memory that may be taken.
        plan: A plan to go by, or its file, or `off` to search for none; None searches where a job is long enough.
        trace: The file for a trace of every stage, batch and device.
        threads: CPU threads of each replica; None shares the cores.
        format: One of FORMATS.
        part_rows: The most rows of one output file; None takes the rule of `core.division`.
        max_failures: The share of rows that may fail before the job stops, once 100 rows were seen.
        trust_model: Load models that contain code (Lambda layers, Python operations).
        reading: How sources read what files do not say themselves.
        preprocess: A function, or `module:function`, that makes a block of columns from a block of columns.
        preprocess_row: The same for functions that take and give one row.
        postprocess: A function, or `module:function`, from outputs and kept columns to the columns that are written.
        nulls: What is done with missing values.
        preset: A usual scaling of images, on the device.
        scale: What inputs are multiplied with on the device: one number, or one for each channel.
        offset: What is added after that.
        loaders: How many loaders; None finds out while running.
        row_timeout: Seconds that one row, or one call of `preprocess`, may take in a loader process.
        buckets: Lengths that rows of different lengths are padded to; None takes them from the data.
        padding: `auto` pads rows of different sizes where that changes no answer, `always` wherever sizes differ,
            `never` nowhere: then every batch holds rows of one size.
        skip: Leave out so many rows at the beginning.
        limit: Take at most so many rows.
        sample: Take so many rows, chosen by `seed`.
        sample_by: A column of which every value keeps its share in the sample.
        seed: Decides the sample, and the random numbers of a model that draws any.
    """

    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    signature: str | None = None
    runtime: str | None = None
    precision: str = "model"
    loading: ModelOptions = field(default_factory=ModelOptions)
    as_example: bool | None = None
    outputs: tuple[str, ...] = ()
    top_k: int | None = None
    argmax: bool = False
    labels: tuple[str, ...] = ()
    squeeze: bool = False
    check: bool = False
    tolerance: float = 1e-4
    batch_size: int | None = None
    devices: DeviceRequest = field(default_factory=DeviceRequest)
    replicas_per_device: int | None = None
    memory_fraction: float = 0.85
    plan: Any = None
    trace: str | None = None
    threads: int | None = None
    format: str = "parquet"
    part_rows: int | None = None
    max_failures: float = 0.1
    trust_model: bool = False
    reading: ReadOptions = field(default_factory=ReadOptions)
    preprocess: str | Callable[..., Any] | None = None
    preprocess_row: str | Callable[..., Any] | None = None
    postprocess: str | Callable[..., Any] | None = None
    nulls: Nulls = field(default_factory=Nulls)
    preset: str | None = None
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    loaders: int | None = None
    row_timeout: float = 120.0
    buckets: tuple[int, ...] | None = None
    padding: str = "auto"
    skip: int = 0
    limit: int | None = None
    sample: int | None = None
    sample_by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice("runtime", self.runtime, RUNTIMES)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("format", self.format, FORMATS)
        _check_choice("preset", self.preset, PRESETS)
        _check_choice("padding", self.padding, PADDINGS)
        for name in _COUNTS:
            _check_positive(name, getattr(self, name))
        self._check_rows()
        self._check_functions()
        self._check_answers()
        if not 0 <= self.max_failures <= 1:
            raise UsageError(
                "max_failures is out of range",
                received=f"max_failures={self.max_failures!r}",
                allowed="a share from 0 (stop at the first) to 1 (never stop)",
            )
        if not 0 < self.memory_fraction <= 1:
            raise UsageError(
                "memory_fraction is out of range",
                received=f"memory_fraction={self.memory_fraction!r}",
                allowed="a share of the free memory, above 0 and up to 1: 0.85",
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

        if self.buckets is not None and self.padding == "never":
            raise UsageError(
                "buckets are what rows are padded to", received="buckets and padding=never", allowed="one of them"
            )

    def _check_answers(self) -> None:
        if self.argmax and self.top_k is not None:
            raise UsageError(
                "the best class is the first of the k best", received="top_k and argmax", allowed="one of them"
            )
        if self.labels and not self.argmax and self.top_k is None:
            raise UsageError(
                "labels name the best classes", received="labels", hint="--top-k 5 --labels FILE, or --argmax"
            )
        if len(set(self.outputs)) != len(self.outputs):
            raise UsageError("an output is named twice", received=f"outputs={', '.join(self.outputs)}")
        if not 0 <= self.tolerance < 1:
            raise UsageError(
                "tolerance is out of range",
                received=f"tolerance={self.tolerance!r}",
                allowed="a share from 0 to 1: 1e-4",
            )

    def _check_functions(self) -> None:
        given = [value for value in (self.preprocess, self.preprocess_row) if value is not None]
        if len(given) > 1:
            raise UsageError("one function preprocesses a job", received="preprocess and preprocess_row")
        named = [*(("preprocess", value) for value in given), ("postprocess", self.postprocess)]
        for name, value in named:
            if isinstance(value, str) and not re.fullmatch(r"[\w.]+:\w+", value):
                raise UsageError(
                    f"the {name}ing function is not understood", received=f"{value!r}", allowed="module:function"
                )
        if self.preset is not None and (self.scale is not None or self.offset is not None):
            raise UsageError("a preset says how to scale", received=f"preset={self.preset} and scale or offset")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"unknown {name}", received=f"{name}={value!r}", allowed=", ".join(choices))


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{name} must be a positive whole number", received=f"{name}={value!r}", allowed="1, 2, 3, …")
