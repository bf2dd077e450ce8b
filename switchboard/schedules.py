"""When upkeep runs: cron expressions, as periodiq takes them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Annotated

import pendulum
from periodiq import CronSpec, cron
from pydantic import AfterValidator, BaseModel, ConfigDict

#: The lowest and highest value of each field: minute, hour, day of month, month, day of week.
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))

#: Dates of periodiq's that are looked at for the longest time between two runs.
_DATES = 1_000

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


def longest_silence(expression: str) -> timedelta:
    """How long a job with that schedule may be silent: twice the longest time between its next runs, and a bit."""
    spec = schedule(expression)
    date = pendulum.now()
    runs = []
    for _ in range(_DATES):
        date = spec.next_valid_date(date)
        if spec.validate(date):
            runs.append(date)
    longest = max((later - sooner for sooner, later in pairwise(runs)), default=timedelta(days=366))
    return 2 * timedelta(seconds=longest.total_seconds()) + timedelta(minutes=5)


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
