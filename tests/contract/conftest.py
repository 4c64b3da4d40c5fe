"""What the contract suites share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("contract", deadline=None, database=None, derandomize=True, max_examples=40)
settings.load_profile("contract")


@pytest.fixture(autouse=True)
def compressed_files_are_collected_in_their_own_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A source that an error's traceback still holds is closed by the collector, in the middle of any later test."""
    yield
    if "compressed" in request.node.nodeid and "test_source_promises" not in request.node.nodeid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
