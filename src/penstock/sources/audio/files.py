"""Audio files, one row each. They are decoded to floats when their samples are needed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from penstock.core.deferred import Announce, BadRows, Deferred
from penstock.core.kinds import SourceFormat
from penstock.core.records import STRING, Array, Block, RowFailure, SourceColumn, Span, TensorSpec
from penstock.errors import DeviceError, InputError, one_line
from penstock.options.records import ReadOptions
from penstock.sources.audio import wav
from penstock.sources.audio.wav import BadAudio
from penstock.sources.files.file_runs import FileRuns, path_column
from penstock.sources.files.paths import is_url, open_binary, read_bytes, read_many

AUDIO, SAMPLE_RATE, PATH = "audio", "sample_rate", "path"
_LONGEST = 1 << 40
_FETCHED_AT_ONCE = 8
_NEEDS_SOUNDFILE = (b"fLaC", b"RIFF", b"RIFX", b"RF64", b"FORM", b"OggS", b"caff")

Encoded = str | bytes
"""An audio file: its path, or its content."""


class AudioFiles(FileRuns):
    """WAV and FLAC files, recognised by what they hold.

    Columns: `audio` (float32 from -1 to 1), `sample_rate` (nothing is resampled) and `path`, which is kept.
    """

    def __init__(self, paths: Sequence[str], reading: ReadOptions | None = None) -> None:
        super().__init__(paths)

    def schema(self) -> dict[str, TensorSpec]:
        return {
            AUDIO: TensorSpec(AUDIO, "float32", (None,), encoding="audio"),
            SAMPLE_RATE: TensorSpec(SAMPLE_RATE, "int32", ()),
            PATH: TensorSpec(PATH, STRING, ()),
        }

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        paths = self.paths_of(span)
        made: dict[str, SourceColumn] = {}
        failures: list[RowFailure] = []
        for name in columns:
            if name == SAMPLE_RATE:
                made[name], bad = _sample_rates(paths)
                failures = [
                    RowFailure(span.start + position, paths[position], "read", bad.errors[position], why)
                    for position, why in bad.items()
                ]
            else:
                made[name] = EncodedAudio(paths) if name == AUDIO else path_column(paths)
        yield Block(span.start, span.rows, made, tuple(failures))


class EncodedAudio(Deferred):
    """Audio that is not decoded yet: paths of files, or their content. Files are opened when they are needed."""

    def __init__(self, items: Sequence[Encoded]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, rows: slice) -> EncodedAudio:
        return EncodedAudio(self._items[rows])

    def raw(self) -> pa.Array:
        """The files as they are; null where one cannot be read."""
        return pa.array([_content(item) for item in self._items], pa.large_binary())

    def sizes(self) -> Array:
        """The frames of each file, from its header alone."""
        frames = np.full((len(self._items), 1), -1, np.int64)
        for position, item in enumerate(self._items):
            try:
                num_frames = read_info(item).frames
            except (BadAudio, OSError, InputError):
                continue
            frames[position, 0] = num_frames if num_frames < _LONGEST else -1
        return frames

    def fill(self, out: Array, announce: Announce) -> BadRows:
        """Write samples into `out`, (rows, n) or (rows, n, channels); shorter audio ends in silence.

        If `out` has no axis for channels, or one channel, the channels of a file are averaged.
        """
        bad = BadRows()
        for position, item in enumerate(_fetched(self._items)):
            announce(position)
            try:
                _fill_row(out[position], item)
            except (BadAudio, OSError, InputError) as error:
                out[position] = 0
                _blame(bad, position, error)
        return bad


@dataclass(frozen=True)
class AudioInfo:
    """The header of an audio file."""

    sample_rate: int
    channels: int
    frames: int


def read_info(item: Encoded) -> AudioInfo:
    """The header of an audio file.

    Raises:
        BadAudio: The file has no valid header.
    """
    with _open(item) as file:
        header = wav.read_header(file)
        if header is not None:
            return AudioInfo(header.sample_rate, header.channels, header.frames)
        with _Soundfile(file, item) as sound:
            return AudioInfo(sound.samplerate, sound.channels, sound.frames)


def decode(item: Encoded | Exception, most_frames: int) -> Array:
    """The samples of an audio file, float32 of (frames, channels).

    Raises:
        BadAudio: It is broken, or longer than `most_frames`: then it is not decoded at all.
    """
    with _open(item) as file:
        header = wav.read_header(file)
        if header is not None:
            _check_length(header.frames, most_frames)
            return header.read(file)
        with _Soundfile(file, item) as sound:
            is_known = sound.frames < _LONGEST  # a FLAC stream may not say how long it is
            if is_known:
                _check_length(sound.frames, most_frames)
            samples: Array = sound.read(most_frames + 1, dtype="float32", always_2d=True)
            _check_length(len(samples), most_frames)
            if is_known and len(samples) < sound.frames:
                raise BadAudio(f"cut off: {sound.frames} frames were announced, {len(samples)} are there")
            return samples


class _Soundfile:
    """A file opened by libsndfile, whose errors become BadAudio.

    Raises:
        DeviceError: The library is missing, and this file needs it.
    """

    def __init__(self, file: BinaryIO, item: Encoded | Exception) -> None:
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        try:
            import soundfile  # type: ignore[import-untyped]
        except ImportError as error:
            if start not in _NEEDS_SOUNDFILE:
                raise BadAudio("this is no audio file that is known") from error
            raise DeviceError(
                "soundfile is not installed", received=f"a file of {start!r}", hint="pip install 'penstock[audio]'"
            ) from error
        self._error = soundfile.LibsndfileError
        try:
            # Given a path, the library reads the file itself; given a file object, it calls Python for every few
            # kilobytes.
            self._sound = soundfile.SoundFile(item if isinstance(item, str) and not is_url(item) else file)
        except self._error as error:
            raise BadAudio(_reason(error)) from error

    def __enter__(self) -> Any:
        return self._sound

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._sound.close()
        if error is not None and isinstance(error, self._error):
            raise BadAudio(_reason(error)) from error


def _reason(error: Any) -> str:
    return str(error.error_string).removeprefix("Error : ").rstrip(".")


def _fetched(items: Sequence[Encoded]) -> Iterator[Encoded | Exception]:
    """Items as they are; URLs as the bytes behind them, of which several are fetched at the same time."""
    for start in range(0, len(items), _FETCHED_AT_ONCE):
        some = items[start : start + _FETCHED_AT_ONCE]
        urls = [item for item in some if isinstance(item, str) and is_url(item)]
        yield from read_many(urls) if len(urls) == len(some) else some


def _open(item: Encoded | Exception) -> BinaryIO:
    if isinstance(item, Exception):
        raise item
    file: BinaryIO = io.BytesIO(item) if isinstance(item, bytes) else open_binary(item)
    if wav.is_empty(file):
        file.close()
        raise BadAudio("the file is empty")
    return file


def _content(item: Encoded) -> bytes | None:
    if isinstance(item, bytes):
        return item
    try:
        return read_bytes(item)
    except (OSError, InputError):
        return None


def _fill_row(row: Array, item: Encoded | Exception) -> None:
    samples = decode(item, len(row))
    frames, channels = samples.shape
    if row.ndim == 1 or (row.shape[1] == 1 and channels > 1):
        mono = samples[:, 0] if channels == 1 else samples.mean(axis=1, dtype=np.float32)
        samples = mono.reshape(frames, *row.shape[1:])
    elif channels != row.shape[1]:
        raise BadAudio(f"has {channels} channels, and {row.shape[1]} are wanted")
    row[:frames] = samples
    row[frames:] = 0


def _check_length(frames: int, most_frames: int) -> None:
    if frames > most_frames:
        raise BadAudio(f"has {frames} frames, more than the {most_frames} that are wanted")


def _sample_rates(paths: Sequence[str]) -> tuple[Array, BadRows]:
    rates = np.zeros(len(paths), np.int32)
    bad = BadRows()
    for position, path in enumerate(paths):
        try:
            rates[position] = read_info(path).sample_rate
        except (BadAudio, OSError, InputError) as error:
            _blame(bad, position, error)
    return rates, bad


def _blame(bad: BadRows, position: int, error: Exception) -> None:
    bad[position] = str(error) if isinstance(error, BadAudio) else one_line(error)
    bad.errors[position] = type(error).__name__


FORMAT = SourceFormat((".wav", ".flac"), AudioFiles, is_row_per_file=True)
