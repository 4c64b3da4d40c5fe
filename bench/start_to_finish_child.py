"""N's peer, as its users write it.

Run as `python -m bench.start_to_finish_child sweep|predict …`; prints one JSON document.
"""

import argparse
import json
import sys
import time
from typing import Any

import keras
import numpy as np

BATCH_SIZES = (8, 16, 32, 64, 128)


def sweep(model: Any, images: Any) -> dict[str, Any]:
    """Find the batch size at which `model.predict` is fastest; the first call of each size traces, and is not timed."""
    seconds = {}
    for size in (size for size in BATCH_SIZES if size <= len(images)):
        model.predict(images[:size], batch_size=size, verbose=0)
        began = time.perf_counter()
        model.predict(images, batch_size=size, verbose=0)
        seconds[size] = time.perf_counter() - began
    return {"best_batch_size": min(seconds, key=seconds.__getitem__), "seconds": seconds}


def predict(model: Any, images: Any, batch_size: int, output: str) -> dict[str, Any]:
    """Predict all images and write the answers."""
    began = time.perf_counter()
    answers = model.predict(images, batch_size=batch_size, verbose=0)
    np.save(output, answers)
    return {"run_seconds": time.perf_counter() - began}


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    model = keras.models.load_model(options.model)
    if options.action == "sweep":
        images = np.load(options.images, mmap_mode="r")[: options.rows].copy()
        document = sweep(model, images)
    else:
        document = predict(model, np.load(options.images), options.batch, options.output)
    print(json.dumps(document))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("sweep", "predict"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--output")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
