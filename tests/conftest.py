"""What the tests share: real models, real data, and the real command in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.forked_runs import RunsInTurn

_CACHE = tempfile.TemporaryDirectory(prefix="penstock-tests-")
# Plans and converted models of the tests stay out of the user's own cache, and are gone afterwards.
os.environ["PENSTOCK_CACHE"] = _CACHE.name
# The tests start hundreds of processes: what they import is compiled once, also where no bytecode is written otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Under nohup, or behind an & of a script, the tests' processes would ignore the signals that the tests send them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# Frameworks start in half the time, and libraries can seem not to be installed.
_STARTING = Path(__file__).parent / "support" / "starting"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STARTING), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
_RUNS = RunsInTurn(ENVIRONMENT)
_LONG_S = 1800.0
Penstock = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that takes long hangs only after longer: on a slow machine it takes a multiple."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_S))


def penstock_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "penstock", *map(str, arguments)]


def run_penstock(
    *arguments: object, cwd: Path | None = None, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run the command; its output is kept, and a stack trace in it is never right."""
    ran = _RUNS.run([str(argument) for argument in arguments], environment, cwd or Path.cwd())
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


@pytest.fixture(scope="session")
def penstock_run() -> Penstock:
    return run_penstock


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of support/make_models.py, written once for all tests, whichever worker runs them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"
    script = Path(__file__).parent / "support" / "make_models.py"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "all there").exists():
            subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, env=ENVIRONMENT)
            (folder / "all there").touch()
    return folder


@pytest.fixture(scope="session")
def light_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of support/light_models.py: for tests that are about no framework."""
    from tests.support import light_models

    folder = tmp_path_factory.mktemp("light_models")
    light_models.write(folder)
    return folder


@pytest.fixture(scope="session")
def pixels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """20,000 images of 8×8, flat."""
    return np.random.default_rng(5).integers(0, 17, (20_000, 64), dtype=np.uint8)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Path:
    """Those images as a folder of four Parquet files, with a text column."""
    folder = tmp_path_factory.mktemp("digits")
    for number, piece in enumerate(np.split(pixels, 4)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(piece.reshape(-1)), 64)
        names = [f"{number}-{position}" for position in range(len(piece))]
        table = pa.table({"pixels": column, "name": names})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=1000)
    return folder


def read_rows(folder: Path) -> pa.Table:
    """The predictions in a folder, in the order of its files."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def journal_length(folder: Path) -> int:
    journal = folder / "_penstock" / "journal"
    return len(journal.read_bytes().splitlines()) if journal.exists() else 0


def summary_of(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode in (0, 3), ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
