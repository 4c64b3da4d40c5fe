"""What a model is before any framework has seen it."""

from __future__ import annotations

import json
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import cloudpickle
import pytest

from penstock.errors import ModelError
from penstock.models import digest
from penstock.models.formats import builder, saved_model
from penstock.models.formats import keras as keras_file
from tests.unit.models import written
from tests.unit.models.written import node, text_value


def saved(*nodes: bytes) -> bytes:
    """A SavedModel whose signature fetches `y`."""
    serve = written.field(5, written.entry("serve", written.signature(out="y:0")))
    return written.saved_model(written.graph(*nodes), serve)


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
    (folder / "saved_model.pb").write_bytes(saved(node("y", "Identity", "x", note=text_value("a PyFunc in a note"))))
    (folder / "variables" / "variables.index").write_bytes(b"weights")
    return folder


class TestKerasFiles:
    def test_keras_file_is_recognised(self, keras_path: Path) -> None:
        file = keras_file.FORMAT.recognise(str(keras_path), trust=True)
        assert file is not None
        assert (file.kind, file.location, file.trust) == ("keras", str(keras_path), True)
        assert file.runtimes == ("tensorflow", "jax", "torch", "tf_keras")

    def test_other_paths_are_none_of_its_business(self, tmp_path: Path) -> None:
        assert keras_file.FORMAT.recognise("model.h5") is None
        assert keras_file.FORMAT.recognise(str(tmp_path)) is None

    def test_suffix_may_be_in_capitals(self, keras_path: Path) -> None:
        loud = keras_path.rename(keras_path.with_name("MODEL.KERAS"))
        assert keras_file.FORMAT.recognise(str(loud)) is not None

    def test_absent_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no such model file"):
            keras_file.FORMAT.recognise(str(tmp_path / "absent.keras"))

    def test_file_that_is_no_archive_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "bad.keras").write_bytes(b"not a zip")
        with pytest.raises(ModelError, match=r"damaged or not a \.keras file"):
            keras_file.FORMAT.recognise(str(tmp_path / "bad.keras"))

    def test_archive_without_a_description_is_told(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "bare.keras", "w") as archive:
            archive.writestr("metadata.json", "{}")
        with pytest.raises(ModelError, match=r"no config\.json"):
            keras_file.FORMAT.recognise(str(tmp_path / "bare.keras"))

    @pytest.mark.parametrize("name", ["../up", "/abs", "assets/../../up", "assets\\..\\up", "~/up"])
    def test_members_stay_in_the_archive(self, keras_path: Path, name: str) -> None:
        with zipfile.ZipFile(keras_path, "a") as archive:
            archive.writestr(name, "x")
        with pytest.raises(ModelError, match="leads out of the archive"):
            keras_file.FORMAT.recognise(str(keras_path), trust=True)

    def test_links_and_members_that_come_twice_are_refused(self, keras_path: Path) -> None:
        original = keras_path.read_bytes()
        link = zipfile.ZipInfo("assets/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(keras_path, "a") as archive:
            archive.writestr(link, "/etc/passwd")
        with pytest.raises(ModelError, match="is a link"):
            keras_file.FORMAT.recognise(str(keras_path))
        keras_path.write_bytes(original)
        with zipfile.ZipFile(keras_path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("config.json", "{}")
        with pytest.raises(ModelError, match="comes twice"):
            keras_file.FORMAT.recognise(str(keras_path))

    def test_a_bomb_is_refused(self, keras_path: Path) -> None:
        with zipfile.ZipFile(keras_path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb", "w") as member:
            for _ in range(300):
                member.write(bytes(1 << 20))
        with pytest.raises(ModelError, match="grows from"):
            keras_file.FORMAT.recognise(str(keras_path), trust=True)

    def test_signature_is_refused(self, keras_path: Path) -> None:
        with pytest.raises(ModelError, match="has no signatures"):
            keras_file.FORMAT.recognise(str(keras_path), signature="serve")

    def test_digest_follows_the_content_and_not_the_name(self, keras_path: Path, tmp_path: Path) -> None:
        first = keras_file.FORMAT.recognise(str(keras_path))
        copied = tmp_path / "copy.keras"
        copied.write_bytes(keras_path.read_bytes())
        second = keras_file.FORMAT.recognise(str(copied))
        assert first is not None
        assert second is not None
        assert first.digest == second.digest
        with zipfile.ZipFile(keras_path, "a") as archive:
            archive.writestr("more", "x")
        changed = keras_file.FORMAT.recognise(str(keras_path))
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
        hidden = node("write", operation, "name", extra_bytes=2)  # a search for the name and its length finds nothing
        (saved_folder / "saved_model.pb").write_bytes(saved(node("y", "Identity", "x", "^write"), hidden))
        with pytest.raises(ModelError) as caught:
            saved_model.recognise(str(saved_folder))
        assert operation in (caught.value.received or "")
        assert "--trust-model" in (caught.value.hint or "")
        assert saved_model.recognise(str(saved_folder), trust=True) is not None

    def test_operations_that_no_signature_runs_need_no_trust(self, saved_folder: Path) -> None:
        (saved_folder / "saved_model.pb").write_bytes(saved(node("y", "Identity", "x"), node("save", "SaveV2", "a")))
        assert saved_model.recognise(str(saved_folder)) is not None

    def test_a_graph_without_entries_counts_as_a_whole(self, saved_folder: Path) -> None:
        graph = written.graph(node("save", "SaveV2", "a"))
        (saved_folder / "saved_model.pb").write_bytes(written.saved_model(graph))
        with pytest.raises(ModelError, match="SaveV2"):
            saved_model.recognise(str(saved_folder))

    def test_the_graph_itself_stands_for_its_folder(self, saved_folder: Path) -> None:
        file = saved_model.recognise(str(saved_folder / "saved_model.pb"))
        assert file is not None
        assert file.location == str(saved_folder)

    def test_the_newest_of_numbered_exports_is_taken(self, saved_folder: Path) -> None:
        exports = saved_folder.parent / "exports"
        for number in ("900", "1700000001", "1700000000", "temp-1800000000"):
            shutil.copytree(saved_folder, exports / number)
        (exports / "1900000000").mkdir()
        file = saved_model.recognise(str(exports))
        assert file is not None
        assert file.location == str(exports / "1700000001")
        assert saved_model.facts(file).notes == (f"it is the newest of 3 exports in {exports}",)

    def test_a_tf_hub_module_is_told(self, saved_folder: Path) -> None:
        (saved_folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
        file = saved_model.recognise(str(saved_folder))
        assert file is not None
        assert saved_model.facts(file).notes == ("it is a TF-Hub module of TensorFlow 1",)
        assert saved_model.facts(file).writer == "TensorFlow 2.15.0"

    @pytest.mark.parametrize("content", [b"", b"text, no graph", b"\x0a\xff"])
    def test_a_damaged_graph_is_told(self, saved_folder: Path, content: bytes) -> None:
        (saved_folder / "saved_model.pb").write_bytes(content)
        with pytest.raises(ModelError, match="damaged or not a SavedModel"):
            saved_model.recognise(str(saved_folder), trust=True)

    @pytest.mark.parametrize("name", ["/etc/passwd", "../../words", "a/../../b", "C:\\words", "gs://bucket/x"])
    def test_assets_stay_in_the_folder(self, saved_folder: Path, name: str) -> None:
        asset = written.field(6, written.field(2, name))
        graph = written.graph(node("y", "Identity", "x"))
        (saved_folder / "saved_model.pb").write_bytes(written.saved_model(graph, asset))
        with pytest.raises(ModelError, match="outside of its folder"):
            saved_model.recognise(str(saved_folder))

    def test_links_may_lead_around_the_folder_and_into_the_store_of_a_hub(self, saved_folder: Path) -> None:
        store = saved_folder.parent / "hub"
        snapshot = store / "snapshots" / "abc"
        shutil.copytree(saved_folder, snapshot)
        (store / "blobs").mkdir()
        (snapshot / "variables" / "variables.index").rename(store / "blobs" / "123")
        (snapshot / "variables" / "variables.index").symlink_to("../../../blobs/123")
        (snapshot / "variables" / "again").symlink_to("variables.index")
        assert saved_model.recognise(str(snapshot)) is not None
        (snapshot / "other").symlink_to(saved_folder)
        with pytest.raises(ModelError, match="links to a file outside"):
            saved_model.recognise(str(snapshot))

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
