"""Types of the keywords of the Python twins, for editors and type checkers.

Written from the table of options: python -m tests.support.keyword_types
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from penstock.core.plans import Plan


class PredictKeywords(TypedDict, total=False):
    """The options of `predict`, as its command has them, without what it takes by position."""

    signature: str
    runtime: str
    precision: str
    weights: str | os.PathLike[str]
    custom_objects: str | Sequence[str]
    constants: Mapping[str, Any]
    estimator: bool
    checkpoint: str | os.PathLike[str]
    params: Mapping[str, Any]
    trust_model: bool
    check: bool
    tolerance: float
    inputs: Mapping[str, str | Sequence[str]]
    as_example: bool
    preprocess: str | Callable[..., Any]
    preprocess_row: str | Callable[..., Any]
    preset: str
    scale: float | Sequence[float]
    offset: float | Sequence[float]
    image_size: int | tuple[int, int] | str
    resize: str
    interpolation: str
    fast_decode: bool
    color: str
    images: str | Sequence[str]
    features: Mapping[str, str]
    header: str
    nulls: str | float | Sequence[str | float]
    buckets: Sequence[int]
    padding: str
    limit: int
    skip: int
    sample: int
    sample_by: str
    seed: int
    outputs: str | Sequence[str]
    top_k: int
    argmax: bool
    labels: str | os.PathLike[str] | Sequence[str] | Mapping[str, Sequence[str]]
    postprocess: str | Callable[..., Any]
    squeeze: bool
    keep: str | Sequence[str]
    rename: Mapping[str, str]
    format: str
    part_rows: int
    max_failures: float
    devices: str
    replicas_per_device: int | str
    memory_fraction: float
    decoder: str
    plan: str | os.PathLike[str] | Plan
    trace: str | os.PathLike[str]
    threads: int | str
    loaders: int | str
    row_timeout: float
    hang_timeout: float
    start_timeout: float
    engine: str
    address: str
    resources: Mapping[str, str | float]
    max_nodes: int


class Keywords(PredictKeywords, total=False):
    """The options of `predict`, `stream` and `plan`, as their commands have them."""

    batch_size: int | str


class EvaluateKeywords(TypedDict, total=False):
    """The options of `evaluate`, as its command has them, without what it takes by position."""

    label: str | Mapping[str, str]
    labels: str | os.PathLike[str] | Sequence[str] | Mapping[str, Sequence[str]]
    weight: str
    metrics: str | Sequence[str]
    loss: str | Sequence[str]
    per_class: bool
    confusion: bool
    from_predictions: str | os.PathLike[str]
    signature: str
    runtime: str
    precision: str
    weights: str | os.PathLike[str]
    custom_objects: str | Sequence[str]
    constants: Mapping[str, Any]
    trust_model: bool
    check: bool
    tolerance: float
    inputs: Mapping[str, str | Sequence[str]]
    as_example: bool
    preprocess: str | Callable[..., Any]
    preprocess_row: str | Callable[..., Any]
    preset: str
    scale: float | Sequence[float]
    offset: float | Sequence[float]
    image_size: int | tuple[int, int] | str
    resize: str
    interpolation: str
    fast_decode: bool
    color: str
    images: str | Sequence[str]
    features: Mapping[str, str]
    header: str
    nulls: str | float | Sequence[str | float]
    buckets: Sequence[int]
    padding: str
    limit: int
    skip: int
    sample: int
    sample_by: str
    seed: int
    keep: str | Sequence[str]
    part_rows: int
    max_failures: float
    devices: str
    replicas_per_device: int | str
    memory_fraction: float
    decoder: str
    plan: str | os.PathLike[str] | Plan
    trace: str | os.PathLike[str]
    threads: int | str
    loaders: int | str
    row_timeout: float
    hang_timeout: float
    start_timeout: float
    engine: str
    address: str
    resources: Mapping[str, str | float]
    max_nodes: int


class FitFileKeywords(TypedDict, total=False):
    """The options of `fit` on files, as its command has them, without those that `fit` takes for live models, too."""

    label: str | Mapping[str, str]
    weight: str
    class_weights: str
    loss: str | Sequence[str]
    metrics: str | Sequence[str]
    optimizer: str
    learning_rate: float
    clip_norm: float
    mixed_precision: str
    seed: int
    workers: int
    cache: str
    validation: str | Sequence[str]
    stratify: bool
    early_stopping: int
    checkpoint_every: int | str
    keep_checkpoints: int
    log_every: int
    tensorboard: bool
    runtime: str
    weights: str | os.PathLike[str]
    custom_objects: str | Sequence[str]
    trust_model: bool
    inputs: Mapping[str, str | Sequence[str]]
    preprocess: str | Callable[..., Any]
    preprocess_row: str | Callable[..., Any]
    preset: str
    scale: float | Sequence[float]
    offset: float | Sequence[float]
    image_size: int | tuple[int, int] | str
    resize: str
    interpolation: str
    fast_decode: bool
    color: str
    images: str | Sequence[str]
    features: Mapping[str, str]
    header: str
    nulls: str | float | Sequence[str | float]
    buckets: Sequence[int]
    max_failures: float
    devices: str
    memory_fraction: float
    threads: int | str
    loaders: int | str
    row_timeout: float
    hang_timeout: float
    start_timeout: float
    trace: str | os.PathLike[str]
    engine: str
    address: str
    resources: Mapping[str, str | float]
