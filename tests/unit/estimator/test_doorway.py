from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import estimator
from penstock.errors import ModelError
from penstock.estimator.calling import argument_names, check_model_fn, split_element
from penstock.estimator.checkpoints import settings_of


def model_fn(features: Any, labels: Any, mode: str, params: Any, config: Any) -> None:
    """Never called here."""


def input_fn() -> None:
    """Never called here."""


def test_modes_are_called_what_they_were() -> None:
    keys = estimator.ModeKeys
    assert (keys.TRAIN, keys.EVAL, keys.PREDICT) == ("train", "eval", "infer")


def test_every_public_name_is_there() -> None:
    ours = [name for name in dir(estimator) if name not in estimator.OF_TENSORFLOW]
    assert all(getattr(estimator, name) is not None for name in ours)
    with pytest.raises(AttributeError, match="NoSuchThing"):
        estimator.NoSuchThing  # noqa: B018


def test_arguments_of_functions_of_every_kind_are_found() -> None:
    class Model:
        def __call__(self, features: Any, mode: str) -> None: ...

        def build(self, features: Any, *, params: Any) -> None: ...

    assert argument_names(Model()) == ("features", "mode")
    assert argument_names(Model().build) == ("features", "params")
    assert argument_names(functools.partial(model_fn, params={}, config=None)) == ("features", "labels", "mode")


@pytest.mark.parametrize(
    ("function", "params", "words"),
    [
        (None, None, "model_fn is missing"),
        (lambda labels: None, None, "must take `features`"),
        (lambda features: None, {"rate": 1}, "takes no `params`"),
        (lambda features, rate: None, None, "what no one gives it"),
    ],
)
def test_a_model_fn_that_cannot_be_called_is_refused(function: Any, params: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_model_fn(function, params)


def test_an_estimator_keeps_copies_of_what_it_was_given(tmp_path: Path) -> None:
    params = {"layers": [1, 2]}
    made = estimator.Estimator(model_fn, tmp_path / "model", params=params)
    params["layers"].append(3)
    made.params["layers"].append(4)
    assert made.params == {"layers": [1, 2]}
    assert made.model_dir == str(tmp_path / "model")
    assert made.config.model_dir == made.model_dir
    assert made.eval_dir("short") == str(tmp_path / "model" / "eval_short")
    with pytest.raises(ValueError, match="differs between"):
        estimator.Estimator(model_fn, "a", estimator.RunConfig("b"))


def test_an_element_is_features_or_a_pair() -> None:
    assert split_element({"x": 1}) == ({"x": 1}, None)
    assert split_element(({"x": 1}, 2)) == ({"x": 1}, 2)
    with pytest.raises(ValueError, match="features, labels"):
        split_element((1, 2, 3))


def test_canned_estimators_can_be_named_but_not_made() -> None:
    for name in ("DNNClassifier", "LinearRegressor", "BoostedTreesClassifier", "BaselineClassifier", "MultiClassHead"):
        assert getattr(estimator, name) is getattr(estimator, name)
        with pytest.raises(ModelError, match="left TensorFlow"):
            getattr(estimator, name)(hidden_units=[3])
    with pytest.raises(ModelError, match="TPU"):
        estimator.tpu.TPUEstimator()
    with pytest.raises(ModelError, match="left TensorFlow"):
        estimator.experimental.KMeans()


def test_a_warm_start_is_a_checkpoint_a_folder_or_a_saved_model(tmp_path: Path) -> None:
    assert settings_of(None) is None
    assert settings_of("ckpt") == ("ckpt", ".*", {}, {})
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "variables.index").touch()
    assert settings_of(tmp_path) == (str(tmp_path / "variables" / "variables"), ".*", {}, {})
    with pytest.raises(ValueError, match="not understood"):
        settings_of(3)
    with pytest.raises(ValueError, match="needs a checkpoint"):
        estimator.WarmStartSettings("")


def test_specs_of_training_and_evaluation_have_the_defaults_of_the_original() -> None:
    assert estimator.TrainSpec(input_fn) == (input_fn, None, (), ())
    assert estimator.EvalSpec(input_fn) == (input_fn, 100, None, (), (), 120, 600)
    for wrong in ({"steps": 0}, {"throttle_secs": -1}, {"start_delay_secs": -1}):
        with pytest.raises(ValueError, match="must"):
            estimator.EvalSpec(input_fn, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a function"):
        estimator.TrainSpec(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Exporter"):
        estimator.EvalSpec(input_fn, exporters=[3])


def test_exporters_have_names_of_their_own() -> None:
    twice = [estimator.FinalExporter("same", input_fn), estimator.LatestExporter("same", input_fn)]
    with pytest.raises(ValueError, match="a name of its own"):
        estimator.EvalSpec(input_fn, exporters=twice)
    with pytest.raises(ValueError, match="positive"):
        estimator.LatestExporter("latest", input_fn, exports_to_keep=0)
    with pytest.raises(ValueError, match="best_eval_result"):
        estimator.BestExporter(compare_fn=lambda a, b: True)


def test_arrays_must_fit_together() -> None:
    with pytest.raises(ValueError, match="shuffle must be said"):
        estimator.inputs.numpy_input_fn(np.zeros(3))
    for x, y in (({}, None), (np.zeros(0), None), ({"a": np.zeros(3)}, np.zeros(4))):
        with pytest.raises(ValueError, match=r"empty|length"):
            estimator.inputs.numpy_input_fn(x, y, shuffle=False)._make_rows()
    rows = estimator.inputs.numpy_input_fn({"a": np.arange(2)}, {"b": np.arange(2)}, shuffle=True)._make_rows()
    assert [sorted(part) for part in rows] == [["a"], ["b"]]
