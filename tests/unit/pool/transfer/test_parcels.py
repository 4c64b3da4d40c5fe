"""Columns through memory that two processes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.pool.transfer.parcels import Mailbox


def test_columns_arrive_as_they_were_and_may_be_written_to() -> None:
    mailbox = Mailbox.create()
    columns: dict[str, Any] = {
        "numbers": np.arange(12, dtype=np.float32).reshape(3, 4),
        "view": np.arange(12)[::3],
        "text": pa.array(["a", None, "é"]),
        "lists": pa.array([[1.5], [], None]),
        "empty": np.empty((0, 2)),
    }
    taken: dict[str, Any] = mailbox.take(mailbox.put(columns))
    assert list(taken) == list(columns)
    for name in ("numbers", "view", "empty"):
        np.testing.assert_array_equal(taken[name], columns[name])
    assert taken["text"].equals(columns["text"])
    assert taken["lists"].equals(columns["lists"])
    taken["numbers"][:] = 0
    mailbox.close()


def test_next_parcel_does_not_change_the_one_before() -> None:
    mailbox = Mailbox.create()
    first = mailbox.take(mailbox.put({"x": np.ones(1000)}))
    mailbox.take(mailbox.put({"x": np.zeros(5000)}))
    assert first["x"].tolist() == [1.0] * 1000
    assert mailbox.take(mailbox.put({})) == {}
    mailbox.close()
