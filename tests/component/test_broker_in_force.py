"""Which broker Switchboard's actors go on. Each case has a process of its own: a broker is set for a whole process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import dramatiq
import psutil
import pytest
from waiting import eventually
from worker import Worker

import switchboard
from switchboard.brokers import adapter_queue

#: Nothing listens there: what answers without it has done no I/O before.
NOWHERE = "redis://127.0.0.1:1/0"
NO_LEDGER = "postgresql://switchboard:hunter2@127.0.0.1:1/switchboard"

#: How to put it right, in every sentence about the order of modules.
WHAT_TO_DO = "first: `dramatiq myapp.tasks switchboard.actors`"

#: What the tests' own environment may hold and no case here may see by accident; empty is as unset.
UNSET = {"SWITCHBOARD_BROKER_URL": "", "DATABASE_URL": "", "SWITCHBOARD_CONFIG": ""}

SETS_A_BROKER = """
import dramatiq, switchboard
broker = switchboard.RedisBroker(url={url!r}, namespace="team")
dramatiq.set_broker(broker)

@dramatiq.actor
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
"""

SETS_A_BROKER_WITHOUT_THE_MIXIN = f"""
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url={NOWHERE!r}))
"""

ADAPTER = """
[adapters.deploys]
type = "redis-stream"
url = "redis://127.0.0.1:1/0"
stream = "deploys"
queue = "deploys"
"""

ADDS_AN_ADAPTER = """
broker.add_adapter(switchboard.RedisStream("deploys", url="redis://127.0.0.1:1/0", stream="deploys", queue="deploys"))
"""


def module(folder: Path, text: str, name: str = "team") -> str:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return name


def refused(folder: Path, *modules: str, **env: str) -> str:
    """What the `dramatiq` command says, that does not start: with status 1, no traceback and no process left."""
    with Worker(modules, cwd=folder, env=UNSET | env) as worker:
        try:
            status = worker.parent.wait(30)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end:\n{worker.output}")
        group = worker.parent.pid
        eventually(lambda: not running_in(group), what="no process is left")
    assert status == 1, worker.output
    assert "Traceback" not in worker.output
    return worker.output


def running_in(group: int) -> list[int]:
    """The processes of that group: the command was its leader."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def lines_with(output: str, text: str) -> list[str]:
    return [line for line in output.splitlines() if text in line]


def run(folder: Path, code: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **UNSET, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answer(folder: Path, code: str, env: Mapping[str, str] | None = None) -> str:
    """What the code prints; it has to end well."""
    done = run(folder, code, env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# None is set


def test_without_a_broker_and_its_address_one_line_names_the_variable(tmp_path: Path) -> None:
    output = refused(tmp_path, "switchboard.actors", DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "SWITCHBOARD_BROKER_URL")
    assert "SWITCHBOARD_BROKER_URL is not set" in line
    assert "redis://" in line
    assert WHAT_TO_DO in line


SAY_BROKER = "from switchboard.brokers import broker_in_force; b = broker_in_force(); print(type(b).__name__)"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://127.0.0.1:1/0", "RedisBroker"),
        ("rediss://127.0.0.1:1/0", "RedisBroker"),
        ("amqp://guest:guest@127.0.0.1:1", "RabbitmqBroker"),
        ("amqps://127.0.0.1:1", "RabbitmqBroker"),
    ],
)
def test_the_address_decides_which_broker_is_made(tmp_path: Path, url: str, name: str) -> None:
    code = SAY_BROKER + "\nimport dramatiq, switchboard\nassert dramatiq.get_broker() is b\n"
    code += f"assert type(b) is switchboard.{name}\nassert broker_in_force() is b"
    assert answer(tmp_path, code, {"SWITCHBOARD_BROKER_URL": url}) == name


def test_the_broker_that_is_made_uses_the_address(tmp_path: Path) -> None:
    code = SAY_BROKER + "; print(b.client.connection_pool.connection_kwargs['port'])"
    assert answer(tmp_path, code, {"SWITCHBOARD_BROKER_URL": "redis://127.0.0.1:4321/0"}).split() == [
        "RedisBroker",
        "4321",
    ]


@pytest.mark.parametrize("url", ["kafka://bot:hunter2@127.0.0.1", "http://bot:hunter2@127.0.0.1", "kafka://hunter2@h"])
def test_an_unknown_scheme_is_named_and_no_password_is(tmp_path: Path, url: str) -> None:
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=url, DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "SWITCHBOARD_BROKER_URL")
    assert url.split(":")[0] + "://" in line
    assert "amqp://" in line
    assert "hunter2" not in output


@pytest.mark.parametrize(
    "url",
    [
        "redis://bot:hunter2@127.0.0.1:port",
        "redis://bot:hunter2@[::1",
        "redis://bot:hunter2@127.0.0.1?no_such_option=1",
        "amqp://bot:hunter2@127.0.0.1:port",
        "hunter2@127.0.0.1",
    ],
)
def test_an_address_that_cannot_be_read_is_one_line_that_names_the_variable(tmp_path: Path, url: str) -> None:
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=url, DATABASE_URL=NO_LEDGER)
    assert len(lines_with(output, "SWITCHBOARD_BROKER_URL")) == 1
    assert "hunter2" not in output


@pytest.mark.parametrize("port", ["", "9191"])
def test_it_serves_metrics_where_their_port_is_set_and_its_checks_still_come_first(tmp_path: Path, port: str) -> None:
    code = SAY_BROKER + "; print(*(type(middleware).__name__ for middleware in b.middleware))"
    env = {"SWITCHBOARD_BROKER_URL": NOWHERE, "dramatiq_prom_port": port, "dramatiq_prom_db": str(tmp_path / "prom")}
    _, first, *others = answer(tmp_path, code, env).split()
    assert first == "Lifecycle"
    assert others.count("Prometheus") == (1 if port else 0)


def test_a_port_for_metrics_without_their_extra_or_that_is_none_is_one_line(tmp_path: Path) -> None:
    env = {"SWITCHBOARD_BROKER_URL": NOWHERE, "DATABASE_URL": NO_LEDGER}
    [line] = lines_with(refused(tmp_path, "switchboard.actors", dramatiq_prom_port="here", **env), "dramatiq_prom_port")
    assert "expected a port" in line
    # Imported by every Python that starts with this folder in its path.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
    env |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    [line] = lines_with(refused(tmp_path, "switchboard.actors", dramatiq_prom_port="9191", **env), "dramatiq_prom_port")
    assert "pip install 'dramatiq-switchboard[prometheus]'" in line


# One is set


def test_a_team_s_broker_is_used_and_its_own_actors_run_beside(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    # Given a team's module that sets one of our brokers, and another address for one of our own
    team = module(tmp_path, SETS_A_BROKER.format(url=redis_url))
    env = {"DATABASE_URL": database_url, "SWITCHBOARD_BROKER_URL": NOWHERE}
    code = (
        "import team, switchboard.actors; print(switchboard.actors.broker is team.broker, *sorted(team.broker.actors))"
    )
    assert (
        answer(tmp_path, code, UNSET | env) == "True switchboard.create_todo switchboard.prune switchboard.reap write"
    )
    written = tmp_path / "written.txt"
    # When it runs with the team's module first
    with Worker([team, "switchboard.actors"], cwd=tmp_path, env=UNSET | env) as worker:
        worker.wait_ready()
        answer(tmp_path, f"import team; team.write.send({str(written)!r}, 'by the team')", UNSET | env)
        # Then the team's messages are worked, and it ends as it should
        eventually(lambda: written.exists() and written.read_text() == "by the team", what="the team's actor ran")
        assert worker.terminate() == 0


def test_a_broker_without_the_mixin_is_refused_with_what_to_do(tmp_path: Path) -> None:
    team = module(tmp_path, SETS_A_BROKER_WITHOUT_THE_MIXIN)
    output = refused(tmp_path, team, "switchboard.actors", DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "lacks switchboard.AdapterQueues")
    assert "RedisBroker" in line
    assert "switchboard.RedisBroker" in line
    assert "class Broker(switchboard.AdapterQueues, RedisBroker)" in line


def test_a_broker_that_an_actor_of_the_team_has_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    # Nobody set one: @dramatiq.actor has asked dramatiq.get_broker(), which makes RabbitMQ on localhost.
    team = module(tmp_path, "import dramatiq\n\n@dramatiq.actor\ndef work():\n    pass\n")
    output = refused(tmp_path, team, "switchboard.actors", DATABASE_URL=NO_LEDGER, SWITCHBOARD_BROKER_URL=NOWHERE)
    [line] = lines_with(output, "lacks switchboard.AdapterQueues")
    assert "RabbitmqBroker" in line


@pytest.mark.parametrize("later", [SETS_A_BROKER.format(url=NOWHERE), SETS_A_BROKER_WITHOUT_THE_MIXIN])
def test_a_broker_that_is_set_too_late_is_refused_at_boot(tmp_path: Path, later: str) -> None:
    team = module(tmp_path, later)
    output = refused(tmp_path, "switchboard.actors", team, DATABASE_URL=NO_LEDGER, SWITCHBOARD_BROKER_URL=NOWHERE)
    assert len(lines_with(output, WHAT_TO_DO)) == 1


def test_a_worker_on_another_broker_than_the_one_set_is_refused_at_boot(tmp_path: Path) -> None:
    text = SETS_A_BROKER.format(url=NOWHERE) + f"\nother = switchboard.RedisBroker(url={NOWHERE!r})\n"
    team = module(tmp_path, text)
    output = refused(tmp_path, f"{team}:other", "switchboard.actors", DATABASE_URL=NO_LEDGER)
    assert len(lines_with(output, WHAT_TO_DO)) == 1


def test_adapters_that_nobody_would_store_are_refused_at_boot(tmp_path: Path) -> None:
    team = module(tmp_path, SETS_A_BROKER.format(url=NOWHERE) + ADDS_AN_ADAPTER)
    output = refused(tmp_path, team, DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "'deploys'")
    assert "`dramatiq myapp.tasks switchboard.actors`" in line


def test_whatever_else_fails_at_boot_ends_the_worker_with_one_line(tmp_path: Path) -> None:
    code = """
import dramatiq, switchboard
class Broker(switchboard.RedisBroker):
    def start_serving(self, worker_threads):
        raise OSError("no such luck at postgresql://app:hunter2@db\\nhere")
dramatiq.set_broker(Broker(url="redis://127.0.0.1:1/0"))
"""
    output = refused(tmp_path, module(tmp_path, code), "switchboard.actors", DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "no such luck")
    assert line.startswith("this worker cannot start: OSError: no such luck at ")
    assert line.endswith(" here")
    assert "hunter2" not in output


def test_adapters_added_after_our_module_have_their_actor_too(tmp_path: Path) -> None:
    code = SETS_A_BROKER.format(url=NOWHERE) + "import switchboard.actors\n" + ADDS_AN_ADAPTER
    code += "print(*sorted(broker.actors))"
    assert answer(tmp_path, code) == "ingest.deploys switchboard.create_todo switchboard.prune switchboard.reap write"


def test_our_middleware_is_there_once_and_the_checks_come_first(tmp_path: Path) -> None:
    code = SETS_A_BROKER.format(url=NOWHERE) + "import switchboard.actors\n"
    code += "print(*(type(middleware).__name__ for middleware in broker.middleware))"
    names = answer(tmp_path, code).split()
    assert names[0] == "Lifecycle"
    assert [names.count(name) for name in ("Lifecycle", "StoreThenAck", "PeriodiqMiddleware")] == [1, 1, 1]


# The ledger


def test_without_an_address_of_the_ledger_one_line_says_so_and_nothing_is_left_running(tmp_path: Path) -> None:
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=NOWHERE)
    assert output.splitlines().count("db: empty DATABASE_URL") == 1


def test_a_ledger_that_does_not_answer_is_one_line_without_its_password(tmp_path: Path) -> None:
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=NOWHERE, DATABASE_URL=NO_LEDGER)
    assert len([line for line in output.splitlines() if line.startswith("db: connect: ")]) == 1
    assert "hunter2" not in output


@pytest.mark.parametrize(
    "url", ["postgresql://app:hunter2@127.0.0.1:port/x", "postgresql://app:[hunter2@h/x", "host=h password='hunter2"]
)
def test_an_address_of_the_ledger_that_cannot_be_read_is_one_line_without_its_password(
    tmp_path: Path, url: str
) -> None:
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=NOWHERE, DATABASE_URL=url)
    assert len([line for line in output.splitlines() if line.startswith("db: connect: ")]) == 1
    assert "hunter2" not in output


# Configuration


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "switchboard.toml").write_text(ADAPTER + 'straem = "x"\n', encoding="utf-8")
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=NOWHERE, DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "straem")
    assert "did you mean 'stream'?" in line


def test_an_unset_variable_of_the_configuration_is_named_before_any_io(tmp_path: Path) -> None:
    text = ADAPTER.replace('"redis://127.0.0.1:1/0"', '"${DEPLOYS_REDIS_URL}"')
    (tmp_path / "switchboard.toml").write_text(text, encoding="utf-8")
    output = refused(tmp_path, "switchboard.actors", SWITCHBOARD_BROKER_URL=NOWHERE, DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "DEPLOYS_REDIS_URL")
    assert "adapters.deploys.url" in line
    assert "db: " not in output


def test_a_name_in_the_file_and_in_code_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "switchboard.toml").write_text(ADAPTER, encoding="utf-8")
    team = module(tmp_path, SETS_A_BROKER.format(url=NOWHERE) + ADDS_AN_ADAPTER)
    output = refused(tmp_path, team, "switchboard.actors", DATABASE_URL=NO_LEDGER)
    [line] = lines_with(output, "'deploys'")
    assert "twice" in line


# Queues and options, on a broker that is not set for the process


def adapter() -> switchboard.RedisStream:
    return switchboard.RedisStream("deploys", url=NOWHERE, stream="deploys", queue="deploys")


def test_two_adapters_of_one_name_are_refused() -> None:
    broker = switchboard.StubBroker()
    broker.add_adapter(adapter())
    with pytest.raises(switchboard.ConfigError, match="'deploys' is there twice"):
        broker.add_adapter(adapter())


@pytest.mark.parametrize("queue", [adapter_queue("deploys"), adapter_queue("deploys") + ".DQ", adapter_queue("other")])
def test_nothing_can_be_enqueued_on_an_adapter_s_queue(queue: str) -> None:
    broker = switchboard.StubBroker()
    broker.add_adapter(adapter())
    message: dramatiq.Message[None] = dramatiq.Message(
        queue_name=queue, actor_name="ingest.deploys", args=(), kwargs={}, options={}
    )
    for delay in (None, 1_000):
        with pytest.raises(switchboard.SwitchboardError, match="switchboard publish"):
            broker.enqueue(message, delay=delay)


def test_other_queues_are_enqueued_on_as_ever() -> None:
    broker = switchboard.StubBroker()
    broker.add_adapter(adapter())

    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    work.send()
    assert broker.queues["default"].qsize() == 1


def test_an_adapter_s_queue_is_declared_and_the_others_stay() -> None:
    broker = switchboard.StubBroker()
    broker.declare_queue("mail")
    broker.add_adapter(adapter())
    # A stub broker counts its delay queues; an adapter's queue has none, as nothing can be enqueued there.
    assert broker.get_declared_queues() == {"mail", "mail.DQ", "adapter.deploys"}


def test_a_coroutine_actor_with_store_then_ack_is_refused_by_name() -> None:
    broker = switchboard.StubBroker()
    broker.add_middleware(dramatiq.middleware.AsyncIO())

    async def charge() -> None: ...

    with pytest.raises(switchboard.ConfigError, match="'charge'"):
        dramatiq.actor(broker=broker, store_then_ack=True)(charge)
    assert "charge" not in broker.actors


def test_a_coroutine_actor_without_store_then_ack_is_taken() -> None:
    broker = switchboard.StubBroker()
    broker.add_middleware(dramatiq.middleware.AsyncIO())

    async def charge() -> None: ...

    dramatiq.actor(broker=broker)(charge)
    assert "charge" in broker.actors


def test_store_then_ack_needs_the_mixin() -> None:
    broker = dramatiq.brokers.stub.StubBroker()
    with pytest.raises(ValueError, match="store_then_ack"):
        dramatiq.actor(actor_name="charge", broker=broker, store_then_ack=True)(print)
