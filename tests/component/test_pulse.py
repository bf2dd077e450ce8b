"""How `switchboard health` judges what worker processes say of themselves, and whom it believes."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from waiting import eventually

from switchboard.errors import ConfigError
from switchboard.ledger import Ledger, migrate
from switchboard.process_name import process_name
from switchboard.telemetry.health import LONGEST_LOOP, WITHIN, judge_live, judge_ready
from switchboard.telemetry.pulse import Beat, Pulse, Report, read_reports

NOW = 10_000.0

WELL = Beat("adapter.deploys", looped_at=NOW - 1, answered_at=NOW - 2)

REPORT = Report("host/1/77/5", at=NOW - 1, ledger_at=NOW - 1, consumers=[WELL])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("SWITCHBOARD_STATE_DIR", str(folder))
    return folder


def with_beat(**changes: object) -> Report:
    return replace(REPORT, consumers=[replace(WELL, **changes)])  # type: ignore[arg-type]


def test_a_worker_that_polls_is_live_and_ready() -> None:
    assert judge_live([REPORT], NOW).ok
    assert judge_ready([REPORT], NOW).ok


@pytest.mark.parametrize(
    ("report", "live", "why"),
    [
        (replace(REPORT, at=NOW - WITHIN - 1), False, "process 77 has been silent for 16 s"),
        (with_beat(looped_at=NOW - LONGEST_LOOP - 2), False, "adapter.deploys in process 77 has not come round"),
        (replace(REPORT, ledger_at=None), True, "the ledger has not answered yet to process 77"),
        (replace(REPORT, ledger_at=NOW - 20), True, "the ledger has not answered for 20 s"),
        (with_beat(answered_at=None), True, "adapter.deploys: the source has not answered yet"),
        (with_beat(answered_at=NOW - 20), True, "adapter.deploys: the source has not answered for 20 s"),
        (with_beat(queue="todo.work", answered_at=NOW - 20), True, "todo.work: the ledger has not answered for 20 s"),
        (with_beat(storing_since=NOW - 20), True, "storing one batch for 20 s"),
        (replace(REPORT, stopping=True), True, "process 77 is stopping"),
    ],
)
def test_what_is_wrong_is_named_and_makes_it_unready(report: Report, live: bool, why: str) -> None:
    verdict = judge_ready([REPORT, report], NOW)
    assert (verdict.ok, judge_live([REPORT, report], NOW).ok) == (False, live)
    assert why in verdict.why


def test_a_good_reason_not_to_ask_stands_for_an_answer() -> None:
    verdict = judge_ready([with_beat(answered_at=NOW - 600, excused_at=NOW - 1, excuse="busy")], NOW)
    assert verdict.ok
    assert "adapter.deploys is busy" in verdict.why


def test_within_is_how_old_it_may_be() -> None:
    old = with_beat(answered_at=NOW - 20)
    assert judge_ready([old], NOW, 30).ok
    assert not judge_ready([old], NOW, 10).ok


def test_a_pulse_is_written_until_it_is_stopped_and_its_file_goes(state: Path) -> None:
    beat = Beat("adapter.deploys", looped_at=time.monotonic())
    pulse = Pulse(time.monotonic, lambda: [beat])
    pulse.start()
    try:
        [report] = eventually(read_reports)
        assert report.process == process_name()
        assert report.consumers == [beat]
        beat.answered()
        eventually(lambda: read_reports()[0].consumers == [beat])
        pulse.stopping()
        eventually(lambda: read_reports()[0].stopping)
        assert state.stat().st_mode & 0o077 == 0
    finally:
        pulse.stop()
    assert list(state.iterdir()) == []


def test_a_directory_that_gives_no_answer_holds_up_no_stop(state: Path) -> None:
    pulse = Pulse(time.monotonic, list)
    pulse.start()
    [written] = eventually(lambda: list(state.glob("*.json")), what="it writes")
    hung = written.with_suffix(".new")

    def put_in_its_way() -> bool:
        with suppress(FileExistsError):
            os.mkfifo(hung)
        return hung.is_fifo()

    # Who opens it to write waits until somebody reads.
    eventually(put_in_its_way, every=0, what="the next write hangs")
    before = written.stat().st_mtime
    eventually(lambda: time.time() - before > 3, what="it has begun")
    stopping = threading.Thread(target=pulse.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    held_up = stopping.is_alive()
    reader = os.open(hung, os.O_RDONLY | os.O_NONBLOCK)
    stopping.join()
    os.close(reader)
    assert not held_up


def test_files_of_processes_that_ended_are_removed_and_those_of_other_hosts_say_nothing(state: Path) -> None:
    host, namespace, pid, started = process_name().split("/")
    state.mkdir()

    def write(name: str, process: str) -> Path:
        path = state / name
        path.write_text(json.dumps(asdict(replace(REPORT, process=process))))
        return path

    here = write("1.json", process_name())
    gone = write("2.json", f"{host}/{namespace}/{pid}/1{started}")
    elsewhere = write("3.json", f"other-{host}/{namespace}/{pid}/{started}")
    broken = state / "4.json"
    broken.write_text("{")
    assert [report.process for report in read_reports()] == [process_name()]
    assert (here.exists(), gone.exists(), elsewhere.exists(), broken.exists()) == (True, False, True, True)
    # Nobody has written it for more than a day.
    os.utime(elsewhere, (time.time() - 90_000, time.time() - 90_000))
    read_reports()
    assert not elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_believed(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    state.mkdir()
    os.chown(state, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_reports()
    pulse = Pulse(time.monotonic, list)
    pulse.start()
    pulse.stop()
    assert "cannot see this worker" in caplog.text


def test_live_and_ready_need_no_client_of_any_server(state: Path) -> None:
    asks = "from switchboard.cli import cli; cli(['health', 'ready'], standalone_mode=False)"
    heavy = "psycopg redis dramatiq pydantic rich sentry_sdk pika"
    code = f"import sys\ntry:\n {asks}\nfinally:\n print(sorted(set(sys.modules) & set({heavy.split()})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["ready: no: no worker process runs here", "[]"], done.stderr


def test_wrong_use_is_2() -> None:
    for wrong in (["nonsense"], ["live", "--within", "0"], ["ready", "--within", "soon"]):
        done = subprocess.run([sys.executable, "-m", "switchboard.cli", "health", *wrong], capture_output=True)
        assert done.returncode == 2


def test_upkeep_is_asked_of_the_ledger(database_url: str) -> None:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)

        def asked() -> tuple[int, str]:
            command = [sys.executable, "-m", "switchboard.cli", "health", "upkeep", "--json"]
            environment = {**os.environ, "DATABASE_URL": database_url}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            [said] = json.loads(done.stdout)
            return done.returncode, said["why"]

        # A new database has as long as a job may take to be done.
        assert asked()[0] == 0
        with ledger.transaction() as transaction:
            transaction.connection.execute("UPDATE schema_migrations SET applied_at = now() - interval '1 hour'")
        status, why = asked()
        assert (status, why) == (1, "reap is overdue: it has never been done")
