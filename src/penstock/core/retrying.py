"""Retries of calls to a remote store.

The caller decides which errors are tried again; `may_pass` recognises those of the usual stores by their types. Waits
are random within bounds that double, so that a hundred loaders do not come back at the same moment. The function that
waits is a parameter, so that tests do not wait.
"""

import errno
import random
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 8.0


def retrying(
    call: Callable[[], T],
    *,
    is_transient: Callable[[Exception], bool],
    sleep: Callable[[float], object],
    tries: int = 5,
) -> T:
    """What `call` returns; after an error that may pass it is tried again, up to `tries` times in all.

    Args:
        call: What to do. It must be safe to do twice: the first call may have succeeded although its answer was lost.
        is_transient: Whether an error may pass by itself (a timeout, a broken connection, a 503).
        sleep: Waits for so many seconds: `time.sleep`, or the `wait` of an event that can end the wait.
        tries: How often to call, at least once.

    Raises:
        Exception: The error of the last try, or the first one that does not pass.
    """
    for attempt in range(1, tries):
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
            sleep(wait_after(attempt))
    return call()


def wait_after(attempt: int) -> float:
    """How long to wait after so many failed tries: 0.1 to 0.2 s, 0.2 to 0.4 s, and so on up to 8 s."""
    most = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
    return random.uniform(most / 2, most)


_PASSING_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "EPIPE",
        "EREMOTEIO", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_NOT_IMPLEMENTED = 501
_PASSING_TYPES = {
    "botocore.exceptions": ("ConnectionError", "HTTPClientError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
    "requests": ("ConnectionError", "Timeout"),
}


def may_pass(error: BaseException) -> bool:
    """Whether an error of a remote store may pass by itself: a timeout, a broken connection, 429, 5xx.

    The stores' own types are looked up among the modules that are loaded: no other module can have raised the error.
    """
    if isinstance(error, (TimeoutError, ConnectionError, *_types_that_pass())):
        return True
    if (status := http_status(error)) is not None:
        return (status >= 500 and status != _NOT_IMPLEMENTED) or status in _PASSING_STATUSES
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNOS


def http_status(error: BaseException) -> int | None:
    """The HTTP status behind an error of a remote store, or behind its cause; None where it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status", None) or getattr(error, "status_code", None) or getattr(error, "code", None)
    if isinstance(status, int):
        return status
    return http_status(error.__cause__) if error.__cause__ is not None else None


def _types_that_pass() -> tuple[type[BaseException], ...]:
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _PASSING_TYPES.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)
    )
