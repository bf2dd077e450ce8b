"""`asyncapi.yaml` is a valid AsyncAPI 3.0.0 document, and says what the code can keep."""

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from switchboard import errors

ROOT = Path(__file__).parents[2]
SCHEMA = Path(__file__).parent / "schemas" / "asyncapi-3.0.0.json"

NATURES = {"transient", "permanent", "poison"}
KEBAB_CASE = re.compile(r"[a-z]+(-[a-z]+)*")

Document = dict[str, Any]


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


@pytest.fixture
def document() -> Document:
    loaded: Document = yaml.safe_load((ROOT / "asyncapi.yaml").read_text(encoding="utf-8"))
    return loaded


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
            problems += [f"{where}: no {key}" for key in ("name", "nature", "error", "action") if not branch.get(key)]
            if branch.get("nature") not in NATURES:
                problems.append(f"{where}: nature {branch.get('nature')}")
            error = getattr(errors, str(branch.get("error")), None)
            if not (isinstance(error, type) and issubclass(error, errors.SwitchboardError)):
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
    del document["components"]["schemas"]["EntryBody"]

    assert reference_problems(document) == ["#/components/schemas/EntryBody resolves to nothing"]


def test_an_operation_on_what_is_not_there_is_found(document: Document) -> None:
    # Given one operation whose channel is missing, and one whose message is not its channel's
    document["operations"]["publishEntry"]["channel"]["$ref"] = "#/channels/redisList"
    document["operations"]["receiveEntries"]["messages"][0]["$ref"] = "#/components/messages/bodyEntry"

    # Then both are named
    assert operation_problems(document) == [
        "receiveEntries: redisStream has no message #/components/messages/bodyEntry",
        "publishEntry: no channel #/channels/redisList",
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


def test_the_failure_surface_covers_the_discipline(document: Document) -> None:
    # Given the branches that the queue discipline asks of every transport, and its two scenarios of success
    asked = {
        "broker-unavailable": ("transient", "BrokerUnavailable"),
        "publish-rejected": ("permanent", "PublishRejected"),
        "redelivery-limit-exceeded": ("poison", "PoisonMessage"),
        "decode-or-schema-mismatch": ("permanent", "MessageInvalid"),
        "ack-failed": ("transient", "AckFailed"),
    }

    # Then every channel has them
    for channel in document["channels"].values():
        stated = {branch["name"]: (branch["nature"], branch["error"]) for branch in channel["x-failures"]}
        assert asked.items() <= stated.items()
        assert {branch["name"] for branch in channel["x-successes"]} == {
            "happy",
            "redelivered-no-second-effect",
        }


def test_examples_are_valid_by_their_own_message(document: Document) -> None:
    for message in document["components"]["messages"].values():
        assert message["examples"]
        for example in message["examples"]:
            for part in ("headers", "payload"):
                if part in example:
                    Draft7Validator(expand(document, message[part])).validate(example[part])
