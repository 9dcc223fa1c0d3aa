"""Decoders trained on four classes of functions, beside least squares, ridge and nearest neighbours.

Source: :cite:t:`garg2022what`, with larger decoders, 20 dimensions and 500,000 steps.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ..learning import train_on_functions
from ..prompts import FUNCTIONS, function_prompts
from ..references import answers_of, least_squares, nearest, ridge

ERROR = "mean squared error as a share of that of the answer zero"
RIDGE = 0.5  # strength times the number of examples
SHOWN = {"ylim": (-0.05, 2.5)}


@figure(
    "in_context.functions",
    source=Source("garg2022what", status="own"),
    view=curves(
        "N",
        panels=[
            Panel(kind.capitalize(), ERROR, {"functions": kind}, "method", "", {"_": 1.0}, legend, SHOWN)
            for kind, legend in zip(FUNCTIONS, ("", "", "", "ends"))
        ],
        xlabel="examples",
        caption="Errors as shares of that of the answer zero (dashed). Errors above 2.5 are cut; least "
        "squares has some where N is near the dimension.",
        size=(9.5, 2.9),
    ),
    quick={"examples": (2, 6), "steps": 20, "tested": 200},
)
def functions(
    *,
    dimensions: int = setting(3, ge=1, le=20, help="coordinates of an input"),
    examples: tuple[int, ...] = setting(
        (1, 2, 3, 4, 6, 9, 12, 16, 24), ge=1, le=200, help="numbers of examples; training has up to the last"
    ),
    steps: int = setting(600, ge=1, le=1_000_000, help="steps of training"),
    tested: int = setting(2000, ge=10, le=100_000, help="prompts per number of examples"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Error of trained decoders and of three algorithms against the number of examples, for four classes of
    functions.
    """
    generator = torch.Generator().manual_seed(seed)
    for kind in FUNCTIONS:
        model = train_on_functions(kind, d=dimensions, N=max(examples), steps=steps, generator=generator)
        for N in examples:
            prompts = function_prompts(kind, tested, N, dimensions, generator=generator)
            others = prompts.with_contexts(torch.arange(tested).roll(1))
            answers = {
                "decoder": answers_of(model, prompts),
                "least squares": least_squares(prompts),
                "ridge": ridge(prompts, RIDGE / N),
                "3 neighbours": nearest(prompts),
                "decoder, other context": answers_of(model, others),
            }
            zero = prompts.target.square().mean()
            for name, answer in answers.items():
                error = float((answer - prompts.target).square().mean() / zero)
                yield reading(ERROR, error, at={"functions": kind, "method": name, "N": N}, n=tested)
