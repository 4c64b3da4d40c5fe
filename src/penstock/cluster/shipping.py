"""What the driver sends to nodes before they work: parcels that they lack, and the converted step of their kind."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.cluster.parcels import PARCELS, STEPS, pack


class Call(Protocol):
    """Calls a method of a node. `then` gets its answer; where the node is gone it is never called."""

    def __call__(self, node: int, method: str, *arguments: Any, then: Callable[[Any], None]) -> None: ...


class Shipping:
    """Sends each thing to a node once. What several nodes get is packed once.

    Args:
        call: Calls nodes.
        share: Makes a stand-in for content that is sent in calls to several nodes (`Transport.share`).
        parcels: What can be sent: files and folders by digest.
    """

    def __init__(self, call: Call, share: Callable[[bytes], Any], parcels: Mapping[str, Mapping[str, str]]) -> None:
        self._call = call
        self._share = share
        self._parcels = parcels
        self._packed: dict[str, list[Any]] = {}
        self._sent: dict[int, set[str]] = {}
        self._origins: dict[str, int] = {}
        """By kind, the node that settled it."""
        self._steps: dict[str, tuple[str, list[Any]]] = {}
        """By kind, the name and the pieces of its converted step; no pieces where nothing was converted."""
        self._waiting: dict[str, dict[int, Callable[[], None]]] = {}
        """By kind, the nodes that wait for its converted step, and what is called then."""

    def send(self, node: int, digests: Sequence[str], then: Callable[[], None]) -> bool:
        """Send parcels to a node; returns False if one of them cannot be sent, or was sent to it before."""
        sent = self._sent.setdefault(node, set())
        if not all(digest in self._parcels and digest not in sent for digest in digests):
            return False
        sent.update(digests)
        for digest in digests:
            if digest not in self._packed:
                self._packed[digest] = pack(self._parcels[digest], self._share)
        pieces = [call for digest in digests for call in _calls(digest, self._packed[digest], PARCELS)]
        self._deliver(node, deque(pieces), then)
        return True

    def note_settled(self, kind: str, node: int) -> None:
        """This node has settled a kind, and has the step that it converted for it."""
        self._origins[kind] = node

    def send_step(self, node: int, kind: str, then: Callable[[], None]) -> None:
        """Send the converted step of its kind to a node, where there is one and the node has none."""
        origin = self._origins.get(kind, node)
        if origin == node:
            then()
        elif kind in self._steps:
            self._send_known(node, kind, then)
        else:
            waiting = self._waiting.setdefault(kind, {})
            waiting[node] = then
            if len(waiting) == 1:
                self._call(origin, "converted_step", then=lambda step: self._note_step(kind, step))

    def lose(self, node: int) -> None:
        """A node has ended: nodes that wait for its step go on without it."""
        for kind in [kind for kind, origin in self._origins.items() if origin == node]:
            del self._origins[kind]
            for then in self._waiting.pop(kind, {}).values():
                then()

    def _note_step(self, kind: str, step: tuple[str, list[bytes]] | None) -> None:
        name, pieces = step or ("", [])
        self._steps[kind] = (name, list(map(self._share, pieces)))
        for node, then in self._waiting.pop(kind, {}).items():
            self._send_known(node, kind, then)

    def _send_known(self, node: int, kind: str, then: Callable[[], None]) -> None:
        name, pieces = self._steps[kind]

        def send(has_step: bool) -> None:
            self._deliver(node, deque(() if has_step else _calls(name, pieces, STEPS)), then)

        if pieces:
            self._call(node, "has_step", name, then=send)
        else:
            then()

    def _deliver(self, node: int, pieces: deque[tuple[Any, ...]], then: Callable[[], None]) -> None:
        """Send pieces one after the other."""
        if pieces:
            self._call(node, "receive", *pieces.popleft(), then=lambda _: self._deliver(node, pieces, then))
        else:
            then()


def _calls(name: str, pieces: Sequence[Any], folder: str) -> list[tuple[Any, ...]]:
    """The arguments of the calls that send a parcel."""
    return [(name, piece, number == len(pieces) - 1, folder) for number, piece in enumerate(pieces)]
