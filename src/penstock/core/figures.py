"""Durations, rates, sizes and counts as text."""

from collections.abc import Mapping

_NAMED_NODES = 4


def counted(number: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    """`1 h 02 min`, `3 min 20 s`, `12 s`.

    >>> duration(3725), duration(200), duration(11.6)
    ('1 h 02 min', '3 min 20 s', '12 s')
    """
    whole = int(seconds + 0.5)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def rate(rows_per_s: float) -> str:
    """`1,234 rows/s`, `12.3 rows/s`."""
    return f"{rows_per_s:,.0f} rows/s" if rows_per_s >= 100 else f"{rows_per_s:.1f} rows/s"


def on_nodes(counts: Mapping[str, int]) -> str:
    """`5 on 10.0.0.2, 3 on 10.0.0.3`; of many nodes, the first ones.

    >>> on_nodes({"a": 2000, "b": 3})
    '2,000 on a, 3 on b'
    """
    named = list(counts)[:_NAMED_NODES]
    words = [f"{counts[name]:,} on {name}" for name in named]
    others = [count for name, count in counts.items() if name not in named]
    return ", ".join([*words, *([f"{sum(others):,} on {counted(len(others), 'other node')}"] if others else [])])


def gib(num_bytes: int) -> str:
    """`1.5 GiB`."""
    return f"{num_bytes / 2**30:,.1f} GiB"
