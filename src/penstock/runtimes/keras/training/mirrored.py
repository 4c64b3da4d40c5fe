"""A live Keras model on TensorFlow with its variables mirrored on several devices, in place.

Nothing is cloned: inside every Keras variable, a mirrored variable takes the place of the plain one. So callbacks,
custom layers and other holders of the model keep the same objects. `put_back` restores the plain variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.runtimes.frameworks import keras, tf
from penstock.runtimes.keras.training.variables import variables_of


class MirroredModel:
    """The variables of a built model, mirrored until `put_back`."""

    def __init__(self, model: Any, strategy: Any) -> None:
        self._model = model
        self._plain: list[tuple[Any, Any]] = []
        self._strategy_before = model._distribute_strategy
        self._jit_before = model.jit_compile
        variables = variables_of(model)  # outside of the strategy's scope, because this may make a variable
        self._statistics = _statistics_of(model)
        of_rows = {id(variable) for variable in self._statistics}
        with strategy.scope():
            for variable in variables.values():
                self._plain.append((variable, variable._value))
                variable._value = _mirrored(variable, id(variable) in of_rows)
        self._move_to(strategy)
        # XLA cannot compile a function that calls `strategy.run`.
        model.jit_compile = False

    @property
    def was_jit_compiled(self) -> bool:
        return bool(self._jit_before)

    def even_out(self) -> None:
        """Set the statistics of rows on all devices to their means over the devices."""
        for variable in self._statistics:
            variable._value.assign(variable._value.read_value())

    def put_back(self) -> None:
        """Make the variables plain again, with the values that they have now."""
        for variable, plain in self._plain:
            plain.assign(variable._value.read_value())
            variable._value = plain
        self._plain = []
        self._move_to(self._strategy_before)
        self._model.jit_compile = self._jit_before

    def _move_to(self, strategy: Any) -> None:
        model = self._model
        model._distribute_strategy = strategy
        for optimizer in optimizers_of(model):
            optimizer._distribution_strategy = strategy or tf.distribute.get_strategy()
            # The optimizer finds the slots of a variable by the identity of the inner variable.
            indices = {optimizer._var_key(v): number for number, v in enumerate(optimizer._trainable_variables)}
            optimizer._trainable_variables_indices = indices
        # Functions that were traced before use the old inner variables.
        model.train_function = model.test_function = model.predict_function = None


def optimizers_of(model: Any) -> Iterable[Any]:
    """The model's optimizer and, if it is one for a loss scale, the optimizer inside it."""
    optimizer = model.optimizer
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _statistics_of(model: Any) -> list[Any]:
    """Weights that layers compute from the rows they see, such as the moving averages of batch normalisation."""
    layers = [layer for layer in model._flatten_layers() if layer.trainable]
    return [
        variable
        for variable in {id(each): each for layer in layers for each in layer._non_trainable_variables}.values()
        if variable.aggregation == "none" and keras.backend.is_float_dtype(variable.dtype)
    ]


def _mirrored(variable: Any, is_of_rows: bool) -> Any:
    """A mirrored variable. If each device computes it from its own rows, its value is the mean over the devices."""
    plain = variable._value
    aggregation, synchronization = variable.aggregation, variable.synchronization
    if is_of_rows:
        aggregation, synchronization = "mean", "on_read"
    mirrored = tf.Variable(
        plain.read_value(),
        dtype=plain.dtype,
        trainable=bool(variable.trainable),
        name=variable.name,
        aggregation=variable._map_aggregation(aggregation),
        synchronization=variable._map_synchronization(synchronization),
    )
    if synchronization == "on_read" and aggregation == "sum":
        # Reading adds the copies up: so the first one has the value, and the others are 0.
        for copy in mirrored.values[1:]:
            copy.assign(tf.zeros_like(copy))
    return mirrored
