r"""Runs of the transformer in floating point: dense tensors, keys and values of earlier tokens are stored.

All weights and activations have the number type of the run; matrix products accumulate as torch does. Three
parts of the sum are computed in another order than they are written, without a change of the result:

* the attention over the encoder, for all times at once: its query reads 1 and p, which no layer changes;
* heads whose values are zero (layer 1), which add nothing, and heads whose keys are zero (layer 2), whose
  scores all tie: their mean is a running sum, in float32 for bfloat16 (as accelerators accumulate), divided
  by the number of tokens.

Source: :cite:t:`perez2021attention`.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from .machine import Trace, TuringMachine
from .matrices import LAYERS, Matrix, coordinates


def positions(count: int, dtype: torch.dtype) -> Float[Tensor, "count 4"]:
    """Returns 1, p, 1/p and 1/p^2 for p = 1 to ``count``, rounded to the number type, ``[count, 4]``."""
    p = torch.arange(1, count + 1, dtype=torch.float64)
    return torch.stack([torch.ones_like(p), p, 1 / p, 1 / p.square()], dim=1).to(dtype)


def pooled(
    scores: Float[Tensor, "*rows keys"], values: Float[Tensor, "keys d"], inverse_temperature: float | None
) -> Float[Tensor, "*rows d"]:
    """Returns the mean of the values over the best keys (``inverse_temperature`` None), or their softmax
    average, ``[*rows, d]``.
    """
    if inverse_temperature is not None:
        return torch.softmax(inverse_temperature * scores, dim=-1) @ values
    best = (scores == scores.amax(-1, keepdim=True)).to(values.dtype)
    return (best @ values) / best.sum(-1, keepdim=True)


@torch.inference_mode()
def trace(
    machine: TuringMachine,
    weights: Mapping[str, Matrix],
    word: str,
    steps: int,
    *,
    dtype: torch.dtype,
    inverse_temperature: float | None = None,
    all_scores: Float[Tensor, "n n"] | None = None,
) -> Trace:
    """Runs the transformer and decodes its tokens; those after an overflow become "?".

    Args:
        machine, weights: of the transformer.
        word, steps: as in :meth:`.PerezTransformer.run`.
        dtype: number type of weights and activations.
        inverse_temperature: factor of the scores in the softmax; None for hard-max.
        all_scores: matrix to be filled with the scores of the third layer at the first times, one row per
            query.
    """
    T = steps
    W = {name: matrix.dense(dtype) for name, matrix in weights.items()}
    place = {name: number for number, name in enumerate(coordinates(machine))}
    d, last = len(place), slice(len(place) - 4, len(place))

    # Encoder, and the decoder's attention over it, for all times.
    letters = word or machine.blank
    encoded = torch.zeros(len(letters), d, dtype=dtype)
    for row, symbol in enumerate(letters):
        encoded[row, place[f"s3[{symbol}]"]] = 1
    encoded[:, last] = positions(len(letters), dtype)
    pos = torch.zeros(T, d, dtype=dtype)
    pos[:, last] = positions(T, dtype)
    cross = pooled(
        -(pos @ (encoded @ W["encoder.key"]).mT).abs(), encoded @ W["encoder.value"], inverse_temperature
    )

    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    value2, output2 = W["decoder.2.value"], W["decoder.2.output"]
    moves = torch.zeros(value2.shape[1], dtype=wide)
    query, key, value, output = (W[f"decoder.3.{part}"] for part in ("query", "key", "value", "output"))
    keys, values = torch.zeros(T, key.shape[1], dtype=dtype), torch.zeros(T, value.shape[1], dtype=dtype)
    up, down = ([W[f"decoder.{layer}.{part}"] for layer in LAYERS] for part in ("up", "down"))
    tokens = torch.zeros(T + 1, d, dtype=dtype)
    tokens[0, [place[f"q1[{machine.start}]"], place[f"s1[{machine.blank}]"]]] = 1
    head = torch.zeros(T + 1, dtype=dtype)
    attended = torch.full((T + 1,), -1)
    given = pos + cross  # what does not depend on the run
    done = T
    for i in range(T):
        x = tokens[i] + given[i]
        x = x + (x @ up[0]).relu_() @ down[0]
        moves += x @ value2
        x = x + (moves / (i + 1)).to(dtype) @ output2 + cross[i]
        x = x + (x @ up[1]).relu_() @ down[1]
        keys[i], values[i] = x @ key, x @ value
        scores = -(keys[: i + 1] @ (x @ query)).abs_()
        if all_scores is not None and i < len(all_scores):
            all_scores[i, : i + 1] = scores
        if inverse_temperature is None:
            top = int(scores.argmax())
            tie = (scores == scores[top]).nonzero()
            if not len(tie):  # NaN: a run that has failed may overflow
                done = i
                break
            # Only a tie needs the mean over several keys.
            read = values[top] if len(tie) == 1 else pooled(scores, values[: i + 1], None)
            attended[i + 1] = tie[-1, 0]
        else:
            read = pooled(scores, values[: i + 1], inverse_temperature)
            attended[i + 1] = int(scores.argmax())
        head[i + 1] = x[place["x4"]]
        x = x + read @ output + cross[i]
        x = x + (x @ up[2]).relu_() @ down[2]
        h = (x @ W["map.1"]).relu_() @ W["map.2"]
        tokens[i + 1] = h.relu_() @ W["map.3"]

    states, symbols = (
        _largest(tokens[: done + 1], place[f"{block}[{names[0]}]"], names) + ("?",) * (T - done)
        for block, names in (("q1", machine.states), ("s1", machine.alphabet))
    )
    heads = (head.double() * torch.arange(T + 1)).round().nan_to_num(nan=0.0)
    return Trace(states, symbols, tuple(int(cell) for cell in heads.tolist()), tuple(attended.tolist()))


def _largest(tokens: Float[Tensor, "n d"], start: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the name of the largest entry of a block in each token."""
    return tuple(names[k] for k in tokens[:, start : start + len(names)].argmax(1).tolist())
