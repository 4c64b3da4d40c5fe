"""HDF5, frozen graphs, ONNX, TFLite, StableHLO and JAX exports: recognised, or refused with a reason."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import pytest

from penstock.errors import ModelError
from penstock.models.formats import frozen_graph, jax_export, stablehlo
from penstock.models.formats import h5 as h5_file
from penstock.models.formats import keras as keras_file
from penstock.models.formats import onnx as onnx_file
from penstock.models.formats import tflite as tflite_file
from penstock.models.scan import hdf5
from tests.unit.models import written
from tests.unit.models.written import field, node

CONFIG = {"class_name": "Sequential", "config": [{"class_name": "Dense", "config": {"units": 3, "name": "d"}}]}


def write_h5(path: Path, config: Any = CONFIG, **attributes: str) -> Path:
    with h5py.File(path, "w") as file:
        if config is not None:
            file.attrs["model_config"] = json.dumps(config).encode()  # bytes, as Keras 1 and 2 wrote it
        for key, value in attributes.items():
            file.attrs[key] = value
        file["model_weights/d/kernel"] = [[1.0]]
        file["model_weights/soft"] = h5py.SoftLink("/model_weights/d")
    return path


class TestHdf5:
    def test_whole_models_are_recognised(self, tmp_path: Path) -> None:
        file = h5_file.FORMAT.recognise(
            str(write_h5(tmp_path / "model.H5", keras_version="2.3.1", backend="tensorflow"))
        )
        assert file is not None
        assert (file.kind, file.runtimes) == ("h5", ("tensorflow", "jax", "torch", "tf_keras"))
        assert h5_file.FORMAT.facts(file).writer == "Keras 2.3.1 on tensorflow"

    def test_early_files_say_no_version(self, tmp_path: Path) -> None:
        file = h5_file.FORMAT.recognise(str(write_h5(tmp_path / "model.hdf5")))
        assert file is not None
        assert h5_file.FORMAT.facts(file).writer == "Keras 1"

    def test_hdf5_may_be_called_keras(self, tmp_path: Path) -> None:
        path = str(write_h5(tmp_path / "model.keras"))
        assert keras_file.FORMAT.recognise(path) is None
        assert h5_file.FORMAT.recognise(path) is not None

    def test_weights_alone_are_no_model(self, tmp_path: Path) -> None:
        path = write_h5(tmp_path / "model.weights.h5", None)
        with pytest.raises(ModelError, match="weights only") as caught:
            h5_file.FORMAT.recognise(str(path))
        assert caught.value.hint == f"penstock predict module:function --weights {path}"
        assert len(h5_file.check_weights(str(path))) == 64

    def test_only_what_tells_of_the_model_is_read(self, tmp_path: Path) -> None:
        path = write_h5(tmp_path / "model.h5")
        with h5py.File(path, "r+") as file:
            file.attrs["other"] = ["x" * 1000] * 1000  # each could be the same gigabyte
        assert set(hdf5.look(str(path), path.stat().st_size).attributes) == {"model_config"}
        with h5py.File(path, "r+") as file:
            file.attrs["keras_version"] = ["2.0", "2.0"]
        with pytest.raises(ModelError, match="the attribute keras_version is no text"):
            h5_file.FORMAT.recognise(str(path))

    def test_weights_in_an_archive_may_not_lie_elsewhere(self, tmp_path: Path) -> None:
        inside = tmp_path / "model.weights.h5"
        with h5py.File(inside, "w") as file:
            file["kernel"] = h5py.ExternalLink("/etc/secret.h5", "/kernel")
        with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
            archive.write(inside, "model.weights.h5")
        path = str(tmp_path / "model.keras")
        with pytest.raises(ModelError, match="is a link into another file"):
            h5_file.check_weights(path)
        assert len(h5_file.check_weights(path, trust=True)) == 64

    def test_classes_of_modules_that_the_user_named_need_no_trust(self, tmp_path: Path) -> None:
        mine = {"class_name": "Mine", "module": "my_code", "registered_name": "Mine", "config": {}}
        path = str(write_h5(tmp_path / "model.h5", {"class_name": "Sequential", "config": {"layers": [mine]}}))
        with pytest.raises(ModelError, match=r"my_code\.Mine"):
            h5_file.FORMAT.recognise(path)
        assert h5_file.FORMAT.recognise(path, own=("my_code",)) is not None

    def test_other_hdf5_is_told(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "data.h5", "w") as file:
            file["rows"] = [1, 2]
        with pytest.raises(ModelError, match="holds no Keras model"):
            h5_file.FORMAT.recognise(str(tmp_path / "data.h5"))

    @pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n" + bytes(100)])
    def test_damaged_files_are_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "bad.h5").write_bytes(content)
        with pytest.raises(ModelError, match="damaged"):
            h5_file.FORMAT.recognise(str(tmp_path / "bad.h5"))

    def test_a_description_that_is_no_json_is_told(self, tmp_path: Path) -> None:
        path = write_h5(tmp_path / "model.h5", None, model_config="{")
        with pytest.raises(ModelError, match="is no JSON"):
            h5_file.FORMAT.recognise(str(path))

    def test_links_to_other_files_need_trust_also_in_weights(self, tmp_path: Path) -> None:
        path = write_h5(tmp_path / "model.weights.h5", None)
        with h5py.File(path, "r+") as file:
            file["layers/link"] = h5py.ExternalLink("other.h5", "/x")
            file["layers/round"] = file["layers"]  # a group that holds itself
        with pytest.raises(ModelError, match="link into another file"):
            h5_file.check_weights(str(path))
        assert h5_file.check_weights(str(path), trust=True)

    @pytest.mark.parametrize("shape", [(10**6, 10**6), (2**40, 2**40)])
    def test_giant_arrays_are_refused_with_their_size(self, tmp_path: Path, shape: tuple[int, int]) -> None:
        path = write_h5(tmp_path / "model.h5")
        with h5py.File(path, "r+") as file:
            file.create_dataset("giant", shape=shape, chunks=(8, 8), dtype="f4")
        with pytest.raises(ModelError, match="declares arrays of"):
            h5_file.FORMAT.recognise(str(path), trust=True)


class TestFrozenGraphs:
    def test_a_graph_is_recognised(self, tmp_path: Path) -> None:
        (tmp_path / "model.pb").write_bytes(written.graph(node("x", "Placeholder"), node("y", "Relu", "x")))
        file = frozen_graph.FORMAT.recognise(str(tmp_path / "model.pb"))
        assert file is not None
        assert (file.kind, file.runtimes) == ("frozen_graph", ("tensorflow",))
        assert frozen_graph.FORMAT.facts(file).num_bytes == (tmp_path / "model.pb").stat().st_size

    def test_every_node_counts(self, tmp_path: Path) -> None:
        (tmp_path / "model.pb").write_bytes(written.graph(node("x", "Placeholder"), node("w", "WriteFile", "x", "x")))
        with pytest.raises(ModelError, match="WriteFile"):
            frozen_graph.FORMAT.recognise(str(tmp_path / "model.pb"))

    @pytest.mark.parametrize("content", [b"", b"hello there", b"\x0a\x05ab", field(1, field(1, "no operation"))])
    def test_damaged_files_are_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "model.pb").write_bytes(content)
        with pytest.raises(ModelError, match="damaged or not a frozen graph"):
            frozen_graph.FORMAT.recognise(str(tmp_path / "model.pb"))

    def test_the_graph_of_a_saved_model_under_another_name_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "renamed.pb").write_bytes(written.saved_model(written.graph(node("x", "Placeholder"))))
        with pytest.raises(ModelError, match="SavedModel's graph, without its folder"):
            frozen_graph.FORMAT.recognise(str(tmp_path / "renamed.pb"))

    def test_other_paths_are_none_of_its_business(self, tmp_path: Path) -> None:
        (tmp_path / "saved_model.pb").write_bytes(b"")
        assert frozen_graph.FORMAT.recognise(str(tmp_path / "saved_model.pb")) is None
        assert frozen_graph.FORMAT.recognise("model.pbtxt") is None


def onnx(*locations: str, domain: str = "") -> bytes:
    tensors = b""
    for location in locations:
        external = field(13, field(1, "location") + field(2, location))
        tensors += field(5, field(8, "w") + external + field(14, 1))
    operation = field(1, field(4, "MatMul") + (field(7, domain) if domain else b""))
    opset = field(8, field(1, "") + field(2, 17))
    return field(1, 8) + field(2, "pytorch") + field(3, "2.4") + field(7, operation + tensors) + opset


class TestOnnx:
    def test_the_digest_covers_the_files_beside_it(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(onnx("weights/w.bin"))
        with pytest.raises(ModelError, match="is not there"):
            onnx_file.recognise(str(path))
        (tmp_path / "weights").mkdir()
        (tmp_path / "weights" / "w.bin").write_bytes(b"1")
        before = onnx_file.recognise(str(path))
        (tmp_path / "weights" / "w.bin").write_bytes(b"2")
        file = onnx_file.recognise(str(path))
        assert before is not None
        assert file is not None
        assert before.digest != file.digest
        assert onnx_file.facts(file).writer == "pytorch 2.4 (ONNX IR 8, opset ai.onnx 17)"
        assert onnx_file.facts(file).num_bytes == path.stat().st_size + 1

    @pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin"])
    def test_files_outside_of_the_folder_need_trust(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "model.onnx").write_bytes(onnx(location))
        with pytest.raises(ModelError, match="outside of its folder"):
            onnx_file.recognise(str(tmp_path / "model.onnx"))

    def test_a_link_out_of_the_folder_needs_trust(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("x")
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "w.bin").symlink_to(tmp_path / "secret")
        (tmp_path / "in" / "model.onnx").write_bytes(onnx("w.bin"))
        with pytest.raises(ModelError, match="outside of its folder"):
            onnx_file.recognise(str(tmp_path / "in" / "model.onnx"))
        assert onnx_file.recognise(str(tmp_path / "in" / "model.onnx"), trust=True) is not None

    def test_foreign_operators_are_told(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(onnx(domain="my.own"))
        file = onnx_file.recognise(str(tmp_path / "model.onnx"))
        assert file is not None
        assert "my.own" in onnx_file.facts(file).notes[0]

    @pytest.mark.parametrize("content", [b"", b"not a model", field(1, 8), onnx()[:-3]])
    def test_damaged_files_are_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "model.onnx").write_bytes(content)
        with pytest.raises(ModelError, match="damaged or not an ONNX model"):
            onnx_file.recognise(str(tmp_path / "model.onnx"))


class TestFlatBuffers:
    def test_tflite_is_recognised_by_its_content(self, tmp_path: Path) -> None:
        (tmp_path / "model.bin").write_bytes(written.flatbuffer([3, None, None, b"by hand"], b"TFL3"))
        file = tflite_file.FORMAT.recognise(str(tmp_path / "model.bin"), signature="serve")
        assert file is not None
        assert (file.kind, file.runtimes, file.signature) == ("tflite", ("tflite",), "serve")
        assert tflite_file.FORMAT.facts(file).writer == "by hand"

    @pytest.mark.parametrize("content", [b"", b"text", b"\xff\xff\xff\x7fTFL3", b"\x08\0\0\0TFL3"])
    def test_damaged_tflite_is_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "model.tflite").write_bytes(content)
        with pytest.raises(ModelError, match="damaged or not a TFLite model"):
            tflite_file.FORMAT.recognise(str(tmp_path / "model.tflite"))

    def test_a_jax_export_is_known_by_the_module_in_it(self, tmp_path: Path) -> None:
        module = b"ML\xefR\x0dStableHLO_v1.9.0\0..."
        nothing: list[bytes | int | None] = [None] * 11
        (tmp_path / "f.jax").write_bytes(written.flatbuffer([5, b"f", *nothing, module]))
        file = jax_export.FORMAT.recognise(str(tmp_path / "f.jax"))
        assert file is not None
        assert (file.kind, file.runtimes) == ("jax_export", ("stablehlo",))
        told = "JAX export, format 5, function f (MLIR bytecode, StableHLO_v1.9.0)"
        assert jax_export.FORMAT.facts(file).writer == told
        (tmp_path / "f.jax").write_bytes(written.flatbuffer([5, b"f", *nothing, b"something else"]))
        with pytest.raises(ModelError, match="no StableHLO module"):
            jax_export.FORMAT.recognise(str(tmp_path / "f.jax"))


class TestStableHlo:
    @pytest.mark.parametrize("content", [b"ML\xefR\x0dStableHLO_v1.9.0\0", b"module @m { func.func public @main() }"])
    def test_bytecode_and_text_are_recognised(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "m.mlir").write_bytes(content)
        file = stablehlo.FORMAT.recognise(str(tmp_path / "m.mlir"))
        assert file is not None
        assert (file.kind, file.runtimes) == ("stablehlo", ("stablehlo",))

    @pytest.mark.parametrize(
        "content",
        [
            b"ML\xefR\x0dStableHLO_v1.9.0\0 xla_python_cpu_callback\0",
            b'module { "stablehlo.custom_call"() {call_target_name = "xla_\\70ython_cpu_\\63allback"} }',
        ],
    )
    def test_calls_back_into_the_process_need_trust(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "m.stablehlo").write_bytes(content)
        with pytest.raises(ModelError, match="xla_python_cpu_callback"):
            stablehlo.FORMAT.recognise(str(tmp_path / "m.stablehlo"))

    def test_other_content_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "m.mlir").write_bytes(b"hello")
        with pytest.raises(ModelError, match="damaged or not a StableHLO module"):
            stablehlo.FORMAT.recognise(str(tmp_path / "m.mlir"))


@pytest.mark.parametrize("kind", [keras_file, h5_file, frozen_graph, onnx_file, tflite_file, stablehlo, jax_export])
def test_absent_files_are_told_and_other_paths_left_alone(kind: Any, tmp_path: Path) -> None:
    suffix = {"keras": ".keras", "h5": ".h5", "frozen_graph": ".pb", "onnx": ".onnx", "tflite": ".tflite",
              "stablehlo": ".mlirbc", "jax_export": ".jaxexport"}[kind.FORMAT.kind]  # fmt: skip
    with pytest.raises(ModelError, match="no such model file"):
        kind.FORMAT.recognise(str(tmp_path / f"absent{suffix}"))
    (tmp_path / f"folder{suffix}").mkdir()
    if kind not in (keras_file, frozen_graph):  # a SavedModel may be a folder of any name
        with pytest.raises(ModelError, match="this is a folder"):
            kind.FORMAT.recognise(str(tmp_path / f"folder{suffix}"))
    assert kind.FORMAT.recognise(str(tmp_path / "absent.parquet")) is None
    assert kind.FORMAT.recognise(str(tmp_path)) is None
    assert kind.FORMAT.recognise("module:function") is None
