"""Audio files for the contract of sources."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from penstock.sources.audio import AudioFiles

from .promises import AUDIO_FRAMES

FILES = 30
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


def open_audio(folder: Path, suffix: str) -> AudioFiles:
    paths = [folder / f"{number:03}{suffix}" for number in range(FILES)]
    if not paths[0].exists():
        for number, path in enumerate(paths):
            write = write_wav if suffix == ".wav" else write_flac
            write(path, samples_of(number), RATES[number % 3])
    return AudioFiles([str(path) for path in paths])


def padded(number: int) -> list[float]:
    row = np.zeros(AUDIO_FRAMES, np.float32)
    samples = samples_of(number)
    row[: len(samples)] = samples / np.float32(32768)
    return list(row.tolist())


EXPECTED: dict[str, list[Any]] = {
    "audio": [padded(number) for number in range(FILES)],
    "sample_rate": [RATES[number % 3] for number in range(FILES)],
}
