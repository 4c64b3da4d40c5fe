"""PyTorch's side of F: torch.utils.data.DataLoader with a worker for each core, photos to uint8 batches.

Runs in the peers' environment, as `python -m bench.peers.torch_photos FOLDER …`, and prints one JSON document.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.decoders import DECODERS, stay_in_one_thread
from bench.photos import files_of


class Photos:
    """A dataset of the photos again and again, as one long epoch: the clock must not see workers stop and start."""

    def __init__(self, paths: list[Path], length: int, decoder: str) -> None:
        self._paths = paths
        self._length = length
        self._decode = DECODERS[decoder]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        # Pillow's array is read-only, which torch would warn of; a tensor needs no collating by numpy.
        return torch.from_numpy(self._decode(self._paths[index % len(self._paths)]).copy())


def images_per_second(paths: list[Path], options: argparse.Namespace, decoder: str) -> float:
    """Decode in the steady state: workers are busy before the clock starts, and still when it stops."""
    workers, batch = options.workers, options.batch
    warm = 4 * workers
    timed = -(-options.photos // batch)
    photos = Photos(paths, batch * (warm + timed + 2 * workers + 2), decoder)
    loader = DataLoader(photos, batch_size=batch, num_workers=workers, worker_init_fn=_start_worker, prefetch_factor=2)
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    began = time.perf_counter()
    rows = sum(len(next(batches)) for _ in range(timed))
    return rows / (time.perf_counter() - began)


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    stay_in_one_thread()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, required=True, help="how many are decoded while the clock runs")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--decoders", type=lambda text: text.split(","), required=True)
    options = parser.parse_args(arguments)
    paths = files_of(options.folder)
    print(json.dumps({name: images_per_second(paths, options, name) for name in options.decoders}))


if __name__ == "__main__":
    main(sys.argv[1:])
