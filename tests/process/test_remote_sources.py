"""Sources behind URLs: a real S3-speaking server and real web servers on loopback, with and without faults."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import re
import shutil
import struct
import subprocess
import tarfile
import threading
import wave
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.source import FileGone
from penstock.errors import InputError
from penstock.pool.loading import read_blocks
from penstock.sources.catalog import open_files
from penstock.sources.files import remote, remote_listing
from penstock.sources.files.paths import expand, fragment, open_binary, read_bytes, read_many
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tfrecord.framing import masked_crc
from tests.conftest import read_rows, run_penstock
from tests.contract.reading import FILES, Case, Rows, read_span
from tests.support.flaky_proxy import start_flaky_proxy
from tests.support.s3_server import environment, filesystem, start_s3_server

pytest.importorskip("s3fs")
pytest.importorskip("moto")

TABLES = [".parquet", ".npy", ".npz", ".csv", ".tsv", ".jsonl"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with start_s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(address).items():
            patch.setenv(name, value)
        patch.setattr(remote, "_file_systems", {})
        yield address


@pytest.fixture(scope="module")
def store(endpoint: str) -> Any:
    """The test's own hands on the server, with a bucket `data`."""
    found = filesystem(endpoint)
    found.mkdir("data")
    return found


@pytest.fixture
def run(endpoint: str) -> Run:
    def start(*arguments: object, at: str = endpoint) -> subprocess.CompletedProcess[str]:
        return run_penstock(*arguments, environment=environment(at))

    return start


def upload(store: Any, folder: Path, prefix: str) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.pipe_file(f"data/{prefix}/{path.relative_to(folder)}", path.read_bytes())
    return f"s3://data/{prefix}"


def rows_of(source: Source, rows_per_span: int, columns: Sequence[str]) -> Rows:
    """Every row, the spans read by several threads at once."""
    with ThreadPoolExecutor(4) as threads:
        pieces = list(threads.map(lambda span: read_span(source, span, columns), source.divide(rows_per_span)))
    assert not [failure for _, failures in pieces for failure in failures]
    return {name: [value for rows, _ in pieces for value in rows[name]] for name in columns}


def npy_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("case", FILES, ids=[case.name for case in FILES])
def test_every_format_gives_the_same_rows_from_a_url_and_tells_a_file_that_is_gone(
    case: Case, store: Any, tmp_path: Path
) -> None:
    case.write(tmp_path)
    url = upload(store, tmp_path, f"formats/{case.name}")
    paths = expand([url], [*TABLES, *(path.suffix for path in tmp_path.iterdir())])
    source = case.open(paths)  # type: ignore[arg-type]
    assert rows_of(source, 64, list(case.expected)) == case.expected
    kept = cloudpickle.loads(cloudpickle.dumps(source))
    assert rows_of(kept, 300, list(case.expected)) == case.expected
    last = list(source.divide(64))[-1]
    store.rm(f"data/formats/{case.name}", recursive=True)
    with pytest.raises(FileGone, match=f"the input changed since the job began: {re.escape(paths[-1])} is gone"):
        list(read_blocks(cloudpickle.loads(cloudpickle.dumps(source)), last, list(case.expected)))


def write_images(folder: Path) -> None:
    for number, suffix in enumerate(("jpg", "png", "bmp", "gif")):
        pixels = np.random.default_rng(number).integers(0, 255, (9, 7 + number, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number}.{suffix}")
    (folder / "broken.jpg").write_bytes(b"no image")


def write_tar(folder: Path) -> None:
    (folder / "inside").mkdir()
    write_images(folder / "inside")
    with tarfile.open(folder / "photos.tar", "w") as archive:
        for path in sorted((folder / "inside").iterdir()):
            archive.add(path, path.name)
    shutil.rmtree(folder / "inside")


def write_records(folder: Path) -> None:
    def record(content: bytes) -> bytes:
        length = struct.pack("<Q", len(content))
        return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))

    # tf.train.Example with one feature, `x`: a list of one int64.
    examples = [
        bytes((10, 13, 10, 11, 10, 1, 120, 18, 6, 26, 4, 10, 2, 128 | number % 128, 1)) for number in range(300)
    ]
    records = b"".join(map(record, examples))
    (folder / "plain.tfrecord").write_bytes(records)
    (folder / "squeezed.tfrecord").write_bytes(gzip.compress(records))


def write_text(folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"line {number}\n" for number in range(500)), encoding="utf-8")


def write_audio(folder: Path) -> None:
    for name in ("a", "b"):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.arange(1000, dtype="<i2").tobytes())


def content_of(arguments: list[str]) -> Rows:
    """Every column as plain values, what is still encoded as bytes."""
    source = open_files(arguments)
    rows: Rows = {}
    for span in source.divide(64):
        for block in source.read(span, list(source.schema())):
            for name, column in block.columns.items():
                raw = column.raw() if isinstance(column, Deferred) else column
                rows.setdefault(name, []).extend(raw.tolist() if isinstance(raw, np.ndarray) else raw.to_pylist())
    return rows


@pytest.mark.parametrize("write", [write_images, write_tar, write_records, write_text, write_audio])
def test_folder_of_any_kind_gives_the_same_rows_from_a_url(
    write: Callable[[Path], None], store: Any, tmp_path: Path
) -> None:
    write(tmp_path)
    url = upload(store, tmp_path, write.__name__)
    local, far = content_of([str(tmp_path)]), content_of([url])
    if "path" in far:
        far["path"] = [path.replace(url, str(tmp_path)) for path in far["path"]]
    assert far == local
    assert len(next(iter(local.values()))) > 1


def test_prefixes_and_globs_are_listed_as_folders_are(store: Any, tmp_path: Path) -> None:
    names = ["b.npy", "B.npy", "a/z.npy", "a.npy", "a-1.npy", "é.npy", ".h.npy", "_u.npy", "a/_v/w.npy", "c.txt"]
    names += ["out/part.npy", "out/_penstock/manifest.json", "x y+z%20.npy", "deep/er/1.npy", "a[1].npy", "UP.NPY"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    url = upload(store, tmp_path, "listing")
    store.pipe_file("data/listing-beside/x.npy", b"not below the prefix")
    for argument in ("", "/", "/*.npy", "/**/*.npy", "/*/*", "/a[1].npy", "/a*", "/out", "/[bB].np?", "/deep/**"):
        local = [Path(path).relative_to(tmp_path).as_posix() for path in expand([f"{tmp_path}{argument}"], [".npy"])]
        found = expand([url + argument], [".npy"])
        assert [path.removeprefix(url + "/") for path in found] == local, argument
        assert found.sizes.tolist() == [len(name.encode()) for name in local]
        assert [read_bytes(path).decode() for path in found] == local
        assert list(found.fragments()) == [fragment(path) for path in found]
        assert read_many(list(found)) == [read_bytes(path) for path in found]


def test_listing_of_several_pages_is_whole(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_listing, "PAGE_OBJECTS", 10)
    store.pipe({f"data/pages/{number:02d}.npy": b"" for number in range(45)})
    found = expand(["s3://data/pages"], [".npy"])
    assert list(found) == [f"s3://data/pages/{number:02d}.npy" for number in range(45)]


@pytest.mark.parametrize(
    "argument", ["s3://data/none.npy", "s3://data/none*.npy", "s3://data/none/", "s3://none/x.npy"]
)
def test_url_that_gives_nothing_is_told(store: Any, argument: str) -> None:
    with pytest.raises(InputError) as caught:
        expand([argument], [".npy"])
    assert caught.value.received == argument


def test_object_that_changes_under_the_job_is_noticed(store: Any, tmp_path: Path) -> None:
    for name in ("before", "after"):
        pq.write_table(
            pa.table({"x": np.random.default_rng(len(name)).random(9000)}), tmp_path / name, row_group_size=100
        )
    store.pipe_file("data/changing.parquet", (tmp_path / "before").read_bytes())
    source = ParquetFiles(expand(["s3://data/changing.parquet"], TABLES))
    spans = list(source.divide(100, 100))
    read_span(source, spans[0], ["x"])
    before = source.fragments()[0]
    store.pipe_file("data/changing.parquet", (tmp_path / "after").read_bytes())
    assert fragment("s3://data/changing.parquet") != before
    with pytest.raises(InputError, match="changed"):
        read_span(source, spans[1], ["x"])


def test_object_that_changes_while_it_is_read_is_noticed(store: Any) -> None:
    store.pipe_file("data/open.bin", b"a" * 5_000_000)
    with open_binary("s3://data/open.bin", 1000) as file:
        file.read(10)
        store.pipe_file("data/open.bin", b"b" * 5_000_000)
        with pytest.raises(InputError, match="changed"):
            file.read(10_000)


def test_array_that_was_cut_is_told(store: Any) -> None:
    store.pipe_file("data/cut.npy", npy_bytes(np.arange(1000)))
    source = ArrayFiles(["s3://data/cut.npy"])
    spans = list(source.divide(400))
    store.pipe_file("data/cut.npy", npy_bytes(np.arange(1000))[:3000])
    with pytest.raises(InputError, match="bytes in the place of"):
        read_span(source, spans[1], ["data"])


def test_faults_of_the_store_are_survived(store: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 99, (50_000, 8))
    for number in range(4):
        store.pipe_file(f"data/faults/{number}.npy", npy_bytes(data[number * 12_500 : (number + 1) * 12_500]))
    with start_flaky_proxy(endpoint, every=3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setattr(remote, "_file_systems", {})
        source = ArrayFiles(expand(["s3://data/faults"], TABLES))
        assert rows_of(source, 2000, ["data"])["data"] == data.tolist()
        assert proxy.faults > 8


def test_store_that_never_answers_is_told_with_the_number_of_tries(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_flaky_proxy(endpoint, every=1) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setattr(remote, "_file_systems", {})
        with pytest.raises(InputError, match=r"s3://data/x.npy: .* \(tried 5 times\)"):
            read_bytes("s3://data/x.npy", 0, 10)
        assert 5 <= proxy.faults < 10  # aiohttp asks once more by itself where a kept connection was closed


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server of the standard library, which gives whole files only."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv"])
def test_web_server_that_gives_whole_files_only_is_read(web: str, tmp_path: Path, suffix: str) -> None:
    case = next(case for case in FILES if Path(case.write(tmp_path)[0]).suffix == suffix)
    urls = [f"{web}/{name}" for name in sorted(path.name for path in tmp_path.glob(f"*{suffix}"))]
    source = case.open(expand(urls, TABLES))  # type: ignore[arg-type]
    assert rows_of(source, 100, list(case.expected)) == case.expected


def test_web_server_that_gives_pieces_is_read_in_pieces(store: Any, endpoint: str) -> None:
    array = np.arange(100_000)
    remote._copies.clear()
    store.pipe_file("data/web.npy", npy_bytes(array))
    store.chmod("data/web.npy", "public-read")
    with start_flaky_proxy(endpoint, every=4) as proxy:
        source = ArrayFiles(expand([f"{proxy.endpoint}/data/web.npy"], TABLES))
        assert rows_of(source, 30_000, ["data"])["data"] == array.tolist()
        assert proxy.faults
    assert not remote._copies


def test_web_file_that_is_not_there_is_told(web: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_bytes(f"{web}/none.npy")


def predictions(folder: Path) -> Any:
    table = read_rows(folder)
    assert table["row"].to_pylist() == list(range(table.num_rows))
    return table["digit"].combine_chunks()


@pytest.fixture
def expected(models: Path, digits: Path, run: Run, tmp_path: Path) -> Any:
    ran = run("predict", models / "digits.keras", digits, "--output", tmp_path / "local")
    assert ran.returncode == 0, ran.stderr
    return predictions(tmp_path / "local")


@pytest.mark.slow
def test_predictions_from_a_store_are_those_from_the_disk(
    models: Path, digits: Path, pixels: Any, expected: Any, run: Run, store: Any, endpoint: str, tmp_path: Path
) -> None:
    upload(store, digits, "digits")
    store.pipe_file("data/pixels.npy", npy_bytes(pixels))
    names = [f"p{number}" for number in range(64)]
    lines = [",".join(names), *(",".join(map(str, row)) for row in pixels.tolist())]
    store.pipe_file("data/pixels.csv", "\n".join(lines).encode() + b"\n")
    with start_flaky_proxy(endpoint, every=7) as proxy:
        for number, (argument, column) in enumerate(
            [("s3://data/digits", "pixels"), ("s3://data/pixels.npy", "data"), ("s3://data/pixels.csv", "p*")]
        ):
            output = tmp_path / str(number)
            arguments = ("predict", models / "digits.keras", argument, "--output", output)
            ran = run(*arguments, "--input", f"pixels={column}", at=proxy.endpoint)
            assert ran.returncode == 0, ran.stderr
            assert predictions(output).equals(expected), argument
        assert proxy.faults


def test_missing_url_is_an_error_of_the_input(models: Path, run: Run, store: Any, tmp_path: Path) -> None:
    ran = run("predict", models / "digits.keras", "s3://data/none.parquet", "--output", tmp_path / "out")
    assert ran.returncode == 5
    assert "s3://data/none.parquet" in ran.stderr
