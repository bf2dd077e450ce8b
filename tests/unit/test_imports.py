"""Who imports whom, as the design has it, and what importing does not do."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import switchboard

PACKAGE = Path(switchboard.__file__).parent
SQL = re.compile(
    r"\s*(SELECT\s|INSERT INTO\s|UPDATE\s\S+\sSET\s|DELETE FROM\s|WITH\s\S+\sAS\s|CREATE\s(TABLE|INDEX|DATABASE)\s"
    r"|ALTER\s(TABLE|SYSTEM)\s|DROP\s(TABLE|INDEX|DATABASE)\s|LOCK TABLE\s|TRUNCATE\s|COPY\s\S+\s|LISTEN\s|NOTIFY\s)"
)

WATCHED_IMPORT = """
import sys
touched = []
sys.addaudithook(lambda event, args: touched.append(event) if event.startswith("socket.") else None)
import threading
import switchboard
print(sorted({event for event in touched if event in ("socket.connect", "socket.getaddrinfo", "socket.bind")}))
print(threading.active_count())
extras = {"pika", "prometheus_client", "dramatiq.brokers.rabbitmq", "starlette", "uvicorn"}
print(sorted(set(sys.modules) & (extras | {"switchboard.embedded", "switchboard.web"})))
import psutil
print(psutil.Process().net_connections("all"))
"""


class Import(NamedTuple):
    """One name that a module of ours takes from another: `switchboard.pull` and `RedisStream`, say."""

    module: str
    name: str


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed, under its full name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("switchboard", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def is_package(module: str) -> bool:
    return (PACKAGE.parent / module.replace(".", "/") / "__init__.py").exists()


def imports(module: str) -> Iterator[Import]:
    """What the module takes from the package, wherever in it the statement stands."""
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "switchboard":
                    yield Import(alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package(module) else module.split(".")[:-1]
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            if base.split(".")[0] == "switchboard":
                for alias in node.names:
                    submodule = f"{base}.{alias.name}"
                    yield Import(submodule, "") if submodule in modules() else Import(base, alias.name)


def within(module: str, room: str) -> bool:
    return module == f"switchboard.{room}" or module.startswith(f"switchboard.{room}.")


def room(name: str) -> list[str]:
    found = [module for module in modules() if within(module, name)]
    assert found, f"there is no {name}"
    return found


def reached(module: str) -> set[str]:
    """The module and all it imports, directly or not; not the package's own `__init__`, which imports everything."""
    seen: set[str] = set()
    left = [module]
    while left:
        here = left.pop()
        if here in seen or here == "switchboard":
            continue
        seen.add(here)
        left += [there for there, _ in imports(here)]
    return seen


def test_importing_it_connects_to_nothing_starts_nothing_and_needs_no_extra() -> None:
    run = subprocess.run([sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "1", "[]", "[]"]


def test_every_module_imports_something_that_is_there() -> None:
    for module in modules():
        for there, _ in imports(module):
            assert there in modules(), f"{module} imports {there}"


def test_pull_reaches_no_ledger() -> None:
    for module in room("pull"):
        assert not {there for there in reached(module) if within(there, "ledger")}, module


def test_push_reaches_no_ledger_no_transport_and_no_server() -> None:
    for module in room("push"):
        for there in reached(module):
            assert not any(within(there, other) for other in ("ledger", "pull", "brokers", "web", "ingest")), module


def test_nothing_but_its_command_imports_the_web() -> None:
    for module in modules():
        if not within(module, "web") and module != "switchboard.cli.serve":
            assert not {there for there, _ in imports(module) if within(there, "web")}, module


def test_errors_imports_nothing_of_ours() -> None:
    assert list(imports("switchboard.errors")) == []


def test_model_imports_nothing_of_ours() -> None:
    assert list(imports("switchboard.model")) == []


def test_findings_import_nothing_of_ours() -> None:
    assert list(imports("switchboard.finding")) == []


def test_health_is_judged_without_a_client_of_any_server() -> None:
    known = {
        "switchboard.telemetry.health",
        "switchboard.telemetry.pulse",
        "switchboard.process_name",
        "switchboard.errors",
    }
    assert reached("switchboard.telemetry.health") == known


def test_nothing_but_the_command_asks_the_doctor() -> None:
    for module in modules():
        if not within(module, "doctor") and not within(module, "cli"):
            assert not any(within(there, "doctor") for there, _ in imports(module)), module


def test_a_command_shares_no_rule_with_the_doctor_but_the_doctors_own() -> None:
    asks = {module for module in room("cli") if any(within(there, "doctor") for there, _ in imports(module))}
    assert asks == {"switchboard.cli.doctor", "switchboard.cli.health", "switchboard.cli.top"}


def test_redact_imports_nothing_of_ours() -> None:
    assert list(imports("switchboard.redact")) == []


def test_normalize_imports_itself_the_model_the_errors_and_the_mask_alone() -> None:
    for module in room("normalize"):
        for there, name in imports(module):
            allowed = within(there, "normalize") or there in ("switchboard.model", "switchboard.errors")
            assert allowed or (there, name) == ("switchboard.redact", "MASK"), f"{module} imports {there} {name}"


def test_brokers_know_adapters_by_their_interface_alone() -> None:
    for module in room("brokers"):
        for there, name in imports(module):
            if within(there, "pull"):
                interface = (there, name) in {
                    ("switchboard.pull", "PullAdapter"),
                    ("switchboard.pull", "Gap"),
                    ("switchboard.pull", "Lag"),
                    ("switchboard.pull", "PullOptions"),
                } or there == "switchboard.pull.base"
                assert interface, f"{module} imports {there} {name}"


def test_the_ledger_works_without_dramatiq_and_knows_no_transport() -> None:
    for module in room("ledger"):
        for there in reached(module):
            assert not any(within(there, other) for other in ("pull", "brokers", "middleware", "actors")), there
        for node in ast.walk(modules()[module]):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] != "dramatiq", module
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "dramatiq" for alias in node.names), module


def test_what_is_measured_knows_nobody_who_measures() -> None:
    assert reached("switchboard.telemetry.metrics") == {"switchboard.telemetry.metrics"}
    assert reached("switchboard.telemetry.gauge_file") == {
        f"switchboard.{name}" for name in ("telemetry.gauge_file", "telemetry.metrics", "process_name")
    }


def test_nothing_but_the_demo_imports_the_embedded_servers() -> None:
    for module in modules():
        if module.startswith("switchboard.embedded") or "demo" in module.split("."):
            continue
        for there, _ in imports(module):
            assert not there.startswith("switchboard.embedded"), module


def foreign(module: str) -> Iterator[str]:
    """The packages of others that the module imports."""
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def test_one_room_knows_opentelemetry_and_one_sentry() -> None:
    known = {package: {module for module in modules() if package in foreign(module)} for package in
             ("opentelemetry", "sentry_sdk")}  # fmt: skip
    assert known == {
        "opentelemetry": {"switchboard.telemetry.tracing"},
        "sentry_sdk": {"switchboard.telemetry.sentry"},
    }


def docstrings(tree: ast.Module) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def sql_in(module: str) -> Iterator[int]:
    """Lines of the module that hold SQL: a statement's text, or psycopg's composition of one."""
    tree = modules()[module]
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in skipped:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if SQL.match(text):
                yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sql.SQL", "SQL", "psycopg.sql.SQL"):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "psycopg" and "sql" in {a.name for a in node.names}:
            yield node.lineno


def test_sql_is_only_in_the_ledger() -> None:
    # The demo judges from outside what the ledger holds, and the embedded servers are asked whether they are up: an
    # answer by the ledger's own code would prove nothing there.
    apart = [*room("demo"), *room("embedded")]
    outside = [module for module in modules() if not within(module, "ledger") and module not in apart]
    assert {module: list(sql_in(module)) for module in outside if list(sql_in(module))} == {}


def test_this_would_find_sql() -> None:
    assert sum(len(list(sql_in(module))) for module in room("ledger")) > 20
