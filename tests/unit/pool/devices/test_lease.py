"""What a run may take of a GPU that others use, too; on memory that was made up, with real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.core.records import Device
from penstock.errors import DeviceError, Interrupted
from penstock.pool.devices import lease as device_lease
from penstock.pool.devices.lease import Memory, Reservation, shares_with, take, unreserved_bytes, waits_for

GIB = 2**30
GPU = Device("gpu", 0, "a GPU", "GPU-1/2", 140 * GIB, 140 * GIB)


def holder(reserved: int, used: int = 0, pid: int = 123) -> Reservation:
    return Reservation(f"{pid}-{reserved}", pid, 0.0, reserved * GIB, used * GIB)


@pytest.mark.parametrize(
    ("holders", "free", "expected"),
    [
        ([], 140, 140),
        ([], 3, 3),
        ([holder(40)], 140, 100),
        ([holder(40)], 130, 100),
        ([holder(40)], 100, 100),
        ([holder(40)], 90, 90),
        ([holder(40, used=20)], 120, 80),
        ([holder(40, used=20)], 80, 80),
        ([holder(40), holder(50, used=10)], 130, 50),
        ([holder(40), holder(50, used=10)], 50, 50),
        ([holder(140)], 140, 0),
        ([holder(139)], 5, 1),
    ],
)
def test_what_others_reserved_and_have_not_taken_yet_is_not_free(
    holders: list[Reservation], free: int, expected: int
) -> None:
    assert unreserved_bytes(holders, Memory(140 * GIB, free * GIB)) == expected * GIB


def test_people_are_told_who_shares_and_who_is_waited_for() -> None:
    assert shares_with(GPU, [holder(40)], 60 * GIB) == (
        "gpu:0 is shared with process 123, which has reserved 40.0 GiB; this run takes up to 60.0 GiB"
    )
    assert waits_for(GPU, [holder(110), holder(20, pid=9)], GIB // 2) == (
        "waiting for gpu:0: 0.5 GiB are free, process 123 holds 110.0 GiB and process 9 holds 20.0 GiB"
    )


class Gpu:
    """A made-up device, on which a test takes and frees memory."""

    def __init__(self, free: int = 140) -> None:
        self.free = free

    def __call__(self, device: Device) -> Memory:
        return Memory(140 * GIB, self.free * GIB)


def entries(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((folder / "GPU-1_2.json").read_text(encoding="utf-8"))
    return found


def test_the_second_run_plans_from_what_the_first_leaves(tmp_path: Path) -> None:
    gpu, said = Gpu(), list[str]()
    folder = str(tmp_path / "leases")
    first = take(GPU, fraction=0.5, say=said.append, measure=gpu, folder=folder)
    assert (first.num_bytes, said) == (70 * GIB, [])
    second = take(GPU, fraction=0.5, say=said.append, measure=gpu, folder=folder)
    assert second.num_bytes == 35 * GIB
    assert said == [shares_with(GPU, [holder(70, pid=os.getpid())], 35 * GIB)]
    assert [entry["reserved_bytes"] for entry in entries(tmp_path / "leases")] == [70 * GIB, 35 * GIB]
    first.close()
    first.close()
    assert [entry["reserved_bytes"] for entry in entries(tmp_path / "leases")] == [35 * GIB]
    second.close()
    assert entries(tmp_path / "leases") == []


def test_a_run_of_the_past_holds_nothing(tmp_path: Path) -> None:
    dead = holder(100, pid=2**22 + 1)
    reused = Reservation("r", os.getpid(), device_lease.started_s(os.getpid()) - 100, 30 * GIB, 0)
    (tmp_path / "GPU-1_2.json").write_text(json.dumps([vars(dead), vars(reused)]), encoding="utf-8")
    said: list[str] = []
    assert take(GPU, fraction=1.0, say=said.append, measure=Gpu(), folder=str(tmp_path)).num_bytes == 140 * GIB
    assert said == []


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"pid": 1}]', "{}"])
def test_a_file_that_cannot_be_read_counts_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "GPU-1_2.json").write_text(content, encoding="utf-8")
    assert take(GPU, fraction=1.0, measure=Gpu(), folder=str(tmp_path)).num_bytes == 140 * GIB


def test_what_other_programs_took_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="too little memory on gpu:0") as caught:
        take(GPU, least_bytes=10 * GIB, fraction=0.5, measure=Gpu(free=4), folder=str(tmp_path))
    assert caught.value.received == "4.0 GiB of 140.0 GiB are free"


def test_a_model_that_would_not_fit_alone_is_not_waited_for(tmp_path: Path) -> None:
    take(GPU, fraction=0.5, measure=Gpu(), folder=str(tmp_path))
    with pytest.raises(DeviceError, match="too little memory"):
        take(GPU, least_bytes=100 * GIB, fraction=0.5, measure=Gpu(), folder=str(tmp_path))


def test_a_run_that_waits_can_be_stopped(tmp_path: Path) -> None:
    take(GPU, fraction=0.9, measure=Gpu(), folder=str(tmp_path))
    said: list[str] = []
    with pytest.raises(Interrupted, match="stopped while waiting for gpu:0"):
        take(GPU, least_bytes=20 * GIB, measure=Gpu(), folder=str(tmp_path), say=said.append, is_stopped=lambda: True)
    assert said == [f"waiting for gpu:0: 14.0 GiB are free, process {os.getpid()} holds 126.0 GiB"]
    assert len(entries(tmp_path)) == 1


def test_the_cpu_needs_no_lease() -> None:
    lease = take(Device("cpu", 0))
    assert lease.num_bytes == 0
    lease.close()


def test_a_folder_of_others_is_not_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("open", "link", "file"):
        said: list[str] = []
        lease = take(GPU, fraction=1.0, measure=Gpu(), say=said.append, folder=str(tmp_path / name))
        assert lease.num_bytes == 140 * GIB
        assert "without a lease" in said[0]
    assert list(open_to_all.iterdir()) == []


def test_leases_are_kept_where_only_this_user_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    take(GPU, measure=Gpu()).close()
    assert (tmp_path / "penstock").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert device_lease.leases_folder().endswith(f"penstock-{os.getuid()}")
