"""Ray Data's side of F: read_images, iterated in batches. Ray is up, and has read photos, before the clock starts.

Runs in the peers' environment, as `python -m bench.peers.ray_photos FOLDER …`, and prints one JSON document.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from bench.decoders import SIDE
from bench.peers.local_ray import local_ray, ray

# None leaves the number of blocks to Ray; fewer blocks are larger, and cost less to hand over.
BLOCK_COUNTS = (None, 4, 16, 64)


def images_per_second(folder: Path, batch_size: int, num_blocks: int | None) -> float:
    """Read the whole folder once, in any order."""
    began = time.perf_counter()
    photos = ray.data.read_images(str(folder), size=(SIDE, SIDE), mode="RGB", override_num_blocks=num_blocks)
    rows = sum(len(batch["image"]) for batch in photos.iter_batches(batch_size=batch_size, batch_format="numpy"))
    return rows / (time.perf_counter() - began)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args(arguments)
    with local_ray():
        images_per_second(min(options.folder.iterdir()), options.batch, None)
        tried = {str(count): images_per_second(options.folder, options.batch, count) for count in BLOCK_COUNTS}
    print(json.dumps({"rate": max(tried.values()), "by_blocks": tried}))


if __name__ == "__main__":
    main(sys.argv[1:])
