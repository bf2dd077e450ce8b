"""When upkeep runs: cron expressions, as periodiq takes them."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Annotated

from periodiq import CronSpec, cron
from pydantic import AfterValidator, BaseModel, ConfigDict

#: The lowest and highest value of each field: minute, hour, day of month, month, day of week.
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))

#: Days that are looked at for the longest time between two runs: eight years, which have the 29th of February twice.
_FIRST_DAY, _DAYS = datetime(2000, 1, 1), 8 * 365 + 2  # noqa: DTZ001 - a schedule's times are those of its own zone

#: Days of the longest month of that number.
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def schedule(expression: str) -> CronSpec:
    """The schedule that the expression means, in the scheduler's time zone.

    Raises ``ValueError`` for what is no cron expression, and for what periodiq 0.14 takes and would never fire: values
    out of range, a date that no year has, and Sunday, which it reads as 0 and compares as 7.
    """
    try:
        spec: CronSpec = cron(expression)
    except (ValueError, LookupError, AttributeError) as error:
        raise _not_cron(expression) from error
    fields = (spec.minute, spec.hour, spec.dom, spec.month, spec.dow)
    if not (expression.strip().startswith("@") or len(expression.split()) == len(fields)):
        raise _not_cron(expression)
    for values, (lowest, highest) in zip(fields, _BOUNDS, strict=True):
        for value in values:
            if not lowest <= value <= highest:
                raise ValueError(f"{expression!r} never fires: {value} is not between {lowest} and {highest}")
    if 0 in spec.dow and 7 not in spec.dow:
        raise ValueError(f"{expression!r} never fires on Sunday, as periodiq 0.14 has it: write 7, or 1-7")
    by_date_alone = spec.is_dom_restricted and not spec.is_dow_restricted
    if by_date_alone and all(spec.dom[0] > _MONTH_DAYS[month - 1] for month in spec.month):
        raise ValueError(f"{expression!r} never fires: no year has that date")
    return spec


@cache
def longest_silence(expression: str) -> timedelta:
    """How long a job with that schedule may be silent: twice the longest time between two of its runs, and a bit.

    By the days on which it runs and the times of day, which are the same on each: periodiq's own dates, one by one,
    take a third of a second, and ``switchboard top`` asks every two.
    """
    spec = schedule(expression)
    times = sorted(timedelta(hours=hour, minutes=minute) for hour in spec.hour for minute in spec.minute)
    every_day = (_FIRST_DAY + times[0] + timedelta(days=number) for number in range(_DAYS))
    days = [first_run for first_run in every_day if spec.validate(first_run)]
    overnight = [later - sooner - (times[-1] - times[0]) for sooner, later in pairwise(days)]
    in_a_day = [later - sooner for sooner, later in pairwise(times)]
    longest = max(overnight + in_a_day)
    return 2 * longest + timedelta(minutes=5)


def _not_cron(expression: str) -> ValueError:
    return ValueError(f'expected a cron expression such as "7 * * * *" or "@hourly", got {expression!r}')


def _expression(text: str) -> str:
    schedule(text)
    return text


class UpkeepOptions(BaseModel):
    """The table ``[upkeep]``: when the scheduled jobs run, as cron expressions in the scheduler's time zone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: When what retention no longer keeps is deleted.
    prune: Annotated[str, AfterValidator(_expression)] = "7 * * * *"
    #: When what dead workers left is taken back.
    reap: Annotated[str, AfterValidator(_expression)] = "* * * * *"
