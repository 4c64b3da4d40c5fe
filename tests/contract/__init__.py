"""One suite over every implementation of a protocol."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("promises", "file_promises", "reading", "decoding")))
