"""The doorway for code written against `tf.estimator`, which left TensorFlow with 2.16.

>>> from penstock import estimator
>>> estimator.ModeKeys.PREDICT
'infer'

`estimator.install()` puts this package where old code looks for it: `tf.estimator` and `tf.compat.v1.estimator`.
Importing this imports no framework.
"""

from typing import Any

from penstock.estimator import experimental, export, inputs, tpu
from penstock.estimator.canned import HEADS, MADE_READY, find
from penstock.estimator.checkpoints import WarmStartSettings
from penstock.estimator.estimator import Estimator, add_metrics
from penstock.estimator.installing import install
from penstock.estimator.parsing_specs import classifier_parse_example_spec, regressor_parse_example_spec
from penstock.estimator.refusals import WrongType, WrongValue
from penstock.estimator.run_config import RunConfig
from penstock.estimator.saved_models import BestExporter, Exporter, FinalExporter, LatestExporter
from penstock.estimator.spec import EstimatorSpec, ModeKeys
from penstock.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "WrongType",
    "WrongValue",
    "add_metrics",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "inputs",
    "install",
    "regressor_parse_example_spec",
    "tpu",
    "train_and_evaluate",
]

OF_TENSORFLOW = (
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "VocabInfo",
)
"""Names of `tf.estimator` that TensorFlow still has, in `tf.compat.v1.train`."""


def __getattr__(name: str) -> Any:
    if name in OF_TENSORFLOW:
        import tensorflow as tf

        return getattr(tf.compat.v1.train, name)
    return find(name, MADE_READY + HEADS)


def __dir__() -> list[str]:
    return sorted([*__all__, *OF_TENSORFLOW, *MADE_READY, *HEADS])
