"""What audio files promise, besides what every source does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.sources.audio.files import AudioFiles, EncodedAudio

from .audio_cases import CASES, samples_of, write_flac, write_wav


def fill(
    paths: list[str], frames: int = 64
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], dict[int, str]]:
    out = np.full((len(paths), frames), 7, np.float32)
    announced: list[int] = []
    bad = EncodedAudio(paths).fill(out, announced.append)
    assert announced == list(range(len(paths)))
    assert set(bad.errors) == set(bad)
    return out, dict(bad)


def broken_files(folder: Path, suffix: str) -> dict[str, bytes]:
    write = write_wav if suffix == ".wav" else write_flac
    whole = Path(write(folder / f"whole{suffix}", np.tile(samples_of(0), 100))).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x10
    return {
        "empty": b"",
        "header only": whole[:20],
        "half": whole[: len(whole) // 2],
        "a byte short": whole[:-1],
        "something else": b"<html>not found</html>" * 100,
        "zeros": bytes(1000),
        **({"flipped": bytes(flipped)} if suffix == ".flac" else {}),
    }


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_broken_files_are_failures_and_take_no_other_down(tmp_path: Path, suffix: str) -> None:
    paths: list[str] = []
    for name, raw in broken_files(tmp_path, suffix).items():
        (tmp_path / f"{name}{suffix}").write_bytes(raw)
        good = write_wav(tmp_path / f"good {name}.wav", samples_of(1))
        paths += [str(tmp_path / f"{name}{suffix}"), good]
    paths.append(str(tmp_path / "gone.wav"))
    out, bad = fill(paths, 10_000)
    assert sorted(bad) == list(range(0, len(paths), 2))
    assert all(bad.values())
    assert not out[::2].any()
    np.testing.assert_array_equal(out[1, : len(samples_of(1))], samples_of(1) / np.float32(32768))
    assert not out[1, len(samples_of(1)) :].any()
    sizes = EncodedAudio(paths).sizes()
    assert sizes.shape == (len(paths), 1)
    assert sizes[1::2].tolist() == [[len(samples_of(1))]] * (len(paths) // 2)
    assert sizes[0, 0] == -1


def test_header_that_cannot_be_read_is_a_failure_where_the_rate_is_wanted(tmp_path: Path) -> None:
    paths = [write_wav(tmp_path / "a.wav", samples_of(0)), str(tmp_path / "b.wav")]
    Path(paths[1]).write_bytes(b"")
    source = AudioFiles(paths)
    (span,) = source.divide(10)
    (block,) = source.read(span, ["sample_rate"])
    (failure,) = block.failures
    assert (failure.row, failure.origin, failure.error, failure.reason) == (
        1,
        paths[1],
        "BadAudio",
        "the file is empty",
    )


def test_fingerprint_changes_with_the_name_of_a_file(tmp_path: Path) -> None:
    source = CASES[0].open(CASES[0].write(tmp_path))
    before = list(source.fragments())
    (tmp_path / "007.wav").rename(tmp_path / "other.wav")
    assert list(source.fragments()) != before


def test_file_is_decoded_by_what_it_holds(tmp_path: Path) -> None:
    flac = Path(write_flac(tmp_path / "a.flac", samples_of(2)))
    renamed = flac.rename(tmp_path / "a.wav")
    out, bad = fill([str(renamed)])
    assert not bad
    np.testing.assert_array_equal(out[0, :62], samples_of(2) / np.float32(32768))


def test_encoded_bytes_are_handed_on_as_they_are(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", samples_of(0))
    column = EncodedAudio([path, str(tmp_path / "gone.wav"), Path(path).read_bytes()])
    assert column.raw().to_pylist() == [Path(path).read_bytes(), None, Path(path).read_bytes()]
    assert column[2:].sizes().tolist() == [[64]]
    assert len(column[1:]) == 2
