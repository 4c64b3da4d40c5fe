"""Options of a job: one field each, checked when they are made.

How they multiply: `devices` gives the number of replicas; each replica uses `threads` CPU threads and sees batches
of `batch_size` rows. `threads` and `batch_size` belong to the recipe (they decide the bits of the answers); the
number of replicas belongs to the placement (it decides only the speed).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from penstock import plugins
from penstock.errors import UsageError
from penstock.options import value_kinds as kinds
from penstock.options.class_names import ClassNames
from penstock.options.table import Decides, Kind, PlanKey, check_known, check_values, make, option, options_of, part

PRECISIONS = ("model", "bfloat16", "float16", "int8")
RESIZES = ("stretch", "crop", "pad")
INTERPOLATIONS = (
    "keras", "pillow-bilinear", "pillow-bicubic", "pillow-lanczos", "torchvision", "opencv-linear", "opencv-area",
)  # fmt: skip
COLORS = ("grayscale", "rgb", "rgba")
LOCAL, RAY = "local", "ray"
"""The engines."""
PRESETS = ("imagenet-torch", "imagenet-tf", "imagenet-caffe", "scale-0-1", "scale-1-1")

_model = partial(option, group="The model")
_fed = partial(option, group="What it is fed")
_rows = partial(option, group="Which rows")
_written = partial(option, group="What is written")
_run = partial(option, group="How it runs")

OUTPUT, SPEED, NOTHING = Decides.OUTPUT, Decides.SPEED, Decides.NOTHING
STEP, RUN, NO_KEY = PlanKey.STEP, PlanKey.RUN, PlanKey.NONE


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
        match = re.fullmatch(r"cpu:([1-9][0-9]{0,3})", text)
        if match is not None and int(match[1]) <= kinds.MOST_WORKERS:
            return cls("cpu", cpu_replicas=int(match[1]))
        if (match := re.fullmatch(r"gpu:([0-9]{1,4}(?:,[0-9]{1,4})*)", text)) is not None:
            indices = tuple(int(part) for part in match[1].split(","))
            if len(set(indices)) == len(indices):
                return cls("gpu", gpu_indices=indices)
        raise UsageError(
            "--devices is not understood",
            received=f"devices={text!r}",
            allowed=f"all, cpu, gpu, cpu:N (N replicas on the CPU, at most {kinds.MOST_WORKERS:,}), "
            "gpu:I,J,… (these GPUs, each once)",
        )

    def __str__(self) -> str:
        if self.cpu_replicas is not None:
            return f"cpu:{self.cpu_replicas}"
        if self.gpu_indices is not None:
            return "gpu:" + ",".join(map(str, self.gpu_indices))
        return self.kind


@dataclass(frozen=True)
class Nulls:
    """What is done with missing values. NaN is a value, not a missing one.

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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _read_nulls(given: Any, flag: str) -> Nulls:
    if isinstance(given, Nulls):
        return given
    if isinstance(given, Mapping):
        given = [given.get("numbers", "fail"), given.get("texts", "fail")] if given.keys() <= _RULES else [repr(given)]
    return Nulls.parse([given] if isinstance(given, (str, float, int)) else given)


_RULES = {entry.name for entry in fields(Nulls)}
_DEVICES = Kind(
    lambda given, flag: given if isinstance(given, DeviceRequest) else DeviceRequest.parse(given),
    write=str,
    also=(DeviceRequest,),
    metavar="WHICH",
)
_NULLS = Kind(
    _read_nulls,
    python="str | float | Sequence[str | float]",
    also=(Nulls, Mapping[str, str]),
    metavar="fail|nan|VALUE|empty",
    shell=kinds.REPEATABLE,
)
_RENAMES = kinds.pairs("OLD=NEW", "OLD=NEW, each name once", has_names_as_values=True)
_FEATURES = kinds.pairs("NAME=DTYPE[SHAPE]", "NAME=dtype[shape], for example image=uint8[28,28], each name once")
_TOLERANCE = kinds.number("SHARE", lambda share: 0 <= share < 1, "a share from 0 to 1: 1e-4")
_OUTPUTS = kinds.names("NAME,…", "an output is named twice", has_commas=True)
_FAILURES = kinds.number("SHARE", lambda share: 0 <= share <= 1, "a share from 0 (stop at the first) to 1 (never stop)")
_MEMORY = kinds.number("SHARE", lambda share: 0 < share <= 1, "a share of the free memory, above 0 and up to 1: 0.85")
_WORKERS = kinds.count_or_auto(kinds.MOST_WORKERS)
_SECONDS = kinds.number("SECONDS", lambda seconds: seconds > 0, "120, 0.5, …", problem="must be a number of seconds")


@dataclass(frozen=True)
class ReadOptions:
    """How sources read files, where the files themselves leave it open."""

    # fmt: off
    image_size: tuple[int, int] | None = _fed(kinds.IMAGE_SIZE, OUTPUT, STEP,
        help="Resize images. Default: what the model takes.")
    resize: str = _fed(kinds.choice(*RESIZES), OUTPUT, STEP, default="stretch",
        help="How images reach that size: pad puts black around what fits in, crop takes the middle of what covers it.")
    interpolation: str = _fed(kinds.choice(*INTERPOLATIONS), OUTPUT, STEP, default="keras",
        help="Whose decoding and resizing: the library's that the model was trained with.")
    fast_decode: bool = _fed(kinds.SWITCH, OUTPUT, STEP, default=False,
        help="Decode JPEGs at a half, a quarter or an eighth where that is large enough: faster, other pixels.")
    color: str | None = _fed(kinds.choice(*COLORS), OUTPUT, STEP,
        help="Default: by the model's channels.")
    images: tuple[str, ...] = _fed(kinds.names("COLUMN"), OUTPUT, STEP, default=(), flag="--image",
        help="A column of encoded images, or of their paths. Default: found where the model takes images. Repeatable.")
    features: Mapping[str, str] = _fed(_FEATURES, OUTPUT, STEP, default={}, flag="--feature",
        help="A feature of TFRecords. Default: inferred from the first records. Repeatable.")
    header: str = _fed(kinds.choice("auto", "yes", "no"), OUTPUT, STEP, default="auto",
        help="Whether CSV begins with the names of its columns; no: they are called f0, f1, ….")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True)
class ModelOptions:
    """What a model may need besides its file. The model's digest covers most of it, and so do the keys of plans."""

    # fmt: off
    weights: str | None = _model(kinds.path("FILE", is_kept=True), OUTPUT, NO_KEY,
        help="A file of weights only, for MODEL given as module:function.")
    custom_objects: tuple[str, ...] = _model(kinds.names("MODULE"), OUTPUT, NO_KEY, default=(),
        help="A module that holds the model's own classes. Repeatable.")
    constants: Mapping[str, str] = _model(kinds.CONSTANTS, OUTPUT, STEP, default={}, flag="--constant",
        help="The value of an input that is not one for each row. Repeatable.")
    estimator: bool = _model(kinds.ESTIMATOR, OUTPUT, NO_KEY, default=False,
        help="In place of MODEL: the model_fn of a tf.estimator, or a function that gives an Estimator.")
    checkpoint: str | None = _model(kinds.path("DIR", is_kept=True), OUTPUT, NO_KEY,
        help="The model_dir of --estimator, or one checkpoint in it.")
    params: Mapping[str, Any] | None = _model(kinds.PARAMS, OUTPUT, NO_KEY,
        help="The params of --estimator's model_fn.")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
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
class ClusterOptions:
    """Which machines a job runs on. None of this is in its fingerprint: a job may be resumed on any other machines."""

    # fmt: off
    engine: str = _run(kinds.choice(LOCAL, RAY), NOTHING, NO_KEY, default=LOCAL,
        help="local: this machine. ray: every node of a Ray cluster, which reads the input and writes parts itself.")
    address: str | None = _run(kinds.ADDRESS, NOTHING, NO_KEY,
        help="The Ray cluster. Default: RAY_ADDRESS, or one that is started on this machine for the job.")
    resources: Mapping[str, str] = _run(kinds.RESOURCES, NOTHING, NO_KEY, default={},
        help="What penstock takes on each Ray node (CPU=8; default: all CPUs and GPUs), or a label that a node has. "
        "Repeatable.")
    max_nodes: int | None = _run(kinds.count(), NOTHING, NO_KEY,
        help="Use at most N nodes of the Ray cluster at once.")
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("address", "resources", "max_nodes"):
            if getattr(self, name) and self.engine != RAY:
                raise UsageError(
                    f"{name} is for clusters", received=f"{name}={getattr(self, name)!r}", hint="give --engine ray, too"
                )

    def resume_line(self, output: str, workers: int | None = None) -> str:
        """The line for a shell that goes on with a job on the same machines.

        >>> ClusterOptions(RAY, "auto", {"CPU": "8"}).resume_line("out", workers=2)
        'penstock resume out --engine ray --address auto --resources CPU=8 --workers 2'
        """
        words = ["penstock", "resume", output]
        if self.engine != LOCAL:
            given: list[tuple[str, Any]] = [("engine", self.engine), ("address", self.address)]
            given += [("resources", f"{name}={value}") for name, value in self.resources.items()]
            given += [("max-nodes", self.max_nodes), ("workers", workers)]
            words += [word for name, value in given if value is not None for word in (f"--{name}", str(value))]
        return shlex.join(words)


@dataclass(frozen=True)
class PredictOptions:
    """The options of a prediction job, besides its model and its input."""

    # fmt: off
    # NO_KEY: the keys of plans contain the signature that was found in the model.
    signature: str | None = _model(kinds.text("NAME"), OUTPUT, NO_KEY,
        help="Which signature of a SavedModel; default: serving_default, or the only one.")
    runtime: str | None = _model(kinds.plugin(plugins.RUNTIMES, has_auto=True), OUTPUT, RUN,
        help="What executes the model; auto: the fastest that is installed and gives the same answers.")
    precision: str = _model(kinds.choice(*PRECISIONS), OUTPUT, STEP, default="model",
        help="What the model computes in. Never lowered unless asked for here.")
    loading: ModelOptions = part(ModelOptions)
    trust_model: bool = _model(kinds.SWITCH, OUTPUT, NO_KEY, default=False,
        help="Load models that contain code (Lambda layers, …).")
    check: bool = _model(kinds.SWITCH, NOTHING, NO_KEY, default=False,
        help="First compare some answers with the model's own framework on one CPU device.")
    tolerance: float = _model(_TOLERANCE, OUTPUT, RUN, default=1e-4,
        help="How far two runtimes may differ, as a share of an output's spread.")

    inputs: Mapping[str, tuple[str, ...]] = _fed(kinds.INPUTS, OUTPUT, STEP, default={}, flag="--input",
        help="Which column feeds which input; several columns, or prefix*, are stacked. Repeatable.")
    as_example: bool | None = _fed(kinds.YES_OR_NO, OUTPUT, STEP, flag="--as-example/--no-as-example",
        help="Put columns into tf.train.Example records. Default: where the model parses them.")
    preprocess: str | Callable[..., Any] | None = _fed(kinds.FUNCTION, OUTPUT, STEP,
        help="A function from a block of columns (a dict of arrays) to another, run in the loaders.")
    preprocess_row: str | Callable[..., Any] | None = _fed(kinds.FUNCTION, OUTPUT, STEP,
        help="As --preprocess, row by row.")
    preset: str | None = _fed(kinds.choice(*PRESETS), OUTPUT, STEP,
        help="A usual scaling of images, on the device.")
    scale: tuple[float, ...] | None = _fed(kinds.NUMBERS, OUTPUT, STEP,
        help="Multiply inputs on the device: one number, or one a channel.")
    offset: tuple[float, ...] | None = _fed(kinds.NUMBERS, OUTPUT, STEP,
        help="Add this after --scale.")
    reading: ReadOptions = part(ReadOptions)
    nulls: Nulls = _fed(_NULLS, OUTPUT, STEP, default=Nulls(),
        help="Missing values: failed rows (the default), NaN or a number; for text the empty text. Repeatable.")
    buckets: tuple[int, ...] | None = _fed(kinds.LENGTHS, OUTPUT, STEP,
        help="What lists of different lengths are padded to. Default: by the data.")
    padding: str = _fed(kinds.choice("auto", "always", "never"), OUTPUT, STEP, default="auto",
        help="Whether rows of different sizes are padded to share a batch; auto: where that changes no answer.")

    limit: int | None = _rows(kinds.count(), OUTPUT, NO_KEY,
        help="Take at most N rows.")
    skip: int = _rows(kinds.WHOLE, OUTPUT, NO_KEY, default=0,
        help="Leave out the first N rows.")
    sample: int | None = _rows(kinds.count(), OUTPUT, NO_KEY,
        help="Try the job on N rows from all over the input.")
    sample_by: str | None = _rows(kinds.text("COLUMN"), OUTPUT, NO_KEY,
        help="Every value of COLUMN keeps its share in the sample.")
    seed: int = _rows(kinds.WHOLE, OUTPUT, NO_KEY, default=0,
        help="Decides the sample, and what a random model draws.")

    outputs: tuple[str, ...] = _written(_OUTPUTS, OUTPUT, STEP, default=(),
        help="Write only these outputs of the model.")
    top_k: int | None = _written(kinds.count("K"), OUTPUT, STEP,
        help="Write the K best classes and their scores, not all values.")
    argmax: bool = _written(kinds.SWITCH, OUTPUT, STEP, default=False,
        help="Write the best class, not all values.")
    labels: ClassNames = _written(kinds.LABELS, OUTPUT, NO_KEY, default=(),
        help="The names of the classes: one a line, or JSON; of several outputs a list for each.")
    postprocess: str | Callable[..., Any] | None = _written(kinds.FUNCTION, OUTPUT, NO_KEY,
        help="A function from outputs and kept columns (a dict of arrays) to the columns that are written.")
    squeeze: bool = _written(kinds.SWITCH, OUTPUT, NO_KEY, default=False,
        help="Write an output of one value a row as a plain column.")
    keep: tuple[str, ...] = _written(kinds.names("COLUMN", "a column is kept twice"), OUTPUT, STEP, default=(),
        help="Write this column, too; @folder is the name of a photo's folder. Repeatable.")
    rename: Mapping[str, str] = _written(_RENAMES, OUTPUT, NO_KEY, default={},
        help="Write a column under another name. Repeatable.")
    format: str = _written(kinds.plugin(plugins.SINKS), OUTPUT, NO_KEY, default="parquet",
        help="What to write.")
    part_rows: int | None = _written(kinds.count(), OUTPUT, NO_KEY,
        help="Most rows of one file, but at least a batch. Default: 64 MB, or what is expected in 30 s.")
    max_failures: float = _written(_FAILURES, NOTHING, NO_KEY, default=0.1,
        help="Stop when more than this share of rows failed, once 100 were seen.")

    batch_size: int | None = _run(kinds.count_or_auto(kinds.MOST_ROWS), OUTPUT, RUN,
        help="Rows a device sees in one step; auto measures, where the job is long enough.")
    devices: DeviceRequest = _run(_DEVICES, SPEED, RUN, default=DeviceRequest(),
        help="all (every GPU, or the CPU), cpu, gpu, cpu:4 (four CPU replicas), gpu:0,2.")
    replicas_per_device: int | None = _run(_WORKERS, SPEED, RUN,
        help="Processes that share each device; auto takes more than one where measuring shows a gain.")
    memory_fraction: float = _run(_MEMORY, SPEED, RUN, default=0.85,
        help="The share of a device's free memory that may be taken.")
    decoder: str = _run(kinds.DECODER, SPEED, NO_KEY, default="auto",
        help="Who decodes JPEGs: cpu: the loaders; gpu: the engine of the GPU beside them; gpu:0.4: that share of "
        "them; auto: the engine, too, in a long job where it makes the loaders' pixels to the bit.")
    plan: Any = _run(kinds.PLAN, OUTPUT, NO_KEY,
        help="Go by this plan of `penstock plan --json`; off: by rules of thumb. Default: a cached one, or a search.")
    trace: str | None = _run(kinds.path("FILE"), NOTHING, NO_KEY,
        help="Write a trace of every stage, batch and device, for Perfetto.")
    threads: int | None = _run(_WORKERS, OUTPUT, RUN,
        help="CPU threads of each replica.")
    loaders: int | None = _run(_WORKERS, SPEED, NO_KEY,
        help="Processes that decode and preprocess (or threads of each replica, where that is enough).")
    row_timeout: float = _run(_SECONDS, OUTPUT, NO_KEY, default=120.0,
        help="How long one row, or one call of your function, may take; then it is a failed row.")
    hang_timeout: float = _run(_SECONDS, NOTHING, NO_KEY, default=60.0,
        help="Replace a process that makes no progress for so long, and for 20 times the slowest batch.")
    start_timeout: float = _run(_SECONDS, NOTHING, NO_KEY, default=1800.0,
        help="How long loading and compiling the model may take.")
    cluster: ClusterOptions = part(ClusterOptions)
    # fmt: on

    def __post_init__(self) -> None:
        check_values(self)
        self._check_rows()
        self._check_answers()
        if self.preprocess is not None and self.preprocess_row is not None:
            raise UsageError("one function preprocesses a job", received="preprocess and preprocess_row")
        if self.preset is not None and (self.scale is not None or self.offset is not None):
            raise UsageError("a preset says how to scale", received=f"preset={self.preset} and scale or offset")
        if self.buckets is not None and self.padding == "never":
            raise UsageError(
                "buckets are what rows are padded to", received="buckets and padding=never", allowed="one of them"
            )

    def _check_rows(self) -> None:
        if self.sample is not None and (self.skip or self.limit is not None):
            raise UsageError(
                "a sample is taken of the whole input",
                received=f"sample={self.sample}, skip={self.skip}, limit={self.limit}",
                allowed="sample, or skip and limit",
            )
        if self.sample_by is not None and self.sample is None:
            raise UsageError("sample_by says how, but not how many", hint=f"--sample N --sample-by {self.sample_by}")

    def _check_answers(self) -> None:
        if self.argmax and self.top_k is not None:
            raise UsageError(
                "the best class is the first of the k best", received="top_k and argmax", allowed="one of them"
            )
        if self.labels and not self.argmax and self.top_k is None:
            raise UsageError(
                "labels name the best classes, which are not asked for",
                received="--labels alone",
                allowed="--argmax --labels FILE, or --top-k 5 --labels FILE",
            )


OPTIONS = options_of(PredictOptions)
"""Every option of a job, by its keyword. This line fails if a field is not classified."""


def make_options(given: Mapping[str, Any], function: Callable[..., Any] | None = None) -> PredictOptions:
    """The options of a job, from what was given in the shell, in Python or in a request; None counts as not given.

    `function` is the public function that was called, if there is one.

    Raises:
        UsageError: One is unknown, or not understood, or not allowed.
    """
    check_known(given, OPTIONS, function)
    given = {name: value for name, value in given.items() if value is not None}
    # In Python, an Estimator's function is given as `model`; a checkpoint shows that it is one.
    return make(PredictOptions, {"estimator": True, **given} if "checkpoint" in given else given)
