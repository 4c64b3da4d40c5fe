"""The trainer of Keras models on torch: on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.runtimes.frameworks import keras, torch
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, cut
from penstock.runtimes.keras.training.means import weighted_means
from penstock.runtimes.keras.training.own_step import SUM
from penstock.runtimes.keras.training.pieces import Piece, working_on


class TorchTrainer(KerasTrainer):
    """The model's own step; on several GPUs the first one is used, and a remark says so."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        model = self.model
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus > 1:
            self.remarks.append(f"Keras on torch trains on one of the {gpus} GPUs; on TensorFlow or JAX it uses all")
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
        cuts = cut(rows, pieces)

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

    def _is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, torch.cuda.OutOfMemoryError)

    @property
    def _may_run_out(self) -> bool:
        return bool(torch.cuda.is_available())


def _as_tensors(data: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else keras.ops.convert_to_tensor(leaf), data)
