"""Money: integer micro-dollars inside, decimal strings outside, never a float (K-10)."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from onceward.errors import InvalidConfig
from onceward.kernel.limits import MAX_INTEGER

_AMOUNT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,18})?")


def to_micros(amount: str, what: str = "amount") -> int:
    """Micro-dollars of a decimal string; anything finer than a micro-dollar rounds up."""
    if not isinstance(amount, str) or not _AMOUNT.fullmatch(amount):
        raise InvalidConfig(
            f'{what} must be a decimal string such as "5.00", not {amount!r}',
            context={"field": what},
        )
    micros = int((Decimal(amount) * 1_000_000).to_integral_value(ROUND_CEILING))
    if micros > MAX_INTEGER:
        raise InvalidConfig(f"{what} is too large: {amount}", context={"field": what})
    return micros


def to_usd(micros: int) -> str:
    """The decimal string of micro-dollars, with two to six places."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, fraction = divmod(micros, 1_000_000)
    return f"{sign}{whole}.{f'{fraction:06d}'.rstrip('0').ljust(2, '0')}"
