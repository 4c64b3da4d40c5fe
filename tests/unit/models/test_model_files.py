"""What a model is before any framework has seen it."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import cloudpickle
import pytest

from penstock.errors import ModelError
from penstock.models import builder, digest, keras_file, saved_model


@pytest.fixture
def keras_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.13.2", "date_saved": "2026-08-01"}))
        archive.writestr("config.json", "{}")
    return path


@pytest.fixture
def saved_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"\x12\x06MatMul\x12\x04Relu a PyFunc in a comment")
    (folder / "variables" / "variables.index").write_bytes(b"weights")
    return folder


class TestKerasFiles:
    def test_keras_file_is_recognised(self, keras_path: Path) -> None:
        file = keras_file.recognise(str(keras_path), trust=True)
        assert file is not None
        assert (file.kind, file.location, file.trust) == ("keras", str(keras_path), True)
        assert file.runtimes == ("tensorflow", "jax", "torch")

    def test_other_paths_are_none_of_its_business(self, tmp_path: Path) -> None:
        assert keras_file.recognise("model.h5") is None
        assert keras_file.recognise(str(tmp_path)) is None

    def test_suffix_may_be_in_capitals(self, keras_path: Path) -> None:
        loud = keras_path.rename(keras_path.with_name("MODEL.KERAS"))
        assert keras_file.recognise(str(loud)) is not None

    def test_absent_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no such model file"):
            keras_file.recognise(str(tmp_path / "absent.keras"))

    def test_file_that_is_no_archive_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "bad.keras").write_bytes(b"not a zip")
        with pytest.raises(ModelError, match=r"damaged or not a \.keras file"):
            keras_file.recognise(str(tmp_path / "bad.keras"))

    def test_signature_is_refused(self, keras_path: Path) -> None:
        with pytest.raises(ModelError, match="has no signatures"):
            keras_file.recognise(str(keras_path), signature="serve")

    def test_digest_follows_the_content_and_not_the_name(self, keras_path: Path, tmp_path: Path) -> None:
        first = keras_file.recognise(str(keras_path))
        copied = tmp_path / "copy.keras"
        copied.write_bytes(keras_path.read_bytes())
        second = keras_file.recognise(str(copied))
        assert first is not None
        assert second is not None
        assert first.digest == second.digest
        with zipfile.ZipFile(keras_path, "a") as archive:
            archive.writestr("more", "x")
        changed = keras_file.recognise(str(keras_path))
        assert changed is not None
        assert changed.digest != first.digest

    def test_writer_is_read_from_the_metadata(self, keras_path: Path, tmp_path: Path) -> None:
        assert keras_file.writer(str(keras_path)) == "Keras 3.13.2, 2026-08-01"
        with zipfile.ZipFile(tmp_path / "bare.keras", "w") as archive:
            archive.writestr("config.json", "{}")
        assert keras_file.writer(str(tmp_path / "bare.keras")) == "Keras, version unknown"


class TestSavedModels:
    def test_folder_is_recognised(self, saved_folder: Path) -> None:
        file = saved_model.recognise(str(saved_folder), signature="serve")
        assert file is not None
        assert (file.kind, file.location, file.signature) == ("saved_model", str(saved_folder), "serve")
        assert file.runtimes == ("tensorflow",)

    def test_other_folders_are_none_of_its_business(self, tmp_path: Path) -> None:
        assert saved_model.recognise(str(tmp_path)) is None
        assert saved_model.recognise(str(tmp_path / "absent")) is None

    @pytest.mark.parametrize("operation", ["PyFunc", "EagerPyFunc", "ReadFile", "WriteFile"])
    def test_operations_that_reach_beyond_the_graph_need_trust(self, saved_folder: Path, operation: str) -> None:
        graph = saved_folder / "saved_model.pb"
        graph.write_bytes(graph.read_bytes() + b"\x12" + bytes([len(operation)]) + operation.encode())
        with pytest.raises(ModelError) as caught:
            saved_model.recognise(str(saved_folder))
        assert operation in (caught.value.received or "")
        assert "--trust-model" in (caught.value.hint or "")
        assert saved_model.recognise(str(saved_folder), trust=True) is not None

    def test_digest_covers_every_file_and_its_name(self, saved_folder: Path) -> None:
        seen = {digest.of_folder(str(saved_folder))}
        index = saved_folder / "variables" / "variables.index"
        index.write_bytes(b"Weights")
        seen.add(digest.of_folder(str(saved_folder)))
        index.rename(index.with_name("other"))
        seen.add(digest.of_folder(str(saved_folder)))
        (saved_folder / "assets").mkdir()
        (saved_folder / "assets" / "words").touch()
        seen.add(digest.of_folder(str(saved_folder)))
        assert len(seen) == 4

    def test_digest_does_not_depend_on_where_the_folder_lies(self, saved_folder: Path) -> None:
        before = digest.of_folder(str(saved_folder))
        assert digest.of_folder(str(saved_folder.rename(saved_folder.with_name("moved")))) == before


class TestBuilders:
    @pytest.fixture(autouse=True)
    def importable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "own_models.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
        (tmp_path / "own_package" / "deep").mkdir(parents=True)
        for name in ("__init__.py", "nets.py", "deep/__init__.py"):
            (tmp_path / "own_package" / name).write_text("raise RuntimeError('imported')\n", encoding="utf-8")
        return tmp_path

    @pytest.mark.parametrize("location", ["own_models:build", "own_package.nets:build", "own_package.deep:build"])
    def test_function_of_a_module_is_found_without_importing_it(self, location: str) -> None:
        file = builder.recognise(location, trust=True)
        assert file is not None
        assert (file.kind, file.location) == ("builder", location)
        assert location.partition(":")[0] not in sys.modules

    def test_digest_follows_the_source(self, importable: Path) -> None:
        before = builder.recognise("own_models:build")
        (importable / "own_models.py").write_text("pass\n", encoding="utf-8")
        after = builder.recognise("own_models:build")
        assert before is not None
        assert after is not None
        assert before.digest != after.digest

    @pytest.mark.parametrize("location", ["absent_module:build", "own_package.absent:build", "own_models.sub:build"])
    def test_module_that_is_not_there_is_told(self, location: str) -> None:
        with pytest.raises(ModelError) as caught:
            builder.recognise(location)
        assert caught.value.problem == "no such module"
        assert caught.value.received == location

    @pytest.mark.parametrize("location", ["sys:exit", "builtins:print"])
    def test_module_without_a_file_is_told(self, location: str) -> None:
        with pytest.raises(ModelError):
            builder.recognise(location)

    @pytest.mark.parametrize("location", ["model.keras", "folder/model", "a:b:c", "1a:b", "a:1b", ":b", "a:", "s3://x"])
    def test_other_forms_are_none_of_its_business(self, location: str) -> None:
        assert builder.recognise(location) is None

    def test_function_travels_by_value(self) -> None:
        size = 3

        def build() -> int:
            return size

        file = builder.from_function(build)
        assert file.payload is not None
        assert file.location.endswith("build")
        assert file.digest == builder.from_function(build).digest
        assert file.digest != builder.from_function(lambda: 4).digest
        assert cloudpickle.loads(file.payload)() == 3
