"""The process that P measures in: epochs of `penstock.fit(model, x, y)` and of `model.fit(x, y)`, in turn.

Run as `python -m bench.training_child --rows N --pairs N` with KERAS_BACKEND; prints one JSON document.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any


def compiled() -> Any:
    from bench.models import unit_mlp

    model = unit_mlp()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--more-packages", nargs="*", default=[], help="folders in which packages are looked for last")
    options = parser.parse_args()
    sys.path += options.more_packages
    import keras
    import numpy as np

    import penstock

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.random((options.rows, 784), dtype=np.float32)
    y = rng.integers(0, 10, options.rows)
    ours, theirs = compiled(), compiled()
    # Each side as it is called: tracing happens in its first epoch, which does not count.
    timed_at: dict[str, list[float]] = {"penstock": [], "model.fit": []}

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        """Ends of epochs, without the start of a call."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self.began

    def timed(fit: Callable[..., Any]) -> float:
        clock = Epochs()
        fit(epochs=2, verbose=0, callbacks=[clock])
        return float(clock.seconds)

    for _ in range(1 + options.pairs):
        timed_at["penstock"].append(timed(lambda **more: penstock.fit(ours, x, y, **more)))
        timed_at["model.fit"].append(timed(lambda **more: theirs.fit(x, y, **more)))
    print(json.dumps({"seconds": {side: seconds[1:] for side, seconds in timed_at.items()}}))


if __name__ == "__main__":
    main()
