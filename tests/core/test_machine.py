from __future__ import annotations

import pytest

from onceward.core.machine import Machine, MachineError
from onceward.errors import IllegalTransition

LIGHT = """
    new   -> red    -       LIT
    red   -> green  go      TURNED
    green -> red    stop    TURNED
    red | green -> off  power_cut | switched  DARK

    terminal off
"""


@pytest.mark.rule("K-3")
def test_a_table_is_read_as_it_stands():
    light = Machine.parse("light", LIGHT)
    assert light.states == ("red", "green", "off")
    assert light.initial == "red"
    assert light.terminal == ("off",)
    assert light.follow("green", "off", "switched").event == "DARK"
    assert len(light.arrows) == 7


@pytest.mark.rule("K-3")
def test_an_arrow_not_in_the_table_says_what_would_be_allowed():
    light = Machine.parse("light", LIGHT)
    with pytest.raises(IllegalTransition, match=r"from red it may go to green, off"):
        light.follow("red", "red", None)
    with pytest.raises(IllegalTransition, match="does not take the reason 'go'"):
        light.follow("green", "red", "go")
    with pytest.raises(IllegalTransition, match="off is final"):
        light.follow("off", "red", None)


@pytest.mark.rule("K-3")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LIGHT + "red -> green go AGAIN", "twice"),
        (LIGHT + "off -> red go TURNED", "terminal"),
        (LIGHT + "blue -> red go TURNED", "nothing leads to"),
        (LIGHT + "red -> blue go TURNED", "nothing leads out of"),
        (LIGHT + "red -> new go TURNED", "becomes"),
        (LIGHT + "new -> green - LIT", "exactly one"),
        (LIGHT + "terminal purple", "no arrow names it"),
        (LIGHT + "red to green", "cannot read"),
        (LIGHT + "red -> green go TURNED loudly", "cannot read"),
        (LIGHT + "red -> green g|o-o TURNED", "not a name"),
        ("red -> green go X", "exactly one"),
    ],
)
def test_a_table_that_contradicts_itself_fails_at_import(change, words):
    with pytest.raises(MachineError, match=words):
        Machine.parse("light", change)


@pytest.mark.rule("K-3")
def test_bookkeeping_is_the_only_way_out_of_a_terminal_state():
    kept = Machine.parse(
        "light", LIGHT + "off -> archived filed ARCHIVED bookkeeping\nterminal archived"
    )
    assert kept.follow("off", "archived", "filed").bookkeeping


@pytest.mark.rule("K-3")
def test_a_machine_draws_itself():
    drawing = Machine.parse("light", LIGHT).mermaid()
    assert drawing.startswith("stateDiagram-v2")
    assert "[*] --> red" in drawing
    assert "green --> off : power_cut, switched" in drawing
    assert "off --> [*]" in drawing
