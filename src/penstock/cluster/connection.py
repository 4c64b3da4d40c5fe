"""Getting to a Ray cluster: the caller's own, one at an address, or a local one that is started here.

Ray is imported only when it is needed. For a local cluster, the settings that Ray reads at import and at start are set
before: the cluster serves only the loopback address, and only callers that have its token.
"""

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.protocols import ShowLine
from penstock.errors import DeviceError, PenstockError, one_line
from penstock.options.value_kinds import HOST_AND_PORT, check_address
from penstock.pool.devices.inventory import usable_cores
from penstock.storage.scratch import Scratch

LEAST_VERSION = (2, 54)
_LOOPBACK = "127.0.0.1"
_STORE_BYTES = 256 << 20
"""Only descriptions of jobs go through Ray's memory."""
_CONNECT_S = 5.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_BY_ITSELF = (
    "where ray was imported before, its settings are read already: ray.init() then, which penstock uses, or start a "
    "cluster and give --address"
)
_LOCAL = {
    # The name of the variable is about other systems, but on Linux, too, this alone keeps Ray on the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # The monitor would kill the node, because its replicas take the memory; penstock goes on with smaller batches.
    "RAY_memory_monitor_refresh_ms": "0",
}
_LEAN = {
    # Ray starts a worker for the one actor anyway; each of those that it starts ahead costs most of a core second.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # The job has the priority of its command, as on the local engine: Ray would give its workers a niceness of 15.
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Settings of a local cluster, except for those that the environment sets."""
_HELPERS = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's node that start a process: of the autoscaler, of the logs, of the dashboard."""


def connect(address: str | None, show: ShowLine) -> tuple[Any, Callable[[], None]]:
    """Connect to a cluster.

    Args:
        address: `auto`, `HOST:PORT`, `ray://HOST:PORT`, or `local`; None takes `RAY_ADDRESS`, or starts a local one.
        show: Shows a line.

    Returns:
        The module `ray`, connected, and a function to call at the end.

    Raises:
        DeviceError: There is no Ray here, or no cluster there, or it refuses.
        UsageError: RAY_ADDRESS is not understood.
    """
    if address is None and (address := os.environ.get("RAY_ADDRESS")):
        check_address("RAY_ADDRESS", address)
    address = address or "local"
    os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
    if address == "local" and not _is_initialized():
        return _start_local(show)
    ray = import_ray()
    if ray.is_initialized():
        return ray, lambda: None  # the caller's: it stays as it is
    _check_reachable(address)
    _check_admitted(address)
    try:
        with _handlers_kept():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise _refusal(address, error) from error
    _silence(ray)
    return ray, ray.shutdown


def import_ray() -> Any:
    """The module.

    Raises:
        DeviceError: It is not installed, or too old.
    """
    try:
        import ray
    except ImportError as error:
        raise DeviceError(
            "--engine ray needs Ray, which is not installed", received=one_line(error), hint="pip install penstock[ray]"
        ) from error
    if tuple(map(int, re.findall(r"\d+", ray.__version__)[:2])) < LEAST_VERSION:
        raise DeviceError(
            "this Ray is too old",
            received=f"ray {ray.__version__}",
            allowed=f"ray {'.'.join(map(str, LEAST_VERSION))} or newer",
            hint="pip install -U penstock[ray]",
        )
    return ray


def _is_initialized() -> bool:
    return "ray" in sys.modules and bool(import_ray().is_initialized())


def _start_local(show: ShowLine) -> tuple[Any, Callable[[], None]]:
    lean = {name: value for name, value in _LEAN.items() if name not in os.environ}
    changes = lean | _LOCAL | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in changes}
    try:
        # Unix sockets lie in here, and their paths may have 107 bytes only: hence /tmp, whatever TMPDIR says.
        folder = Scratch("penstock-ray-", "/tmp")
    except OSError as error:
        raise DeviceError("a local Ray cluster has its files in /tmp", received=one_line(error)) from error
    os.environ.update(changes)

    def close() -> None:
        try:
            if "ray" in sys.modules:
                import_ray().shutdown()
        finally:
            folder.remove()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    show("starting a local Ray cluster; --address names one that is there")
    try:
        ray = import_ray()
        with _handlers_kept(), _deaf_to_closed_terminal(), _without_helpers():
            ray.init(
                address="local",
                _node_ip_address=_LOOPBACK,
                _temp_dir=os.path.join(folder.path, "r"),  # Ray makes this folder writable for all users
                num_cpus=usable_cores(),
                object_store_memory=_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        _silence(ray)
        served = {node["NodeManagerAddress"] for node in ray.nodes()}
        if served != {_LOOPBACK}:
            raise DeviceError(
                "the local Ray cluster would serve the network",
                received=f"{', '.join(sorted(served))}, expected {_LOOPBACK} alone",
                hint=_BY_ITSELF,
            )
    except BaseException as error:
        close()
        if isinstance(error, PenstockError) or not isinstance(error, Exception):
            raise
        raise DeviceError("a local Ray cluster cannot be started", received=one_line(error), hint=_BY_ITSELF) from error
    return ray, close


def _silence(ray: Any) -> None:
    """Stop Ray from printing about nodes on standard output, which is for JSON; the driver reports on them itself."""
    ray._private.worker._worker_logs_enabled = False


def _check_reachable(address: str) -> None:
    """Connect to the port of the address first: where nothing is there, Ray would try for minutes."""
    match = HOST_AND_PORT.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            "no Ray cluster answers at the address",
            received=f"{address}: {error}",
            hint="ray start --head starts one, and prints its address; without --address penstock starts its own",
        ) from error


def _check_admitted(address: str) -> None:
    """Check that the head accepts the token: if not, `ray.init` would try for 20 s and print a line each second.

    Ray has no public call for this. In a version that lacks this class, only `ray.init` finds out.
    """
    if address == "auto" or "://" in address:
        return
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        GcsClient(address=address)
    except (ImportError, TypeError):
        return
    except Exception as error:
        raise _refusal(address, error) from error


def _refusal(address: str, error: Exception) -> DeviceError:
    mode, token = os.environ.get("RAY_AUTH_MODE", ""), os.environ.get("RAY_AUTH_TOKEN") is not None
    comes = f"{'with' if token else 'without'} RAY_AUTH_TOKEN, RAY_AUTH_MODE={mode!r}"
    if type(error).__name__ == "AuthenticationError":
        is_sent = mode == "token"
        return DeviceError(
            f"the Ray cluster asks for {'another token' if is_sent else 'a token, and none was sent'}",
            received=f"{address}: {comes}",
            allowed="RAY_AUTH_MODE=token, and the token of the cluster in RAY_AUTH_TOKEN or ~/.ray/auth_token",
        )
    hint = "ray start --head starts one; without --address penstock starts its own"
    if address != "auto":
        hint = (
            f"is it a head node of the same version of Ray? Does it ask for a token? This process comes {comes}; a "
            "token is taken from RAY_AUTH_TOKEN or ~/.ray/auth_token where RAY_AUTH_MODE=token"
        )
    return DeviceError("the Ray cluster cannot be used", received=f"{address}: {one_line(error)}", hint=hint)


@contextlib.contextmanager
def _without_helpers() -> Iterator[None]:
    """Prevent the start of processes that a local cluster does not need.

    They take 3 core seconds, and `ray.init` waits for the dashboard's process even where there is to be no dashboard.
    Ray has no setting for this. A version that lacks these methods starts the processes.
    """
    try:
        from ray._private.node import Node
    except ImportError:
        yield
        return
    before = {name: vars(Node)[name] for name in _HELPERS if name in vars(Node)}
    for name in before:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep our signal handlers, which finish what is in flight: Ray sets one for SIGTERM that ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _deaf_to_closed_terminal() -> Iterator[None]:
    """Start processes with SIGHUP blocked: they go on until this process has committed, and ends them.

    Ray does the same with Ctrl-C. This process gets a SIGHUP of that time when the block has ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
