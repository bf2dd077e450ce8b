"""A schedule is what periodiq will fire, or it is refused."""

from datetime import datetime, timedelta

import pytest

from switchboard.config import read_upkeep
from switchboard.errors import ConfigError
from switchboard.schedules import longest_silence, schedule

#: A year with a leap day.
YEAR = datetime(2028, 1, 1)


@pytest.mark.parametrize(
    "expression",
    ["7 * * * *", "* * * * *", "*/5 * * * *", "@hourly", "@daily", "@monthly", "0 3 * * mon", "0 3 * * 7",
     "0 3 * * 1-7", "0 0 29 2 *", "0 0 31 12,2 *", "0 0 30 2 1", " 0 4 * * * "],
)  # fmt: skip
def test_what_fires_is_taken(expression: str) -> None:
    spec = schedule(expression)
    hours = (YEAR + timedelta(hours=hour, minutes=minute) for hour in range(366 * 24) for minute in (0, 7))
    assert any(spec.validate(moment) for moment in hours)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "cron expression"),
        ("hourly", "cron expression"),
        ("@never", "cron expression"),
        ("* * *", "cron expression"),
        ("* * * * * *", "cron expression"),
        ("a b c d e", "cron expression"),
        ("-1 * * * *", "cron expression"),
        ("*/0 * * * *", "cron expression"),
        ("5-1 * * * *", "cron expression"),
        ("60 * * * *", "60 is not between 0 and 59"),
        ("0 24 * * *", "24 is not between 0 and 23"),
        ("0 0 0 * *", "0 is not between 1 and 31"),
        ("0 0 * 0-13 *", "0 is not between 1 and 12"),
        ("0 0 * * 8", "8 is not between 0 and 7"),
        ("0 0 30 2 *", "no year has that date"),
        ("0 0 31 4,6,9,11 *", "no year has that date"),
        ("@weekly", "Sunday"),
        ("0 0 * * 0", "Sunday"),
        ("0 0 * * sun", "Sunday"),
        ("0 0 * * 0-6", "Sunday"),
        ("0 0 1 * 0", "Sunday"),
    ],
)
def test_what_would_never_fire_is_refused_with_why(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        schedule(expression)
    assert repr(expression) in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "longest"),
    [
        ("* * * * *", timedelta(minutes=1)),
        ("7 * * * *", timedelta(hours=1)),
        ("0 3 * * *", timedelta(days=1)),
        ("*/10 9-17 * * 1-5", timedelta(days=2, hours=15, minutes=10)),
        ("0 0 31 * *", timedelta(days=61)),
        ("@yearly", timedelta(days=366)),
        ("* * 1 1 *", timedelta(days=365, minutes=1)),
        ("0 0 29 2 *", timedelta(days=4 * 365 + 1)),
    ],
)
def test_a_job_may_be_silent_for_twice_the_longest_time_between_two_runs(expression: str, longest: timedelta) -> None:
    assert longest_silence(expression) == 2 * longest + timedelta(minutes=5)


def test_how_long_it_may_be_silent_is_computed_once() -> None:
    assert longest_silence("0 3 * * mon") is longest_silence("0 3 * * mon")


def test_upkeep_has_defaults_and_takes_what_is_written() -> None:
    assert read_upkeep("").model_dump() == {"prune": "7 * * * *", "reap": "* * * * *"}
    assert read_upkeep('[upkeep]\nprune = "@daily"').prune == "@daily"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[upkeep]\nprune = "@weekly"', r"upkeep\.prune: '@weekly' never fires on Sunday"),
        ("[upkeep]\nreap = 60", r"upkeep\.reap: "),
        ('[upkeep]\nprun = "@daily"', "unknown key 'prun'; did you mean 'prune'"),
        ("upkeep = 1", "upkeep: expected a table"),
    ],
)
def test_a_wrong_table_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_upkeep(text, "switchboard.toml")
