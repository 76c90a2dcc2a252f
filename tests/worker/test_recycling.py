"""When a process has done its share."""

from __future__ import annotations

import pytest

from django_pgbus.worker.recycling import reason_to_recycle, resident_memory

from .test_plan import process_plan


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({}, None),
        ({"max_jobs": 101, "max_memory": 1 << 30, "max_age": 61.0}, None),
        ({"max_jobs": 100}, "100 jobs done"),
        ({"max_memory": 512 << 20}, "512 MiB of memory in use"),
        ({"max_age": 60.0}, "60 s old"),
    ],
)
def test_a_process_is_recycled_for_a_reason(limits, reason):
    assert reason_to_recycle(process_plan(**limits), jobs=100, memory=512 << 20, age=60.0) == reason


def test_processes_that_start_together_do_not_all_end_together():
    plan = process_plan(max_age=100.0)

    assert reason_to_recycle(plan, jobs=0, memory=0, age=91.0, spread=1.0) == "91 s old"
    assert reason_to_recycle(plan, jobs=0, memory=0, age=91.0, spread=0.5) is None


def test_memory_in_use_is_seen():
    before = resident_memory()
    ballast = bytearray(64 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])

    assert resident_memory() > before + (48 << 20)
    del ballast


def test_memory_is_told_where_there_is_no_proc(monkeypatch):
    def no_proc(self, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", no_proc)

    assert 1 << 20 < resident_memory() < 1 << 40
