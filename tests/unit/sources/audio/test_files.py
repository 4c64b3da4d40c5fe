"""Audio, decoded with numpy alone or by libsndfile: the same bits."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest

from penstock.errors import DeviceError
from penstock.sources.audio.files import AudioFiles, EncodedAudio, decode, read_info
from penstock.sources.audio.wav import BadAudio

SIGNAL = np.linspace(-1, 0.999, 101)
STEREO = np.stack([SIGNAL, SIGNAL[::-1]], axis=1)


def encoded(samples: np.ndarray[Any, Any], subtype: str, kind: str = "WAV", rate: int = 22050) -> bytes:
    import soundfile  # type: ignore[import-untyped]

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def by_library(raw: bytes) -> np.ndarray[Any, Any]:
    import soundfile

    samples: np.ndarray[Any, Any] = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)[0]
    return samples


@pytest.fixture
def no_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)


PLAIN = ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"]


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", PLAIN)
@pytest.mark.parametrize("samples", [SIGNAL, STEREO], ids=["mono", "stereo"])
def test_plain_wav_is_decoded_without_a_library_to_the_same_bits(
    samples: np.ndarray[Any, Any], subtype: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = encoded(samples, subtype, kind)
    expected = by_library(raw)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    found = decode(raw, 101)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() <= 1
    info = read_info(raw)
    assert (info.sample_rate, info.channels, info.frames) == (22050, samples.ndim, 101)


@pytest.mark.parametrize(
    ("kind", "subtype"), [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("WAV", "ULAW"), ("RF64", "PCM_16")]
)
def test_other_audio_is_decoded_by_the_library(kind: str, subtype: str) -> None:
    raw = encoded(STEREO, subtype, kind)
    np.testing.assert_array_equal(decode(raw, 101), by_library(raw))
    assert read_info(raw).frames == 101


def test_missing_library_is_told_with_what_to_install(no_soundfile: None) -> None:
    raw = b"fLaC" + bytes(100)
    with pytest.raises(DeviceError) as caught:
        decode(raw, 101)
    assert caught.value.hint == "pip install 'penstock[audio]'"


def test_what_is_no_audio_stays_a_matter_of_its_row_without_the_library(no_soundfile: None) -> None:
    with pytest.raises(BadAudio, match="no audio file"):
        decode(b"<html>" * 10, 101)


def filled(raw: bytes, *shape: int) -> tuple[np.ndarray[Any, Any], dict[int, str]]:
    out = np.full((1, *shape), 5, np.float32)
    return out[0], dict(EncodedAudio([raw]).fill(out, lambda position: None))


def test_shorter_audio_is_followed_by_silence() -> None:
    row, bad = filled(encoded(SIGNAL, "FLOAT"), 120)
    np.testing.assert_array_equal(row, np.concatenate([SIGNAL, np.zeros(19)]).astype(np.float32))
    assert not bad


def test_longer_audio_is_a_failure_that_says_both_lengths() -> None:
    for raw in (encoded(SIGNAL, "PCM_16"), encoded(SIGNAL, "PCM_16", "FLAC")):
        row, bad = filled(raw, 100)
        assert bad == {0: "has 101 frames, more than the 100 that are wanted"}
        assert not row.any()


def test_channels_are_averaged_where_there_is_no_axis_for_them() -> None:
    raw = encoded(STEREO, "FLOAT")
    mean = STEREO.astype(np.float32).mean(axis=1)
    np.testing.assert_array_equal(filled(raw, 101)[0], mean)
    np.testing.assert_array_equal(filled(raw, 101, 1)[0][:, 0], mean)


def test_channels_stay_where_there_is_an_axis_for_them() -> None:
    row, bad = filled(encoded(STEREO, "FLOAT"), 101, 2)
    np.testing.assert_array_equal(row, STEREO.astype(np.float32))
    assert not bad
    assert filled(encoded(SIGNAL, "FLOAT"), 101, 2)[1] == {0: "has 1 channels, and 2 are wanted"}


def test_header_of_a_pipe_does_not_know_the_length() -> None:
    raw = bytearray(encoded(SIGNAL, "PCM_16"))
    place = raw.index(b"data") + 4
    raw[place : place + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert decode(bytes(raw), 200).shape == (101, 1)


@pytest.mark.parametrize("place", range(44))
def test_header_that_is_damaged_anywhere_is_decoded_or_bad(place: int) -> None:
    raw = bytearray(encoded(SIGNAL, "PCM_16"))
    for value in (0, 1, 0x7F, 0xFF):
        raw[place] = value
        out = np.zeros((1, 300), np.float32)
        bad = EncodedAudio([bytes(raw)]).fill(out, lambda position: None)
        assert set(bad) <= {0}
        EncodedAudio([bytes(raw)]).sizes()


def test_columns_are_audio_of_any_length_its_rate_and_its_path() -> None:
    source = AudioFiles(["a.wav"])
    assert {name: str(spec) for name, spec in source.schema().items()} == {
        "audio": "float32[?]",
        "sample_rate": "int32[]",
        "path": "string[]",
    }
    assert source.schema()["audio"].encoding == "audio"
    assert source.keeps == ("path",)
