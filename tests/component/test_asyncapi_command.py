"""`switchboard asyncapi` as its users run it: a process of its own, and no server at all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from switchboard.contract import shipped_contract

SCHEMA = Path(__file__).parents[1] / "unit" / "schemas" / "asyncapi-3.0.0.json"
PASSWORD = "hunter2-never-shown"

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${REDIS_URL}"
stream = "hooks:deploys"
queue = "deploys"
group = "ops"
batch = 50
max_deliveries = 3
claim_idle = "90s"
ack = "complete"

[adapters.repositories]
type = "redis-stream"
url = "${REDIS_URL}"
stream = "repositories"
queue = "repositories"
body = "data"
key = "idempotency_key"

[adapters.jobs]
type = "redis-list"
url = "${TLS_URL}"
list = "{tenant 7}:jobs"
queue = "jobs"

[adapters.ticks]
type = "redis-pubsub"
url = "${SOCKET_URL}"
channel = "ticks\\u0085\\U0001F514"
queue = "ticks"
loss_tolerant = true
"""

ENVIRONMENT = {
    "REDIS_URL": f"redis://deploy-bot:{PASSWORD}@redis.internal/2",
    "TLS_URL": f"rediss://:{PASSWORD}@[::1]:6390",
    "SOCKET_URL": f"unix://someone:{PASSWORD}@/run/redis.sock?db=1",
}

Document = dict[str, Any]


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "switchboard.cli", "asyncapi", *arguments],
        cwd=folder,
        env={"PYTHONWARNINGS": "error::ResourceWarning"} | environment,
        capture_output=True,
        timeout=60,
        encoding="utf-8",
    )


def printed(folder: Path, *arguments: str) -> str:
    ran = run(folder, *arguments, **ENVIRONMENT)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose configuration has an adapter of every type."""
    made = tmp_path_factory.mktemp("asyncapi")
    (made / "switchboard.toml").write_text(CONFIG)
    return made


@pytest.fixture(scope="module")
def document(folder: Path) -> Document:
    loaded: Document = json.loads(printed(folder, "--json"))
    return loaded


def resolve(document: Document, reference: str) -> Any:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def test_the_document_is_valid_and_refers_to_nothing_outside_it(document: Document) -> None:
    validator = Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))

    assert [error.message for error in validator.iter_errors(document)] == []
    found = references(document)
    assert found
    for reference in found:
        assert resolve(document, reference)


def test_a_provider_of_the_folder_it_is_run_in_is_found(tmp_path: Path) -> None:
    """As `dramatiq` finds it, which puts the folder into its path: a console script alone does not."""
    (tmp_path / "myshapes.py").write_text("def deploy(delivery):\n    raise NotImplementedError\n")
    (tmp_path / "switchboard.toml").write_text(
        '[adapters.deploys]\ntype = "redis-stream"\nurl = "redis://localhost"\nstream = "deploys"\n'
        'queue = "deploys"\nprovider = "myshapes:deploy"\n'
    )
    ran = subprocess.run(
        [Path(sys.executable).with_name("switchboard"), "asyncapi"],
        cwd=tmp_path, env={}, capture_output=True, timeout=60, encoding="utf-8",
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "deploys" in ran.stdout


def test_it_is_yaml_unless_json_is_asked_for_and_says_the_same(folder: Path, document: Document) -> None:
    text = printed(folder)

    assert yaml.safe_load(text) == document
    assert text.startswith('asyncapi: "3.0.0"\n')
    # As a person reads it: in blocks, one branch after the other
    assert "\n      - name: redelivery-limit-exceeded\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_no_credential_is_in_it(folder: Path) -> None:
    for arguments in ([], ["--json"]):
        text = printed(folder, *arguments)
        assert PASSWORD not in text
        assert "deploy-bot:" not in text


def test_servers_are_the_addresses_each_once(document: Document) -> None:
    addresses = [
        (server["protocol"], server["host"], server.get("pathname")) for server in document["servers"].values()
    ]

    assert addresses == [
        ("redis", "redis.internal:6379", "/2"),
        ("rediss", "[::1]:6390", None),
        ("redis", "localhost", "/run/redis.sock"),
    ]
    named = {name: channel["servers"] for name, channel in document["channels"].items()}
    assert named["deploys"] == named["repositories"] == [{"$ref": "#/servers/server1"}]
    assert named["jobs"] == [{"$ref": "#/servers/server2"}]


def test_each_adapter_is_a_channel_with_its_own_address_and_operations(document: Document) -> None:
    assert {name: channel["address"] for name, channel in document["channels"].items()} == {
        "deploys": "hooks:deploys",
        "repositories": "repositories",
        "jobs": "{part0}:jobs",
        "ticks": "ticks\x85\U0001f514",
    }
    # What a tool makes of braces is the key's own text again
    assert document["channels"]["jobs"]["parameters"] == {"part0": {"enum": ["{tenant 7}"], "default": "{tenant 7}"}}
    assert "parameters" not in document["channels"]["deploys"]
    assert {name: operation["action"] for name, operation in document["operations"].items()} == {
        f"{adapter}.{action}": action
        for adapter in ("deploys", "repositories", "jobs", "ticks")
        for action in ("receive", "send")
    }


def test_delivery_has_the_adapters_own_numbers(document: Document) -> None:
    deploys = document["channels"]["deploys"]
    own = {"queue": "deploys", "group": "ops", "batch": 50, "max_deliveries": 3, "claim_idle": "PT1M30S"}

    assert own.items() <= deploys["x-options"].items()
    assert deploys["x-options"]["ack"] == "complete"
    assert list(deploys["x-delivery"]["acknowledge"]) == ["complete"]
    assert deploys["x-delivery"]["idempotency"]["namespace"] == "redis:hooks:deploys"
    assert deploys["x-delivery"]["idempotency"]["key"] == "redis:hooks:deploys:{entry-id}"
    first = document["operations"]["deploys.receive"]["x-steps"][0]
    assert first == "XREADGROUP GROUP ops {consumer} COUNT 50 STREAMS hooks:deploys >"
    guarantees = {name: channel["x-delivery"]["guarantee"] for name, channel in document["channels"].items()}
    assert guarantees["jobs"] == "at-least-once"
    assert guarantees["ticks"] == "at-most-once"


def test_a_stream_has_the_message_that_its_body_option_decides(document: Document) -> None:
    assert list(document["channels"]["deploys"]["messages"]) == ["fieldsEntry"]
    assert list(document["channels"]["repositories"]["messages"]) == ["bodyEntry"]
    assert document["operations"]["repositories.send"]["messages"] == [
        {"$ref": "#/channels/repositories/messages/bodyEntry"}
    ]


@pytest.mark.parametrize(
    ("adapter", "channel"), [("deploys", "redisStream"), ("jobs", "redisList"), ("ticks", "redisPubSub")]
)
def test_the_failure_surface_is_the_contracts(document: Document, adapter: str, channel: str) -> None:
    own, shipped = document["channels"][adapter], shipped_contract()["channels"][channel]

    for part in ("x-successes", "x-failures"):
        assert own[part]
        without_operations = [
            [{key: value for key, value in branch.items() if key != "operations"} for branch in surface[part]]
            for surface in (own, shipped)
        ]
        assert without_operations[0] == without_operations[1]
        for branch in own[part]:
            assert set(branch["operations"]) <= {f"{adapter}.receive", f"{adapter}.send"}
    assert own["x-dead-letters"] == shipped["x-dead-letters"]


def test_components_are_those_in_use(tmp_path: Path) -> None:
    (tmp_path / "switchboard.toml").write_text(
        '[adapters.jobs]\ntype = "redis-list"\nurl = "redis://localhost"\nlist = "jobs"\nqueue = "jobs"\n'
    )
    document = yaml.safe_load(printed(tmp_path))

    assert set(document["components"]["messages"]) == {"redisListMessage"}
    assert set(document["components"]["schemas"]) == {"Body", "DeadLetter"}


@pytest.mark.parametrize("name", ["no", "1e5", "null", "-"])
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "switchboard.toml").write_text(
        f'[adapters.{name}]\ntype = "redis-list"\nurl = "redis://localhost"\nlist = "{name}"\nqueue = "{name}"\n'
    )
    document = yaml.safe_load(printed(tmp_path))

    assert list(document["channels"]) == [name]
    assert document["channels"][name]["address"] == name


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_without_adapters_it_says_so_and_prints_nothing(tmp_path: Path, arguments: list[str]) -> None:
    for environment in ({}, {"SWITCHBOARD_CONFIG": "other.toml"}):
        (tmp_path / "other.toml").write_text("")
        ran = run(tmp_path, *arguments, **environment)
        where = environment.get("SWITCHBOARD_CONFIG", "switchboard.toml")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr == f"switchboard: no adapters in {where}: there is nothing to describe\n"


def test_a_wrong_configuration_is_named_and_prints_nothing(folder: Path) -> None:
    ran = run(folder)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "environment variable REDIS_URL is not set" in ran.stderr


def test_help_has_a_summary_and_examples(folder: Path) -> None:
    ran = run(folder, "--help")

    assert ran.returncode == 0
    assert ran.stdout.split("\n\n")[1].strip() == "Print the AsyncAPI 3 document of the adapters in switchboard.toml."
    assert "switchboard asyncapi --json" in ran.stdout.partition("Examples:\n")[2]
