"""The application mounted in a team's own, which knows nothing of its lifespan, and without its extra."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest
from senders import GITHUB_SECRET, github
from starlette.applications import Starlette
from starlette.routing import Mount

from switchboard.web import create_app
from switchboard.web.service import Service

CONFIG = '[adapters.repos]\ntype = "github"\nsecret = "${GITHUB_SECRET}"\nqueue = "repos"\n'


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "switchboard.toml"
    path.write_text(CONFIG)
    monkeypatch.setenv("SWITCHBOARD_CONFIG", str(path))
    monkeypatch.setenv("GITHUB_SECRET", GITHUB_SECRET)
    return path


async def post(app: Starlette, *urls: str) -> list[httpx.Response]:
    sent = github(json.dumps({"zen": "x"}).encode())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://team.example") as client:
        return [await client.post(url, content=sent.body, headers=dict(sent.headers)) for url in urls]


def test_it_opens_with_its_first_request(
    configured: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: None
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    service = Service()
    team = Starlette(routes=[Mount("/hooks", create_app(service))])
    refused = ["/hooks/webhooks/none", "/webhooks/repos", "/hooks/webhooks/repos/", "/hooks/v1/queues/q/todos/"]
    first, again, *others = asyncio.run(post(team, "/hooks/webhooks/repos", "/hooks/webhooks/repos?token=x", *refused))
    service.close()
    assert [answer.status_code for answer in (first, again)] == [202, 202]
    assert [answer.status_code for answer in others] == [404] * len(refused)
    assert (first.json(), again.json()) == ({"created": 1}, {"created": 0})
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM todos WHERE queue = 'repos'").fetchone() == (1,)


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", ""])
def test_while_it_cannot_be_opened_it_says_to_come_again(
    configured: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    team = Starlette(routes=[Mount("/hooks", create_app())])
    [answer] = asyncio.run(post(team, "/hooks/webhooks/repos"))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "db: " in caplog.text


def test_what_keeps_it_from_opening_is_not_tried_with_every_request(
    configured: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    team = Starlette(routes=[Mount("/hooks", create_app())])
    answers = asyncio.run(post(team, *["/hooks/webhooks/repos"] * 20))
    # And in another loop, as a team's tests have one each.
    answers += asyncio.run(post(team, "/hooks/webhooks/repos"))
    assert {answer.status_code for answer in answers} == {503}
    assert caplog.text.count("db: ") == 1


def test_a_database_that_says_nothing_keeps_nobody_but_the_first_waiting(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DATABASE_URL", f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x")
        service = Service()
        team = Starlette(routes=[Mount("/hooks", create_app(service))])

        async def requests() -> tuple[int, list[int]]:
            each = [asyncio.create_task(post(team, "/hooks/webhooks/repos")) for _ in range(40)]
            done: set[asyncio.Task[list[httpx.Response]]] = set()
            while len(done) < 39:
                done, _ = await asyncio.wait(each, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
            # The team's own threads are free meanwhile.
            await asyncio.to_thread(lambda: None)
            waiting = sum(not task.done() for task in each)
            return waiting, [answer.status_code for [answer] in await asyncio.gather(*each)]

        waiting, statuses = asyncio.run(requests())
    assert (waiting, set(statuses)) == (1, {503})


def test_importing_it_reads_no_configuration() -> None:
    env = {"SWITCHBOARD_CONFIG": "/none", "DATABASE_URL": "", "PATH": ""}
    code = "import switchboard.web; print(type(switchboard.web.app).__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (run.stdout, run.stderr) == ("Starlette\n", "")


def test_switchboard_needs_nothing_of_the_extra_and_serve_says_what_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('starlette', 'uvicorn'), None));"
        "import switchboard, switchboard.push; from switchboard.cli import main;"
        "sys.argv = ['switchboard', 'serve']; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stdout == ""
    [line] = run.stderr.splitlines()
    assert "pip install 'dramatiq-switchboard[web]'" in line
