"""What docker-compose.yml and the Dockerfile run, as far as that can be told without Docker."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from switchboard.cli.serve import serve

ROOT = Path(__file__).parents[2]

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def test_a_worker_has_ended_by_itself_before_it_is_killed() -> None:
    command, grace = SERVICES["worker"]["command"], SERVICES["worker"]["stop_grace_period"]
    milliseconds = int(command[command.index("--worker-shutdown-timeout") + 1])
    assert milliseconds < 1_000 * int(grace.removesuffix("s"))


def test_the_web_listens_where_it_is_published_and_asked() -> None:
    web = SERVICES["web"]
    assert web["command"][:2] == ["switchboard", "serve"]
    assert web["command"][2:] == ["--host", "0.0.0.0"]
    default = re.search(r"--port.*default: (\d+)", CliRunner().invoke(serve, ["--help"]).output.replace("\n", " "))
    assert default
    assert web["ports"] == [f"127.0.0.1:{default[1]}:{default[1]}"]
    code = web["healthcheck"]["test"][-1]
    compile(code, "healthcheck", "exec")
    assert f"127.0.0.1:{default[1]}/readyz" in code


def test_the_image_has_what_the_services_import() -> None:
    [extras] = re.findall(r"\.whl\)\[([a-z,]+)\]", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert set(extras.split(",")) >= {"rabbitmq", "web", "prometheus", "opentelemetry"}
