"""Keras models on the torch backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.answering import Answers, keep
from penstock.core.records import Columns, Device, ModelFile
from penstock.errors import DeviceError, one_line
from penstock.runtimes.keras_call import KerasCall, call_keras_model
from penstock.runtimes.memory_limit import out_of_memory

_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


class TorchRuntime:
    """The model called without gradients."""

    name = "torch"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        is_gpu = device.kind == "gpu"
        return {
            "KERAS_BACKEND": "torch",
            "CUDA_VISIBLE_DEVICES": (device.uuid or str(device.index)) if is_gpu else "-1",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }

    def load(self, model: ModelFile, device: Device, threads: int) -> TorchReplica:
        import torch

        torch.set_num_threads(threads)
        if device.kind == "gpu" and not torch.cuda.is_available():
            raise DeviceError(
                "this torch does not see the GPU",
                received=f"{device} {device.name}, torch {torch.__version__}",
                hint="install a CUDA build of torch, or --devices cpu",
            )
        return TorchReplica(call_keras_model(model), "cuda" if device.kind == "gpu" else "cpu", model.answers)


class TorchReplica:
    """A model on one torch device of this process."""

    def __init__(self, call: KerasCall, target: str, answers: Answers | None = None) -> None:
        import torch

        self._answers = answers
        self.signature = call.signature
        self.call = call
        self._torch = torch
        self._target = target

    def predict(self, batch: Columns) -> Columns:
        torch = self._torch
        try:
            with torch.no_grad():
                tensors = {name: self._to_device(name, array) for name, array in batch.items()}
                outputs = self.call.name_outputs(self.call.model(self.call.pack(tensors), **self.call.options))
                kept = keep(self._answers, outputs, TorchRanking())
                return {name: _to_numpy(tensor) for name, tensor in kept.items()}
        except torch.OutOfMemoryError as error:
            reason = one_line(error)
        # Outside the except block: its traceback holds the tensors, and with them the memory.
        raise out_of_memory(batch, reason)

    def close(self) -> None:
        self._target = "cpu"

    def _to_device(self, name: str, array: Any) -> Any:
        if array.dtype.name in _WIDER:
            array = array.astype(_WIDER[array.dtype.name])
        if not array.flags.writeable:
            array = array.copy()  # torch has no read-only tensors
        tensor = self._torch.from_numpy(array).to(self._target)
        tensor = self.call.scale(name, tensor, lambda each: each.float())
        wanted = {spec.name: spec.dtype for spec in self.signature.inputs}.get(name)
        return tensor if wanted is None else tensor.to(getattr(self._torch, wanted))


class TorchRanking:
    """Ranks on the device. `torch.topk` leaves the order of equal values open, so they are sorted."""

    def top_k(self, tensor: Any, k: int) -> tuple[Any, Any]:
        import torch

        values, places = torch.sort(tensor, dim=-1, descending=True, stable=True)
        return values[..., :k], places[..., :k].to(torch.int32)

    def argmax(self, tensor: Any) -> Any:
        return self.top_k(tensor, 1)[1][..., 0]


def _to_numpy(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    return tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
