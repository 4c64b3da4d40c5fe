"""A lower bound for the weights of a Keras model, from its description: a small file may declare giant ones."""

import math
from typing import Any

from penstock.models.scan.keras_config import objects_in

_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}


def least_parameters(config: Any) -> int:
    """A lower bound of how many numbers the weights of a described model hold, from what its layers declare."""
    inputs = _declared_inputs(config)
    return sum(
        _of_layer(item["class_name"].rpartition(">")[2], settings, _last_dimension(item, inputs))
        for item in objects_in(config)
        if isinstance(settings := item.get("config"), dict) and isinstance(item.get("class_name"), str)
    )


def _of_layer(kind: str, settings: dict[str, Any], last: int) -> int:
    units, filters = _whole(settings.get("units")), _whole(settings.get("filters"))
    window = math.prod(_lengths(settings.get("kernel_size")))
    total = _whole(settings.get("input_dim")) * _whole(settings.get("output_dim"))
    gates = next((count for name, count in _GATES.items() if name in kind), 0)
    if units:
        total += gates * units * (units + last) if gates else units * last
    if filters:
        # A convolution may be divided into groups: then each filter sees a part of the channels only.
        channels = 1 if "Separable" in kind else max(1, last // (_whole(settings.get("groups")) or 1))
        total += 4 * window * filters * filters if gates else window * filters * channels
    elif "Depthwise" in kind:
        total += window * last * (_whole(settings.get("depth_multiplier")) or 1)
    heads = _whole(settings.get("num_heads")) or _whole(settings.get("num_query_heads"))
    width = _whole(settings.get("key_dim")) or _whole(settings.get("head_dim"))
    if kind == "EinsumDense":
        total += math.prod(_lengths(settings.get("output_shape")))
    return total + heads * width * last


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _whole_or_one(value: Any) -> int:
    return _whole(value) or 1


def _lengths(value: Any) -> list[int]:
    return [_whole_or_one(each) for each in value] if isinstance(value, list) else [_whole_or_one(value)]


def _declared_inputs(config: Any) -> dict[str, list[Any]]:
    """The shapes that are declared, batch first, by the name of the layer that declares one."""
    shapes = {}
    for item in objects_in(config):
        settings = item.get("config")
        if isinstance(settings, dict):
            shape = settings.get("batch_shape") or settings.get("batch_input_shape")
            if isinstance(shape, list):
                shapes[str(settings.get("name"))] = shape
    return shapes


def _last_dimension(item: dict[str, Any], inputs: dict[str, list[Any]]) -> int:
    """The last dimension that a layer was built for, or that a declared input gives it; 1 if neither is recorded."""
    build = item.get("build_config")
    shapes = [build.get("input_shape") if isinstance(build, dict) else None]
    shapes += [inputs.get(name) for name in _sources(item)]
    return max(_whole(shape[-1]) if isinstance(shape, list) and shape else 1 for shape in shapes) or 1


def _sources(item: dict[str, Any]) -> list[str]:
    """The layers whose outputs a layer takes, as Keras 2 and 3 record them; and itself, as it may declare a shape."""
    settings = item["config"]
    names = [str(settings.get("name"))]
    nodes = item.get("inbound_nodes")
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, list):
            names += [each[0] for each in node if isinstance(each, list) and each and isinstance(each[0], str)]
        for tensor in objects_in(node):
            history = tensor.get("keras_history")
            if isinstance(history, list) and history and isinstance(history[0], str):
                names.append(history[0])
    return names
