"""What an orchestrator and Prometheus hear of `switchboard serve`, a real process, through an outage too."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx
import psycopg
import pytest
from senders import GITHUB_SECRET, github
from serving import Served
from starlette.applications import Starlette
from starlette.routing import Mount
from waiting import eventually

from switchboard.embedded import PostgresServer, free_port
from switchboard.web import create_app
from switchboard.web.service import Service

CONFIG = '[adapters.repos]\ntype = "github"\nsecret = "${GITHUB_SECRET}"\nqueue = "repos"\n'


def test_it_is_ready_while_the_ledger_answers_and_alive_all_the_time(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with Served(tmp_path, own_postgres.url, "") as served:
        ready, live = served.get("/readyz"), served.get("/livez")
        assert [(answer.status_code, answer.text) for answer in (ready, live)] == [(200, "ready"), (200, "live")]
        own_postgres.suspend()
        eventually(lambda: served.get("/readyz").status_code == 503, within=60, what="it is not ready")
        assert served.get("/readyz").text == "unavailable"
        assert served.get("/livez").status_code == 200
        own_postgres.resume()
        eventually(lambda: served.get("/readyz").status_code == 200, within=60, what="it is ready again")
        own_postgres.kill()
        eventually(lambda: served.get("/readyz").status_code == 503, within=60, what="it is not ready")
        own_postgres.start()
        eventually(lambda: served.get("/readyz").status_code == 200, within=60, what="it is ready again")
        assert "Traceback" not in served.output


def test_however_often_it_is_asked_the_ledger_is_not(database_url: str, tmp_path: Path) -> None:
    statements = (
        "SELECT pid, query_start FROM pg_stat_activity "
        "WHERE application_name = 'switchboard' AND datname = current_database()"
    )
    with (
        Served(tmp_path, database_url, "") as served,
        psycopg.connect(database_url, autocommit=True) as watcher,
    ):
        began, seen = time.monotonic(), set(watcher.execute(statements).fetchall())
        before = len(seen)
        for _ in range(200):
            assert served.get("/readyz").status_code == 200
            seen |= set(watcher.execute(statements).fetchall())
        assert len(seen) - before <= (time.monotonic() - began) / 5 + 1


def test_mounted_and_not_yet_opened_it_says_so_and_is_opened_by_the_question(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWITCHBOARD_CONFIG", raising=False)

    async def ask(service: Service) -> tuple[int, str]:
        team = Starlette(routes=[Mount("/hooks", create_app(service))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(team), base_url="http://team.example") as client:
            answer = await client.get("/hooks/readyz")
        return answer.status_code, answer.text

    for url, heard in (("postgresql://nobody@127.0.0.1:1/none", (503, "unavailable")), (database_url, (200, "ready"))):
        monkeypatch.setenv("DATABASE_URL", url)
        service = Service()
        assert asyncio.run(ask(service)) == heard
        service.close()


def scraped(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode()).splitlines()


def test_what_it_stored_is_counted_where_it_serves_metrics(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    env = {"GITHUB_SECRET": GITHUB_SECRET}
    with Served(tmp_path, database_url, CONFIG, env, ["--metrics-port", str(port)]) as served:
        for number in (1, 2, 2):
            sent = github(json.dumps({"n": number}).encode(), delivery=f"delivery-{number}")
            assert served.send("repos", sent).status_code == 202
        found = scraped(port)
        assert 'switchboard_deliveries_total{adapter="repos",outcome="new"} 2.0' in found
        assert 'switchboard_deliveries_total{adapter="repos",outcome="duplicate"} 1.0' in found


def test_a_port_for_metrics_that_is_taken_is_one_line(database_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        served = Served(tmp_path, database_url, "", options=["--metrics-port", str(port)])
        served.start()
        assert served.ended() == 1
        [line] = served.output.splitlines()
        assert f"cannot listen at 127.0.0.1, port {port}" in line


def test_metrics_without_their_extra_are_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None; from switchboard.cli import main;"
        "sys.argv = ['switchboard', 'serve', '--metrics-port', '9192']; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert "pip install 'dramatiq-switchboard[prometheus]'" in line
