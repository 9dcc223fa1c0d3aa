"""The statements about the figures of JoMA, checked at the published settings."""

from transformer_theory.theories.joma.figures import invariant, lower_layer


def test_the_correlation_hides_what_the_error_shows(unchecked):
    """The setting of Fig. 2: the correlation stays above .98 while the size of the prediction goes wrong."""
    result = invariant.Invariant(seeds=1).run()

    def value(quantity: str, step: int, way: str = "both terms") -> float:
        return result.select(quantity=quantity, setting=f"Gaussian contexts, {way}", step=step).one().value

    assert all(value(invariant.CORRELATION, step) > 0.98 for step in (100, 1000, 2000))
    assert value(invariant.ERROR, 100) < 0.3
    assert value(invariant.ERROR, 2000) > 5
    assert value(invariant.ERROR, 2000, "moving mean") < 1
    judged = result.select(quantity=invariant.ERROR, seed=0)
    assert judged.select(setting="Gaussian contexts, one draw", step=100).one().verdict == "consistent"
    # Attention has moved .08 of its mass only, but the second moment does not factorise.
    assert judged.select(setting="random contexts, one draw", step=1000).one().verdict == "not covered"


def test_the_stable_rank_falls_and_comes_back(unchecked):
    result = lower_layer.LowerLayer(seeds=4).run()
    drop, rebound = (result.select(quantity=quantity).one() for quantity in (lower_layer.DROP, lower_layer.REBOUND))
    assert drop.value > 0.1 > 1e-9 > drop.null.high
    assert rebound.value > 0.1
    assert rebound.null.high == 0
