"""The head of a cluster, which may be gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.cluster.ray_transport import Head, head_limit_s
from penstock.cluster.transport import ClusterLost

A, B = [{"NodeID": "a"}], [{"NodeID": "b"}]


def test_head_that_does_not_answer_is_taken_by_its_last_word_and_by_the_next_when_it_comes() -> None:
    may_answer = threading.Event()
    answers = iter([A, B])

    def ask() -> list[dict[str, Any]]:
        answer = next(answers)
        if answer is B:
            may_answer.wait()
        return answer

    head = Head(ask, limit_s=1e9)
    assert head.nodes() is A
    assert head.nodes() is A
    may_answer.set()
    while (now := head.nodes()) is A:
        pass
    assert now is B


def test_head_that_is_silent_for_too_long_cannot_be_reached() -> None:
    never = threading.Event()

    def ask() -> list[dict[str, Any]]:
        never.wait()
        return []

    head = Head(ask, limit_s=-1.0, last_chance_s=0.0)
    try:
        for _ in range(2):
            with pytest.raises(ClusterLost, match="the Ray cluster cannot be reached any more"):
                head.nodes()
    finally:
        never.set()


def test_refusal_of_the_head_is_told() -> None:
    def ask() -> list[dict[str, Any]]:
        raise ConnectionError("no route to host")

    with pytest.raises(ClusterLost) as caught:
        Head(ask, limit_s=30.0).nodes()
    assert caught.value.received == "ConnectionError: no route to host"


@pytest.mark.parametrize(("said", "limit_s"), [(None, 30.0), ("600", 300.0), ("soon", 30.0), ("nan", 30.0)])
def test_head_may_be_silent_for_half_of_what_ray_allows(
    monkeypatch: pytest.MonkeyPatch, said: str | None, limit_s: float
) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    if said is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, said)
    assert head_limit_s() == limit_s
