"""A network of OpenVINO, compiled for the shapes of its batches and called by several threads."""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.records import Columns
from penstock.errors import one_line

MOST_SHAPES = 8
"""For how many shapes of batches a network is held compiled at the same time."""
_INT32 = np.iinfo(np.int32)
_PLACE = re.compile(r"(?:Exception from|failed at) src/\S+:\d+:?\s*|Check '[^']*'\s*")
"""Where in its sources OpenVINO met an error, and the condition that did not hold."""
_HIDDEN = ("openvino.tools.ovc", "openvino_telemetry")

Shapes = tuple[tuple[int, ...], ...]


def import_openvino() -> Any:
    """OpenVINO without its converters.

    Importing those tells Intel's servers, leaves files in the home folder, and takes half the time.
    """
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
    return openvino


def told(error: BaseException) -> str:
    """OpenVINO's reason in one line, without the places in its sources."""
    lines = [_PLACE.sub("", line).strip() for line in str(error).splitlines()]
    return one_line(type(error)(" ".join(line for line in lines if line)))


@dataclass(frozen=True)
class _Compiled:
    """A network for one shape of batches, with a request for each thread that calls it."""

    network: Any
    requests: threading.local = field(default_factory=threading.local)

    def request(self) -> Any:
        if not hasattr(self.requests, "own"):
            self.requests.own = self.network.create_infer_request()
        return self.requests.own


class Network:
    """A network and what it was compiled to.

    Batches of one shape are what a job has, apart from buckets and from batches that are taken apart to find a bad
    row; for a known shape OpenVINO is faster than for an open one. It is compiled when the first batch of a shape
    comes. The shape that was not used for longest is dropped for a new one; one that comes back after that is not
    compiled again, but runs with open shapes.

    Args:
        core: OpenVINO's.
        model: What was read.
        properties: What it is compiled with.
    """

    def __init__(self, core: Any, model: Any, properties: Mapping[str, Any]) -> None:
        self.model = model
        self._core = core
        self._properties = dict(properties)
        self._names: list[str] = [port.get_any_name() for port in model.inputs]
        self._declared = [port.get_partial_shape() for port in model.inputs]
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Shapes | None, _Compiled] = OrderedDict()
        self._dropped: set[Shapes] = set()

    def run(self, feeds: Columns) -> Columns:
        """The outputs by all their names. What comes back is the caller's: the request keeps none of it.

        Raises:
            ValueError: A shape is not what the network takes; or a whole number has more than 32 bits. OpenVINO would
                change the network for the one, and cut off the other.
        """
        arrays = [np.asarray(feeds[name], order="C") for name in self._names]
        for name, array in zip(self._names, arrays, strict=True):
            _refuse_long_numbers(name, array)
        request = self._for(tuple(array.shape for array in arrays)).request()
        # The arrays are read where they are; the outputs are copied.
        found = request.infer(arrays, share_inputs=True, share_outputs=False)
        return {name: array for port, array in found.items() for name in port.get_names()}

    def let_go(self) -> None:
        """Give back the memory of everything that is compiled; what comes next is compiled again."""
        with self._lock:
            self._compiled.clear()

    def _for(self, shapes: Shapes) -> _Compiled:
        with self._lock:
            key = None if shapes in self._dropped else shapes
            if key not in self._compiled:
                if len(self._compiled) >= MOST_SHAPES:
                    self._drop()
                self._compiled[key] = self._compile(key)
            self._compiled.move_to_end(key)
            return self._compiled[key]

    def _drop(self) -> None:
        shapes = next(key for key in self._compiled if key is not None)
        del self._compiled[shapes]
        self._dropped.add(shapes)

    def _compile(self, shapes: Shapes | None) -> _Compiled:
        model = self.model
        if shapes is not None and model.is_dynamic():
            self._check(shapes)
            model = model.clone()
            model.reshape({name: list(shape) for name, shape in zip(self._names, shapes, strict=True)})
        return _Compiled(self._core.compile_model(model, "CPU", self._properties))

    def _check(self, shapes: Shapes) -> None:
        for name, shape, declared in zip(self._names, shapes, self._declared, strict=True):
            if not declared.compatible(type(declared)(list(shape))):
                raise ValueError(f"{name} has the shape {shape}, and the model takes {declared}")


def _refuse_long_numbers(name: str, array: Any) -> None:
    if array.dtype in (np.int64, np.uint64) and array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
        raise ValueError(f"{name} holds a whole number of more than 32 bits, which OpenVINO cannot compute with")
