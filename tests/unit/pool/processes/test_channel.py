"""The line between the coordinator and one replica."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from penstock.core.messages import Failed, Returned, Work
from penstock.core.records import Span
from penstock.errors import InputError
from penstock.pool.processes.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, descriptor = Channel.pair()
    theirs = Channel.inherited(descriptor)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order_both_ways(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    for index in range(20):
        ours.send(Work(Span(index, index, 1, ((0, 1),), "g")))
    theirs.send(Returned((1, 2)))
    assert [theirs.receive().span.index for _ in range(20)] == list(range(20))
    assert ours.receive() == Returned((1, 2))


def test_errors_keep_their_class_and_their_fields(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.send(Failed(InputError("bad", received="x", hint="h"), "InputError", "trace"))
    error = ours.receive().error
    assert type(error) is InputError
    assert (error.problem, error.received, error.hint) == ("bad", "x", "h")


def test_functions_travel_by_value(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    factor = 3
    ours.send(lambda x: x * factor)
    assert theirs.receive()(5) == 15


def test_messages_of_several_threads_do_not_mix(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends

    def send(number: int) -> None:
        for i in range(50):
            ours.send((number, i, bytes([number]) * 5000))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for sender in senders:
        sender.start()
    received = [theirs.receive() for _ in range(200)]
    for sender in senders:
        sender.join()
    assert all(payload == bytes([n]) * 5000 for n, _, payload in received)
    for number in range(4):
        assert [i for n, i, _ in received if n == number] == list(range(50))


def test_message_of_which_the_rest_does_not_come_is_not_waited_for_without_end() -> None:
    ours, descriptor = Channel.pair(timeout_s=1)
    with socket.socket(fileno=descriptor) as theirs:
        theirs.sendall(struct.pack("!i", 1000) + b"a beginning")
        with pytest.raises(BlockingIOError):
            ours.receive()
    ours.close()


def test_closed_line_is_an_end_of_file_for_the_other_side() -> None:
    ours, descriptor = Channel.pair()
    theirs = Channel.inherited(descriptor)
    ours.close()
    with pytest.raises((EOFError, OSError)):
        theirs.receive()
    with pytest.raises(OSError, match=r"pipe|reset"):
        theirs.send("anyone?")
    theirs.close()


def test_what_was_sent_before_the_end_is_still_received() -> None:
    ours, descriptor = Channel.pair()
    theirs = Channel.inherited(descriptor)
    ours.send("last words")
    ours.close()
    assert theirs.receive() == "last words"
    with pytest.raises((EOFError, OSError)):
        theirs.receive()
    theirs.close()


def test_closing_both_ends_leaves_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        ours, descriptor = Channel.pair()
        Channel.inherited(descriptor).close()
        ours.close()
    assert len(os.listdir("/proc/self/fd")) == before
