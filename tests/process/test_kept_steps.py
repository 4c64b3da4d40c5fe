"""Compiled steps that are kept: the second start compiles nothing, and the cache never changes a bit or ends a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Penstock, read_rows

STEPS = ["start the process", "import the framework", "find the device", "load the model", "read the first rows"]


def run(penstock_run: Penstock, models: Path, digits: Path, output: Path, cache: Path) -> Any:
    ran = penstock_run(
        "predict", models / "digits.keras", digits, "--output", output, "--devices", "cpu", "--runtime", "jax",
        "--batch-size", 512, "--trace", f"{output}.json", environment={"PENSTOCK_CACHE": str(cache)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return read_rows(output)


def kept(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (cache / "compiled").glob("*/*")}


def test_second_start_compiles_nothing_and_a_damaged_or_cleared_cache_changes_no_bit(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = run(penstock_run, models, digits, tmp_path / "first", cache)
    files = kept(cache)
    assert any(name.startswith("jit__trace") and name.endswith("-cache") for name in files), files.keys()
    assert len(files) % 2 == 0  # each with its digest
    assert run(penstock_run, models, digits, tmp_path / "again", cache).equals(first)
    assert kept(cache) == files
    events = json.loads((tmp_path / "again.json").read_text())
    noted = [event["cat"] for event in events if event["ph"] == "X"]
    assert [name for name in noted if name in STEPS] == STEPS
    assert {"trace the step", "compile the step", "run the first batches", "start"} <= set(noted)

    step = next(path for path in (cache / "compiled").glob("*/jit__trace*-cache"))
    step.write_bytes(b"damaged" + step.read_bytes()[7:])
    assert run(penstock_run, models, digits, tmp_path / "damaged", cache).equals(first)
    assert kept(cache).keys() == files.keys()
    assert not step.read_bytes().startswith(b"damaged")

    shown = penstock_run("cache", "--json", environment={"PENSTOCK_CACHE": str(cache)})
    assert json.loads(shown.stdout)["kept"]["compiled"]["entries"] == 1
    cleared = penstock_run("cache", "--clear", environment={"PENSTOCK_CACHE": str(cache)})
    assert "nothing is kept" in cleared.stdout
    assert run(penstock_run, models, digits, tmp_path / "cleared", cache).equals(first)


def test_job_goes_on_without_a_cache_that_is_not_this_users(
    models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "compiled").mkdir(parents=True)
    (cache / "compiled").chmod(0o777)
    run(penstock_run, models, digits, tmp_path / "out", cache)
    assert kept(cache) == {}
