"""The layers that a layer of Keras 1 becomes, and what its file says about all layers."""

from dataclasses import dataclass, field
from typing import Any

from penstock.core.records import Array
from penstock.runtimes.keras.keras1 import lost

Config = dict[str, Any]


@dataclass
class Translation:
    """One layer of Keras 1: the layers that replace it, one after the other, and the one that takes its weights."""

    steps: list[Any]
    weighted: Any = None
    arrays: list[Array] = field(default_factory=list)

    def __call__(self, tensors: Any) -> Any:
        for step in self.steps:
            tensors = step(tensors)
        return tensors

    def set_weights(self) -> None:
        """Give the layer its weights. It must have been called before."""
        if self.weighted is not None:
            self.weighted.set_weights(self.arrays)


@dataclass(frozen=True)
class Origin:
    """What a file says about all its layers: its backend, and the place of channels in layers that do not state it."""

    is_theano: bool
    dim_ordering: str
    custom_objects: dict[str, Any]

    def is_channels_first(self, config: Config) -> bool:
        ordering = config.get("dim_ordering", "default")
        return (self.dim_ordering if ordering == "default" else ordering) == "th"


def activation(name: str | None, origin: Origin) -> Any:
    if name == "hard_sigmoid":
        return lost.hard_sigmoid
    return origin.custom_objects.get(str(name), name)
