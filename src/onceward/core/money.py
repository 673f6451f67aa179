"""Amounts: integer micro-dollars and whole units inside, decimal strings outside (K-10)."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from numbers import Integral
from typing import Final

from onceward.core.limits import MAX_INTEGER
from onceward.errors import InvalidConfig

MICROS: Final = 1_000_000
_LONGEST = 60
_EXACT = Context(prec=200, Emin=-400, Emax=400)


def to_micros(amount: object, what: str = "amount") -> int:
    """Micro-dollars of an amount of dollars; anything finer than a micro-dollar rounds up."""
    try:
        return to_units(amount, what, MICROS)
    except InvalidConfig as error:
        raise InvalidConfig(
            f'{error.message}; write it as a decimal such as "5.00"', context=error.context
        ) from None


def to_units(amount: object, what: str, scale: int = 1) -> int:
    """A str in any decimal form, an int, a Decimal or a float, times `scale`, rounded up.

    A float is read by its shortest text, so that 0.1 is a tenth and not what the bits say."""
    value = _decimal(amount)
    if value is None:
        raise InvalidConfig(f"{what} takes a number, not {_shown(amount)}", context={"field": what})
    units = _EXACT.multiply(value, Decimal(scale)).to_integral_value(ROUND_CEILING)
    if value < 0:
        raise InvalidConfig(f"{what} cannot be negative: {_shown(amount)}", context={"field": what})
    if units > MAX_INTEGER:
        raise InvalidConfig(f"{what} is too large: {_shown(amount)}", context={"field": what})
    return int(units)


def _decimal(amount: object) -> Decimal | None:
    """The finite number that an amount says; None where it says none."""
    if isinstance(amount, bool):
        return None
    if isinstance(amount, Integral):
        value = Decimal(int(amount))
    elif isinstance(amount, Decimal):
        value = amount
    elif isinstance(amount, float):
        value = Decimal(float.__repr__(amount))
    elif isinstance(amount, str) and len(amount) <= _LONGEST and amount.isascii():
        try:
            # Python also reads 1_000, which no other program writes.
            value = Decimal(amount.strip() if "_" not in amount else "")
        except InvalidOperation:
            return None
    else:
        return None
    small_enough = value.is_finite() and abs(value.adjusted()) <= 100
    return value if small_enough else None


def _shown(amount: object) -> str:
    try:
        return f"{amount!r:.60}"
    except Exception:
        return f"a {type(amount).__name__}"


def to_usd(micros: int) -> str:
    """The decimal string of micro-dollars, with two to six places."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, fraction = divmod(micros, MICROS)
    return f"{sign}{whole}.{f'{fraction:06d}'.rstrip('0').ljust(2, '0')}"
