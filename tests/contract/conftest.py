"""What the contract suites share."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("contract", deadline=None, database=None, derandomize=True, max_examples=40)
settings.load_profile("contract")
