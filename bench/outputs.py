"""What both sides wrote is read back and compared: a fast wrong answer is no answer."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.shell import BenchError

Predictions = npt.NDArray[np.float32]

# Of a column's spread: softmax outputs are small everywhere, so an absolute tolerance would prove little.
TOLERANCE = 1e-3

NOT_PREDICTIONS = ("row", "path")


def read_predictions(folder: Path) -> Predictions:
    """Read the predictions of a folder of Parquet files, as an array of two dimensions."""
    (column,) = (name for name in pq.ParquetDataset(folder).schema.names if name not in NOT_PREDICTIONS)
    chunks = pq.read_table(folder, columns=[column]).column(column).chunks
    return np.concatenate([_as_array(chunk) for chunk in chunks if len(chunk)])


def check_rows_in_order(folder: Path, num_rows: int) -> None:
    """Penstock promises the input's order: its `row` column counts from 0 without a gap."""
    rows = pq.read_table(folder, columns=["row"]).column("row").to_numpy()
    if not np.array_equal(rows, np.arange(num_rows)):
        raise BenchError(f"the row column of {folder} does not count from 0 to {num_rows - 1}")


def check_agreement(penstock: Predictions, peer: Predictions, num_rows: int) -> None:
    """Compare every row of both sides, without an order: Ray Data promises none.

    Two lists whose partners differ by at most ε still differ by at most ε after sorting both, so each output
    column is sorted on both sides and compared as it is.
    """
    if len(penstock) != num_rows or len(peer) != num_rows:
        raise BenchError(f"rows: {len(penstock)} of penstock, {len(peer)} of the peer, expected {num_rows}")
    ours, theirs = np.sort(penstock, axis=0), np.sort(peer, axis=0)
    check_close(ours, theirs)


def check_close(ours: Predictions, theirs: Predictions) -> None:
    """Compare two arrays row by row, each column relative to its spread."""
    if ours.shape != theirs.shape:
        raise BenchError(f"shapes differ: {ours.shape} of penstock, {theirs.shape} of the peer")
    spread = theirs.max(axis=0) - theirs.min(axis=0)
    difference = np.abs(ours - theirs).max(axis=0)
    if not (difference <= TOLERANCE * spread).all():
        raise BenchError(f"predictions differ by up to {difference.max():.3g}, spread {spread.max():.3g}")


def check_same(ours: Predictions, theirs: Predictions, tolerance: float) -> float:
    """Compare two arrays row by row, within a share of the spread of all values.

    Returns:
        The largest difference, as a share of the spread.
    """
    if ours.shape != theirs.shape:
        raise BenchError(f"shapes differ: {ours.shape} of penstock, {theirs.shape} of the peer")
    if not (theirs.std(axis=0) > 0).any():
        raise BenchError("every row has the same answer: that proves nothing")
    difference = float(np.abs(ours - theirs).max() / np.ptp(theirs))
    if not difference <= tolerance:
        raise BenchError(f"predictions differ by up to {difference:.3g} of the spread, allowed {tolerance:g}")
    return difference


def read_arrays(folder: Path) -> Predictions:
    """Read the predictions of a folder of .npy files, in the order of their names."""
    parts = [read_array(path) for path in sorted(folder.glob("*.npy"))]
    if not parts:
        raise BenchError(f"no .npy file in {folder}")
    return np.concatenate(parts)


def read_array(path: Path) -> Predictions:
    array: Predictions = np.load(path)
    return array.reshape(len(array), -1)


def check_by_path(ours: Path, theirs: Path, num_rows: int) -> float:
    """Compare the predictions of every photo: both sides make the same pixels of it.

    Returns:
        The largest difference, as a share of the spread.
    """
    mine, other = _by_path(ours), _by_path(theirs)
    if len(mine) != num_rows or mine.keys() != other.keys():
        raise BenchError(f"photos: {len(mine)} of penstock, {len(other)} of the peer, expected the same {num_rows}")
    return check_same(np.stack([mine[path] for path in mine]), np.stack([other[path] for path in mine]), TOLERANCE)


def _by_path(folder: Path) -> dict[str, Predictions]:
    paths = pq.read_table(folder, columns=["path"]).column("path").to_pylist()
    return dict(zip(paths, read_predictions(folder), strict=True))


def _as_array(chunk: pa.Array) -> Predictions:
    """Tensors and lists alike: whatever their type, their values lie flat, one row after the other."""
    num_rows = len(chunk)
    values = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
    if not pa.types.is_floating(values.type):
        values = values.flatten()
    array: Predictions = np.asarray(values.to_numpy(zero_copy_only=False), np.float32)
    return array.reshape(num_rows, -1)
