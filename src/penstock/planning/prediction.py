"""What a plan promises for the whole input: how fast it is, what limits it, and what would help."""

import contextlib
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core import kinds, tuning
from penstock.core.bottleneck import Rates, predict
from penstock.core.columns import take_positions
from penstock.core.plans import Plan
from penstock.core.records import Result, Span
from penstock.errors import PenstockError
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.planning.search import SearchResult
from penstock.pool.devices.inventory import usable_cores
from penstock.pool.loading import load_batches

_LOOK_S = 0.5
_WRITTEN_BYTES = 8 << 20
_MOST_WRITTEN_ROWS = 1 << 16


def plan_of(result: SearchResult, started: Started, rows: int) -> Plan:
    """The plan for what a search found."""
    promised = predict(rates_of(result, started))
    plan = Plan(
        result.choice,
        tuple(result.trials),
        tuple(f"{device} {device.name}".strip() for device in started.placement.devices),
        rows,
        round(promised.rows_per_s, 3),
        0.0,
        promised.by,
        str(promised),
        result.reason,
        is_cut_short=result.is_cut_short,
        start_s=round(result.start_s, 2),
        left=result.left,
        family=tuning.family(started.job.bindings),
        parameters=started.signature.parameters,
        **_noise(started),
    )
    return plan.for_rows(rows)


def _noise(started: Started) -> dict[str, Any]:
    noise, answers = started.noise, started.prepared.answers
    if noise is None or answers is None:
        return {}
    return {"noise": noise.largest_share(answers), "noise_from": noise.how or "nothing that could be computed"}


def rates_of(result: SearchResult, started: Started) -> Rates:
    """How fast each stage is by itself, as far as the first rows show."""
    placement, choice = started.placement, result.choice
    on_gpu = placement.devices[0].kind == "gpu"
    devices = len({device.index for device in placement.devices}) if on_gpu else 1
    return Rates(
        result.rows_per_s * devices,
        usable_cores(),
        0.0 if on_gpu else min(usable_cores(), choice.replicas * choice.threads),
        load_s=_seconds_to_load(started),
        write_s=_seconds_to_write(started),
        on_gpu=on_gpu,
        devices=devices,
        loaders=placement.most_loaders if placement.has_loader_processes else placement.loaders * placement.replicas,
    )


def _seconds_to_load(started: Started) -> float:
    """Seconds of one core to read and decode a row."""
    if started.prepared.rows_loaded_per_s is not None:
        return 1 / started.prepared.rows_loaded_per_s
    # Processor time, not elapsed time: libraries read with several threads.
    began, until = time.process_time(), time.perf_counter() + _LOOK_S
    rows = 0
    for span in started.divide():
        for batch in load_batches(started.job, span):
            rows += batch.rows
            if time.perf_counter() > until:
                return (time.process_time() - began) / rows
    return (time.process_time() - began) / max(1, rows)


def _seconds_to_write(started: Started) -> float:
    """Seconds to write a row, measured with the answers that are there, repeated; 0 where there are none."""
    answers = started.prepared.answers
    if not answers or not started.prepared.answered:
        return 0.0
    # The answers include neither kept columns nor what the user's function would give.
    options = replace(started.options, keep=(), rename={}, postprocess=None)
    schema = output_columns.output_schema(started, options)
    rows = max(1, min(_MOST_WRITTEN_ROWS, _WRITTEN_BYTES // schema.row_bytes))
    positions = np.arange(rows) % len(started.prepared.answered)
    columns = {name: take_positions(column, positions) for name, column in answers.items()}
    result = output_columns.renamed(Result(Span(0, 0, rows, ()), columns), options)
    with contextlib.suppress(PenstockError, OSError), tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        writer = kinds.sink(options.format).open_part("part-00000000", folder, schema)
        writer.write(result)
        writer.finish()
        return (time.perf_counter() - began) / rows
    return 0.0
