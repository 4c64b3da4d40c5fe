"""Keras's callbacks, as the loop of training calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.runtimes.frameworks import keras


def flat_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks as one list, in whatever way Keras takes them."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks)) if callbacks else []


class KerasCallbacks:
    """A `CallbackList` of Keras with a History in it.

    Hooks that no callback overrides are not called, because reading the logs for them waits for the device.
    """

    def __init__(
        self, model: Any, callbacks: Any, *, verbose: Any, epochs: int, steps: int | None, initial_epoch: int = 0
    ) -> None:
        self._model = model
        self._initial_epoch = initial_epoch
        if isinstance(callbacks, keras.callbacks.CallbackList):
            self._list = callbacks
        else:
            self._list = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=epochs,
                steps=steps,
                model=model,
            )
        self._has_train_begin = self._has_any("on_train_batch_begin", "on_batch_begin")
        self._has_train_end = self._has_any("on_train_batch_end", "on_batch_end")
        self._has_test_begin = self._has_any("on_test_batch_begin")
        self._has_test_end = self._has_any("on_test_batch_end")

    def _has_any(self, *hooks: str) -> bool:
        base = keras.callbacks.Callback
        return any(
            getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)
            for callback in self._list.callbacks
            for hook in hooks
        )

    @property
    def history(self) -> Any:
        """Keras's History of the epochs."""
        return self._model.history

    @property
    def is_stopped(self) -> bool:
        """Whether a callback has asked to end training."""
        return bool(self._model.stop_training)

    @property
    def initial_epoch(self) -> int:
        """The epoch to begin with: the one that a callback set when it restored the model, else the one given."""
        return int(self._model._initial_epoch or self._initial_epoch)

    def train_begin(self) -> None:
        self._model.stop_training = False
        self._list.on_train_begin()

    def train_end(self, logs: Mapping[str, float]) -> None:
        self._list.on_train_end(dict(logs))

    def epoch_begin(self, epoch: int) -> None:
        self._list.on_epoch_begin(epoch)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._list.on_epoch_end(epoch, dict(logs))

    def train_batch_begin(self, step: int) -> None:
        if self._has_train_begin:
            self._list.on_train_batch_begin(step)

    def train_batch_end(self, step: int, logs: Callable[[], Any]) -> None:
        if self._has_train_end:
            self._list.on_train_batch_end(step, logs())

    def test_begin(self) -> None:
        self._model.stop_evaluating = False
        self._list.on_test_begin()

    def test_batch_begin(self, step: int) -> None:
        if self._has_test_begin:
            self._list.on_test_batch_begin(step)

    def test_batch_end(self, step: int, logs: Callable[[], Any]) -> None:
        if self._has_test_end:
            self._list.on_test_batch_end(step, logs())

    def test_end(self, logs: Mapping[str, float]) -> None:
        self._list.on_test_end(dict(logs))

    def state(self) -> Any:
        """The state of the callbacks: attributes that are plain values or arrays, and whether one ended training."""
        kept = [(type(each).__name__, _plain_attributes(each), _operations(each)) for each in self._list.callbacks]
        return {"is_stopped": self.is_stopped, "callbacks": kept}

    def restore(self, state: Any) -> None:
        """Give the state back to callbacks of the same classes, in their order."""
        left = list(state["callbacks"])
        for callback in self._list.callbacks:
            kept = next((each for each in left if each[0] == type(callback).__name__), None)
            if kept is not None:
                left = [each for each in left if each is not kept]
                vars(callback).update(kept[1])
                vars(callback).update({name: getattr(keras.ops, operation) for name, operation in kept[2].items()})
        self._model.stop_training = state["is_stopped"]


_OF_RUN = ("_model", "model", "_params", "params")
"""Attributes that Keras sets on every callback."""


def _plain_attributes(callback: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(callback).items() if name not in _OF_RUN and _is_plain(value)}


def _operations(callback: Any) -> dict[str, str]:
    """Attributes that are functions of Keras, to their names: with these, callbacks compare the values they monitor.

    Without its function, a restored callback would choose one again, and turn the sign of `min_delta` a second time.
    """
    named = {name: getattr(value, "__name__", "") for name, value in vars(callback).items() if callable(value)}
    return {
        name: operation
        for name, operation in named.items()
        if getattr(keras.ops, operation or "?", None) is vars(callback)[name]
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    return value is None or type(value) in (bool, int, float, str)
