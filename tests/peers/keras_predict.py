"""Keras's own tests of its trainer, run twice: with `model.predict` as it is, and with `penstock.predict` in its place.

    python tests/peers/keras_predict.py /path/to/keras --backend jax

The checkout must be of the Keras that is installed. A test counts where it calls `predict` and passes with Keras's own:
it is the same where it passes with ours, too, and differs where it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = "keras/src/trainers/trainer_test.py"
BACKENDS = ("tensorflow", "jax", "torch")
_PLUGIN = "penstock_in_keras"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of Keras")
    parser.add_argument("--backend", choices=BACKENDS, default="tensorflow")
    parser.add_argument("-k", dest="only", default="", help="only tests whose names match, as in pytest")
    parser.add_argument("--reasons", action="store_true", help="say why each test differs")
    arguments = parser.parse_args()
    if not (arguments.checkout / TESTS).is_file():
        parser.error(f"{arguments.checkout} is no checkout of Keras: it has no {TESTS}")
    theirs = outcomes(arguments.checkout, arguments.backend, arguments.only, is_ours=False)
    ours = outcomes(arguments.checkout, arguments.backend, arguments.only, is_ours=True)
    compared = [name for name, told in theirs.items() if told["calls"] and told["outcome"] == "passed"]
    differ = [name for name in compared if ours.get(name, {}).get("outcome") != "passed"]
    print(f"{arguments.backend}: {len(compared) - len(differ)} of {len(compared)} tests that call predict are the same")
    for name in differ:
        print(f"differs: {name}")
        if arguments.reasons:
            print(f"    {ours.get(name, {}).get('reason', 'did not run')}")
    return 1 if differ else 0


def outcomes(checkout: Path, backend: str, only: str, *, is_ours: bool) -> dict[str, dict[str, Any]]:
    """Test to its outcome, how often it called `predict`, and why it failed; in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        here = Path(__file__).resolve().parent
        environment = os.environ | {
            "KERAS_BACKEND": backend,
            "PENSTOCK_TOLD": str(told),
            "PENSTOCK_IN_KERAS": "ours" if is_ours else "theirs",
            "PYTHONPATH": os.pathsep.join([str(here), *sys.path[1:]]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", _PLUGIN, "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--rootdir", str(checkout), "--import-mode=importlib", "-W", "ignore", str(checkout / TESTS)]
        command += ["-k", only] if only else []
        ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        if not told.is_file():
            raise SystemExit(f"pytest did not run:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
        found: dict[str, dict[str, Any]] = json.loads(told.read_text())
        return found


if __name__ == "__main__":
    sys.exit(main())
