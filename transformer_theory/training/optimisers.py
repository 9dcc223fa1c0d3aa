r"""Optimisers of a network with layers (AdamW, Muon), the schedule of their learning rate, and the moving average of the weights.

    AdamW   m ← β1 m + (1 - β1) g,  v ← β2 v + (1 - β2) g²,       W ← (1 - η w) W - η m̂ / (sqrt(v̂) + ε)
    Muon    m ← μ m + (1 - μ) g,    c = (1 - μ) g + μ m = A S B,  W ← (1 - η w) W - 0.2 η sqrt(max(rows, columns)) A S' B

with learning rate η and weight decay w; S' has singular values of about 1 in place of those of c. Muon acts on the matrices of the layers;
all other parameters take AdamW. The scale 0.2 sqrt(max(rows, columns)) makes both updates equally large, so that one learning rate serves
both. Muon computes S' in bfloat16 for weights of any type, so two runs whose gradients differ by rounding differ by the rounding of
bfloat16.

Weight decay acts on maps of features only: not on norms, biases, temperatures, class and mask tokens, positions.
In a network of L layers with layer-wise decay d, layer l = 1, ..., L learns at the rate η d^(L + 1 - l), parameters before the layers
(embedding, class token, positions) at η d^(L + 1), parameters after them (last norm, head) at η.

The moving average, which is often the better network, is that of TensorFlow's ``tf.train.ExponentialMovingAverage``:

    W̄ ← d_t W̄ + (1 - d_t) W,        d_0 = 0,  d_t = min(d, (1 + t) / (10 + t)) after t ≥ 1 averages

so the first weights are copied, and forgotten soon: d_1 = 2/11, d_2 = 1/4. Until d_t reaches d, after (10 d - 1) / (1 - d) averages (8,990
for d = 0.999), the memory is t / 9 steps.

Source: :cite:t:`loshchilov2019decoupled` (AdamW); Jordan (2024),
kellerjordan.github.io/posts/muon, and :cite:t:`liu2025muon` (the scale of Muon); :cite:t:`clark2020electra`
and :cite:t:`bao2022beit` (layer-wise decay, for fine-tuning); :cite:t:`xiong2020layer` (why transformers warm up);
:cite:t:`loshchilov2017sgdr`, Eq. 5, without restarts (cosine).
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_*: one call for all parameters, as the optimisers of torch have it

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Weights = list[Tensor] | tuple[Tensor, ...]
NAMES = ("adamw", "muon")
BETAS = (0.9, 0.999)  # of AdamW, also of the parameters that Muon leaves to it


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    """The loss of the closure; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Together(torch.optim.Optimizer):
    """Several optimisers of different parameters as one: one list of groups, one step, one state.

    Args:
        parts: each steps its own parameters.
    """

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})  # the groups themselves, not copies

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _evaluated(closure)
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def optimiser(
    model: nn.Module,
    *,
    name: str = "adamw",
    learning_rate: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    betas: tuple[float, float] = BETAS,
) -> torch.optim.Optimizer:
    """An optimiser of a network's trainable parameters, one group per learning rate and decay; a schedule acts on it by :func:`scale`.

    Args:
        model: with layers if Muon or layer-wise decay is used, see :func:`places_of`.
        name: "adamw" or "muon".
        learning_rate: of the parameters after the layers.
        weight_decay: of matrices.
        layer_decay: of the learning rate from a layer to the one before, in (0, 1].
        betas: of AdamW.
    Returns:
        One optimiser, whose groups carry their own learning rate as ``initial_lr``.
    Raises:
        ValueError: an unknown name, a number out of range, no trainable parameter, no layers where they are needed, or Muon with a torch
            before 2.9.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if not (0 < learning_rate < float("inf") and 0 <= weight_decay < float("inf") and 0 < layer_decay <= 1):
        values = f"learning_rate {learning_rate}, weight_decay {weight_decay}, layer_decay {layer_decay}"
        raise ValueError(f"learning_rate must be positive, weight_decay at least 0 and layer_decay in (0, 1], got {values}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ValueError(f"optimiser muon needs torch 2.9 or later, got torch {torch.__version__}; choose adamw, or upgrade torch")

    trainable = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise ValueError("model must have a trainable parameter, got requires_grad=False for all; set some to True")
    places, end = places_of(model) if name == "muon" or layer_decay < 1 else (dict.fromkeys(trainable, 0), 0)
    hidden = {key for key, weight in trainable.items() if name == "muon" and weight.ndim == 2 and decays(weight) and 0 < places[key] < end}

    def groups(keys: Iterable[str]) -> list[dict[str, Any]]:
        """One for each learning rate and weight decay."""
        kinds: dict[tuple[float, float], list[Tensor]] = {}
        for key in keys:
            kind = learning_rate * layer_decay ** (end - places[key]), weight_decay * decays(trainable[key])
            kinds.setdefault(kind, []).append(trainable[key])
        return [{"params": weights, "lr": rate, "initial_lr": rate, "weight_decay": w} for (rate, w), weights in kinds.items()]

    rest = groups(key for key in trainable if key not in hidden)
    adamw = torch.optim.AdamW(rest, lr=learning_rate, betas=betas, fused=True)
    if name == "adamw":
        return adamw
    return Together(torch.optim.Muon(groups(key for key in trainable if key in hidden), adjust_lr_fn="match_rms_adamw"), adamw)


def scale(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of each group to ``factor`` times its own."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]


def warm_up_cosine(progress: float, *, warm_up: float = 0.05, floor: float = 0.0) -> float:
    r"""The factor of the learning rate at a share of the training: from 0 linearly to 1, then along half a cosine to the floor.

        p / w                                         p < w
        f + (1 - f) (1 + cos(π (p - w) / (1 - w))) / 2    p >= w

    At progress 0 it is 0, so a step uses the progress at its end.

    Args:
        progress: p, share of the training, in [0, 1].
        warm_up: w, share of the training, in [0, 1).
        floor: f, factor at the end, in [0, 1].
    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= progress <= 1 and 0 <= warm_up < 1 and 0 <= floor <= 1):
        values = f"progress {progress}, warm_up {warm_up}, floor {floor}"
        raise ValueError(f"progress and floor must lie in [0, 1] and warm_up in [0, 1), got {values}")
    if progress < warm_up:
        return progress / warm_up
    return floor + (1 - floor) * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2


def exponential_average(model: nn.Module, *, decay: float = 0.999) -> AveragedModel:
    """A copy of a network that ``update_parameters(model)`` moves towards it; called as the network, stored by its ``state_dict``.

    Buffers are copied, not averaged.

    Args:
        model: the network in its initial state.
        decay: d, in [0, 1).
    Raises:
        ValueError: decay is out of range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), got {decay}")

    @torch.no_grad()
    def update(averaged: Weights, current: Weights, count: Tensor | int) -> None:
        t = int(count)  # at least 1: torch copies at the first update
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + t) / (10 + t)))

    return AveragedModel(model, multi_avg_fn=update)


def decays(weight: Float[Tensor, "..."]) -> bool:
    """Whether weight decay acts on a parameter ``[...]``: it does if the parameter has several rows of several numbers.

    So it does not act on vectors, rows or columns, nor on tokens and positions ``[1, n, dim]``, which a whole batch shares.
    """
    return weight.ndim > 0 and 1 < len(weight) < weight.numel()


def places_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """The place of each parameter by name, 0 before the layers, l in layer l = 1, ..., L, L + 1 after them; and L + 1.

    The layers are the members of the first list or sequence, outermost first, whose members have one type and submodules, without
    convolutions, which belong to a stem. Parameters before them, in the order of the model, belong to the embedding; those after them, also
    of a decoder, belong to the head.

    Raises:
        ValueError: the model has no such list.
    """
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList | nn.Sequential) and _alike(layers):
            break
    else:
        raise ValueError(
            f"model must hold its layers in a torch.nn.ModuleList of modules of one type, got {type(model).__name__} without;"
            " choose layer_decay=1 and an optimiser other than muon"
        )
    number = {id(weight): place for place, layer in enumerate(layers, start=1) for weight in layer.parameters()}
    end, places = len(layers) + 1, {}
    for name, weight in model.named_parameters():
        outside = end if places and max(places.values()) else 0
        places[name] = number.get(id(weight), outside)
    return places, end


def _alike(layers: nn.ModuleList | nn.Sequential) -> bool:
    kinds = {type(layer) for layer in layers}
    stem = any(isinstance(module, nn.Conv2d) for module in layers.modules())
    return len(kinds) == 1 and not stem and all(len(layer._modules) for layer in layers)
