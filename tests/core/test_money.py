from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.money import to_micros, to_usd
from onceward.errors import InvalidConfig


@pytest.mark.rule("K-10")
@pytest.mark.parametrize(
    ("amount", "micros"),
    [
        ("5.00", 5_000_000),
        ("0.000001", 1),
        ("0.0000001", 1),
        ("0.0000019", 2),
        ("0", 0),
        ("12", 12_000_000),
        ("8e-05", 80),
        (" 1.50 ", 1_500_000),
        (".5", 500_000),
        (5, 5_000_000),
        (Decimal("0.0000011"), 2),
        (0.1, 100_000),
        (0.00008, 80),
        (1e-9, 1),
    ],
)
def test_amounts_become_micro_dollars_and_finer_ones_round_up(amount, micros):
    assert to_micros(amount) == micros


@pytest.mark.rule("K-10")
@pytest.mark.parametrize(
    "amount",
    [
        "-1",
        "NaN",
        "",
        "1,0",
        "1_0",
        "١",
        None,
        True,
        "9" * 13,
        -0.1,
        float("inf"),
        "1e999999999",
        [1],
    ],
)
def test_what_is_no_amount_of_money_is_refused(amount):
    with pytest.raises(InvalidConfig):
        to_micros(amount)


@pytest.mark.rule("K-10")
@given(st.integers(0, 2**53 - 1))
def test_money_survives_the_way_out_and_in(micros):
    text = to_usd(micros)
    assert to_micros(text) == micros
    assert 2 <= len(text.partition(".")[2]) <= 6
