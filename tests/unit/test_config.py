"""Configuration: what is right is read with its defaults, what is wrong names its key and what was expected."""

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from switchboard import ConfigError, RedisStream
from switchboard.config import load_adapters, read_adapters, required
from switchboard.pull import PullAdapter
from switchboard.pull.redis_stream import RedisStreamOptions

URL = "DEPLOYS_REDIS_URL"

#: Both ends are looked for, as masking that stops in the middle shows one of them.
PASSWORD_START, PASSWORD_END = "hunter2", "swordfish"
PASSWORD = f"{PASSWORD_START}-{PASSWORD_END}"


def table(*lines: str, drop: str = "") -> str:
    """A complete adapter's table without the key ``drop``, with ``lines`` after it."""
    whole = {
        "type": 'type = "redis-stream"',
        "url": 'url = "redis://localhost:6379/0"',
        "stream": 'stream = "deploys"',
        "queue": 'queue = "deploy-todos"',
    }
    whole.pop(drop, None)
    return "\n".join(["[adapters.deploys]", *whole.values(), *lines])


def only(text: str) -> PullAdapter:
    [adapter] = read_adapters(text)
    return adapter


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_adapters(text)
    message = str(caught.value)
    assert "\n" not in message, "an error is one line"
    return message


def assert_hidden(shown: str) -> None:
    assert PASSWORD_START not in shown
    assert PASSWORD_END not in shown


# What is right


def test_an_adapter_has_the_defaults_of_the_design() -> None:
    adapter = only(table())
    options = adapter.options
    assert isinstance(adapter, RedisStream)
    assert isinstance(options, RedisStreamOptions)
    assert adapter.name == "deploys"
    assert options.url == "redis://localhost:6379/0"
    assert options.stream == "deploys"
    assert options.queue == "deploy-todos"
    assert options.group == "switchboard"
    assert options.body == ""
    assert options.provider == "generic"
    assert options.batch == 500
    assert options.batch_bytes == 16 * 1024**2
    assert options.max_body == 32 * 1024**2
    assert options.claim_idle == timedelta(seconds=60)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("60s", timedelta(seconds=60)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
    ],
)
def test_a_duration_is_a_number_and_its_unit(written: str, meant: timedelta) -> None:
    assert only(table(f'claim_idle = "{written}"')).options.claim_idle == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("16MiB", 16 * 1024**2), ("1 KiB", 1024), ("2MB", 2_000_000), ("100B", 100)]
)
def test_a_size_is_a_number_and_its_unit(written: str, meant: int) -> None:
    options = only(table(f'batch_bytes = "{written}"', f'max_body = "{written}"')).options
    assert (options.batch_bytes, options.max_body) == (meant, meant)


def test_adapters_come_in_the_order_of_the_file() -> None:
    text = table() + "\n" + table().replace("adapters.deploys", "adapters.builds")
    assert [adapter.name for adapter in read_adapters(text)] == ["deploys", "builds"]


def test_an_empty_file_has_no_adapters() -> None:
    assert read_adapters("") == []


def test_a_reference_is_replaced_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, f"rediss://deploy-bot:{PASSWORD}@redis.example:6380/2")
    monkeypatch.setenv("STAGE", "live")
    adapter = only(table(f'url = "${{{URL}}}"', 'group = "switchboard-${STAGE}"', drop="url"))
    assert isinstance(adapter, RedisStream)
    assert adapter.options.url == f"rediss://deploy-bot:{PASSWORD}@redis.example:6380/2"
    assert adapter.options.group == "switchboard-live"


def test_what_the_environment_holds_is_not_expanded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP", "${HOME}")
    adapter = only(table('group = "${GROUP}"'))
    assert isinstance(adapter, RedisStream)
    assert adapter.options.group == "${HOME}"


def test_a_password_of_references_alone_is_no_literal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    adapter = only(table('url = "redis://bot:${REDIS_PASSWORD}@localhost/0"', drop="url"))
    assert isinstance(adapter, RedisStream)
    assert PASSWORD in adapter.options.url


def test_options_are_keywords_of_the_class_too() -> None:
    adapter = RedisStream(
        "deploys",
        url="redis://localhost:6379/0",
        stream="deploys",
        queue="deploy-todos",
        claim_idle=timedelta(minutes=5),
        batch_bytes="1MiB",
    )
    written = only(table('claim_idle = "5m"', 'batch_bytes = "1MiB"'))
    assert adapter.options == written.options
    assert adapter.describe() == written.describe()


# What is wrong


def test_an_unknown_key_is_named_with_the_nearest_one() -> None:
    message = refusal(table('straem = "x"'))
    assert "adapters.deploys" in message
    assert "unknown key 'straem'" in message
    assert "did you mean 'stream'?" in message


def test_an_unknown_key_like_no_other_is_named_alone() -> None:
    message = refusal(table("zzz = 1"))
    assert "unknown key 'zzz'" in message
    assert "did you mean" not in message


def test_an_unknown_top_level_key_is_named_with_the_nearest_one() -> None:
    message = refusal(table().replace("[adapters.", "[adapter."))
    assert "unknown key 'adapter'" in message
    assert "did you mean 'adapters'?" in message


def test_a_missing_type_is_named_with_the_types_there_are() -> None:
    message = refusal(table(drop="type"))
    assert "adapters.deploys.type: is missing" in message
    assert "redis-stream" in message


def test_an_unknown_type_is_named_with_the_nearest_one() -> None:
    message = refusal(table('type = "redis-streams"', drop="type"))
    assert "adapters.deploys.type: unknown type 'redis-streams'" in message
    assert "did you mean 'redis-stream'?" in message


def test_a_type_that_is_no_text_is_named() -> None:
    assert "adapters.deploys.type: unknown type" in refusal(table("type = 5", drop="type"))


@pytest.mark.parametrize("key", ["stream", "url", "queue"])
def test_a_missing_key_is_named(key: str) -> None:
    assert f"adapters.deploys.{key}: is missing" in refusal(table(drop=key))


def test_every_missing_key_is_named_at_once() -> None:
    message = refusal('[adapters.deploys]\ntype = "redis-stream"')
    for key in ("stream", "url", "queue"):
        assert f"adapters.deploys.{key}: is missing" in message


@pytest.mark.parametrize(("key", "most"), [("stream", 250), ("queue", 200)])
def test_a_name_that_is_too_long_for_the_keys_it_begins_is_refused(key: str, most: int) -> None:
    only(table(f"{key} = '{'n' * most}'", drop=key))
    assert f"adapters.deploys.{key}: " in refusal(table(f"{key} = '{'n' * (most + 1)}'", drop=key))


@pytest.mark.parametrize("key", ["stream", "queue"])
def test_an_empty_name_is_refused(key: str) -> None:
    assert f"adapters.deploys.{key}: " in refusal(table(f'{key} = ""', drop=key))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"many"', "integer"),
        ("1.5", "integer"),
        ("[500]", "integer"),
        ("true", "integer"),
        ("0", "greater than or equal to 1"),
        ("-5", "greater than or equal to 1"),
        ("10001", "less than or equal to 10000"),
    ],
)
def test_a_batch_that_is_no_number_in_range_is_named_with_what_was_expected(written: str, expected: str) -> None:
    message = refusal(table(f"batch = {written}"))
    assert "adapters.deploys.batch: " in message
    assert expected in message


@pytest.mark.parametrize("written", ['"60"', "60", "1.5", '"60 parsecs"', '"soon"', '""', '"-5s"', "true", "[1]"])
def test_a_duration_without_a_right_unit_is_named_with_what_was_expected(written: str) -> None:
    message = refusal(table(f"claim_idle = {written}"))
    assert "adapters.deploys.claim_idle: " in message
    assert "duration" in message


def test_a_duration_that_is_too_short_is_named() -> None:
    assert "adapters.deploys.claim_idle: " in refusal(table('claim_idle = "1ms"'))


def test_a_duration_longer_than_any_calendar_is_named() -> None:
    assert "adapters.deploys.claim_idle: " in refusal(table('claim_idle = "99999999999d"'))


@pytest.mark.parametrize("key", ["batch_bytes", "max_body"])
@pytest.mark.parametrize("written", ['"16XB"', '"much"', '""', '"-1MiB"', '"0MiB"', "inf", "1.5", "[1]", "true"])
def test_a_size_without_a_right_unit_is_named(key: str, written: str) -> None:
    assert f"adapters.deploys.{key}: " in refusal(table(f"{key} = {written}"))


def test_a_size_without_a_right_unit_says_what_was_expected() -> None:
    assert "MiB" in refusal(table('batch_bytes = "16XB"'))


def test_an_unset_variable_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    message = refusal(table(f'url = "${{{URL}}}"', drop="url"))
    assert "adapters.deploys.url" in message
    assert f"{URL} is not set" in message


def test_an_empty_variable_is_as_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "")
    assert f"{URL} is not set" in refusal(table(f'url = "${{{URL}}}"', drop="url"))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://bot:{PASSWORD}@localhost/0",
        f"redis://:{PASSWORD}@localhost/0",
        f"rediss://bot:{PASSWORD}${{SUFFIX}}@localhost/0",
        f"redis://localhost/0?password={PASSWORD}",
        # What cannot be read as an address must not pass as one without a password.
        f"redis://bot:[{PASSWORD}]@localhost/0",
        f"redis://bot:{PASSWORD_START}/{PASSWORD_END}@localhost/0",
    ],
)
def test_a_literal_password_in_an_address_is_refused_and_not_echoed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIX", "x")
    message = refusal(table(f'url = "{url}"', drop="url"))
    assert "adapters.deploys.url: a literal password" in message
    assert_hidden(message)


@pytest.mark.parametrize("key", ["password", "redis_password", "api_token", "client_secret"])
def test_a_literal_secret_under_any_key_is_refused_and_not_echoed(key: str) -> None:
    message = refusal(table(f'{key} = "{PASSWORD}"'))
    assert f"adapters.deploys.{key}" in message
    assert_hidden(message)


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "postgresql://localhost/0", ""])
def test_an_address_of_another_kind_is_named_with_what_was_expected(url: str) -> None:
    message = refusal(table(f'url = "{url}"', drop="url"))
    assert "adapters.deploys.url: " in message
    assert "redis://" in message


@pytest.mark.parametrize(
    "url",
    [
        f"redis://bot:[{PASSWORD}]@localhost/0",
        f"redis://bot:{PASSWORD_START}/{PASSWORD_END}@localhost/0",
        f"http://bot:{PASSWORD}@localhost/0",
        f"bot:{PASSWORD}@localhost",
    ],
)
def test_a_wrong_address_from_the_environment_is_named_and_not_echoed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL, url)
    message = refusal(table(f'url = "${{{URL}}}"', drop="url"))
    assert "adapters.deploys.url: " in message
    assert_hidden(message)


def test_an_unknown_provider_is_named_with_the_nearest_one() -> None:
    message = refusal(table('provider = "genric"'))
    assert "adapters.deploys" in message
    assert "provider: unknown provider 'genric'" in message
    assert "did you mean 'generic'?" in message
    assert "module:function" in message


@pytest.mark.parametrize(
    "provider", ["no_such_module:shape", "os.path:no_such_function", "os.path:sep", ":shape", "os:", ".relative:shape"]
)
def test_an_own_function_that_is_not_there_is_named(provider: str) -> None:
    message = refusal(table(f'provider = "{provider}"'))
    assert "adapters.deploys" in message
    assert "provider: " in message
    assert repr(provider) in message


def test_an_own_function_is_found_as_module_and_function() -> None:
    provider = "switchboard.normalize.generic:normalize_generic"
    assert only(table(f'provider = "{provider}"')).options.provider == provider


@pytest.mark.parametrize("name", ["two words", "a.b", "ü", "x" * 101])
def test_an_adapter_name_that_is_no_queue_name_is_refused(name: str) -> None:
    message = refusal(table().replace("[adapters.deploys]", f'[adapters."{name}"]'))
    assert name in message
    assert "letters, digits" in message


@pytest.mark.parametrize("text", ["adapters = 1", "[[adapters]]\nname = 1", "adapters = []"])
def test_adapters_that_are_no_table_are_refused(text: str) -> None:
    assert "[adapters.NAME]" in refusal(text)


@pytest.mark.parametrize("text", ["[adapters]\ndeploys = 1", "[[adapters.deploys]]\nqueue = 'x'"])
def test_an_adapter_that_is_no_table_is_refused(text: str) -> None:
    assert "expected a table, [adapters.deploys]" in refusal(text)


def test_what_is_not_toml_is_refused_with_its_line() -> None:
    message = refusal(f"[adapters.deploys]\nurl = redis://bot:{PASSWORD}@localhost\n")
    assert "not TOML" in message
    assert "line 2" in message
    assert_hidden(message)


# The file and the environment


def test_the_file_that_the_environment_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.toml"
    path.write_text(table(), encoding="utf-8")
    monkeypatch.setenv("SWITCHBOARD_CONFIG", str(path))
    assert [adapter.name for adapter in load_adapters()] == ["deploys"]


def test_the_default_file_is_read_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "switchboard.toml").write_text(table(), encoding="utf-8")
    monkeypatch.delenv("SWITCHBOARD_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert [adapter.name for adapter in load_adapters()] == ["deploys"]


def test_without_the_default_file_there_are_no_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHBOARD_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert load_adapters() == []


def test_a_named_file_that_is_missing_is_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gone.toml"
    monkeypatch.setenv("SWITCHBOARD_CONFIG", str(path))
    with pytest.raises(ConfigError) as caught:
        load_adapters()
    assert "SWITCHBOARD_CONFIG" in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# \xff\n")
    monkeypatch.setenv("SWITCHBOARD_CONFIG", str(path))
    with pytest.raises(ConfigError, match=r"latin\.toml"):
        load_adapters()


def test_an_error_says_in_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("zzz = 1", encoding="utf-8")
    monkeypatch.setenv("SWITCHBOARD_CONFIG", str(path))
    with pytest.raises(ConfigError) as caught:
        load_adapters()
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_required_variable_that_is_unset_or_empty_is_named(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEEDED", raising=False)
    if value is not None:
        monkeypatch.setenv("NEEDED", value)
    with pytest.raises(ConfigError, match="NEEDED is not set"):
        required("NEEDED")


# Passwords


@pytest.mark.parametrize(
    "url",
    [
        f"redis://bot:{PASSWORD}@redis.example:6379/0",
        f"rediss://:{PASSWORD}@[::1]:6380/0",
        f"unix://bot:{PASSWORD}@/run/redis.sock?db=1",
    ],
)
def test_a_password_is_in_nothing_that_is_shown(url: str) -> None:
    adapter = RedisStream("deploys", url=url, stream="deploys", queue="deploys")
    for shown in (repr(adapter), str(adapter), repr(adapter.options), str(adapter.options), str(adapter.describe())):
        assert_hidden(shown)


def test_a_description_says_where_the_messages_come_from() -> None:
    description = RedisStream("deploys", url="redis://bot@redis.example:6379/0", stream="s", queue="q").describe()
    assert description["type"] == "redis-stream"
    assert description["broker"] == "redis://redis.example:6379/0"
    assert description["stream"] == "s"


def test_an_error_of_a_keyword_names_it_and_shows_no_password() -> None:
    with pytest.raises(ValidationError) as caught:
        RedisStream("deploys", url=f"http://bot:{PASSWORD}@localhost", stream="", queue="q", batch=0, spam=PASSWORD)
    message = str(caught.value)
    for key in ("url", "stream", "batch", "spam"):
        assert key in message
    assert_hidden(message)
