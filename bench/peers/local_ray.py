"""Ray on the loopback address alone, and silent. Take `ray` from here: it reads its environment on import."""

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# Ray reads these when it is imported: it stays on this machine and says nothing to anyone. On Linux it turns
# `_node_ip_address="127.0.0.1"` into the network card's address and would serve everyone there; only with
# clusters off, by a variable named after other systems, does it keep to the loopback address.
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")

import ray
import ray.data

__all__ = ["local_ray", "ray"]

LOOPBACK = "127.0.0.1"


@contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray on the loopback address alone; its processes and its temporary files end with the block."""
    # Unix sockets lie in here, and their paths may have 107 bytes only: hence /tmp, whatever TMPDIR says.
    session = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        ray.init(
            _node_ip_address=LOOPBACK,
            _temp_dir=session,
            # The cores that this process may use, which are those that Penstock uses, too.
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        _require_loopback()
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(session, ignore_errors=True)


def _require_loopback() -> None:
    """Another version of Ray may read other variables: then it must not run unnoticed on an open address."""
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if addresses != {LOOPBACK}:
        sys.exit(f"ray serves {sorted(addresses)}, expected {LOOPBACK} alone")
