r"""Optimisers of a network with layers (AdamW, Muon), the schedule of their learning rate, and the moving
average of the weights.

    AdamW   m ← β1 m + (1 - β1) g,  v ← β2 v + (1 - β2) g²,       W ← (1 - η w) W - η m̂ / (sqrt(v̂) + ε)
    Muon    m ← μ m + (1 - μ) g,
            c = (1 - μ) g + μ m = A S B,  W ← (1 - η w) W - 0.2 η sqrt(max(rows, columns)) A S' B

with learning rate η and weight decay w. The singular values S' are about 1, in place of those of c. Muon acts
on the matrices of the layers; all other parameters take AdamW. The scale 0.2 sqrt(max(rows, columns)) gives
updates of Muon the size of those of AdamW, so that one learning rate serves both. Muon computes S' in
bfloat16 for weights of any type, so a rounding error in the gradient grows to one of bfloat16 in the update.

Weight decay acts on matrices that map features, not on norms, biases, temperatures, class tokens, mask tokens
or positions. In a network of L layers with layer-wise decay d, layer l = 1, ..., L has the learning rate η
d^(L + 1 - l). Parameters before the layers (embedding, class token, positions) have η d^(L + 1), and
parameters after them (last norm, head) have η. With d = 0 the body is frozen.

The averaged network is often better than the last one. The average is that of TensorFlow's
``tf.train.ExponentialMovingAverage``:

    W̄ ← d_t W̄ + (1 - d_t) W,        d_0 = 0,  d_t = min(d, (1 + t) / (10 + t)) after t ≥ 1 averages

The first weights are copied; the small early decays, d_1 = 2/11 and d_2 = 1/4, soon remove their influence.
Until d_t reaches d, after (10 d - 1) / (1 - d) averages (8,990 for d = 0.999), the average extends over the
last t / 9 steps.

Source: :cite:t:`loshchilov2019decoupled` (AdamW); Jordan (2024),
kellerjordan.github.io/posts/muon, and :cite:t:`liu2025muon` (the scale of Muon); :cite:t:`clark2020electra`
and :cite:t:`bao2022beit` (layer-wise decay, for fine-tuning); :cite:t:`xiong2020layer` (why transformers warm
up); :cite:t:`loshchilov2017sgdr`, Eq. 5, without restarts (cosine).
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_* updates all parameters in one call, as torch's own optimisers do.

import math
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Weights = list[Tensor] | tuple[Tensor, ...]
NAMES = ("adamw", "muon")
BETAS = (0.9, 0.999)  # of AdamW, also of the parameters that Muon leaves to it


def _closure_loss(closure: Callable[[], Any] | None) -> Any:
    """Returns the loss that the closure computes; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Together(torch.optim.Optimizer):
    """Combines several optimisers of different parameters into one, with one list of groups, one step and one
    state.

    Args:
        parts: the optimisers, each with its own parameters.
    """

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts
        # The groups are shared with the parts, so that a learning rate set here reaches them.
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _closure_loss(closure)
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
    """Returns an optimiser of a network's trainable parameters, with one group per learning rate and weight
    decay.

    Use :func:`scale` to apply a schedule.

    Args:
        model: the network; Muon and layer-wise decay need its layers, see :func:`places_of`.
        name: "adamw" or "muon".
        learning_rate: learning rate of the parameters after the layers.
        weight_decay: weight decay of matrices.
        layer_decay: ratio of the learning rate of a layer to that of the next layer, in [0, 1]; with 0 only
            the parameters after the layers are trained, see :func:`freeze_body`.
        betas: decay rates of the two moments of AdamW.
    Returns:
        One optimiser, whose groups store their unscaled learning rate as ``initial_lr``.
    Raises:
        ValueError: the name is unknown, a number is out of range, no parameter is trainable, layers are
            needed and missing, or torch is older than 2.9 and has no Muon.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if not (0 < learning_rate < float("inf") and 0 <= weight_decay < float("inf") and 0 <= layer_decay <= 1):
        values = f"learning_rate {learning_rate}, weight_decay {weight_decay}, layer_decay {layer_decay}"
        raise ValueError(
            f"learning_rate must be positive, weight_decay at least 0 and layer_decay in [0, 1], got {values}"
        )
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ValueError(
            f"optimiser muon needs torch 2.9 or later, got torch {torch.__version__}; choose adamw, or "
            "upgrade torch"
        )

    if not layer_decay:
        freeze_body(model)
    trainable = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    if not trainable:
        raise ValueError(
            "model must have a trainable parameter, got requires_grad=False for all; set some to True"
        )
    places, end = places_of(model) if name == "muon" or layer_decay < 1 else (dict.fromkeys(trainable, 0), 0)
    hidden = {
        key
        for key, weight in trainable.items()
        if name == "muon" and weight.ndim == 2 and decays(weight) and 0 < places[key] < end
    }

    def groups(keys: Iterable[str]) -> list[dict[str, Any]]:
        """Returns one parameter group per learning rate and weight decay."""
        by_rates: dict[tuple[float, float], list[Tensor]] = {}
        for key in keys:
            rates = learning_rate * layer_decay ** (end - places[key]), weight_decay * decays(trainable[key])
            by_rates.setdefault(rates, []).append(trainable[key])
        return [
            {"params": weights, "lr": rate, "initial_lr": rate, "weight_decay": w}
            for (rate, w), weights in by_rates.items()
        ]

    rest = groups(key for key in trainable if key not in hidden)
    adamw = torch.optim.AdamW(rest, lr=learning_rate, betas=betas, fused=True)
    if not hidden:  # none with "adamw"; with a frozen body none is left for Muon either
        return adamw
    return Together(
        torch.optim.Muon(groups(key for key in trainable if key in hidden), adjust_lr_fn="match_rms_adamw"),
        adamw,
    )


def freeze_body(model: nn.Module) -> None:
    """Freezes all except the parameters after the layers, the last norm and the head: ``requires_grad`` is
    False.

    Modules without a trainable parameter also stay in evaluation mode, so that the running statistics of a
    BatchNorm do not change and nothing is dropped at random in the body.

    Raises:
        ValueError: the model has no layers, see :func:`places_of`, or no parameter after them.
    """
    places, end = places_of(model)
    if not any(place == end for place in places.values()):
        raise ValueError(
            f"model must have a head after its layers if layer_decay is 0, got {type(model).__name__} "
            "without; choose another"
        )
    for name, weight in model.named_parameters():
        if places[name] < end:
            weight.requires_grad_(False)
    for module in model.modules():
        weights = list(module.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            module.train = MethodType(_stay_in_evaluation, module)  # pyright: ignore[reportAttributeAccessIssue]
            module.train()


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return type(module).train(module, False)


def scale(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of each group to ``factor`` times its ``initial_lr``."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]


def warm_up_cosine(progress: float, *, warm_up: float = 0.05, floor: float = 0.0) -> float:
    r"""Returns the factor of the learning rate: it rises linearly from 0 to 1, then falls along half a cosine
    to the floor.

        p / w                                         p < w
        f + (1 - f) (1 + cos(π (p - w) / (1 - w))) / 2    p >= w

    The factor is 0 at progress 0, with which a step would change nothing; pass the progress at the end of the
    step.

    Args:
        progress: p, completed share of the training, in [0, 1].
        warm_up: w, share of the training over which the factor rises, in [0, 1).
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
    """Returns a moving average of a network's weights: a module that is called like the network.

    ``update_parameters(model)`` adds the present weights to the average and copies the buffers, which are not
    averaged. ``state_dict`` stores the average.

    Args:
        model: the network with its initial weights.
        decay: d, in [0, 1).
    Raises:
        ValueError: decay is out of range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), got {decay}")

    @torch.no_grad()
    def update(averaged: Weights, current: Weights, count: Tensor | int) -> None:
        t = int(count)  # at least 1: torch copies the weights at the first update, without this function
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + t) / (10 + t)))

    return AveragedModel(model, multi_avg_fn=update)


def decays(weight: Float[Tensor, "..."]) -> bool:
    """Returns whether weight decay acts on a parameter ``[...]``: whether it has several rows with several
    numbers each.

    Vectors, single rows and single columns are excluded. So are tokens and positions ``[1, n, dim]``, which
    all images of a batch share.
    """
    return weight.ndim > 0 and 1 < len(weight) < weight.numel()


def places_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """Returns the place of each parameter by name, and L + 1 for L layers.

    The place is 0 before the layers, l in layer l = 1, ..., L, and L + 1 after the layers.

    The layers are the members of the first ``ModuleList`` or ``Sequential``, outermost first, whose members
    all have the same type and submodules. Lists with convolutions are skipped: they belong to a stem.
    Parameters that the model registers before its layers belong to the embedding; parameters after them
    belong to the head, including those of a decoder.

    Raises:
        ValueError: the model has no such list.
    """
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList | nn.Sequential) and _are_layers(layers):
            break
    else:
        raise ValueError(
            "model must hold its layers in a torch.nn.ModuleList of modules of one type, got "
            f"{type(model).__name__} without; choose layer_decay=1 and an optimiser other than muon"
        )
    number = {
        id(weight): place for place, layer in enumerate(layers, start=1) for weight in layer.parameters()
    }
    end, places = len(layers) + 1, {}
    for name, weight in model.named_parameters():
        # after the first parameter of a layer, the head begins
        outside = end if places and max(places.values()) else 0
        places[name] = number.get(id(weight), outside)
    return places, end


def _are_layers(layers: nn.ModuleList | nn.Sequential) -> bool:
    """Returns whether the members are layers: of one type, with submodules and without convolutions."""
    types = {type(layer) for layer in layers}
    has_convolution = any(isinstance(module, nn.Conv2d) for module in layers.modules())
    return len(types) == 1 and not has_convolution and all(len(layer._modules) for layer in layers)
