"""The process of a sweep: every runtime that gives the model's own answers, at every batch size, and a plan's choice.

Run as `python -m bench.sweep_child --model … --input … --plan FILE`; prints one JSON document. Search and sweep read
the same ruler: a replica process measures batches of the job's first rows, as `penstock plan` has it do.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.sweep import MOST_BATCH_BYTES, MOST_ROWS, Climb, SweepPoint
from penstock.core.agreement import Proof
from penstock.core.messages import Measure
from penstock.core.plans import Choice, plan_from_json
from penstock.core.protocols import Tunable
from penstock.core.records import ModelFile
from penstock.core.stopping import StopFlag
from penstock.errors import PenstockError
from penstock.jobs import bring_up
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request
from penstock.jobs.open import log_without_folder, open_data, open_model
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.options.records import DeviceRequest, PredictOptions
from penstock.planning import contender, store
from penstock.planning.candidates import candidates
from penstock.planning.clock import Clock
from penstock.planning.contender import Contender
from penstock.pool.devices.inventory import shared
from penstock.pool.devices.memory import available_bytes

LIMIT_S = 1800.0
WINDOW_S = 0.3
# Every runtime starts by running these, and what it answers is compared.
FIRST_ROWS = 16
FINAL_WINDOW_S = 1.0
FINALISTS = 4
# One window each decided who is among the best: neighbours on one ladder must not crowd out another runtime.
MOST_OF_ONE_RUNTIME = 2
LANES = {"cpu": (1, 2), "gpu": (2, 3, 4)}
SWEPT_LANES = {"cpu": 1, "gpu": 3}


@dataclass(frozen=True)
class Side:
    """One point of the final: who runs, and what it is told."""

    contender: Contender
    batch_size: int
    lanes: int

    def rate(self, seconds: float) -> float:
        """Rows a second of all its replicas in one window."""
        return _measured(self.contender, self.batch_size, self.lanes, seconds).rows_per_s

    def as_json(self) -> dict[str, Any]:
        setting = self.contender.setting
        return {
            "runtime": setting.runtime,
            "batch_size": self.batch_size,
            "replicas": setting.placement.replicas,
            "threads": setting.threads,
            "lanes": self.lanes,
        }


@dataclass
class Sweep:
    """One model: its runtimes, all of them up at once, and what their points gave."""

    model: ModelFile
    choice: Choice
    started: Started
    context: RunContext
    call_limit_s: float
    smallest: int
    cleanup: contextlib.ExitStack
    points: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _ran: list[tuple[float, Side]] = field(default_factory=list)

    def run(self) -> None:
        """Sweep the runtime that the plan chose first: those that are far slower then end early."""
        contenders = sorted(self._contenders(), key=lambda each: each.setting.runtime != self.choice.runtime)
        for each in contenders:
            self._climb(each)

    def finalists(self) -> list[Side]:
        """The best points, each with the number of lanes that suits it."""
        best: list[tuple[float, Side]] = []
        for rate, side in sorted(self._ran, key=lambda ran: -ran[0]):
            alike = sum(other.contender is side.contender for _, other in best)
            if len(best) < FINALISTS and alike < MOST_OF_ONE_RUNTIME:
                best.append((rate, side))
        return [self._with_best_lanes(rate, side) for rate, side in best]

    def chosen(self) -> Side:
        """The plan's choice, on processes that are up where one replica with these threads is what it says."""
        choice = self.choice
        for _, side in self._ran:
            setting = side.contender.setting
            if (setting.runtime, setting.placement.replicas, setting.threads) == (
                choice.runtime,
                choice.replicas,
                choice.threads,
            ):
                return Side(side.contender, choice.batch_size, choice.lanes)
        device = self.started.placement.devices[0]
        devices = tuple(shared(device, device.memory_limit, choice.replicas))
        if self.kind == "cpu":
            devices = tuple(replace(device, index=index) for index in range(choice.replicas))
        model = store.converted_model(self.model, choice.converted) if choice.converted else self.model
        placement = replace(self.started.placement, devices=devices, lanes=choice.lanes)
        started = self._start(Setting(choice.runtime, model, choice.threads, placement))
        return Side(started, choice.batch_size, choice.lanes)

    @property
    def kind(self) -> str:
        return self.started.placement.devices[0].kind

    def _contenders(self) -> Iterator[Contender]:
        recipe, devices = self.started.recipe, self.started.placement.devices[:1]
        assert isinstance(self.started.engine, Tunable)
        own = self.started.decision.setting.placed(devices=devices)
        yield Contender(own, self.started.engine, self.started.start_s, Proof(0.0), is_own=True)
        if self.started.options.runtime is not None:
            return
        found = candidates(self.model, recipe, self.started.job.bindings)
        is_wanted = any(candidate.is_converted and candidate.why_not is None for candidate in found)
        folder, problem = self._converted() if is_wanted else (None, None)
        for candidate in found:
            why_not = candidate.why_not or (problem if candidate.is_converted else None)
            if why_not is not None:
                self.left_out[candidate.runtime] = why_not
                continue
            model = store.converted_model(self.model, folder) if candidate.is_converted and folder else self.model
            try:
                yield self._start(replace(own, runtime=candidate.runtime, model=model))
            except PenstockError as error:
                self.left_out[candidate.runtime] = f"{error.problem}: {error.received}"[:200]

    def _start(self, setting: Setting) -> Contender:
        clock = Clock(self.context.stop, LIMIT_S)
        tolerance = self.started.options.tolerance
        found = contender.start(setting, self.started, tolerance, self.context, clock)
        self.cleanup.callback(found.engine.close)
        return found

    def _converted(self) -> tuple[str | None, str | None]:
        """The folder of the converted step, the plan's own where it has one; or why there is none."""
        if self.choice.converted is not None:
            return self.choice.converted, None
        assert isinstance(self.started.engine, Tunable)
        folder = self.cleanup.enter_context(tempfile.TemporaryDirectory())
        problem = self.started.engine.convert(folder, self.context.stop)
        return (folder, None) if problem is None else (None, f"the model does not convert: {problem}")

    def _climb(self, each: Contender) -> None:
        climb = Climb(self._most_rows(), self.call_limit_s, int(0.85 * self._room_of(each)), self.smallest)
        best_rate = max((rate for rate, _ in self._ran), default=0.0)
        lanes = SWEPT_LANES[self.kind]
        began = time.perf_counter()
        while (why := climb.why_end(best_rate)) is None:
            point = _measured(each, climb.next_size, lanes, WINDOW_S)
            climb.points.append(point)
            if point.problem is None:
                side = Side(each, point.batch_size, lanes)
                best_rate = max(best_rate, point.rows_per_s)
                self._ran.append((point.rows_per_s, side))
            self.points.append({"runtime": each.setting.runtime, "lanes": lanes, **asdict(point)})
        self.ended[each.setting.runtime] = why
        fastest = max(climb.points, key=lambda point: point.rows_per_s)
        told = f"{fastest.rows_per_s:,.1f} rows/s at {fastest.batch_size:,}; ended: {why}"
        _note(f"  {each.setting.runtime}, {time.perf_counter() - began:.0f} s: {told}")

    def _most_rows(self) -> int:
        rows = sum(span.rows for span in self.started.divide())
        row_bytes = max(1, sum(binding.row_bytes for binding in self.started.job.bindings))
        whole = 1 << max(0, rows - 1).bit_length()
        most = min(MOST_ROWS, whole, MOST_BATCH_BYTES // row_bytes)
        return 1 << (most.bit_length() - 1)

    def _room_of(self, each: Contender) -> int:
        device = each.setting.placement.devices[0]
        return (device.memory_limit or device.free_bytes) if device.kind == "gpu" else available_bytes()

    def _with_best_lanes(self, rate: float, side: Side) -> Side:
        tried = [(rate, side)]
        for lanes in LANES[self.kind]:
            if lanes != side.lanes:
                other = replace(side, lanes=lanes)
                tried.append((other.rate(WINDOW_S), other))
        return max(tried, key=lambda each: each[0])[1]


def _measured(each: Contender, batch_size: int, lanes: int, seconds: float) -> SweepPoint:
    """One window. A process that dies of it takes this point down, and no other."""
    try:
        found = each.engine.measure(Measure(batch_size, seconds, lanes), each.setting.placement.replicas, StopFlag())
    except PenstockError as error:
        return SweepPoint(batch_size, problem=error.problem)
    if not found:
        return SweepPoint(batch_size, problem="its processes are gone")
    problem = next((one.problem for one in found if one.problem is not None), None)
    rate = sum(one.rows_per_s for one in found)
    return SweepPoint(batch_size, rate, max(one.peak_bytes for one in found), problem)


def final(sides: Sequence[Side], rounds: int) -> list[dict[str, Any]]:
    """Measure the sides again, in turn; the choice is the first. A side that comes twice is measured once."""
    unlike = list({json.dumps(side.as_json()): side for side in sides}.values())
    rates: list[list[float]] = [[] for _ in unlike]
    for _ in range(rounds):
        for side, found in zip(unlike, rates, strict=True):
            found.append(side.rate(FINAL_WINDOW_S))
    return [{**side.as_json(), "rates": found} for side, found in zip(unlike, rates, strict=True)]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    with open(options.plan, encoding="utf-8") as file:
        choice = plan_from_json(json.load(file), options.plan).choice
    devices = DeviceRequest.parse(options.devices)
    asked = PredictOptions(runtime=options.runtime, devices=devices, batch_size=FIRST_ROWS)
    model, _, _ = open_model(options.model, asked)
    assert isinstance(model, ModelFile)
    source, _ = open_data([options.input], asked.reading)
    began = time.perf_counter()
    with log_without_folder(False) as log, contextlib.ExitStack() as cleanup:
        context = RunContext(log, StopFlag(), _note)
        started = bring_up.start(model, Request(source, asked, answers_rows=FIRST_ROWS), context)
        cleanup.callback(started.close)
        sweep = Sweep(model, choice, started, context, options.call_limit, options.smallest, cleanup)
        sweep.run()
        sides = final([sweep.chosen(), *sweep.finalists()], options.rounds)
        document = {"final": sides, "points": sweep.points, "ended": sweep.ended, "left_out": sweep.left_out}
    print(json.dumps({"seconds": time.perf_counter() - began, **document}))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--plan", required=True, help="what `penstock plan --json` printed")
    parser.add_argument("--runtime", help="sweep this one only")
    parser.add_argument("--devices", default="all")
    parser.add_argument("--smallest", type=int, default=1, help="the first batch size")
    parser.add_argument("--call-limit", type=float, default=2.0, help="seconds that one call may take")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
