"""`Estimator.predict`: lazily, in order, on every device."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from penstock.core.records import Device
from penstock.estimator.calling import LOG
from penstock.estimator.handing_over import predict_on_all
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.own_graph import OwnGraph
from penstock.estimator.placing import place
from penstock.estimator.refusals import WrongValue
from penstock.pool.devices.inventory import choose, cpu_device, share_of_cores


def predict(
    function: ModelFunction,
    input_fn: Callable[..., Any],
    *,
    predict_keys: str | Sequence[str] | None = None,
    hooks: Sequence[Any] = (),
    checkpoint_path: str | None = None,
    yield_single_examples: bool = True,
) -> Generator[Any, None, None]:
    """The predictions for every row of the input. Nothing happens before the caller takes the first one.

    On one device, an element is read when its predictions are taken. With several devices, if predicting goes on for
    seconds, one process for each device takes over. The input is then read ahead by up to four bundles of elements for
    each CPU and six for each GPU (each of at most 64 elements); nothing waits for elements that are not there yet. An
    `input_fn` that calls Python code (`from_generator`, `py_func`) may depend on earlier predictions: it is read ahead
    only if `RunConfig` names devices. The other processes use `threads` CPU threads each, and this one uses all: so the
    last bits of the predictions may differ between them.

    Args:
        function: The `model_fn`.
        input_fn: Returns a dataset of features, or tensors; labels are left out.
        predict_keys: The keys of a dict of predictions that are kept.
        hooks: Session hooks. With these or with `prediction_hooks`, only one device predicts, in this process.
        checkpoint_path: Another checkpoint than the newest of `model_dir`.
        yield_single_examples: Yield rows; else whole batches.

    Returns:
        Dicts of the predictions, or single values where the `model_fn` predicts a single tensor.

    Raises:
        ModelError: There is no checkpoint, it does not fit, or the `model_fn` failed.
        WrongValue: `predict_keys` names nothing, or predictions are not one for each row.
    """
    keys = (predict_keys,) if isinstance(predict_keys, str) else tuple(predict_keys or ())
    function = replace(function, checkpoint=checkpoint_path or function.checkpoint, predict_keys=keys)
    batches = _batches(function, input_fn, list(hooks))
    with closing(batches):
        if yield_single_examples:
            for batch in batches:
                yield from rows_of(batch)
        else:
            yield from batches


def _batches(function: ModelFunction, input_fn: Callable[..., Any], hooks: list[Any]) -> Generator[Any, None, None]:
    config = function.called.config
    placing = place(config)
    devices = _devices(function, placing.devices)
    threads = config.threads or config.num_cores or share_of_cores(len(devices))
    own = OwnGraph(function, input_fn, hooks, placing.devices[0], is_alone=len(devices) == 1)
    with closing(own):
        if len(devices) > 1 and not own.hooks and own.features is not None:
            yield from predict_on_all(own, function, devices, threads, is_asked_for=placing.is_asked_for)
            return
        if len(devices) > 1:
            why = "session hooks need the session" if own.hooks else "the features are not tensors"
            LOG.warning("one device predicts, in this process: %s", why)
        yield from own.predict_all()


def _devices(function: ModelFunction, places: Sequence[str]) -> list[Device]:
    chosen = choose(function.called.config.device_request)
    is_gpu = places[0].startswith("/GPU")
    return chosen if is_gpu == (chosen[0].kind == "gpu") else [cpu_device()]


def rows_of(predictions: Any) -> Iterator[Any]:
    """The predictions of a batch, row by row.

    >>> import numpy as np
    >>> list(rows_of(np.array([1, 2])))
    [np.int64(1), np.int64(2)]

    Raises:
        WrongValue: They are not one for each row.
    """
    if not isinstance(predictions, Mapping):
        if getattr(predictions, "ndim", 1) == 0:
            raise _not_rows("it", ())
        return iter(predictions)
    lengths: dict[Any, int] = {}
    for name, value in predictions.items():
        shape = getattr(value, "shape", None)
        if not shape:
            raise _not_rows(name, shape)
        lengths[name] = shape[0]
    if len(set(lengths.values())) > 1:
        raise WrongValue(
            "the predictions differ in their number of rows",
            received=", ".join(f"{name} {rows}" for name, rows in lengths.items()),
            hint="yield_single_examples=False yields whole batches",
        )
    names = list(predictions)
    return (dict(zip(names, row, strict=True)) for row in zip(*predictions.values(), strict=True))


def _not_rows(name: Any, shape: Any) -> WrongValue:
    return WrongValue(
        "a prediction is not one for each row",
        received=f"{name}: shape {shape}",
        hint="yield_single_examples=False yields whole batches",
    )
