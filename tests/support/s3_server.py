"""A real S3-speaking server in a process of its own, on loopback. As a script, it prints its address and serves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def start_s3_server(host: str = "127.0.0.1") -> Iterator[str]:
    """Start a server with no buckets on a free port; yields its address, such as `http://127.0.0.1:PORT`."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), host]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        endpoint = server.stdout.readline().decode().strip()
        assert endpoint.startswith("http://"), "the S3 server did not start"
        yield endpoint
    finally:
        server.stdin.close()  # it serves until its standard input ends, so it cannot outlive this process either
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def environment(endpoint: str) -> dict[str, str]:
    """The variables with which botocore, s3fs and every process below find the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def filesystem(endpoint: str) -> Any:
    """An s3fs of its own for a test's own hands: to make buckets, and to put and look at objects.

    No listing is kept: what other processes wrote is seen at once.
    """
    import s3fs  # type: ignore[import-untyped]

    variables = environment(endpoint)
    return s3fs.S3FileSystem(
        key=variables["AWS_ACCESS_KEY_ID"],
        secret=variables["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=endpoint,
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.buffer.read()
    server.stop()


if __name__ == "__main__":
    _serve()
