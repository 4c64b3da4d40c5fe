"""Shares of global batches: together they are the batches, whatever the number of rows."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.sharing import Share


@given(st.integers(0, 200), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 60))
def test_the_shares_of_all_processes_are_the_batches(
    rows: int, size: int, devices_of_each: int, more: int, skipped: int
) -> None:
    devices = size * devices_of_each
    batch_size = devices * more
    skip = min(rows, skipped * batch_size)
    shares = [Share(rank, size, devices, batch_size) for rank in range(size)]
    own = [
        iter(share.ranks(rows, share.count(skip), share.count(rows) - share.count(skip)).tolist()) for share in shares
    ]
    for first, cuts in zip(
        range(skip, rows, batch_size), zip(*(share.batches(rows, skip) for share in shares), strict=True), strict=True
    ):
        total = min(batch_size, rows - first)
        parts = [[next(numbers) for _ in range(count)] for numbers, (count, _) in zip(own, cuts, strict=True)]
        assert {of for _, of in cuts} == {total}
        whole = list(range(first, first + total))
        if total % devices:
            assert parts == [whole] * size
        else:
            assert list(chain.from_iterable(parts)) == whole
            assert len({len(part) for part in parts}) == 1
    assert all(next(numbers, None) is None for numbers in own)
