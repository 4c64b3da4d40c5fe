"""The records of sources, sinks, runtimes and model formats, all of them."""

from __future__ import annotations

import pytest

from penstock import plugins
from penstock.core import kinds
from penstock.core.kinds import model_formats, runtime, runtimes, sink, source_formats
from penstock.core.protocols import Sink
from penstock.core.records import OutputSchema, TensorSpec


def test_every_name_of_the_table_has_its_record() -> None:
    assert list(source_formats()) == list(plugins.BUILT_IN[plugins.SOURCES])
    assert list(runtimes()) == list(plugins.BUILT_IN[plugins.RUNTIMES])
    assert list(model_formats()) == list(plugins.BUILT_IN[plugins.MODELS])
    assert all(isinstance(sink(name), Sink) for name in plugins.names(plugins.SINKS))


def test_model_formats_are_called_by_their_kind() -> None:
    assert [each.kind for each in model_formats().values()] == list(model_formats())


def test_no_suffix_belongs_to_two_formats_of_parts() -> None:
    suffixes = [sink(name).suffix for name in plugins.names(plugins.SINKS)]
    assert len(set(suffixes)) == len(suffixes)


@pytest.mark.parametrize("name", plugins.names(plugins.RUNTIMES))
def test_runtime_is_ranked_only_where_it_runs_and_varies_one_that_there_is(name: str) -> None:
    entry = runtime(name)
    assert set(entry.rank) <= set(entry.device_kinds)
    assert entry.variant_of is None or runtime(entry.variant_of).variant_of is None
    assert entry.gpu_probe is not None or name == "tensorflow-xla" or "gpu" not in entry.device_kinds
    assert entry.package.install.startswith("pip install ")


@pytest.mark.parametrize("device_kind", ["cpu", "gpu"])
def test_no_two_runtimes_have_one_rank(device_kind: str) -> None:
    ranks = [entry.rank[device_kind] for entry in runtimes().values() if device_kind in entry.rank]
    assert len(set(ranks)) == len(ranks)


def test_folders_of_npy_parts_never_lead_out_of_the_output() -> None:
    names = ["y", "../up", "..", ".", "", "/abs", "a/b"]
    schema = OutputSchema(tuple(TensorSpec(name, "float32", ()) for name in names), len(names))
    assert kinds.sink("npy").folders(schema) == ("row", "y")
    assert kinds.sink("parquet").folders(schema) == ("",)


def test_library_inside_a_package_that_is_missing_is_not_installed() -> None:
    package = kinds.Package(("no_such_vendor.library",), ("no-such-library",), "pip install no-such-library")
    assert not package.is_installed
    assert package.described == "nothing"
