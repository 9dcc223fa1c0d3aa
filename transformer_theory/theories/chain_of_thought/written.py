r"""A decoder with written weights that finds the length of the longest increasing subsequence by its chain.

    layer 1, head A:  every place i fetches the symbol n places before it,      score [k = i - n]
    layer 1, head B:  every place i fetches the symbol n + 1 places before it,  score [k = i - n - 1]
    layer 1, MLP:
        ReLU(x + gate - 1) keeps slot A at queries in the chain,
        slot B and the symbol d_k at keys in the chain
    layer 2, head:    score  d_k - m [b_k not below a_i],   value: the one-hot vector of d_k
    layer 2, MLP:     shifts the length by one, except after ":"

In the chain, the place before :math:`d_i` holds :math:`a_i` in its slot A, and the place of :math:`d_k` holds
:math:`a_k` in its slot B. So layer 2 attends, among the places with :math:`a_k < a_i`, to the largest
:math:`d_k`; if there is none, to the "=" before the chain, which counts as length 0. After ":" slot A is
empty, and every number counts as smaller. The gates of both MLPs depend on the place alone. The network has a
fixed depth; only its width and the size m of its scores grow with n.

The chain matters because :math:`d_k` must be among the symbols before. With empty symbols in its place every
length is 0.

Source: :cite:t:`feng2023towards` for the setting; the weights are the library's own.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from .dynamic import LIS
from .learning import rows
from .tasks import ANSWER, COMMON, END, THEN, Sample, encode, vocabulary

# scale of the scores of layer 1; a softmax of scale b has weight 1 / (1 + (places - 1) exp(-12 b)) on the
# right place
PLACES = 12.0


def attention(scores: Float[Tensor, "*batch q k"], scale: float) -> Float[Tensor, "*batch q k"]:
    """Returns causal weights: softmax of ``scale`` times the scores, or uniform weights on the largest ones
    if the scale is infinite.
    """
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    scores = scores.masked_fill(~causal, -math.inf)
    if math.isinf(scale):
        top = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        return top / top.sum(-1, keepdim=True)
    return (scale * scores).softmax(-1)


class WrittenDecoder(nn.Module):
    """The decoder of this module, for one task.

    Args:
        task: longest increasing subsequence of n numbers.
        scale: scale of attention; infinite: hard-max.
        dtype: precision of all activations.
    Raises:
        ValueError: the task is another one, the scale is not positive, or the precision is no floating-point
            one.
    """

    value: Tensor

    def __init__(self, task: LIS, *, scale: float = math.inf, dtype: torch.dtype = torch.float64):
        super().__init__()
        if not (isinstance(task, LIS) and scale > 0 and dtype.is_floating_point):
            raise ValueError(
                f"the decoder must have a task LIS(n, values), a scale > 0 and a float dtype, got {task}, "
                f"{scale}, {dtype}"
            )
        self.task, self.scale, self.dtype = task, scale, dtype
        size = len(vocabulary(task))
        # Symbols 0, 1, ... follow the common ones in the vocabulary; "=" counts as the number 0 of a chain.
        value = torch.zeros(size, dtype=dtype)
        value[len(COMMON) :] = torch.arange(size - len(COMMON))
        self.register_buffer("value", value)

    def forward(self, ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocabulary"]:
        """Returns logits: 1 for the next symbol under hard-max, 0 for others.

        Raises:
            ValueError: the ids are no rows that begin with a question of the task and "=".
        """
        n, seq = self.task.n, ids.shape[-1]
        start, size = len(COMMON), len(vocabulary(self.task))
        equals, colon, end = encode(self.task, (THEN, ANSWER, END))
        question = ids[..., :n]
        known = (
            ids.ndim == 2
            and seq > n
            and bool(((question >= start) & (question < start + self.task.values)).all())
        )
        if not (known and bool((ids[:, n] == equals).all()) and int(ids.max()) < size):
            raise ValueError(
                f"ids must be [batch, seq] and begin with {n} numbers of {self.task} and '=', got "
                f"{list(ids.shape)}"
            )
        place = torch.arange(seq)
        offset = place[:, None] - place  # of query and key
        # Layer 1: two heads that see places only. Where no key is n or n + 1 places before, the slot is not
        # used later.
        slots = []
        for back in (n, n + 1):
            weights = attention(PLACES * (offset == back).to(self.dtype), self.scale)
            slots.append((weights @ one_hot(ids, size).to(self.dtype))[..., start:])  # [batch, seq, numbers]
        a, b = slots
        # MLP of layer 1: the gates `chain` and `~answering` below.
        # Layer 2: head with bilinear scores. Query a_i as a one-hot vector becomes the indicator of all
        # numbers that are not below it.
        numbers = a.shape[-1]
        not_below = a @ torch.ones(numbers, numbers, dtype=self.dtype).triu()  # entry v: whether a_i <= v
        chain = (place > n) & (place <= 2 * n)
        answering = place == 2 * n + 1  # ":" asks for the largest length, so every number counts as smaller
        m = float(numbers + 1)  # more than any length
        barred = (not_below * ~answering[:, None]) @ b.mT  # [batch, q, k]: whether b_k is not below a_i
        lengths = self.value[ids] * chain
        scores = lengths[:, None] - m * torch.where(chain, barred, 0.0)  # "=" has score 0 for every query
        scores = torch.where(place < n, -2 * m, scores).to(self.dtype)  # numbers of the question are not read
        values = one_hot(lengths.long(), numbers).to(self.dtype)
        found = attention(scores, self.scale) @ values
        # MLP of layer 2: ReLU(x + gate - 1) passes the shifted vector in the chain and the plain one after
        # ":".
        in_chain = ((place >= n) & (place < 2 * n)).to(self.dtype)[:, None]
        logits = torch.zeros(*ids.shape, size, dtype=self.dtype)
        logits[..., start + 1 :] += torch.relu(found[..., :-1] + in_chain - 1)
        logits[..., start:] += torch.relu(found + answering.to(self.dtype)[:, None] - 1)
        logits[:, place == 2 * n, colon] = 1
        logits[:, place > 2 * n + 1, end] = 1
        return logits


def whole(
    model: nn.Module, task: LIS, samples: Sequence[Sample], *, filler: bool = False
) -> Bool[Tensor, " n"]:
    """Returns whether all symbols after the question are right, ``[n]``, from one pass over the right
    symbols.

    A network that chooses the right symbol after every right beginning generates them all, and conversely. So
    with the chain this is whether the whole row is right in free running.

    Args:
        filler: whether empty symbols stand in place of the chain; then only the answer is compared.
    """
    inputs, targets = rows(task, samples, "filler" if filler else "chain")
    with torch.no_grad():
        found = model(inputs).argmax(-1)
    return ((found == targets) | (targets < 0)).all(1)
