"""The ready-made Estimators of TensorFlow, whose code was removed from it. Models that they exported can be run."""

from typing import Any, NoReturn

from penstock.errors import ModelError

MADE_READY = (
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BoostedTreesClassifier",
    "BoostedTreesEstimator",
    "BoostedTreesRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
)
HEADS = (
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
)
EXPERIMENTAL = (
    "InMemoryEvaluatorHook",
    "KMeans",
    "LinearSDCA",
    "RNNClassifier",
    "RNNEstimator",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
)
OF_TPU = ("InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec")


class LeftTensorFlow(ModelError, NotImplementedError):
    """The code that the user's script needs was removed from TensorFlow."""


def gone(name: str) -> type:
    """A class of this name, so that code which mentions it can be imported. Its use raises an error with a hint."""

    def refuse(cls: type, *arguments: object, **named: object) -> NoReturn:
        if name in OF_TPU:
            raise LeftTensorFlow(
                f"tf.estimator.tpu.{name} cannot be built here: there are no TPUs among the devices",
                hint="Estimator and EstimatorSpec run the same model on GPUs and CPUs",
            )
        raise LeftTensorFlow(
            f"tf.estimator.{name} cannot be built here: its code left TensorFlow with 2.16",
            allowed="Estimator(model_fn, …) with a model_fn of your own",
            hint="its exports are served: `penstock inspect EXPORT_DIR` shows them, "
            "`penstock predict EXPORT_DIR DATA --output OUT` runs them on every device",
        )

    body: dict[str, Any] = {"__new__": refuse, "__module__": __name__, "__doc__": "Left TensorFlow with 2.16."}
    return type(name, (), body)


_made: dict[str, type] = {}


def find(name: str, among: tuple[str, ...]) -> type:
    """The stand-in class for one of the names `among`. It is the same class each time.

    Raises:
        AttributeError: There was no such name.
    """
    if name not in among:
        raise AttributeError(f"tf.estimator has no {name!r}")
    return _made.setdefault(name, gone(name))
