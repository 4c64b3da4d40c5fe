"""Training on a cluster: its requirements, and the connection to its machines."""

from __future__ import annotations

import os

from penstock.cluster.connection import connect
from penstock.cluster.gang import Machines
from penstock.cluster.ray_transport import RayTransport
from penstock.core.protocols import ShowLine
from penstock.errors import DeviceError, UsageError
from penstock.options.records import ClusterOptions
from penstock.runtimes.keras.backends import backend_for

JAX = "jax"
_WHY = {
    "tensorflow": "Keras 3 does not support MultiWorkerMirroredStrategy (keras issue 20585)",
    "torch": "Keras on torch trains on one device",
}


def connect_machines(cluster: ClusterOptions, show: ShowLine) -> Machines:
    """The machines of a Ray cluster.

    Raises:
        DeviceError: There is no cluster, or it refuses the connection.
    """
    ray, disconnect = connect(cluster.address, show)
    return RayTransport(ray, disconnect, cluster.resources)


def cluster_backend(wanted: str | None) -> str:
    """The backend of Keras that trains on several machines. `wanted` is the requested backend, or that of the job.

    Raises:
        UsageError: `wanted` is another backend.
        DeviceError: The backend is not installed.
    """
    wanted = wanted or os.environ.get("KERAS_BACKEND") or JAX
    if wanted != JAX:
        raise UsageError(
            "several machines train with Keras on JAX",
            received=f"{wanted}: {_WHY.get(wanted, 'it does not train')}",
            hint="--runtime jax: a model that is written with Keras alone runs there, too; or leave --engine ray out",
        )
    if backend_for(JAX) != JAX:
        raise DeviceError("JAX is not installed", hint="pip install penstock[jax], here and on all machines")
    return JAX
