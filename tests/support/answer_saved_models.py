"""Answers of many SavedModels from one process, because TensorFlow takes seconds to import. Cases are read from a
pickle in a folder, and answers written to another."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.output_selection import Answers
from penstock.core.records import Device, ModelFile, Placement
from penstock.core.stopping import StopFlag
from penstock.engines.embedded import EmbeddedEngine
from penstock.errors import PenstockError
from penstock.jobs.bring_up import bring_up
from penstock.jobs.decide import Request
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime
from penstock.sources.python.memory import InMemory
from penstock.telemetry.meter import Meter


@dataclass
class Case:
    """A model, the columns that it is given, and how."""

    model: str
    columns: dict[str, Any] = field(default_factory=dict)
    signature: str | None = None
    constants: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    answers: Answers | None = None
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"


@dataclass
class Answered:
    """What came out: the model's signature, columns and failures, or an error."""

    signature: Any = None
    columns: dict[str, Any] = field(default_factory=dict)
    failures: list[Any] = field(default_factory=list)
    error: PenstockError | None = None


def answer(folder: Path, case: Case) -> Answered:
    kind = "frozen_graph" if case.model.endswith(".pb") else "saved_model"
    file = ModelFile(
        kind, str(folder / case.model), "", ("tensorflow",), case.signature,
        inputs=tuple(case.inputs), constants=case.constants, answers=case.answers,
    )  # fmt: skip
    device = Device(case.device, 0)
    answered = Answered()
    try:
        replica = TensorFlowRuntime().load(file, device, 1)
        answered.signature = replica.signature
        if case.columns:
            _run(replica, device, case, answered)
    except PenstockError as error:
        answered.error = error
    return answered


def _run(replica: Any, device: Device, case: Case, answered: Answered) -> None:
    placement = Placement((device,), loaders=1, lanes=1)
    engine = EmbeddedEngine([replica], placement, Meter().observe, StopFlag())
    options = PredictOptions(inputs=case.inputs, **{"batch_size": 4, **case.options})
    source: Any = InMemory(case.columns)
    started = bring_up(engine, Request(source, options), Setting("tensorflow", None, 1, placement))
    for result in engine.run(started.divide()):
        answered.failures += result.failures
        for name, column in result.columns.items():
            answered.columns.setdefault(name, []).append(column)
    engine.close()


def main(folder: Path) -> None:
    cases: dict[str, Case] = pickle.loads((folder / "cases.pickle").read_bytes())
    answers = {name: answer(folder, case) for name, case in cases.items()}
    (folder / "answers.pickle").write_bytes(pickle.dumps(answers))
