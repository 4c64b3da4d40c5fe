"""Plugins of other packages, written as an installer writes them into a folder of the import path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import plugins
from penstock.core import kinds
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, UsageError
from penstock.plugins import BUILT_IN, SINKS, is_known, load, load_all, names
from penstock.runtimes.catalog import choose_runtime, executes


def forget() -> None:
    for known in (plugins._others, plugins.load_all, kinds.source_formats):
        known.cache_clear()


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    yield
    forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    return tmp_path


def install(
    site: Path, package: str, points: str, code: str = "SINK = 'the sink'\n", group: str = "penstock.sinks"
) -> None:
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")


def test_names_are_penstocks_own_in_their_order_then_others(site: Path) -> None:
    install(site, "toys-a", "zebra = toys_a:SINK\nadder = toys_a:SINK")
    assert names(SINKS) == (*BUILT_IN[SINKS], "adder", "zebra")
    assert is_known(SINKS, "zebra")
    assert not is_known(SINKS, "yak")


def test_names_import_no_plugin(site: Path) -> None:
    install(site, "toys-b", "toy = toys_b:SINK", "raise RuntimeError('imported')")
    assert "toy" in names(SINKS)


def test_plugin_of_another_package_is_loaded(site: Path) -> None:
    install(site, "toys-c", "toy = toys_c:SINK")
    assert load(SINKS, "toy") == "the sink"


def test_unknown_name_is_refused_with_the_names_there_are(site: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(SINKS, "yak")
    assert caught.value.allowed is not None
    assert "parquet" in caught.value.allowed


@pytest.mark.parametrize(
    "code", ["import no_such_module_anywhere", "OTHER = 1", "raise SystemError('no')", "import sys; sys.exit(3)"]
)
def test_broken_plugin_is_reported_with_its_package_and_takes_nothing_else_down(
    site: Path, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    install(site, "toys-d", "toy = toys_d:SINK", code)
    install(site, "toys-e", "good = toys_e:SINK")
    with pytest.raises(DeviceError) as caught:
        load(SINKS, "toy")
    assert "toys-d 1.0" in caught.value.problem
    loaded = load_all(SINKS, object)
    assert loaded["good"] == "the sink"
    assert "toy" not in loaded
    assert "toys-d 1.0" in caplog.text


def test_name_of_penstocks_own_stays_its_own_and_that_is_reported(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "toys-f", "csv = toys_f:SINK")
    assert names(SINKS) == tuple(BUILT_IN[SINKS])
    assert "csv of the package toys-f 1.0 is not used" in caplog.text


def test_name_that_two_packages_use_is_refused_with_both(site: Path) -> None:
    install(site, "toys-g", "toy = toys_g:SINK")
    install(site, "toys-h", "toy = toys_h:SINK")
    with pytest.raises(DeviceError) as caught:
        load(SINKS, "toy")
    assert caught.value.received is not None
    assert "toys-g 1.0" in caught.value.received
    assert "toys-h 1.0" in caught.value.received


def test_object_of_another_kind_is_refused_with_its_package(site: Path) -> None:
    install(site, "toys-i", "toy = toys_i:SINK")
    with pytest.raises(DeviceError) as caught:
        kinds.sink("toy")
    assert "toys-i 1.0" in caught.value.problem
    assert "this is no Sink" in (caught.value.received or "")


def test_suffix_that_two_sources_have_stays_with_the_first_and_that_is_reported(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "from penstock.core.kinds import SourceFormat\nFORMAT = SourceFormat(('.toy', '.csv'), None)\n"
    install(site, "toys-j", "toy = toys_j:FORMAT", code, plugins.SOURCES)
    assert kinds.source_formats()["toy"].suffixes == (".toy", ".csv")
    assert "the source toy does not read .csv files" in caplog.text


def test_runtime_of_another_package_executes_the_kinds_that_it_names(site: Path) -> None:
    code = (
        "from penstock.core.kinds import Package, RuntimeEntry\n"
        "RUNTIME = RuntimeEntry(None, Package(('toys_k',), ('toys-k',), 'pip install toys-k'), kinds=('onnx',))\n"
    )
    install(site, "toys-k", "toy = toys_k:RUNTIME", code, plugins.RUNTIMES)
    model = ModelFile("onnx", "model.onnx", "", ("onnx",))
    assert executes(model, "toy")
    assert choose_runtime(model, "toy") == "toy"
    assert not executes(ModelFile("tflite", "model.tflite", "", ("tflite",)), "toy")
