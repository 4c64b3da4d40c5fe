"""tf.estimator's own tests, run against `penstock.estimator`: how many pass, and which differ.

    python tests/peers/estimator_tests.py CHECKOUT [FILE ...] [--processes 2] [--limit 180] [--verbose]

CHECKOUT is a checkout of tensorflow/estimator (r2.15). Its tests import `tensorflow_estimator.python.estimator.…`; here
each such module holds the public names of `penstock.estimator`. A test is counted as

- pass: it passed. Texts of errors are not compared, kinds are: the words are ours;
- private: it failed, and it had asked for a name that tf.estimator never exported, for code that left TensorFlow
  (ready-made estimators), or for a cluster;
- meant: it failed, and that is meant: `MEANT` has the reasons;
- differ: it failed otherwise, did not end within the limit, or ended its process.

Each file is run in a process of its own. A process that hangs or dies is started again after the test that did it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

THEIRS = "tensorflow_estimator"
FOLDER = "tensorflow_estimator/python/estimator"
FILES = (
    "estimator_test.py",
    "training_test.py",
    "run_config_test.py",
    "model_fn_test.py",
    "export/export_test.py",
    "inputs/numpy_io_test.py",
    "inputs/pandas_io_test.py",
    "exporter_test.py",
    "early_stopping_test.py",
    "hooks/hooks_test.py",
    "extenders_test.py",
    "canned/parsing_utils_test.py",
    "object_checkpointing_test.py",
)
"""The tests of what `penstock.estimator` has. The others are about ready-made estimators, heads, TPUs and helpers."""

PASS, SKIP, PRIVATE, MEANT_SO, DIFFER = "pass", "skip", "private", "meant", "differ"

REFUSALS = ("LeftTensorFlow", "ClusterRefused")
"""What penstock raises for ready-made estimators and for clusters."""

REPLACED = {
    "EstimatorTrainTest.test_master_hooks_single_replica": "replaces a function inside tensorflow.python.training",
}
"""Tests that use private interfaces of TensorFlow, which cannot be seen from how they fail."""

MEANT = {
    "EstimatorExportTest.test_export_saved_model_symbol_deprecated": "the older name stays for code of TensorFlow 1",
    "EstimatorPredictTest.test_warn_if_no_queue_runner": "the warning has words of our own, and a logger of our own",
}


class Outcome(NamedTuple):
    """What became of one test."""

    name: str
    kind: str
    reason: str = ""


# ---- the process that runs one file ----------------------------------------------------------------------------------


ASKED: list[str] = []
"""What the test under way asked for that is no public part of tf.estimator, or not there."""


class Mapped(ModuleType):
    """A module of theirs, with the public names of ours."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        public, here = public_names(), self.__name__.rpartition(".")[2]
        for spelling in (name, f"{here}.{name}", re.sub(r"_?[Vv][12]$", "", name)):
            if spelling in public:
                return public[spelling]
        ASKED.append(f"{here}.{name}")
        raise AttributeError(f"tf.estimator exports no {name!r}")


@functools.cache
def public_names() -> dict[str, Any]:
    from tensorflow.python.saved_model.model_utils import export_utils

    from penstock import estimator
    from penstock.estimator import canned, tf_config

    found: dict[str, Any] = {name: getattr(estimator.experimental, name) for name in canned.EXPERIMENTAL}
    for module in (estimator.experimental, estimator.export, estimator.inputs, estimator):
        names = {*dir(module), *(["SupervisedInputReceiver"] if module is estimator.export else [])}
        values = {name: getattr(module, name) for name in names if not name.startswith("_")}
        found |= {name: value for name, value in values.items() if not isinstance(value, ModuleType)}
    tags = {"EXPORT_TAG_MAP": export_utils.EXPORT_TAG_MAP}  # of TensorFlow, where it is now
    return {**found, **HELPERS, **tags, "TaskType": tf_config.TaskType}


def write_metrics(folder: str, metrics: dict[str, float], step: int) -> None:
    """The events of one evaluation."""
    import tensorflow as tf

    summary = tf.compat.v1.Summary()
    for name, value in metrics.items():
        summary.value.add(tag=name, simple_value=value)
    writer = tf.compat.v1.summary.FileWriterCache.get(folder)
    writer.add_summary(summary, step)
    writer.flush()


def global_step_of(folder: str) -> int:
    from penstock.estimator.checkpoints import global_step_of

    return global_step_of(folder)


def receiver_of_input(input_fn: Callable[..., Any], **arguments: Any) -> Any:
    """A receiver that is fed what an `input_fn` gives."""
    import tensorflow as tf

    from penstock.estimator.experimental import build_raw_supervised_input_receiver_fn

    with tf.Graph().as_default():
        made = input_fn(**arguments)
        if isinstance(made, tf.data.Dataset):
            made = tf.compat.v1.data.make_one_shot_iterator(made).get_next()
    return build_raw_supervised_input_receiver_fn(*made)


HELPERS: dict[str, Any] = {
    "export_lib.build_supervised_input_receiver_fn_from_input_fn": receiver_of_input,
    "LOSS_METRIC_KEY": "loss",
    "_write_dict_to_summary": write_metrics,
    "_load_global_step_from_checkpoint_dir": global_step_of,
}
"""Private names with which their tests only lay out or look at files, or feed an export. What they test is public."""


class Maps(MetaPathFinder, Loader):
    """Imports every module below `tensorflow_estimator` as a `Mapped` one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == THEIRS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Mapped(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def raising(case: unittest.TestCase, kind: Any, pattern: Any) -> Iterator[Any]:
    with unittest.TestCase.assertRaises(case, kind) as caught:  # noqa: PT027
        yield caught
    note_cluster(caught.exception)
    print(f"wanted {pattern!r}, got {' '.join(str(caught.exception).split())[:200]!r}")


def raises_in_other_words(case: Any, kind: Any, pattern: Any, *called: Any, **named: Any) -> Any:
    """Stands in for the assertions that compare an error's text: its kind must be right."""
    if not called:
        return raising(case, kind, pattern)
    with raising(case, kind, pattern):
        called[0](*called[1:], **named)
    return None


def note_cluster(error: BaseException | None) -> None:
    """Note that a cluster was refused: a test that wants another refusal of the same kind must not pass by this."""
    if type(error).__name__ == REFUSALS[1]:
        ASKED.append("a cluster")


def adapt_assertions() -> None:
    import tensorflow as tf

    for ending in ("Regex", "Regexp", "WithLiteralMatch", "WithPredicateMatch"):
        setattr(tf.test.TestCase, f"assertRaises{ending}", raises_in_other_words)
    plain: dict[str, Callable[..., Any]] = {"assertEquals": unittest.TestCase.assertEqual}
    plain["assertItemsEqual"] = unittest.TestCase.assertCountEqual
    plain["assertRegexpMatches"] = unittest.TestCase.assertRegex
    for name, method in plain.items():
        if not hasattr(tf.test.TestCase, name):  # gone with Python 3.12
            setattr(tf.test.TestCase, name, method)


class Judging(unittest.TestResult):
    """Writes one line when a test begins and one when it ended."""

    def __init__(self, lines: Any) -> None:
        super().__init__()
        self._lines = lines
        self._outcome: Outcome | None = None

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        ASKED.clear()
        self._outcome = None
        self.write({"begins": name_of(test)})

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        outcome = self._outcome or Outcome(name_of(test), PASS)
        if outcome.kind == PASS and "a cluster" in ASKED:
            outcome = Outcome(outcome.name, PRIVATE, "a cluster")
        self.write(outcome._asdict())

    def write(self, record: dict[str, Any]) -> None:
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._outcome = Outcome(name_of(test), SKIP, reason)

    def addError(self, test: Any, err: Any) -> None:
        self._outcome = judged(name_of(test), err[1])

    def addFailure(self, test: Any, err: Any) -> None:
        self._outcome = judged(name_of(test), err[1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._outcome = judged(name_of(test), err[1])


def name_of(test: Any) -> str:
    return str(test.id()).partition(".")[2]


def judged(name: str, error: BaseException) -> Outcome:
    note_cluster(error)
    told = f"{type(error).__name__}: {error}"
    private = re.search(r"attribute '?(_[a-z]\w*)", told) if isinstance(error, AttributeError) else None
    if private:
        ASKED.append(private[1])
    if type(error).__name__ == REFUSALS[0]:
        ASKED.append("a ready-made estimator")
    traceback.print_exception(error)
    where = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)][-1:]
    if name in REPLACED:
        ASKED.append(REPLACED[name])
    if name in MEANT:
        return Outcome(name, MEANT_SO, MEANT[name])
    is_refusal = isinstance(error, (AttributeError, ImportError)) or type(error).__name__ in REFUSALS
    if ASKED and (is_refusal or name in REPLACED):
        return Outcome(name, PRIVATE, ", ".join(dict.fromkeys(ASKED)))
    return Outcome(name, DIFFER, f"{' '.join(told.split())[:300]} ({''.join(where)})")


def run_file(path: Path, results: Path, again: Path | None) -> None:
    """Run the tests of a file that have no line in `results` yet.

    `again` has the results of a run before: what was skipped in it is run with the behaviour of TensorFlow 1.
    """
    from penstock import estimator

    estimator.install()
    import tensorflow as tf

    for name in [name for name in sys.modules if name.partition(".")[0] == THEIRS]:
        del sys.modules[name]
    sys.meta_path.insert(0, Maps())
    adapt_assertions()
    sys.argv = [str(path)]
    tf.compat.v1.flags.FLAGS(sys.argv)
    done = {record.get("name") or record.get("begins") for record in read_lines(results)}
    if again is not None:
        tf.compat.v1.disable_v2_behavior()
        done |= {record["name"] for record in read_lines(again) if record.get("kind", SKIP) != SKIP}
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with results.open("a", encoding="utf-8") as lines:
        judging = Judging(lines)
        for test in each_test(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if name_of(test) not in done and not name_of(test).endswith(".test_session"):
                unittest.TestSuite([test]).run(judging)


def each_test(suite: Any) -> Iterator[Any]:
    for test in suite:
        yield from each_test(test) if isinstance(test, unittest.TestSuite) else [test]


# ---- the process that counts -----------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def outcomes_of(path: Path, limit_s: float, folder: Path) -> list[Outcome]:
    """Run a file, and then once more what is for TensorFlow 1 only."""
    first, second = folder / f"{path.stem}.jsonl", folder / f"{path.stem}_v1.jsonl"
    outcomes = run_to_the_end(path, first, [], limit_s)
    if any(outcome.kind == SKIP for outcome in outcomes):
        later = run_to_the_end(path, second, ["--again", str(first)], limit_s)
        outcomes = [outcome for outcome in outcomes if outcome.kind != SKIP] + later
    return [outcome._replace(name=f"{path.stem}.{outcome.name}") for outcome in outcomes]


def run_to_the_end(path: Path, results: Path, options: list[str], limit_s: float) -> list[Outcome]:
    """Run a file in as many processes as it takes."""
    log = results.with_suffix(".log")
    results.write_text("", encoding="utf-8")
    command = [sys.executable, __file__, str(path), "--results", str(results), *options]
    while True:
        before = results.stat().st_size
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment())
            is_late = wait_or_end(process, results, limit_s)
        records = read_lines(results)
        if records and "begins" in records[-1]:  # the process ended inside a test
            reason = f"no end within {limit_s:.0f} s" if is_late else f"ended its process ({process.returncode})"
            with results.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(Outcome(records[-1]["begins"], DIFFER, reason)._asdict()) + "\n")
        elif process.returncode == 0:
            break
        elif results.stat().st_size == before:
            raise SystemExit(f"{path} cannot be run:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
    return [Outcome(**record) for record in read_lines(results) if "begins" not in record]


def environment() -> dict[str, str]:
    """Their tests run on the CPU, by the penstock beside this file."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    kept = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "KERAS_BACKEND")}
    return {**kept, "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def wait_or_end(process: subprocess.Popen[bytes], results: Path, limit_s: float) -> bool:
    """Wait for the process. One that writes no line for too long is ended with its children; then True is returned."""
    size, since = -1, time.monotonic()
    while True:
        try:
            process.wait(timeout=1)
            return False
        except subprocess.TimeoutExpired:
            pass
        if results.stat().st_size != size:
            size, since = results.stat().st_size, time.monotonic()
        elif time.monotonic() - since > limit_s:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True


LABELS = {
    PASS: "pass",
    PRIVATE: "use private interfaces or clusters",
    MEANT_SO: "differ on purpose",
    DIFFER: "differ",
    SKIP: "skipped by themselves",
}


def tell(outcomes: list[Outcome], is_verbose: bool) -> None:
    counted = {kind: [outcome for outcome in outcomes if outcome.kind == kind] for kind in LABELS}
    for kind in (PRIVATE, MEANT_SO, DIFFER) if is_verbose else (MEANT_SO, DIFFER):
        for outcome in counted[kind]:
            print(f"{kind:8} {outcome.name}\n         {outcome.reason}")
    print(f"{len(outcomes)} tests: " + ", ".join(f"{len(counted[kind])} {label}" for kind, label in LABELS.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="tf.estimator's own tests against penstock.estimator")
    parser.add_argument("checkout", type=Path, help="a checkout of tensorflow/estimator")
    parser.add_argument("files", nargs="*", default=FILES, help=f"test files below {FOLDER}")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=180, help="seconds for one test")
    parser.add_argument("--verbose", action="store_true", help="name also the tests that use private interfaces")
    parser.add_argument("--logs", type=Path, help="keep what the tests print in this folder")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--again", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.results is not None:
        run_file(given.checkout, given.results, given.again)
        return 0
    paths = [given.checkout / FOLDER / name for name in given.files or FILES]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(given.processes) as pool:
        folder = given.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = [
            outcome
            for found in pool.map(lambda path: outcomes_of(path, given.limit, folder), paths)
            for outcome in found
        ]
    tell(outcomes, given.verbose)
    return 1 if any(outcome.kind == DIFFER for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
