"""What `penstock.fit` makes of its arguments."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import UsageError
from penstock.runtimes.keras.training.given_data import DataArguments
from penstock.runtimes.keras.training.keras_trainer import StepSettings
from penstock.training.in_memory import FitRequest, fit_in_memory, with_keywords


def test_arguments_of_model_fit_reach_data_and_training() -> None:
    keywords = {"shuffle": False, "steps_per_epoch": 3, "class_weight": {0: 2.0}, "validation_split": 0.5}
    given, request = with_keywords(DataArguments(1, 2, batch_size=8, shuffle=True), FitRequest(epochs=4), keywords)
    assert given == DataArguments(1, 2, None, 8, 3, False, {0: 2.0})
    assert request == FitRequest(epochs=4, validation_split=0.5)


def test_an_argument_that_model_fit_lacks_is_named() -> None:
    with pytest.raises(UsageError, match="workers"):
        with_keywords(DataArguments(), FitRequest(), {"workers": 3})


def test_what_is_no_live_model_is_refused() -> None:
    with pytest.raises(UsageError, match="live Keras model"):
        penstock.fit("model.keras", [1.0], [2.0])


@pytest.mark.parametrize(
    "request_",
    [FitRequest(on_nan="hide"), FitRequest(settings=StepSettings(0)), FitRequest(settings=StepSettings(True))],
)
def test_values_that_mean_nothing_are_refused(request_: FitRequest) -> None:
    with pytest.raises(UsageError):
        fit_in_memory(None, DataArguments(), request_)
