"""What a driver asks of a cluster: which machines there are, and calls to the node on each."""

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, Protocol

from penstock.errors import DeviceError


class NodeGone(Exception):
    """The process of a node is over, or cannot be reached; the text says how it ended.

    `has_left`: its machine left the cluster, too.
    """

    def __init__(self, how: str, *, has_left: bool = False) -> None:
        super().__init__(how)
        self.has_left = has_left


class ClusterLost(DeviceError):
    """The cluster on which a job runs cannot be reached any more."""


class Transport(Protocol):
    """A cluster. A node has the number of its life, and the name of its machine."""

    def names(self) -> Collection[str]:
        """The machines that are there now and may be used."""
        ...

    def others(self) -> str:
        """The machines that are there and may not be used, in words, with what they have."""
        ...

    def is_there(self, node: int) -> bool:
        """Whether the machine of a node was there when `names` was called last. One that comes back is a new one."""
        ...

    def start(self, node: int, name: str) -> None:
        """Start the process of a node on a machine. Where that fails, its calls end with `NodeGone`."""
        ...

    def share(self, content: Any) -> Any:
        """A stand-in for some content, as an argument of calls to several nodes; the content travels separately."""
        ...

    def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of `cluster.node.Node`. The future ends with its result, its PenstockError or `NodeGone`."""
        ...

    def kill(self, node: int) -> None:
        """End what is left of a node's process. May be called twice."""
        ...

    def close(self) -> None:
        """End all nodes, and whatever was started for them."""
        ...
