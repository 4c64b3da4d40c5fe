"""HDF5 files of Keras: the version that wrote them, the description of the model, and the arrays of each layer."""

import json
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.runtimes.frameworks import h5py, keras

Groups = dict[str, list[tuple[str, Array]]]
"""The arrays of each layer with their names, in the order of the file."""


def version_of_h5(path: str) -> str:
    """The version of Keras that wrote a whole model; `1` or `2` where only its layers show it."""
    with h5py.File(path, "r") as file:
        version = _text(file.attrs.get("keras_version", ""))
        config = _text(file.attrs.get("model_config", ""))
    if version:
        return version
    return "1" if '"output_dim"' in config or '"nb_filter"' in config else "2"


def backend_of_h5(path: str) -> str:
    """The backend that the model ran on when it was saved; empty where the file does not say."""
    with h5py.File(path, "r") as file:
        return _text(_weights(file).attrs.get("backend", file.attrs.get("backend", "")))


def config_of_h5(path: str) -> Any:
    """The description of a whole model; None for a file of weights only."""
    with h5py.File(path, "r") as file:
        config = file.attrs.get("model_config")
    return None if config is None else json.loads(_text(config))


def groups_of_h5(path: str) -> tuple[Groups | None, str]:
    """The arrays of each layer in a file of Keras 1 or 2, and the version of the weights; None for a newer file."""
    if path.endswith(".keras") and not h5py.is_hdf5(path):
        return None, ""
    with h5py.File(path, "r") as file:
        weights = _weights(file)
        layers = _names(weights, "layer_names")
        if layers is None:
            return None, ""
        groups = {
            layer: [(name, np.asarray(weights[layer][name])) for name in _names(weights[layer], "weight_names") or []]
            for layer in layers
        }
        return groups, _text(weights.attrs.get("keras_version", "1"))


def build_optimizer(model: Any, path: str) -> None:
    """Give a compiled model of an HDF5 file an optimizer that can train it, with the state that the file holds.

    Keras 3 builds the optimizer of such a file without the model's variables, so every step would raise. Keras 2 wrote
    the state in another order: the optimizer then begins anew.
    """
    if not isinstance(model.optimizer, keras.optimizers.Optimizer):
        return
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(path, "r") as file:
        group = file.get("optimizer_weights")
        names = _names(group, "weight_names") or [] if group is not None else []
        values = [np.asarray(group[name]) for name in names]
    if [value.shape for value in values] == [tuple(variable.shape) for variable in optimizer.variables]:
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value)
    model.optimizer = optimizer


def _weights(file: Any) -> Any:
    """The group that holds the layers. In a file of weights only, this is the root of the file."""
    return file["model_weights"] if "layer_names" not in file.attrs and "model_weights" in file else file


def _names(group: Any, attribute: str) -> list[str] | None:
    """A list of names from an attribute. Keras divides a long list into several numbered attributes."""
    if attribute in group.attrs:
        return [_text(value) for value in group.attrs[attribute]]
    pieces: list[str] = []
    while f"{attribute}{len(pieces)}" in group.attrs:
        pieces.append(f"{attribute}{len(pieces)}")
    return [_text(value) for piece in pieces for value in group.attrs[piece]] if pieces else None


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
