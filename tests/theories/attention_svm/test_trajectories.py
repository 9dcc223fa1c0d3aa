"""The two pictured examples: solutions to the last published digit, descent on W and on the factors, and the
figure.
"""

import pytest
import torch

from tests.problems.attention_svm import PICTURES
from transformer_theory.core.figure import published
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.figures.trajectories import COSINES, KQ, W, trajectories
from transformer_theory.theories.attention_svm.problem import published_instance
from transformer_theory.theories.attention_svm.published import published_instances, published_picture


@pytest.fixture
def result(run):
    return run(trajectories())


def digits(value: float, shown: float) -> bool:
    """Whether the value rounds to the number shown, which has five or six decimals."""
    return abs(value - shown) <= 0.5e-5 if round(shown, 5) == shown else abs(value - shown) <= 0.5e-6


def test_every_published_number_is_met_to_the_last_digit(result):
    known = published(result.table)
    assert len(known) == 2 * (4 + 4 + 2 + 1 + 1)
    for row in known:
        assert digits(row.value, row.predicted), row


@pytest.mark.parametrize("number", [1, 2])
def test_the_data_are_those_of_the_picture(number):
    instance = published_picture(number)
    assert instance.optimal().tolist() == PICTURES[number]["select"]
    # drawn in single precision
    assert instance.query.norm(dim=-1).tolist() == pytest.approx([1, 1], abs=1e-7)
    if number == 2:
        assert instance.tokens[:, 0].tolist() == [[1, 0.5], [1, -0.5]]
        assert float(instance.tokens[:, 1:, 0].mean()) < 0  # the others are around (-1, 0)
    else:
        assert (instance.tokens[0, :, 0] < 0).all()
        assert (instance.tokens[1, :, 0] > 0).all()


@pytest.mark.parametrize("number", [1, 2])
def test_factors_go_to_the_nuclear_solution_and_w_to_the_frobenius_one(result, number):
    def reached(norm, run):
        return result.select(quantity=COSINES[norm], at={"picture": number, "descent": run}).one().value

    assert reached("nuclear", KQ) > 0.997 > 0.94 > reached("frobenius", KQ)
    assert reached("frobenius", W) > 0.999 > 0.94 > reached("nuclear", W)


def test_paths_are_those_of_descent(result):
    """The stored points are W z_i; the last ones are compared with a separate run."""
    instance = published_picture(1)
    end = attention_svm.normalised_descent(instance, attention_svm.start(instance), steps=2000).W
    last = torch.from_numpy(result.arrays["attention_svm/1_path_W"][-1])
    assert float((last - instance.query @ end.T).abs().max()) < 1e-9
    assert not result.arrays["attention_svm/1_path_W"][0].any()  # from W = 0
    nuclear = torch.from_numpy(result.arrays["attention_svm/1_nuclear"])
    assert float(cosine(nuclear, torch.from_numpy(result.arrays["attention_svm/1_path_KQ"][-1]))) > 0.99


def test_another_picture_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"number .*got 3"):
        published_picture(3)
    with pytest.raises(ValueError, match="seeds"):
        published_instances(range(0), inputs=2, tokens=3, dim=4)


def test_published_instances_agree_with_single_ones():
    batch = published_instances((3, 7), inputs=4, tokens=5, dim=6)
    for trial, seed in enumerate((3, 7)):
        alone = published_instance(seed, inputs=4, tokens=5, dim=6)
        assert all(
            torch.equal(getattr(batch[trial], name), getattr(alone, name))
            for name in ("tokens", "query", "scores")
        )


def test_the_figure_has_a_panel_for_paths_and_one_for_tokens_of_each_example(result):
    titles = [ax.get_title(loc="left") for ax in trajectories().plot(result).axes]
    assert titles == [
        f"Example {k}: {panel}" for k in (1, 2) for panel in ("paths of $Wz_1$, $Wz_2$", "tokens")
    ]
