"""Whole models of Keras 1 (`.h5`, 2015 to 2017), read into Keras 3.

Keras 1 used other names and other layouts of weights. Old files do not name their backend; on TensorFlow, the names of
weights end with `:0`.
"""

from collections.abc import Iterator
from typing import Any

from penstock.core.records import Array
from penstock.errors import ModelError
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.h5_files import Groups, backend_of_h5, config_of_h5, groups_of_h5
from penstock.runtimes.keras.keras1.layers import translate
from penstock.runtimes.keras.keras1.translation import Config, Origin, Translation

Named = list[tuple[str, Array]]
"""The arrays of a group of the file with their names, in order."""


def load_keras1(path: str, custom_objects: dict[str, Any]) -> Any:
    """The model in a file that Keras 1 wrote.

    Raises:
        ModelError: It has no weights, or a layer that is not known.
    """
    config = config_of_h5(path)
    groups, backend = groups_of_h5(path)[0], backend_of_h5(path)
    if groups is None:
        raise ModelError("the model has no weights", received=path, allowed="a file that model.save of Keras 1 wrote")
    names = [name for group in groups.values() for name, _ in group]
    is_theano = backend == "theano" or (not backend and not any(name.endswith(":0") for name in names))
    orderings = [each["dim_ordering"] for each in _configs(config) if each.get("dim_ordering") in ("th", "tf")]
    # Layers that pad or repeat may not say where their channels are. They use the order of the first layer that does.
    origin = Origin(is_theano, orderings[0] if orderings else "tf", custom_objects)
    reading = _Reading(groups, origin)
    model = reading.model(config["class_name"], config["config"], "model")
    for translation in reading.translations:
        translation.set_weights()
    return model


def _configs(value: Any) -> Iterator[Config]:
    """Every dict inside a configuration."""
    if isinstance(value, dict):
        yield value
    for inside in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _configs(inside)


class _Reading:
    """The reading of one file. Layers are made where the file names them; weights are set when all were called."""

    def __init__(self, groups: Groups, origin: Origin) -> None:
        self._groups = groups
        self._origin = origin
        self._scopes: list[Named] = []
        self._nameless = 0
        self.translations: list[Translation] = []

    def model(self, kind: str, config: Any, name: str) -> Any:
        if kind == "Sequential":
            return self._sequential(config, name)
        if kind == "Model":
            return self._graph(config)
        raise ModelError("this kind of model of Keras 1 is not known", received=kind, allowed="Sequential, Model")

    def _sequential(self, layers: list[Config], name: str) -> Any:
        first, rest = layers[0], layers[1:]
        if first["class_name"] == "Merge":
            inputs, tensor = self._merged_branches(first["config"])
        else:
            inputs, tensor = self._branch(first)
        for layer in rest:
            tensor = self._layer(layer)(tensor)
        return keras.Model(inputs[0] if len(inputs) == 1 else inputs, tensor, name=name)

    def _merged_branches(self, config: Config) -> tuple[list[Any], Any]:
        """The inputs and the merged tensor of a `Sequential` with several inputs: it begins with branches."""
        inputs: list[Any] = []
        tensors = []
        for branch in config["layers"]:
            own_inputs, tensor = self._branch(branch)
            inputs += own_inputs
            tensors.append(tensor)
        merge = self._layer({"class_name": "Merge", "config": config})
        return inputs, merge(tensors)

    def _branch(self, layer: Config) -> tuple[list[Any], Any]:
        kind, config = layer["class_name"], layer["config"]
        if kind in ("Sequential", "Model"):
            inside = self._layer(layer)
            inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype, name=t.name) for t in inside.steps[0].inputs]
            return inputs, inside(inputs if len(inputs) > 1 else inputs[0])
        tensor = keras.Input(
            batch_shape=config["batch_input_shape"],
            dtype=config.get("input_dtype") or "float32",
            name=config["name"] if kind == "InputLayer" else f"{config['name']}_input",
        )
        return [tensor], tensor if kind == "InputLayer" else self._layer(layer)(tensor)

    def _graph(self, config: Config) -> Any:
        tensors: dict[tuple[str, int, int], Any] = {}
        waiting: list[tuple[Config, Any, int, Any]] = []
        for layer in config["layers"]:
            name = layer["name"]
            if layer["class_name"] == "InputLayer":
                tensors[name, 0, 0] = self._branch(layer)[1]
                continue
            made = self._layer(layer)
            # For a model inside a model, call number 0 is the one that made it.
            first_call = 1 if layer["class_name"] in ("Sequential", "Model") else 0
            waiting += [(layer, made, first_call + i, node) for i, node in enumerate(layer["inbound_nodes"])]
        while waiting:
            ready = [each for each in waiting if all(tuple(source[:3]) in tensors for source in each[3])]
            if not ready:
                raise ModelError("the layers of this model wait for each other", received=waiting[0][0]["name"])
            for layer, made, call, node in ready:
                given = [tensors[tuple(source[:3])] for source in node]
                answers = made(given if len(given) > 1 else given[0])
                for index, answer in enumerate(answers if isinstance(answers, (list, tuple)) else [answers]):
                    tensors[layer["name"], call, index] = answer
            waiting = [each for each in waiting if each not in ready]
        inputs, outputs = (
            [tensors[tuple(source[:3])] for source in config[side]] for side in ("input_layers", "output_layers")
        )
        single_in, single_out = len(inputs) == 1, len(outputs) == 1
        return keras.Model(
            inputs[0] if single_in else inputs, outputs[0] if single_out else outputs, name=config["name"]
        )

    def _layer(self, layer: Config) -> Translation:
        """A layer, a wrapper or a model inside a model, with its own arrays."""
        kind, config = layer["class_name"], layer["config"]
        name = layer.get("name") or (config["name"] if isinstance(config, dict) else self._new_name())
        if kind in ("Sequential", "Model"):
            return self._inside(name, lambda: Translation([self.model(kind, config, name)]))
        if kind == "TimeDistributed":
            return self._inside(name, lambda: self._for_every_step(config))
        owners = [name]
        if kind == "Bidirectional":
            inner = config["layer"]["config"]["name"]
            owners = [f"forward_{inner}", f"backward_{inner}", name]
        made = translate(kind, config, self._arrays(name, owners), self._origin)
        self.translations.append(made)
        return made

    def _new_name(self) -> str:
        """A name for a `Sequential` inside another, which has none in the file."""
        self._nameless += 1
        return f"sequential_{self._nameless}"

    def _inside(self, name: str, make: Any) -> Translation:
        """The result of `make`, whose arrays come from the group of the layer around it, if there is such a group."""
        if name not in self._groups or self._scopes:
            made: Translation = make()
            return made
        self._scopes.append(self._groups[name])
        try:
            made = make()
        finally:
            self._scopes.pop()
        return made

    def _for_every_step(self, config: Config) -> Translation:
        inner = self._layer(config["layer"])
        *before, last = inner.steps
        wrapped = [keras.layers.TimeDistributed(step, name=f"{step.name}_each") for step in before]
        return Translation([*wrapped, keras.layers.TimeDistributed(last, name=config["name"])])

    def _arrays(self, name: str, owners: list[str]) -> list[Array]:
        if not self._scopes:
            return [array for _, array in self._groups.get(name, [])]
        arrays: list[Array] = []
        for weight, array in self._scopes[-1]:
            # If there is a `conv` and a `conv_1`, `conv_1_W` belongs to `conv_1` only.
            if any(weight.startswith(f"{owner}_") and _is_part(weight[len(owner) + 1 :]) for owner in owners):
                arrays.append(array)
        return arrays


_PARTS = ("W", "U", "b", "gamma", "beta", "running", "alphas", "betas", "t", "a", "depthwise", "pointwise", "param")


def _is_part(rest: str) -> bool:
    return rest.split(":")[0].split("_")[0] in _PARTS
