"""Training with several workers, each in a process of its own: without a cluster, which only starts them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster import gang
from penstock.cluster.transport import ClusterLost
from penstock.commands.fit_summary import FitSummary
from penstock.errors import DeviceError, Interrupted, ModelError, PenstockError, UsageError, WorkersDied
from tests.support.fit_runs import assert_same_job, read_weights
from tests.support.gang_runs import Noted, fit_together
from tests.support.photos import draw
from tests.support.plain_machines import OlderMember, OtherMember, PlainMachines

MODEL = "tests.support.fit_models:build_photos"
OPTIONS = {
    "label": "@folder",
    "epochs": 3,
    "batch_size": 8,
    "validation_split": 0.2,
    "preprocess_row": "tests.support.fit_models:kill_once",
    "loaders": 1,
    "checkpoint_every": 3,
    "max_failures": 0.1,
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, which are read at random, of two classes: 62 to learn from and 15 to measure with; one is none."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(77):
        path = folder / ("odd" if number % 2 else "even") / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        draw(path, number, (24, 24))
    (folder / "odd" / "041.png").write_bytes(b"no photo")
    return folder


@pytest.fixture(scope="module")
def together(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FitSummary, Noted, Path]:
    """Two workers on two machines, with nothing going wrong."""
    output, noted = tmp_path_factory.mktemp("together") / "out", Noted()
    machines = PlainMachines(a=1, b=1)
    summary = fit_together(MODEL, photos, output, machines, noted, workers=2, **OPTIONS)
    assert machines.started == ["a", "b"]
    return summary, noted, output


def test_two_workers_learn_what_one_process_learns(
    photos: Path, together: tuple[FitSummary, Noted, Path], tmp_path: Path
) -> None:
    two, noted, output = together
    one = fit_together(MODEL, photos, tmp_path / "one", None, Noted(), **OPTIONS)
    assert (two.steps, two.rows, two.failed, two.epochs) == (one.steps, one.rows, one.failed, one.epochs)
    assert (two.failed, two.rows) == (1, 61)
    assert two.metrics == pytest.approx(one.metrics, abs=1e-5)
    assert two.devices == ("127.0.0.1#a/cpu:0", "127.0.0.1#b/cpu:0")
    assert "each of 2 workers reads its own rows" in noted.lines
    of_one, of_two = (read_weights(folder / "model.keras") for folder in (tmp_path / "one", output))
    assert of_one.keys() == of_two.keys()
    for name, value in of_one.items():
        np.testing.assert_allclose(of_two[name], value, atol=1e-5, err_msg=name)
    failures = [(folder / "_penstock" / "failures.jsonl").read_bytes() for folder in (tmp_path / "one", output)]
    assert failures[0] == failures[1]


@pytest.mark.slow
def test_a_short_last_batch_has_no_piece_without_rows(photos: Path, tmp_path: Path) -> None:
    """76 rows in batches of 24 leave 4 for the last one: 2 for each worker, and 4 pieces were asked for."""
    options = {**OPTIONS, "batch_size": 24, "accumulate": 4, "epochs": 2}
    del options["validation_split"]
    one = fit_together(MODEL, photos, tmp_path / "one", None, Noted(), **options)
    two = fit_together(MODEL, photos, tmp_path / "two", PlainMachines(a=1, b=1), Noted(), workers=2, **options)
    assert (two.steps, two.rows) == (one.steps, one.rows) == (8, 76)
    assert two.metrics == pytest.approx(one.metrics, abs=1e-5)


def test_error_of_a_worker_ends_training_and_its_stack_trace_is_in_the_log(photos: Path, tmp_path: Path) -> None:
    step = "tests.support.fit_models:step_of_infinite_slope"
    options = {**OPTIONS, "workers": 2, "checkpoint_every": 1, "step": step}
    with pytest.raises(ModelError, match="weights are NaN, although the loss is a number"):
        fit_together(MODEL, photos, tmp_path / "out", PlainMachines(a=1, b=1), Noted(), **options)
    log = (tmp_path / "out" / "_penstock" / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "penstock.errors.ModelError: weights are NaN" in log


@pytest.mark.slow
def test_after_a_killed_worker_all_go_on_from_the_checkpoint_to_the_same_bits(
    photos: Path, together: tuple[FitSummary, Noted, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, noted, machines = tmp_path / "out", Noted(), PlainMachines(a=1, b=1)
    monkeypatch.setenv("KILLED_IN", str(output))
    fit_together(MODEL, photos, output, machines, noted, workers=2, **OPTIONS)
    assert (tmp_path / "out.killed").exists()
    assert machines.started == ["a", "b", "a", "b"]
    assert any("the gang of workers lost the one on 127.0.0.1#" in line for line in noted.lines), noted.lines
    assert_same_job(output, together[2])


@pytest.mark.slow
def test_worker_that_does_not_answer_is_lost(
    photos: Path, together: tuple[FitSummary, Noted, Path], tmp_path: Path
) -> None:
    machines = PlainMachines(a=1, b=1)

    def freeze(line: str) -> None:
        if line.startswith("training on ") and len(machines.started) == 2:
            machines.freeze(0)

    noted = Noted(freeze)
    fit_together(MODEL, photos, tmp_path / "out", machines, noted, workers=2, hang_timeout=20, **OPTIONS)
    assert machines.started == ["a", "b", "a", "b"]
    assert any("lost the one on 127.0.0.1#a: it gave no answer for 2" in line for line in noted.lines), noted.lines
    assert_same_job(tmp_path / "out", together[2])


@pytest.mark.slow
def test_cluster_that_cannot_be_reached_any_more_ends_training_with_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(PlainMachines):
        """Machines that are gone once workers train."""

        def rooms(self) -> Mapping[str, int]:
            if any(line.startswith("training on ") for line in noted.lines):
                raise ClusterLost("the cluster cannot be reached any more", hint="it may come back")
            return super().rooms()

    monkeypatch.setattr(gang, "_ASK_AGAIN_S", 0.0)
    noted = Noted()
    with pytest.raises(ClusterLost, match="the cluster cannot be reached any more") as caught:
        fit_together(MODEL, photos, tmp_path / "out", Lost(a=1), noted, **OPTIONS)
    go_on = f"penstock resume {tmp_path / 'out'} --engine ray"
    assert caught.value.hint == f"it may come back; go on with: {go_on}"


@pytest.mark.slow
def test_interrupted_it_goes_on_with_another_number_of_workers(
    photos: Path, together: tuple[FitSummary, Noted, Path], tmp_path: Path
) -> None:
    """All workers end after the same step, with a checkpoint, and one goes on."""
    output = tmp_path / "out"
    stopped = Noted(lambda line: os.kill(os.getpid(), signal.SIGINT) if line.startswith("training on ") else None)
    with pytest.raises(Interrupted, match="with a checkpoint"):
        fit_together(MODEL, photos, output, PlainMachines(a=2), stopped, workers=2, **OPTIONS)
    assert "2 workers on 1 machine: these share cores or GPUs" in stopped.lines
    assert penstock.status(output)["hint"] == f"penstock resume {output} --engine ray --workers 2"
    assert any("127.0.0.1#a/cpu:0, 127.0.0.1#a#2/cpu:0" in line for line in stopped.lines), stopped.lines
    noted = Noted()
    summary = fit_together(MODEL, photos, output, PlainMachines(a=1), noted, **OPTIONS)
    assert any("it began on 2 workers, and goes on with 1 worker" in line for line in noted.lines), noted.lines
    assert summary.metrics == pytest.approx(together[0].metrics, abs=1e-5)
    assert summary.steps == together[0].steps


def test_machine_with_other_content_of_a_module_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_step.py").write_text(f"def same(row):\n    return row  # {folder}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    machines = PlainMachines(a=1, b=1)
    machines.folders["b"] = str(tmp_path / "there")
    options = {**OPTIONS, "preprocess_row": "own_step:same", "workers": 2}
    with pytest.raises(DeviceError, match=r"127\.0\.0\.1#b  module own_step  [0-9a-f]{12}  [0-9a-f]{12}"):
        fit_together(MODEL, photos, tmp_path / "out", machines, Noted(), **options)
    assert not (tmp_path / "out").exists()


def test_what_several_workers_cannot_do_is_refused_before_any_work(photos: Path, tmp_path: Path) -> None:
    def refused(error: type[PenstockError], match: str, machines: PlainMachines, **more: object) -> None:
        with pytest.raises(error, match=match):
            fit_together(MODEL, photos, tmp_path / "out", machines, Noted(), **{**OPTIONS, "workers": 2, **more})
        assert not (tmp_path / "out").exists()

    none = PlainMachines()
    refused(UsageError, "several machines train with Keras on JAX", none, runtime="tensorflow")
    refused(UsageError, "several workers need one batch size", none, batch_size="auto")
    refused(UsageError, "workers do not share a cache on disk", none, cache="disk")
    refused(UsageError, "workers is for clusters", none, engine="local")
    fitting = r"\nallowed: at most 2: 2 on 127\.0\.0\.1#a\nhint: --workers 2;"
    refused(DeviceError, f"no room for so many workers\nreceived: --workers 3{fitting}", PlainMachines(a=2), workers=3)
    refused(
        UsageError, "a batch is divided evenly over the devices of all workers", PlainMachines(a=1, b=1), batch_size=9
    )


def test_machines_that_are_not_alike_are_one_table_before_any_work(photos: Path, tmp_path: Path) -> None:
    def told(machines: PlainMachines) -> list[list[str]]:
        with pytest.raises(DeviceError, match="not fit the job") as caught:
            fit_together(MODEL, photos, tmp_path / "out", machines, Noted(), workers=2, **OPTIONS)
        assert not (tmp_path / "out").exists()
        return [line.split() for line in str(caught.value).splitlines() if line.strip().startswith("127.0.0.1#")]

    machines = PlainMachines(a=1, b=1)
    machines.members_of = {"b": OlderMember}
    assert told(machines) == [["127.0.0.1#b", "penstock", "0.0.1", metadata.version("penstock")]]
    machines.members_of = {"b": OtherMember}
    assert told(machines) == [
        ["127.0.0.1#b", "jax", "not", "installed", metadata.version("jax")],
        ["127.0.0.1#b", "devices", "2", "gpu", "1", "cpu"],
    ]


@pytest.mark.slow
def test_gang_that_loses_a_worker_three_times_without_a_checkpoint_is_given_up(photos: Path, tmp_path: Path) -> None:
    class Loses(PlainMachines):
        """One of its machines dies each time when training is to begin."""

        def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
            if method == "begin" and self.started[node] == "b":
                self.end(node)
            return super().call(node, method, *arguments)

    machines, noted = Loses(a=1, b=1), Noted()
    with pytest.raises(WorkersDied, match="the gang of workers died 3 times without getting further") as caught:
        fit_together(MODEL, photos, tmp_path / "out", machines, noted, workers=2, **OPTIONS)
    assert "lost the one on 127.0.0.1#b: it was killed" in str(caught.value)
    assert caught.value.exit_code == 9
    assert machines.started == ["a", "b"] * 3
    again = [line for line in noted.lines if "it is started again, from the last checkpoint" in line]
    assert len(again) == 2
    machines.close()


@pytest.mark.slow
def test_gang_whose_machine_left_says_how_the_last_one_ended(photos: Path, tmp_path: Path) -> None:
    class Leaves(PlainMachines):
        """One of its machines dies, and does not come back."""

        def call(self, node: int, method: str, *arguments: Any) -> Future[Any]:
            if self.started[node] == "b" and self.room_of.pop("b", 0):
                self.end(node)
            return super().call(node, method, *arguments)

    options = {**OPTIONS, "workers": 2, "start_timeout": 10}
    with pytest.raises(DeviceError, match="no room for so many workers") as caught:
        fit_together(MODEL, photos, tmp_path / "out", Leaves(a=1, b=1), Noted(), **options)
    assert "--workers 2; the last gang lost the one on 127.0.0.1#b: it was killed" in str(caught.value)
