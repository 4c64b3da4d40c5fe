"""Decisions about a job: from records to records, without a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.messages import PaddingTrial
from penstock.core.plans import Choice
from penstock.core.protocols import Source
from penstock.core.records import Binding, Device, ModelFile, Placement, Recipe, Signature, Span, TensorSpec
from penstock.core.state import NONE, SEEDS, VARIABLES, State
from penstock.errors import InputError, ModelError
from penstock.jobs.decide import (
    Decision,
    Request,
    Resumed,
    decide,
    first_rows,
    fit,
    shrink_if_slow,
    with_few_rows,
    with_last_notes,
    with_state,
    without_padding,
)
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.sources.derived.selection import WholeBatches
from penstock.sources.python.datasets import open_object
from penstock.sources.python.memory import InMemory
from penstock.sources.tables.csv import CsvFiles

MODEL = ModelFile("keras", "model.keras", "digest", ("tensorflow", "jax"))
SIGNATURE = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),), notes=("of the model",))
TEXTS = Signature((TensorSpec("ids", "int64", (None,)),), (TensorSpec("y", "float32", (1,)),))


def setting(kind: str = "cpu", runtime: str = "tensorflow", replicas: int = 2) -> Setting:
    devices = tuple(Device(kind, index) for index in range(replicas))
    return Setting(runtime, MODEL, 1, Placement(devices, loaders=2, lanes=2))


def arrays(rows: int) -> InMemory:
    return InMemory({"x": np.zeros((rows, 3), np.float32)})


def texts() -> InMemory:
    return InMemory({"ids": pa.array([[1] * (1 + row % 7) for row in range(200)], pa.list_(pa.int64()))})


def decided(
    source: Any,
    signature: Signature = SIGNATURE,
    where: Setting | None = None,
    request: Request | None = None,
    **asked: Any,
) -> Decision:
    request = request or Request(source, PredictOptions(**asked))
    return decide(fit(request, signature), signature, request, where or setting())


def test_decision_says_what_feeds_the_model_and_how_it_runs() -> None:
    decision = decided(arrays(10_000))
    assert decision.job.bindings == (Binding("x", ("x",), "float32", (3,)),)
    assert decision.recipe == Recipe("tensorflow", "cpu", 8192, 1)
    assert decision.sample == Span(0, 0, 8192, ())
    assert decision.notes == ("of the model",)
    assert (decision.is_resumed, decision.is_size_settled) == (False, False)


def test_input_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="the input has no rows"):
        first_rows(arrays(0), 1)


def test_source_that_was_given_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f0,f1,f2\n1.5,2,3\n4,5,6\n", encoding="utf-8")
    given = CsvFiles([str(tmp_path / "a.csv")])
    decision = decided(given)
    assert type_of(decision.job.source, "f1") == pa.float64()
    assert type_of(given, "f1") == pa.int64()


def type_of(source: Source, column: str) -> Any:
    block = next(iter(source.read(first_rows(source, 8), [column])))
    return block.columns[column].type  # type: ignore[union-attr]


def test_resumed_job_is_what_its_manifest_says() -> None:
    bindings = (Binding("x", ("x",), "float64", (3,)),)
    recipe = Recipe("tensorflow", "cpu", 17, 3)
    resumed = Resumed(recipe, bindings, Span(0, 0, 5, ()), weights=None, split=(2, 1))
    request = Request(arrays(100), PredictOptions(batch_size=64), resumed)
    assert (request.runtime, request.choice) == ("tensorflow", Choice("tensorflow", 17, 3, 2, 1))
    decision = decided(None, where=replace(setting(), threads=3), request=request)
    assert (decision.recipe, decision.job.bindings, decision.sample) == (recipe, bindings, resumed.sample)
    assert decision.is_resumed
    with pytest.raises(ModelError, match="did not when this job began"):
        with_state(decision, State(VARIABLES, ("count",)))


def test_resumed_job_refuses_a_function_that_builds_other_weights() -> None:
    resumed = Resumed(Recipe("tensorflow", "cpu", 8, 1), (), Span(0, 0, 5, ()), weights="abc")
    with pytest.raises(ModelError, match="built another model") as caught:
        fit(Request(arrays(9), PredictOptions(), resumed), replace(SIGNATURE, weights="def"))
    assert (caught.value.received, caught.value.allowed) == ("weights def", "weights abc")


def test_resumed_job_of_a_model_with_state_has_one_of_everything() -> None:
    resumed = Resumed(Recipe("tensorflow", "cpu", 8, 1, state=VARIABLES), (), Span(0, 0, 5, ()), weights=None)
    decision = decided(None, request=Request(arrays(9), PredictOptions(), resumed))
    assert (decision.placement.replicas, decision.placement.lanes) == (1, 1)
    assert decision.recipe == resumed.recipe


def test_plan_settles_the_batch_size_as_far_as_there_are_rows() -> None:
    planned = Choice("tensorflow", 512, 1)
    for rows, size in ((10_000, 512), (100, 128)):
        decision = decided(None, request=Request(arrays(rows), PredictOptions(), planned=planned))
        assert (decision.job.batch_size, decision.is_size_settled) == (size, True)
    insisting = replace(SIGNATURE, fixed_batch=512)
    assert decided(None, insisting, request=Request(arrays(9), PredictOptions(), planned=planned)).job.batch_size == 512


def test_answers_are_asked_for_where_others_are_compared_with_them() -> None:
    assert decided(arrays(9)).asked.answers_rows == 0
    assert decided(arrays(9), check=True).asked.answers_rows == 64
    small = decided(None, request=Request(arrays(99), PredictOptions(batch_size=4), answers_rows=32))
    assert (small.asked.answers_rows, small.sample.rows) == (32, 16)


@pytest.mark.parametrize(
    ("padding", "is_tried", "is_padded"), [("auto", True, True), ("always", False, True), ("never", False, False)]
)
def test_padding_is_tried_only_where_nothing_was_asked_for(padding: str, is_tried: bool, is_padded: bool) -> None:
    decision = decided(texts(), TEXTS, padding=padding, tolerance=0.01)
    assert decision.job.buckets
    assert decision.asked.tolerance == (0.01 if is_tried else None)
    assert decision.recipe.is_padded == is_padded


@pytest.mark.parametrize(("runtime", "fewest"), [("tensorflow", 1), ("jax", 256)])
def test_rows_of_one_size_share_a_batch_where_padding_changes_answers(runtime: str, fewest: int) -> None:
    before = decided(texts(), TEXTS, setting(runtime=runtime))
    after = without_padding(before, PaddingTrial(difference=0.25))
    assert (after.job.fewest_rows, after.recipe.is_padded, after.asked.tolerance) == (fewest, False, None)
    assert "by up to 0.25 of the spread of an output" in after.notes[-1]
    assert ("compiles once for each size" in after.notes[-1]) == (runtime == "jax")
    assert before.recipe.is_padded


def test_note_says_why_a_padding_trial_told_nothing() -> None:
    after = without_padding(decided(texts(), TEXTS), PaddingTrial(problem="no row was tried"))
    assert "could not be found out whether padding changes the answers (no row was tried)" in after.notes[-1]


def test_small_batch_is_timed_before_a_large_one_and_shrinks_it() -> None:
    decision = decided(arrays(10_000))
    few = with_few_rows(decision)
    assert few is not None
    assert few.batch_size == 32
    assert shrink_if_slow(decision, few_s=0.001) == decision
    slow = shrink_if_slow(decision, few_s=0.16)
    assert (slow.job.batch_size, slow.sample.rows) == (128, 128)


def test_shrunk_batch_of_rows_of_one_size_has_one_shape() -> None:
    decision = decided(texts(), TEXTS, setting(runtime="jax"), padding="never")
    few = with_few_rows(decision)
    assert few is not None
    assert few.fewest_rows is None
    assert shrink_if_slow(decision, few_s=16.0).job.fewest_rows == 32


def test_no_small_batch_is_timed_where_the_size_is_settled_or_no_matter() -> None:
    assert with_few_rows(decided(arrays(10_000), batch_size=4096)) is None
    assert with_few_rows(decided(arrays(10_000), where=setting("gpu"))) is None
    assert with_few_rows(decided(arrays(60))) is None
    assert with_few_rows(decided(arrays(10_000), replace(SIGNATURE, fixed_batch=4096))) is None
    stream = open_object(iter([np.zeros((200, 3), np.float32)]))
    assert with_few_rows(decided(stream)) is None


def test_model_with_variables_runs_in_order_on_one_replica() -> None:
    decision = with_state(decided(arrays(100)), State(VARIABLES, ("count",)))
    assert isinstance(decision.job.source, WholeBatches)
    assert (decision.job.batch_size, decision.job.state, decision.sample.rows) == (32, VARIABLES, 32)
    assert (decision.placement.replicas, decision.placement.loaders, decision.placement.lanes) == (1, 1, 1)
    assert "one replica, batches of 32 rows in order" in with_last_notes(decision, State(VARIABLES)).notes[-1]


def test_model_that_draws_random_numbers_runs_anywhere_by_the_seed() -> None:
    decision = with_state(decided(arrays(100), seed=7, batch_size=64), State(SEEDS, ("generator",)))
    assert (decision.placement.replicas, decision.job.batch_size, decision.recipe.state) == (2, 64, SEEDS)
    assert "draws by the seed 7" in with_last_notes(decision, State(SEEDS)).notes[-1]


def test_live_model_that_draws_random_numbers_goes_on_from_where_it_stands() -> None:
    live = replace(setting(), model=None)
    assert decided(arrays(9), where=live).job.seed is None
    assert with_state(decided(arrays(9), where=live), State(SEEDS)).job.state == VARIABLES


def test_model_with_state_is_not_padded_unless_that_was_asked_for() -> None:
    assert not with_state(decided(texts(), TEXTS), State(VARIABLES)).recipe.is_padded
    assert with_state(decided(texts(), TEXTS, padding="always"), State(VARIABLES)).recipe.is_padded


def test_people_are_told_of_a_batch_size_that_does_not_fit() -> None:
    decision = decided(arrays(100), batch_size=64, memory_fraction=1e-12)
    assert decision.job.batch_size == 1
    notes = with_last_notes(decision, State(NONE)).notes
    assert notes[-1] == "--batch-size 64 is more than the memory of this machine holds: batches of 1"
    assert with_last_notes(decided(arrays(20), batch_size=64), State(NONE)).notes == ("of the model",)
