"""Names of macros: of one number each, the same in any order of the results."""

from tests.report import synthetic
from transformer_theory.core.measurement import Row
from transformer_theory.core.result import Result
from transformer_theory.report.macros import macros
from transformer_theory.report.merged import merged


def test_names_do_not_depend_on_the_order_of_results_and_are_of_one_number():
    def verified(bound, value):
        row = Row(theory="crate", quantity="claim: crate/x", value=value, bound=bound, op="<=", seed=0)
        return Result("verify", {}, [Row(**row, verdict="consistent", control="fails")])

    def named(*results):
        return {macro.name: macro.value for macro in macros(merged(results, theories=synthetic.THEORIES))}

    near = verified(0.1, 0.01), verified(0.1001, 0.02), verified(0.10000001, 0.03)  # the third needs letters: six digits do not tell
    forward = named(*near)
    assert forward == named(*reversed(near))
    assert forward["TTcrateXLineZeroPointOneZeroZeroOne"] == 0.02
    assert {0.01, 0.02, 0.03} <= set(forward.values())
    assert named(near[0])["TTcrateX"] == 0.01
    assert "TTcrateX" not in forward

    rows = [Row(theory="crate", quantity="q", value=value, note=str(value)) for value in (1.0, 2.0)]
    assert set(named(Result("made.up", {"seed": 0}, rows)).values()) == {1.0, 2.0}
    assert named(Result("made.up", {"seed": 0}, rows), Result("made.up", {"seed": 1}, rows[1:])) == {}
