"""The job as loaders and replicas get it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.decoding import DeviceDecoder
from penstock.core.preprocessing import Preprocess
from penstock.core.records import Binding
from penstock.core.source import Source


@dataclass(frozen=True)
class Job:
    """What loaders and replicas need besides the model to turn spans into results."""

    source: Source
    bindings: tuple[Binding, ...]
    keep: tuple[str, ...]
    batch_size: int
    preprocess: Preprocess | None = None
    buckets: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    is_traced: bool = False
    """Whether loaders and replicas record when each activity began and ended, for a trace."""
    fewest_rows: int | None = None
    """Set where rows are not padded: a batch then holds rows of one size, and is filled up to a power of two, at least
    to this number of rows."""
    state: str = "none"
    """What a call changes in the model; see `core.state`."""
    seed: int | None = None
    """The seed of the model's random numbers; None for a live model, which goes on with its own."""
    is_trimmed: bool = False
    """Whether the last batch of a span is not filled up, because the added rows would change the model, too."""
    is_in_order: bool = False
    """Whether rows that differ in size, and are padded, keep their order inside a span."""
    decoder: DeviceDecoder | None = None
    """What decodes a share of the rows at the replica; None where loaders decode all of them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that must be read, each once: all of them where a function of the user takes them."""
        if self.preprocess is not None:
            return tuple(self.preprocess.takes)
        names = [name for binding in self.bindings for name in binding.columns]
        return tuple(dict.fromkeys([*names, *self.keep]))
