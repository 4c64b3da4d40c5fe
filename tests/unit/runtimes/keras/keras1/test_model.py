"""How weights and layers of Keras 1 become those of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.runtimes.keras.h5_files import backend_of_h5, version_of_h5
from penstock.runtimes.keras.keras1.layers import joined_gates, translate
from penstock.runtimes.keras.keras1.spatial import kernel_of_today
from penstock.runtimes.keras.keras1.translation import Origin
from penstock.runtimes.keras.tf_keras import _as_it_was_meant

DATA = Path(__file__).parents[4] / "data"
ON_THEANO = Origin(True, "th", {})


def test_the_gates_of_an_lstm_are_put_into_todays_order() -> None:
    written = [np.full((2, 1), value) for gate in "icfo" for value in (ord(gate), ord(gate) + 1000, ord(gate) + 2000)]
    kernel, recurrent, bias = joined_gates("LSTM", written)
    assert [chr(value) for value in kernel[0]] == list("ifco")
    assert [chr(value - 1000) for value in recurrent[0]] == list("ifco")
    assert [chr(value - 2000) for value in bias[0]] == list("ifco")


def test_kernels_of_theano_are_turned_and_channels_come_last() -> None:
    kernel = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # out, in, rows, columns
    today = kernel_of_today(kernel, (4, 5), is_channels_first=True, is_theano=True)
    assert today.shape == (4, 5, 3, 2)
    assert today[0, 0, 1, 1] == kernel[1, 1, 3, 4]


def test_both_layouts_of_a_convolution_over_time_are_read() -> None:
    kernel = np.arange(3 * 2 * 4).reshape(3, 1, 2, 4)  # length, 1, in, out
    before_1_1 = kernel.transpose(3, 2, 0, 1)
    for written in (kernel, before_1_1):
        np.testing.assert_array_equal(kernel_of_today(written, (3,), False, False), kernel[:, 0])


def test_an_unknown_layer_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="ConvLSTM2D, called 'film'") as refused:
        translate("ConvLSTM2D", {"name": "film"}, [], ON_THEANO)
    assert "--custom-objects" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("kind", "config", "what"),
    [
        ("Lambda", {"name": "code", "function": ["4wEAAAA="], "function_type": "lambda"}, "no Python of today"),
        ("Lambda", {"name": "code", "function": "squash", "function_type": "function"}, "calls 'squash'"),
        ("BatchNormalization", {"name": "norm", "mode": 2}, "its neighbours"),
        ("LSTM", {"name": "memory", "stateful": True}, "stateful"),
    ],
)
def test_what_cannot_be_done_any_more_is_refused(kind: str, config: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        translate(kind, config, [], ON_THEANO)


@pytest.mark.parametrize(
    ("file", "version", "backend"),
    [
        ("keras1/towers.h5", "1.2.2", ""),
        ("keras2/keras_2_2_theano.h5", "2.2.4", "theano"),
        ("keras2/keras_2_15.h5", "2.15.0", "tensorflow"),
    ],
)
def test_a_file_tells_who_wrote_it(file: str, version: str, backend: str) -> None:
    assert version_of_h5(str(DATA / file)) == version
    assert backend_of_h5(str(DATA / file)) == backend


def test_a_file_without_a_version_is_told_by_its_layers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["model_config"] = b'{"class_name": "Sequential", "config": [{"config": {"output_dim": 3}}]}'
    assert version_of_h5(str(tmp_path / "old.h5")) == "1"


def test_recurrent_layers_mean_what_they_meant_when_they_were_written() -> None:
    config = {
        "layers": [
            {"class_name": "GRU", "config": {"units": 2}},
            {"class_name": "GRU", "config": {"units": 2, "reset_after": True}},
            {"class_name": "CuDNNGRU", "config": {"units": 2}},
            {"class_name": "CuDNNLSTM", "config": {"units": 2}},
        ]
    }
    old, new, on_gpu, memory = _as_it_was_meant(config)["layers"]
    assert old["config"]["reset_after"] is False
    assert new["config"]["reset_after"] is True
    assert (on_gpu["class_name"], on_gpu["config"]["reset_after"]) == ("GRU", True)
    assert (memory["class_name"], memory["config"]["recurrent_activation"]) == ("LSTM", "sigmoid")
