"""`asyncapi.yaml` is a valid AsyncAPI 3.0.0 document, and says what the code can keep.

`python tests/unit/test_asyncapi.py` writes `switchboard/contract/asyncapi.json` from it, the form that is shipped.
"""

import ast
import copy
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from switchboard import errors
from switchboard.cli.output import redacted
from switchboard.contract import shipped_contract
from switchboard.pull import TRANSPORTS

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "asyncapi.yaml"
SHIPPED = ROOT / "switchboard" / "contract" / "asyncapi.json"
SCENARIOS = ROOT / "tests" / "scenarios"
SCHEMA = Path(__file__).parent / "schemas" / "asyncapi-3.0.0.json"

NATURES = {"transient", "permanent", "poison"}
KEBAB_CASE = re.compile(r"[a-z]+(-[a-z]+)*")

#: Where the scenarios of a channel are.
SCENARIO_FILES = {
    "redisStream": "test_redis_stream.py",
    "redisList": "test_redis_list.py",
    "redisPubSub": "test_redis_pubsub.py",
}

Document = dict[str, Any]


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


@pytest.fixture
def document() -> Document:
    return read_contract()


def read_contract() -> Document:
    loaded: Document = yaml.safe_load(CONTRACT.read_text(encoding="utf-8"))
    return loaded


def as_shipped(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def schema_problems(validator: Draft7Validator, document: Document) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]


def references(node: object) -> Iterator[str]:
    """Every `$ref` in a document, also inside its extensions."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(document: Document, reference: str) -> Any:
    """What a local reference points at. Raises LookupError where it points at nothing."""
    if not reference.startswith("#/"):
        raise LookupError(f"{reference} leaves the document")
    node: Any = document
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


def reference_problems(document: Document) -> list[str]:
    problems = []
    for reference in references(document):
        try:
            resolve(document, reference)
        except (LookupError, TypeError, ValueError):
            problems.append(f"{reference} resolves to nothing")
    return problems


def operation_problems(document: Document) -> list[str]:
    """AsyncAPI 3.0.0, Operation Object: the messages are the channel's own, not those of the components."""
    problems = []
    for name, operation in document["operations"].items():
        channel = operation["channel"]["$ref"]
        channel_name = channel.removeprefix("#/channels/")
        if channel_name not in document["channels"]:
            problems.append(f"{name}: no channel {channel}")
            continue
        known = {f"{channel}/messages/{key}" for key in document["channels"][channel_name]["messages"]}
        used = {message["$ref"] for message in operation["messages"]}
        if not used:
            problems.append(f"{name}: no message")
        problems += [f"{name}: {channel_name} has no message {message}" for message in sorted(used - known)]
    return problems


def address_problems(document: Document) -> list[str]:
    problems = []
    for name, channel in document["channels"].items():
        named = set(re.findall(r"{([^}]+)}", channel["address"]))
        described = set(channel.get("parameters", {}))
        problems += [f"{name}: parameter {parameter}" for parameter in sorted(named ^ described)]
    return problems


def failure_problems(document: Document) -> list[str]:
    """What is wrong with the failure surface of any channel."""
    problems = []
    for channel_name, channel in document["channels"].items():
        if not channel.get("x-failures"):
            problems.append(f"{channel_name}: no failure surface")
        failures, successes = channel.get("x-failures", []), channel.get("x-successes", [])
        for branch in failures:
            where = f"{channel_name}, {branch.get('name')}"
            problems += [f"{where}: no {key}" for key in ("name", "nature", "action") if not branch.get(key)]
            if branch.get("nature") not in NATURES:
                problems.append(f"{where}: nature {branch.get('nature')}")
            error = getattr(errors, str(branch.get("error")), None)
            if "error" in branch and branch["error"] is None:
                if not branch.get("reported"):
                    problems.append(f"{where}: neither an error nor where it is reported")
            elif not (isinstance(error, type) and issubclass(error, errors.SwitchboardError)):
                problems.append(f"{where}: switchboard.errors has no {branch.get('error')}")
        for branch in failures + successes:
            where = f"{channel_name}, {branch.get('name')}"
            if not KEBAB_CASE.fullmatch(str(branch.get("name"))):
                problems.append(f"{where}: not a kebab-case name")
            if branch.get("status", "planned") != "planned":
                problems.append(f"{where}: status {branch['status']}")
            if not branch.get("operations"):
                problems.append(f"{where}: no operation")
            for operation in branch.get("operations", []):
                reference = document["operations"].get(operation, {}).get("channel", {}).get("$ref")
                if reference != f"#/channels/{channel_name}":
                    problems.append(f"{where}: operation {operation} is not of this channel")
        names = Counter(branch.get("name") for branch in failures + successes)
        problems += [f"{channel_name}, {name}: there twice" for name, count in names.items() if count > 1]
    return problems


def scenario(branch: Document) -> str:
    """The test function that is a branch's scenario."""
    return f"test_{branch['name'].replace('-', '_')}"


def functions_of(source: str) -> list[str]:
    """The test functions of a module, as often as each is there; a parametrized one is one."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(source)
    return [node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")]


def scenario_problems(channel: Document, source: str) -> list[str]:
    """What of a channel's branches has no scenario in the module, and the other way round."""
    asked = Counter(scenario(branch) for branch in channel["x-successes"] + channel["x-failures"])
    there = Counter(functions_of(source))
    missing, unasked = sorted(asked - there), sorted(there - asked)
    return [f"no {name}" for name in missing] + [f"no branch for {name}" for name in unasked]


def expand(document: Document, node: Any) -> Any:
    """The node with its references replaced by what they point at."""
    if isinstance(node, dict):
        if "$ref" in node:
            return expand(document, resolve(document, node["$ref"]))
        return {key: expand(document, value) for key, value in node.items()}
    return [expand(document, value) for value in node] if isinstance(node, list) else node


def test_document_is_valid_by_the_official_schema(validator: Draft7Validator, document: Document) -> None:
    assert schema_problems(validator, document) == []


@pytest.mark.parametrize(
    "path",
    [
        ("asyncapi",),
        ("info",),
        ("info", "title"),
        ("info", "version"),
        ("servers", "redis", "host"),
        ("servers", "rediss", "protocol"),
        ("operations", "receiveEntries", "action"),
        ("operations", "publishEntry", "channel"),
        ("components", "securitySchemes", "redisAcl", "type"),
    ],
    ids=".".join,
)
def test_document_without_a_required_key_is_refused(
    validator: Draft7Validator, document: Document, path: tuple[str, ...]
) -> None:
    # Given the document, less one key that AsyncAPI requires
    *parents, key = path
    node = document
    for parent in parents:
        node = node[parent]
    del node[key]

    # Then the schema refuses it
    assert schema_problems(validator, document)


def test_document_with_an_unknown_key_or_value_is_refused(validator: Draft7Validator, document: Document) -> None:
    misspelt = copy.deepcopy(document)
    misspelt["channels"]["redisStream"]["adress"] = "deploys"
    assert schema_problems(validator, misspelt)

    wrong = copy.deepcopy(document)
    wrong["operations"]["receiveEntries"]["action"] = "subscribe"
    assert schema_problems(validator, wrong)


@pytest.mark.parametrize("check", [reference_problems, operation_problems, address_problems, failure_problems])
def test_document_holds_together(check: Callable[[Document], list[str]], document: Document) -> None:
    assert check(document) == []


def test_a_reference_to_nothing_is_found(document: Document) -> None:
    del document["components"]["schemas"]["EntryFields"]

    assert reference_problems(document) == ["#/components/schemas/EntryFields resolves to nothing"]


def test_an_operation_on_what_is_not_there_is_found(document: Document) -> None:
    # Given one operation whose channel is missing, and one whose message is not its channel's
    document["operations"]["publishEntry"]["channel"]["$ref"] = "#/channels/redisHash"
    document["operations"]["receiveEntries"]["messages"][0]["$ref"] = "#/components/messages/bodyEntry"

    # Then both are named
    assert operation_problems(document) == [
        "receiveEntries: redisStream has no message #/components/messages/bodyEntry",
        "publishEntry: no channel #/channels/redisHash",
    ]


def test_an_address_parameter_that_is_not_described_is_found(document: Document) -> None:
    del document["channels"]["redisStream"]["parameters"]

    assert address_problems(document) == ["redisStream: parameter stream"]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("action", "", "redisStream, ack-failed: no action"),
        ("nature", "generic", "redisStream, ack-failed: nature generic"),
        ("error", "BrokerError", "redisStream, ack-failed: switchboard.errors has no BrokerError"),
        ("error", None, "redisStream, ack-failed: neither an error nor where it is reported"),
        ("name", "ack failed", "redisStream, ack failed: not a kebab-case name"),
        ("name", "happy", "redisStream, happy: there twice"),
        ("operations", ["readList"], "redisStream, ack-failed: operation readList is not of this channel"),
        ("status", "soon", "redisStream, ack-failed: status soon"),
    ],
)
def test_a_wrong_failure_branch_is_found(document: Document, key: str, value: object, problem: str) -> None:
    failures = document["channels"]["redisStream"]["x-failures"]
    branch = next(branch for branch in failures if branch["name"] == "ack-failed")
    branch[key] = value

    assert failure_problems(document) == [problem]


def test_every_channel_states_its_delivery_and_its_dead_letters(document: Document) -> None:
    for channel in document["channels"].values():
        assert {"guarantee", "idempotency", "ordering", "acknowledge", "redelivery"} <= set(channel["x-delivery"])
        assert channel["x-dead-letters"]["table"] == "dead_letters"


#: The branches that the queue discipline asks of every transport (spec/queue-io-discipline).
ASKED = {
    "broker-unavailable": ("transient", "BrokerUnavailable"),
    "publish-rejected": ("permanent", "PublishRejected"),
    "redelivery-limit-exceeded": ("poison", "PoisonMessage"),
    "decode-or-schema-mismatch": ("permanent", "MessageInvalid"),
}


@pytest.mark.parametrize("channel_name", SCENARIO_FILES)
def test_the_failure_surface_covers_the_discipline(document: Document, channel_name: str) -> None:
    channel = document["channels"][channel_name]
    failures = {branch["name"]: (branch["nature"], branch["error"]) for branch in channel["x-failures"]}
    successes = {branch["name"] for branch in channel["x-successes"]}

    assert ASKED.items() <= failures.items()
    assert "happy" in successes
    if channel["x-delivery"]["guarantee"] == "at-least-once":
        # What can come again has to be acknowledged, and has to have no second effect
        assert failures["ack-failed"] == ("transient", "AckFailed")
        assert "redelivered-no-second-effect" in successes
    else:
        # What does not come again says so
        assert "ack-failed" not in failures
        assert "redelivered-no-second-effect" not in successes
        assert any(name.startswith("messages-lost-") for name in failures)


@pytest.mark.parametrize("channel_name", SCENARIO_FILES)
def test_every_branch_has_its_scenario_and_every_scenario_its_branch(document: Document, channel_name: str) -> None:
    path = SCENARIOS / SCENARIO_FILES[channel_name]

    assert path.is_file()
    assert scenario_problems(document["channels"][channel_name], path.read_text(encoding="utf-8")) == []


def test_every_channel_has_a_file_of_scenarios(document: Document) -> None:
    assert set(document["channels"]) == set(SCENARIO_FILES)
    assert {path.name for path in SCENARIOS.glob("test_*.py")} == set(SCENARIO_FILES.values())


def test_a_scenario_that_is_missing_or_has_no_branch_is_found() -> None:
    channel = {"x-successes": [{"name": "happy"}], "x-failures": [{"name": "ack-failed"}]}
    source = "class TestIt:\n    def test_happy(self): ...\nasync def test_happy(): ...\ndef ack_failed(): ..."

    # A name that is there twice is one that pytest may run once
    assert scenario_problems(channel, source) == ["no test_ack_failed", "no branch for test_happy"]


def test_the_contract_covers_every_transport_with_its_own_defaults(document: Document) -> None:
    channels = {channel["x-transport"]: channel for channel in document["channels"].values()}
    assert set(channels) == set(TRANSPORTS)

    for transport, channel in channels.items():
        # Given an adapter with nothing but what it has to have
        (where,) = channel["parameters"]
        needed: Document = {"url": "redis://localhost", "queue": "todos", where: "somewhere"}
        if "loss_tolerant" in channel["x-options"]:
            needed["loss_tolerant"] = True
        adapter = TRANSPORTS[transport]("any", **needed)

        # Then its options are those that the contract gives, and it acknowledges in the ways that the contract knows
        defaults = {name: value for name, value in adapter.describe().items() if name not in ("type", "broker")}
        assert channel["x-options"] == {name: defaults[name] for name in defaults if name not in ("queue", where)}
        ways = {"store", "complete"} if adapter.options.can_complete else {"store"}
        assert set(channel["x-delivery"]["acknowledge"]) == ways


def test_nothing_that_is_served_is_called_planned(document: Document) -> None:
    assert "planned" not in as_shipped(document)


def test_the_shipped_contract_is_this_one(document: Document) -> None:
    assert SHIPPED.read_text(encoding="utf-8") == as_shipped(document), (
        "asyncapi.yaml has changed: run `python tests/unit/test_asyncapi.py`"
    )
    assert shipped_contract() == document


def test_the_contract_has_nothing_that_looks_like_a_credential(document: Document) -> None:
    # `switchboard asyncapi` masks whatever does, and would change its words
    assert redacted(document) == document


def test_the_contract_has_the_version_of_the_package(document: Document) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert document["info"]["version"] == project["version"]


def test_examples_are_valid_by_their_own_message(document: Document) -> None:
    for message in document["components"]["messages"].values():
        assert message["examples"]
        for example in message["examples"]:
            for part in ("headers", "payload"):
                if part in example:
                    Draft7Validator(expand(document, message[part])).validate(example[part])


if __name__ == "__main__":
    SHIPPED.write_text(as_shipped(read_contract()), encoding="utf-8")
