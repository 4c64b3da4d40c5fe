"""A learning rate that grows with the number of devices, when the user asks for it, with a warm-up."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError
from penstock.runtimes.frameworks import keras

FACTORS = {"linear": lambda devices: float(devices), "sqrt": lambda devices: float(devices**0.5)}


def scaled_learning_rate(model: Any, how: str, num_devices: int, warm_up_steps: int, done_steps: int = 0) -> Any:
    """A callback that raises the learning rate from the optimizer's own to this times a factor, and leaves it there.

    Args:
        model: The compiled model. In a resumed job, it has the learning rate with which the job began.
        how: "linear" or "sqrt": how the factor grows with the number of devices.
        num_devices: How many devices train.
        warm_up_steps: The number of steps after which the factor is reached.
        done_steps: The number of steps that were made before.

    Raises:
        UsageError: The way is unknown, or the optimizer has a schedule of its own.
    """
    if how not in FACTORS:
        raise UsageError("unknown way to scale the learning rate", received=how, allowed=", ".join(FACTORS))
    optimizer = model.optimizer
    if not isinstance(getattr(optimizer, "inner_optimizer", optimizer)._learning_rate, keras.Variable):
        raise UsageError(
            "the optimizer has a schedule for its learning rate, which is not scaled",
            received=f"scale_lr={how!r}",
            hint="scale the schedule yourself, or give the optimizer a number",
        )
    base = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    factor = FACTORS[how](num_devices)

    class WarmUp(keras.callbacks.Callback):  # type: ignore[misc]
        """Sets the learning rate before each step of the warm-up."""

        step = done_steps

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.step <= warm_up_steps:
                if hasattr(self.model, "jax_state_sync"):
                    self.model.jax_state_sync()  # on JAX, steps read the state, and the variables only after a sync
                reached = min(self.step / warm_up_steps, 1.0) if warm_up_steps else 1.0
                optimizer.learning_rate = base * (1.0 + (factor - 1.0) * reached)
            self.step += 1

    return WarmUp()
