"""Gauges that are written whole: what a process no longer knows, or no longer is, is not exposed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from switchboard.telemetry.gauge_file import GaugeFile, Sample, metrics_directory, remove_left_behind

WRITER = """
import sys
from pathlib import Path
from switchboard.telemetry.gauge_file import GaugeFile, Sample
folder = Path(sys.argv[1])
GaugeFile(folder, "livemostrecent").write([Sample("switchboard_adapter_unread", {"adapter": "dead"}, 7)])
GaugeFile(folder, "livesum").write([Sample("switchboard_pool_connections", {}, 5)])
print("written", flush=True)
sys.stdin.readline()
"""


def unread(adapter: str, value: float) -> Sample:
    return Sample("switchboard_adapter_unread", {"adapter": adapter}, value)


def size(value: float) -> Sample:
    return Sample("switchboard_pool_connections", {}, value)


def exposed(folder: Path) -> dict[tuple[str, ...], float]:
    """As Dramatiq's exposition reads the folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def another(tmp_path: Path) -> "subprocess.Popen[str]":
    """Another process, that has written both of its files into the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "written\n"
    return process


def test_what_is_written_is_exposed_and_what_is_not_written_again_is_not(tmp_path: Path) -> None:
    file = GaugeFile(tmp_path, "livemostrecent")
    file.write([unread("one", 1), unread("two", 2), unread("two", 3)])
    assert exposed(tmp_path) == {("switchboard_adapter_unread", "one"): 1, ("switchboard_adapter_unread", "two"): 3}
    file.write([unread("two", 4)])
    assert exposed(tmp_path) == {("switchboard_adapter_unread", "two"): 4}
    file.remove()
    file.remove()
    assert exposed(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_thousand_queues_with_any_name_are_exposed(tmp_path: Path) -> None:
    samples = [
        Sample("switchboard_todos", {"queue": f'q{number} "ü_\n', "state": "pending"}, number) for number in range(1000)
    ]
    GaugeFile(tmp_path, "livemostrecent").write(samples)
    found = exposed(tmp_path)
    assert len(found) == 1000
    assert set(found.values()) == set(range(1000))


def test_processes_are_summed_or_the_last_counts_and_a_killed_one_is_swept_away(
    tmp_path: Path, another: "subprocess.Popen[str]"
) -> None:
    GaugeFile(tmp_path, "livesum").write([size(3)])
    GaugeFile(tmp_path, "livemostrecent").write([unread("one", 1), unread("dead", 8)])
    remove_left_behind(tmp_path)
    assert exposed(tmp_path) == {
        ("switchboard_pool_connections",): 8,
        ("switchboard_adapter_unread", "one"): 1,
        ("switchboard_adapter_unread", "dead"): 8,
    }

    os.kill(another.pid, signal.SIGKILL)
    another.communicate()
    remove_left_behind(tmp_path)
    assert exposed(tmp_path)[("switchboard_pool_connections",)] == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_files_of_the_client_itself_and_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    others = ["gauge_livesum_1.db", "gauge_livesum_switchboard@elsewhere%2F1%2F999999999%2F1.db", "counter_1.db"]
    for name in others:
        (tmp_path / name).touch()
    remove_left_behind(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_process_without_a_multiprocess_directory_has_nowhere_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert metrics_directory() is None
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/somewhere")
    assert metrics_directory() == Path("/somewhere")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert metrics_directory() is None
