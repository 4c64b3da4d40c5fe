"""The trainer of Keras models on torch: on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.runtimes.frameworks import keras, torch
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, Pack, StepSettings, piece_bounds
from penstock.runtimes.keras.training.means import weighted_means
from penstock.runtimes.keras.training.own_step import SUM
from penstock.runtimes.keras.training.pieces import Piece, working_on
from penstock.runtimes.memory_limit import ran_out

_OF_CPU, _OF_GPU = "torch/cpu", "torch/gpu"
"""Names of the states of torch's own random generators in a checkpoint."""


class TorchTrainer(KerasTrainer):
    """Runs the model's own step on one device. If there are several GPUs, a remark says that only one is used."""

    def __init__(self, model: Any, pack: Pack, settings: StepSettings, loss: str | None, devices: int) -> None:
        super().__init__(model, pack, settings, loss)
        if devices > 1:
            self.remarks.append(f"Keras on torch trains on one of {devices} GPUs; on TensorFlow or JAX it uses all")
        model.make_train_function()
        model.make_test_function()

    def _train(self, data: Any, rows: int) -> Any:
        self.model.train()
        return self.model.train_function([_as_tensors(data)])

    def _test(self, data: Any, rows: int) -> Any:
        self.model.eval()
        return self.model.test_function([_as_tensors(data)])

    def _train_in_pieces(self, data: Any, rows: int, pieces: int) -> Any:
        optimizer, apply = self.model.optimizer, self.model.optimizer.apply
        sums: list[Any] = []
        logs = None
        cuts = piece_bounds(rows, pieces)

        def add(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            scaled = grads if self._loss == SUM else [None if g is None else g * share for g in grads]
            pairs = zip(sums or [None] * len(scaled), scaled, strict=True)
            sums[:] = [s if g is None else g if s is None else s + g for s, g in pairs]
            if is_last:
                apply(sums, trainable_variables)

        object.__setattr__(optimizer, "apply", add)
        try:
            for begin, end in cuts:
                share, is_last = (end - begin) / rows, end == rows
                piece = keras.tree.map_structure(lambda leaf, a=begin, b=end: None if leaf is None else leaf[a:b], data)
                of_batch = Piece(share, end - begin, is_last, is_weighted=False)
                with working_on(of_batch), weighted_means(self.model, self._loss == SUM):
                    logs = self._train(piece, end - begin)
        finally:
            vars(optimizer).pop("apply", None)
        return logs

    def state(self) -> dict[str, Array]:
        """Everything that a step reads, with torch's own generators: dropout without a seed draws from them."""
        generators = {_OF_CPU: np.array(torch.get_rng_state())}
        if torch.cuda.is_available():
            generators[_OF_GPU] = np.array(torch.cuda.get_rng_state())
        return {**super().state(), **generators}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Give everything the state that it had when `state` was taken."""
        super().restore({name: value for name, value in state.items() if name not in (_OF_CPU, _OF_GPU)})
        if _OF_CPU in state:
            torch.set_rng_state(torch.from_numpy(state[_OF_CPU].copy()))
        if _OF_GPU in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(state[_OF_GPU].copy()))

    def _is_out_of_memory(self, error: Exception) -> bool:
        """Whether memory ran out. On a CPU, only the text of a RuntimeError says so."""
        return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and ran_out(error))


def num_gpus() -> int:
    """How many GPUs torch sees."""
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _as_tensors(data: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else keras.ops.convert_to_tensor(leaf), data)
