"""What processes on a machine of a cluster write: kept there in a file without a name, and read by the driver."""

import os
import tempfile

_MOST_BYTES = 1 << 16


class FarLog:
    """See above. `file` is what processes write to."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        self._read = 0

    def news(self) -> bytes:
        """What was written since the last call, as much of its end as fits into a message."""
        descriptor = self.file.fileno()
        end = os.fstat(descriptor).st_size
        start = max(self._read, end - _MOST_BYTES)
        self._read = end
        return os.pread(descriptor, end - start, start)

    def close(self) -> None:
        self.file.close()
