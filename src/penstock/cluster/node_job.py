"""The description of a job that the nodes of a cluster get."""

from dataclasses import dataclass, field

from penstock.core.records import ModelFile
from penstock.core.source import Source
from penstock.options.records import PredictOptions


@dataclass(frozen=True)
class NodeJob:
    """What a node needs for a job before there is a manifest.

    Args:
        model: The model.
        source: The input.
        options: The options of the job.
        output: The output.
        is_verbose: Whether processes show what they write.
        mark: The mark of the output that the driver has locked: no other output has it (`Place.mark`).
        modules: The user's own modules that the job imports by name, with their digests.
    """

    model: ModelFile
    source: Source
    options: PredictOptions
    output: str
    is_verbose: bool = False
    mark: str = ""
    modules: dict[str, str] = field(default_factory=dict)
