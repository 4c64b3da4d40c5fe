"""Audio files for the contract of sources."""

from __future__ import annotations

import os
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock.sources.audio.files import AudioFiles

from .case import Bad, Case
from .reading import AUDIO_FRAMES

FILES = 30
BAD_ROW = 17
RATES = [8000, 16000, 44100]


def samples_of(number: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    frames = AUDIO_FRAMES - number
    return np.random.default_rng(number).integers(-32768, 32768, frames, dtype=np.int16)


def write_wav(path: Path, samples: np.ndarray[Any, Any], rate: int = 16000) -> str:
    """Plain samples: int16, or uint8; (frames,) or (frames, channels)."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(samples).tobytes())
    return str(path)


def write_flac(path: Path, samples: np.ndarray[Any, Any], rate: int = 16000) -> str:
    import soundfile  # type: ignore[import-untyped]

    soundfile.write(path, samples, rate, format="FLAC", subtype="PCM_16")
    return str(path)


def write_audio(suffix: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        one = write_wav if suffix == ".wav" else write_flac
        return [one(folder / f"{row:03}{suffix}", samples_of(row), RATES[row % 3]) for row in range(FILES)]

    return write


def padded(number: int) -> list[float]:
    row = np.zeros(AUDIO_FRAMES, np.float32)
    samples = samples_of(number)
    row[: len(samples)] = samples / np.float32(32768)
    return list(row.tolist())


EXPECTED: dict[str, list[Any]] = {
    "audio": [padded(number) for number in range(FILES)],
    "sample_rate": [RATES[number % 3] for number in range(FILES)],
}


def spoil_audio(paths: list[str]) -> Bad:
    """A file that breaks off inside its samples. The header of a WAV file says that; that of a FLAC file does not."""
    path = paths[BAD_ROW]
    os.truncate(path, os.path.getsize(path) - 21)
    silence: dict[str, Any] = {"audio": [0.0] * AUDIO_FRAMES}
    if path.endswith(".wav"):
        return Bad(BAD_ROW, path, "cut off", {**silence, "sample_rate": 0})
    return Bad(BAD_ROW, path, "lost sync", silence, stage="load")


def audio_case(suffix: str) -> Case:
    return Case(
        suffix.removeprefix("."),
        write_audio(suffix),
        AudioFiles,
        EXPECTED,
        lambda paths, row: paths[row],
        path_of=lambda paths, row: paths[row],
        spoil=spoil_audio,
        is_row_a_file=True,
    )


CASES = [audio_case(".wav"), audio_case(".flac")]
