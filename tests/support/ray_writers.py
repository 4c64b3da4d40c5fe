"""A driver of bare Ray: an actor on every node that appends to a file of its own, until its node or this driver ends.

Prints a line of JSON for everything that the driver learns: `{"writes": ADDRESS}`, `{"lost": ADDRESS, "error": NAME}`,
`{"alive": [ADDRESS, …]}`. An actor's file is `ADDRESS-PID` in the folder.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=1, max_restarts=0, max_concurrency=2)
class Writer:
    """Writes as nodes of a job would: straight to the shared disk, whoever still listens."""

    def where(self) -> str:
        return f"{os.getpid()}"

    def write(self, path: str) -> None:
        with open(path, "ab", buffering=0) as file:
            while True:
                file.write(b".")
                time.sleep(0.05)


def _tell(**news: object) -> None:
    print(json.dumps(news), flush=True)


def _tell_lost(address: str, call: Future[Any]) -> None:
    _tell(lost=address, error=type(call.exception()).__name__)


def _alive() -> dict[str, str]:
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    known: dict[str, str] = {}
    actors = []
    while True:
        nodes = _alive()
        if nodes != known:
            _tell(alive=sorted(nodes.values()))
        for node_id in nodes.keys() - known.keys():
            pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
            writer: Any = Writer  # a class of Ray's by its decorator
            actor = writer.options(scheduling_strategy=pinned).remote()
            actors.append(actor)  # one that nobody refers to is ended
            path = folder / f"{nodes[node_id]}-{ray.get(actor.where.remote())}"
            actor.write.remote(str(path)).future().add_done_callback(partial(_tell_lost, nodes[node_id]))
            _tell(writes=nodes[node_id])
        known = nodes
        time.sleep(0.1)


if __name__ == "__main__":
    main()
