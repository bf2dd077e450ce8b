"""One trace from a message's producer to the handler of its todo, in real processes with OpenTelemetry's own SDK."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from deploys import CONFIG, Deploys
from waiting import eventually

SECRET = "4111-1111-1111-1111"
PRODUCER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = PRODUCER.split("-")[1:3]

#: As a team sets OpenTelemetry up: here its spans go to a file, one a line.
TELEMETRY = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
out = open(os.environ["SPANS"], "a", buffering=1)
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n"))
)
trace.set_tracer_provider(provider)
"""

HANDLERS = """
import dramatiq, os, switchboard
dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"]))

def current():
    from opentelemetry import trace
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)

@switchboard.todo(queue="deploys", store_then_ack=os.environ.get("OWN_TRANSACTION") == "yes")
def deploy(todo):
    if todo.payload.get("fails"):
        raise ValueError("no deploy of redis://user:hunter2@host/0")
    return {"trace": current()} if os.environ.get("SPANS") else None
"""

COROUTINE = """
import dramatiq, os, switchboard
from dramatiq.middleware.asyncio import AsyncIO
from handlers import current
broker = dramatiq.get_broker()
broker.add_middleware(AsyncIO())

@switchboard.todo(queue="later")
async def later(todo):
    return {"trace": current()}
"""

PUBLISH = """
import telemetry
from opentelemetry import trace
from switchboard import Publisher
from switchboard.config import load_adapters
[adapter] = load_adapters()
with trace.get_tracer("shop").start_as_current_span("order", kind=trace.SpanKind.PRODUCER) as span:
    Publisher(adapter).publish(b'{"service": "api"}', headers={"x-kind": "deploy"})
adapter.close()
print(trace.format_trace_id(span.get_span_context().trace_id))
"""


class Traced(Deploys):
    def spans(self, name: str) -> list[dict[str, Any]]:
        text = (self.folder / "spans").read_text() if (self.folder / "spans").exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [span for span in map(json.loads, lines) if span["name"] == name]

    def wait_spans(self, name: str, count: int) -> list[dict[str, Any]]:
        eventually(lambda: len(self.spans(name)) >= count, within=20, what=f"{count} spans {name!r}")
        return self.spans(name)


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Traced:
    line = Traced(tmp_path, database_url, redis_url, redis_client)
    line.write("telemetry.py", TELEMETRY)
    line.write("handlers.py", HANDLERS)
    line.env["SPANS"] = str(tmp_path / "spans")
    line.modules = ("handlers", "telemetry", "switchboard.actors")
    return line


def trace_of(span: dict[str, Any]) -> str:
    return str(span["context"]["trace_id"]).removeprefix("0x")


def linked(span: dict[str, Any]) -> set[str]:
    return {str(link["context"]["trace_id"]).removeprefix("0x") for link in span["links"]}


def test_a_message_is_followed_by_its_trace_from_the_publisher_to_the_handler(line: Traced) -> None:
    with line.running(processes=2):
        published = subprocess.run(
            [sys.executable, "-c", PUBLISH],
            cwd=line.folder,
            env=line.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert published.returncode == 0, published.stderr
        trace_id = published.stdout.strip()
        line.settle(todos=1)
        line.ended(1)
        [handled] = line.wait_spans("process deploys", 1)
        [ingested] = line.wait_spans("switchboard ingest deploys", 1)
        [order] = line.spans("order")
    assert line.rows("SELECT result ->> 'trace' FROM todos") == [(trace_id,)], "what the handler itself sees"
    assert trace_of(order) == trace_of(handled) == trace_id
    assert handled["parent_id"] == order["context"]["span_id"]
    assert linked(ingested) == {trace_id}
    assert trace_of(ingested) != trace_id, "a batch has many parents, and is no child of one"
    [(todo_id, queue)] = line.rows("SELECT id, queue FROM todos")
    assert handled["kind"] == ingested["kind"] == "SpanKind.CONSUMER"
    assert handled["attributes"] == {
        "messaging.system": "switchboard",
        "messaging.destination.name": "deploys",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": f"deploys:{todo_id}",
        "switchboard.queue": queue,
        "switchboard.todo_id": todo_id,
        "switchboard.attempt": 1,
    }
    assert ingested["attributes"] == {
        "messaging.system": "redis",
        "messaging.destination.name": "deploys",
        "messaging.operation.name": "ingest",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 1,
        "switchboard.adapter": "deploys",
    }


def test_a_batch_is_linked_to_each_producer_once_and_each_handler_is_a_child_of_its_own(line: Traced) -> None:
    traces = [f"{number:032x}" for number in range(1, 201)]
    for trace_id in traces:
        line.publish('{"n": 1}', traceparent=f"00-{trace_id}-{PARENT}-01")
    line.publish('{"n": 1}', '{"n": 2}', Traceparent=PRODUCER)
    line.publish('{"n": 3}')
    with line.running():
        line.settle(todos=203)
        line.ended(203)
        handled = line.wait_spans("process deploys", 203)
        ingested = line.wait_spans("switchboard ingest deploys", 1)
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in ingested) == 203
    assert all(len(span["links"]) <= 128 for span in ingested)
    if len(ingested) == 1:
        assert linked(ingested[0]) == set(traces[:128])
    found = [trace_of(span) for span in handled]
    assert set(traces) <= set(found)
    assert found.count(TRACE) == 2, "a header's name has no case"
    assert len(set(found)) == 202, "who has no producer begins a trace"


def test_where_the_fields_are_the_body_a_traceparent_among_them_goes_on_and_stays_in_the_body(line: Traced) -> None:
    line.config = CONFIG.replace('body = "data"\n', "")
    with line.running():
        line.client.xadd("deploys", {"service": "api", "traceparent": PRODUCER})
        line.client.xadd("deploys", {"service": "traceparent"})
        line.settle(todos=2)
        line.ended(2)
        handled = line.wait_spans("process deploys", 2)
    assert [trace_of(span) == TRACE for span in sorted(handled, key=lambda span: span["start_time"])].count(True) == 1
    assert line.rows("SELECT payload FROM todos ORDER BY id") == [
        ({"service": "api", "traceparent": PRODUCER},),
        ({"service": "traceparent"},),
    ]
    assert line.rows("SELECT headers FROM events ORDER BY id") == [({"traceparent": PRODUCER},), ({},)]


INVALID: list[dict[str, str]] = [
    {"traceparent": "nonsense"},
    {"traceparent": ""},
    {"traceparent": PRODUCER.replace(TRACE, "0" * 32)},
    {"traceparent": PRODUCER.replace("00-", "ff-")},
    {"traceparent": "\x00\ufffd" * 100},
    {"tracestate": "a=b"},
    {"traceparent": "nonsense", "tracestate": "=" * 5000},
]


def test_an_invalid_context_is_ignored_and_an_absurd_state_left_out(line: Traced) -> None:
    valid = [{"tracestate": "=," * 5000}, {"tracestate": "=;\x00,," * 10}, {"tracestate": "shop=7"}]
    with line.running() as worker:
        for headers in INVALID:
            line.publish("{}", **headers)
        for headers in valid:
            line.publish("{}", traceparent=PRODUCER, **headers)
        line.settle(todos=10)
        line.ended(10)
        handled = line.wait_spans("process deploys", 10)
        ingested = line.wait_spans("switchboard ingest deploys", 1)
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output
        assert "Unexpected failure" not in worker.output
    handled.sort(key=lambda span: int(span["attributes"]["switchboard.todo_id"]))
    assert [span["parent_id"] for span in handled[:7]] == [None] * 7
    assert [trace_of(span) for span in handled[7:]] == [TRACE] * 3
    assert "shop" in handled[9]["context"]["trace_state"]
    assert set().union(*map(linked, ingested)) == {TRACE}


def test_a_handler_that_fails_is_recorded_in_its_span_without_body_and_credentials(line: Traced) -> None:
    line.env["OWN_TRANSACTION"] = "yes"
    with line.running():
        line.publish(json.dumps({"fails": True, "card": SECRET}), traceparent=PRODUCER)
        line.settle(todos=1)
        [handled] = line.wait_spans("process deploys", 1)
    assert trace_of(handled) == TRACE
    assert handled["status"]["status_code"] == "ERROR"
    [event] = handled["events"]
    assert event["attributes"]["exception.type"] == "ValueError"
    assert event["attributes"]["exception.message"] == "ValueError: no deploy of redis://user:«redacted»@host/0"
    assert "handlers.py" in event["attributes"]["exception.stacktrace"]
    everything = (line.folder / "spans").read_text()
    assert SECRET not in everything
    assert "hunter2" not in everything


def test_a_coroutine_runs_in_its_span(line: Traced) -> None:
    line.write("later.py", COROUTINE)
    line.modules = ("handlers", "telemetry", "later", "switchboard.actors")
    line.config = CONFIG.replace('queue = "deploys"', 'queue = "later"')
    with line.running():
        line.publish('{"n": 1}', traceparent=PRODUCER)
        line.settle(todos=1)
        line.ended(1)
    assert line.rows("SELECT result ->> 'trace' FROM todos") == [(TRACE,)]


def test_each_attempt_is_a_span_of_the_same_trace(line: Traced) -> None:
    with line.running():
        line.publish('{"fails": true}', traceparent=PRODUCER)
        line.settle(todos=1)
        line.wait_spans("process deploys", 1)
        eventually(lambda: line.rows("SELECT owner FROM todos WHERE owner IS NULL"), what="it waits")
        line.rows("UPDATE todos SET lease_expires_at = now()")
        handled = line.wait_spans("process deploys", 2)
    assert [span["attributes"]["switchboard.attempt"] for span in handled] == [1, 2]
    assert {trace_of(span) for span in handled} == {TRACE}


def test_publish_takes_a_traceparent_as_any_header(line: Traced) -> None:
    with line.running():
        command = [sys.executable, "-m", "switchboard.cli", "publish", "deploys", "-", "--header"]
        subprocess.run(
            [*command, f"traceparent={PRODUCER}"],
            input=b"{}", cwd=line.folder, env=line.environment(), check=True, timeout=60,
        )  # fmt: skip
        line.settle(todos=1)
        [handled] = line.wait_spans("process deploys", 1)
    assert trace_of(handled) == TRACE


#: Imported by every Python that starts with this folder in its path.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            with open("asked", "a") as asked:
                asked.write(name + "\\n")
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
"""


def test_without_opentelemetry_all_works_and_nobody_asks_for_it(line: Traced) -> None:
    line.write("sitecustomize.py", BLOCKED)
    line.modules = ("handlers", "switchboard.actors")
    del line.env["SPANS"]
    asked = line.folder / "asked"
    with line.running() as worker:
        # redis-py asks once, as it is imported.
        before = asked.read_text() if asked.exists() else ""
        line.publish('{"n": 1}', '{"n": 2}', traceparent=PRODUCER)
        line.publish('{"fails": true}', traceparent="nonsense")
        line.settle(todos=3)
        line.ended(2)
        assert worker.terminate() == 0
        assert "Unexpected failure" not in worker.output
        assert "No module named" not in worker.output
    assert (asked.read_text() if asked.exists() else "") == before


def test_with_opentelemetry_but_no_provider_there_are_no_spans_and_no_more_statements(line: Traced) -> None:
    line.write("telemetry.py", "from opentelemetry import trace\n")
    with line.running() as worker:
        line.publish('{"n": 1}', traceparent=PRODUCER)
        line.settle(todos=1)
        line.ended(1)
        assert worker.terminate() == 0
    assert line.rows("SELECT result ->> 'trace' FROM todos") == [("0" * 32,)]
