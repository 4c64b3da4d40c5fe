"""What bounds a job, and what would help."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.bottleneck import COMPUTING, COPYING, DECODING, LOADING, WRITING, Bound, Rates, measured, predict
from penstock.core.records import Timings

STAGES = (LOADING, COPYING, COMPUTING, WRITING)
SPEEDS = st.floats(0.1, 1e6)
COSTS = st.one_of(st.just(0.0), st.floats(1e-7, 1.0))


@st.composite
def any_rates(draw: st.DrawFn) -> Rates:
    cores = draw(st.integers(1, 128))
    on_gpu = draw(st.booleans())
    return Rates(
        draw(SPEEDS),
        cores,
        compute_cores=draw(st.floats(0.0, 1.0)) * cores,
        load_s=draw(COSTS),
        write_s=draw(COSTS),
        on_gpu=on_gpu,
        devices=draw(st.integers(1, 8)),
        loaders=draw(st.none() | st.integers(1, 128)),
    )


@given(any_rates())
def test_whole_is_never_faster_than_any_stage(rates: Rates) -> None:
    bound = predict(rates)
    assert all(bound.rows_per_s <= alone for alone in rates.alone().values())
    assert bound.by in STAGES


@given(any_rates())
def test_whole_takes_no_more_core_seconds_than_there_are(rates: Rates) -> None:
    bound = predict(rates)
    assert bound.rows_per_s * sum(rates.core_seconds().values()) <= rates.cores * (1 + 1e-9)


@given(any_rates(), st.integers(1, 64))
def test_more_cores_are_never_slower(rates: Rates, more: int) -> None:
    before, after = predict(rates), predict(rates.with_cores(rates.cores + more))
    assert after.rows_per_s >= before.rows_per_s * (1 - 1e-9)


@given(any_rates())
def test_another_device_is_never_slower(rates: Rates) -> None:
    assert predict(rates.with_another_device()).rows_per_s >= predict(rates).rows_per_s * (1 - 1e-9)


@given(any_rates(), st.floats(1.0, 10.0))
def test_cheaper_loading_and_writing_are_never_slower(rates: Rates, times: float) -> None:
    cheaper = replace(rates, load_s=rates.load_s / times, write_s=rates.write_s / times)
    assert predict(cheaper).rows_per_s >= predict(rates).rows_per_s * (1 - 1e-9)


@given(any_rates())
def test_advice_promises_what_the_rates_give_and_never_a_loss(rates: Rates) -> None:
    bound = predict(rates)
    promised = re.search(r"would give (?:up to )?([\d.e+]+)×", bound.advice)
    if promised is None:
        assert re.fullmatch(r"the model keeps [\d.]+ of \d+ cores busy", bound.advice)
        return
    assert float(promised[1]) >= 0.99
    cores = re.fullmatch(r"(\d+) more cores? would give ([\d.]+)×.*", bound.advice)
    if cores is not None:
        with_them = predict(replace(rates, loaders=None).with_cores(rates.cores + int(cores[1])))
        assert float(cores[2]) == pytest.approx(with_them.rows_per_s / bound.rows_per_s, rel=0.06)
        assert 1 <= int(cores[1]) <= rates.cores


@pytest.mark.parametrize(
    ("rates", "rows_per_s", "told"),
    [
        # A GPU that cores must feed.
        (Rates(10_000, 4, load_s=0.001, on_gpu=True), 4_000, "loading-bound: 4 more cores would give 2×"),
        (
            Rates(5_000, 4, load_s=0.001, on_gpu=True),
            4_000,
            "loading-bound: 1 more core would give 1.2×, then computing bounds it",
        ),
        (
            Rates(4_100, 4, load_s=0.001, on_gpu=True),
            4_000,
            "loading-bound: 1 more core and a second device would give 1.2×",
        ),
        (
            Rates(10_000, 8, load_s=0.001, on_gpu=True, loaders=2),
            2_000,
            "loading-bound: --loaders 8 would give 4×",
        ),
        (Rates(1_000, 8, load_s=0.001, on_gpu=True), 1_000, "computing-bound: a second device would give 2×"),
        (
            Rates(1_000, 2, load_s=0.001, on_gpu=True, devices=2),
            1_000,
            "computing-bound: one more device would give 1.5×",
        ),
        # Cores that load and compute.
        (Rates(100, 2, compute_cores=2), 100, "computing-bound: 2 more cores would give 2×"),
        (Rates(100, 2, compute_cores=2, load_s=0.03), 40, "loading-bound: 2 more cores would give 2×"),
        (Rates(100, 2, compute_cores=2, load_s=0.01), 200 / 3, "computing-bound: 2 more cores would give 2×"),
        (Rates(100, 8, compute_cores=1), 100, "computing-bound: the model keeps 1 of 8 cores busy"),
        # One thread that writes.
        (
            Rates(10_000, 8, write_s=0.001, on_gpu=True),
            1_000,
            "writing-bound: fewer outputs (--outputs, --top-k) or another --format would give up to 10×, "
            "then computing bounds it",
        ),
    ],
)
def test_prediction_says_what_bounds_and_what_would_help(rates: Rates, rows_per_s: float, told: str) -> None:
    bound = predict(rates)
    assert bound.rows_per_s == pytest.approx(rows_per_s)
    assert str(bound) == told


def test_rates_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="a model that computes"):
        Rates(0.0, 2)
    with pytest.raises(ValueError, match="a core"):
        Rates(1.0, 0)


@pytest.mark.parametrize(
    ("spent", "writer_full", "by", "told"),
    [
        (Timings(compute=10.0), 0.0, COMPUTING, "computing took 100% of the time of the model's threads"),
        (
            Timings(compute=8.0, wait_for_data=2.0),
            0.0,
            COMPUTING,
            "computing took 80% of the time of the model's threads",
        ),
        (
            Timings(compute=6.0, wait_for_data=4.0),
            0.0,
            LOADING,
            "waiting for data took 40% of the time of the model's threads",
        ),
        (Timings(wait_for_data=1.0), 0.0, LOADING, "waiting for data took 100% of the time of the model's threads"),
        (
            Timings(read=6.0, wait_for_room=4.0, decode=9.0, compute=6.0, wait_for_data=4.0),
            0.0,
            DECODING,
            "waiting for the device's decoder took 40% of the time of the model's threads",
        ),
        (
            Timings(read=9.0, wait_for_room=1.0, decode=9.0, compute=6.0, wait_for_data=4.0),
            0.0,
            LOADING,
            "waiting for data took 40% of the time of the model's threads",
        ),
        (Timings(compute=10.0, copy=7.0), 0.0, COPYING, "copying took 70% of the time of the model's threads"),
        (Timings(compute=10.0, copy=4.0), 0.0, COMPUTING, "computing took 60% of the time of the model's threads"),
        (
            Timings(compute=4.0, hand_over=2.0, wait_for_slot=4.0),
            0.0,
            COPYING,
            "copying took 60% of the time of the model's threads",
        ),
        (Timings(compute=9.0), 6.0, WRITING, "waiting for the writer took 60% of the time by the clock"),
        # Whoever waits for the writer fetches nothing, and then all the others wait, too.
        (
            Timings(compute=1.0, wait_for_data=9.0),
            6.0,
            WRITING,
            "waiting for the writer took 60% of the time by the clock",
        ),
        (Timings(compute=9.0), 2.0, COMPUTING, "computing took 100% of the time of the model's threads"),
    ],
)
def test_measured_bound_is_what_the_others_waited_for(spent: Timings, writer_full: float, by: str, told: str) -> None:
    assert measured(replace(spent, rows=30), 10.0, writer_full) == Bound(3.0, by, told)


def test_nothing_is_known_before_anything_was_done() -> None:
    assert measured(Timings(), 1.0, 0.0) is None
    assert measured(Timings(compute=1.0), 0.0, 0.0) is None


@given(st.builds(Timings, *[st.floats(0, 1e4)] * 4, copy=st.floats(0, 1e4)), st.floats(1e-3, 1e4), st.floats(0, 1e4))
def test_every_run_is_bound_by_one_of_the_four(spent: Timings, elapsed: float, writer_full: float) -> None:
    bound = measured(spent, elapsed, writer_full)
    if bound is not None:
        assert bound.by in STAGES
        share = re.search(r"took (\d+)%", bound.advice)
        assert share is not None
        assert 0 <= int(share[1]) <= 100
