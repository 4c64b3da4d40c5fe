"""Chooses the trainer of a live model by its backend and the devices of the process."""

from __future__ import annotations

from typing import Any

from penstock.errors import DeviceError, ModelError, UsageError
from penstock.options.fit_records import BACKENDS
from penstock.runtimes.frameworks import jax, keras, tf
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, Pack, StepSettings
from penstock.runtimes.keras.training.mirrored import optimizers_of
from penstock.runtimes.keras.training.own_step import MEAN, NO_PIECES, UNKNOWN, kind_of_loss

_OF_GPUS = ("nccl", "hierarchical")


def open_trainer(
    model: Any, pack: Pack, first: Any, settings: StepSettings | None = None, num_devices: int | None = None
) -> KerasTrainer:
    """A trainer over every device of the process, or the first `num_devices`.

    Args:
        model: A compiled Keras model.
        pack: Makes the data for its step from a batch.
        first: One batch, packed, to build the model with.
        settings: How a batch is worked on.
        num_devices: How many devices to use; None for all.

    Raises:
        ModelError: The model is not compiled, or its backend cannot train here.
        DeviceError: There are fewer devices than that.
    """
    settings = settings or StepSettings()
    if not model.compiled:
        raise ModelError(
            "the model is not compiled",
            hint="model.compile(optimizer=…, loss=…) first, as for model.fit",
        )
    backend = str(keras.backend.backend())
    if backend not in BACKENDS:
        raise ModelError("penstock does not train on this Keras backend", received=backend, allowed=", ".join(BACKENDS))
    if settings.all_reduce != "auto" and backend != "tensorflow":
        raise UsageError(
            f"Keras on {backend} adds gradients up in its own way",
            received=f"--all-reduce {settings.all_reduce}",
            hint="leave it out; Keras on TensorFlow has the choice: --runtime tensorflow",
        )
    if backend != "tensorflow":
        _build(model, _as_stepped_on(first, settings))
        loss = _loss_of(model, first, settings, settings.accumulate > 1)
    if backend == "torch":
        from penstock.runtimes.keras.training.torch import TorchTrainer, num_gpus

        return TorchTrainer(model, pack, settings, loss, len(_chosen([*range(max(1, num_gpus()))], num_devices)))
    devices = _chosen(jax.local_devices() if backend == "jax" else _tensorflow_devices(), num_devices)
    if backend == "jax":
        from penstock.runtimes.keras.training.jax import JaxTrainer

        return JaxTrainer(model, pack, settings, devices, loss)
    return _on_tensorflow(model, pack, first, settings, devices)


def _on_tensorflow(model: Any, pack: Pack, first: Any, settings: StepSettings, devices: list[str]) -> KerasTrainer:
    from penstock.runtimes.keras.training import tensorflow

    if model._distribute_strategy is not None:
        raise UsageError(
            "the model was made in the scope of a tf.distribute strategy",
            received=type(model._distribute_strategy).__name__,
            hint="make it outside: penstock.fit mirrors it on the devices by itself",
        )
    if settings.all_reduce in _OF_GPUS and not all("GPU" in device for device in devices):
        raise UsageError(
            "this way to add gradients up is for GPUs",
            received=f"--all-reduce {settings.all_reduce}, {', '.join(devices)}",
            hint="--all-reduce auto, or one-device",
        )
    refusal = _refusal(model) if len(devices) > 1 else ""
    is_mirrored = len(devices) > 1 and not refusal
    # On one CPU a model without variables gets them when its step is traced, as in `model.fit`: not every model can be
    # built before.
    is_built = is_mirrored or settings.accumulate > 1 or settings.is_undoable or settings.is_measured
    is_built = is_built or settings.step is not None or model.built or "GPU" in devices[0]
    if is_built:
        _build(model, _as_stepped_on(first, settings))
    loss = _loss_of(model, first, settings, is_mirrored or settings.accumulate > 1)
    if is_mirrored and loss is not None and loss != UNKNOWN:
        return tensorflow.MirroredTrainer(model, pack, settings, devices, loss)
    if is_mirrored:
        refusal = (
            f"it has {NO_PIECES}; a train_step with self.compute_loss(…) and self.optimizer, and a loss with a value "
            "for each row, do"
        )
    trainer = tensorflow.TensorFlowTrainer(model, pack, settings, loss, None if is_built else first)
    if refusal:
        trainer.remarks.append(f"the model trains on one of {len(devices)} devices: {refusal}")
    return trainer


def _loss_of(model: Any, first: Any, settings: StepSettings, is_needed: bool) -> str | None:
    """How the losses of pieces make the loss of a batch; None where this need not be known yet.

    Raises:
        UsageError: The user asked for pieces, and it cannot be found out.
    """
    if settings.step is not None:
        return MEAN
    loss = kind_of_loss(model, _as_stepped_on(first, settings)) if is_needed else None
    if settings.accumulate > 1 and loss == UNKNOWN:
        raise UsageError(
            f"batches of this model cannot be worked on in pieces: it has {NO_PIECES}",
            received=f"accumulate={settings.accumulate}",
            hint="leave it out and choose a smaller batch size; or a loss with a value for each row, reduction "
            '"sum_over_batch_size", and self.compute_loss(…) in a train_step of your own',
        )
    return loss


def _refusal(model: Any) -> str:
    """Why a model cannot train on several devices of TensorFlow; empty if it can."""
    if any(optimizer.gradient_accumulation_steps for optimizer in optimizers_of(model)):
        return "its optimizer accumulates gradients, which works on one device only; accumulate=… works on several"
    return ""


def _as_stepped_on(first: Any, settings: StepSettings) -> Any:
    """The batch, scaled here because no trainer has put the scaling into the model's step yet."""
    return first if settings.scaled is None else settings.scaled(first)


def _build(model: Any, first: Any) -> None:
    """Make every variable of model, metrics and optimizer, as Keras does before it trains."""
    model._symbolic_build(data_batch=first)


def _tensorflow_devices() -> list[str]:
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in found]


def _chosen(devices: list[Any], num_devices: int | None) -> list[Any]:
    if num_devices is None:
        return devices
    if not 1 <= num_devices <= len(devices):
        raise DeviceError(
            "there are fewer devices",
            received=f"{num_devices}",
            allowed=f"1 to {len(devices)}",
            hint="penstock devices",
        )
    return devices[:num_devices]
