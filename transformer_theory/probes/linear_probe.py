r"""A linear probe of a network without class outputs: what its features say of labels.

The features of a sequence are those of the last hidden states :math:`z_t` that the network returns: that of
its class token, or else the mean over the tokens with contents. On a training split, a multinomial logistic
regression with an L2 penalty is fitted to standardised features; its strength is chosen by cross-validation
within this split. The map is then frozen, and its accuracy is that on the other inputs, which neither fit nor
choice have seen.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..core.measurement import Measurement, Null
from ..core.metric import Activations, Metric
from ..core.statistics import clopper_pearson, fixed_generator
from ..core.validation import as_labels
from .evaluation import evaluation, forward
from .features import has_class_token
from .flow import tensors_in
from .forward_pass import NoAttention
from .passes import Batch, Inputs, batches, count, measure_metrics, selected
from .token_masks import Given, given

ACCURACY = "accuracy of a linear probe"
CONSTANT = "most frequent class"  # kind of the chance level
HELD_OUT = 1 / 3  # share of the inputs on which the accuracy is measured
FEWEST = 6  # inputs with a label
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # inverse weights of the penalty
FOLDS = 5
UNSEEN = -1e4  # logit of a class without a training input
ALIKE = 8  # sequences on which the class token is sought


class LinearProbe(nn.Module):
    """A network with a frozen linear map of its features.

    Args:
        network: network that returns hidden states ``[n, seq, dim]``.
        by_class_token: whether the features are those of the first token.
        contents: True for the tokens with contents, ``[seq]``, if they are the same in all sequences; None if
            masks and ids among the inputs tell them.
        special_ids: see :func:`.probe`.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        by_class_token: bool,
        contents: Tensor | None = None,
        special_ids: Collection[int] | None = None,
    ):
        super().__init__()
        self.network, self.by_class_token = network, by_class_token
        self.contents, self.special_ids = contents, special_ids
        if (config := getattr(network, "config", None)) is not None:
            self.config = config
        self.register_buffer("weight", torch.empty(0, 0))
        self.register_buffer("bias", torch.empty(0))

    def features(self, inputs: Tensor | None = None, /, **named: Any) -> Float[Tensor, "n dim"]:
        """Returns the features of inputs ``[n, ...]``, float32."""
        args = () if inputs is None else (inputs,)
        output = self.network(**named) if inputs is None else forward(self.network, inputs)
        hidden = hidden_states(output)
        if hidden is None:
            raise ValueError(f"{type(self.network).__name__} must return hidden states [n, seq, dim]")
        known = given(self.network, args, named, some=lambda x: x, special_ids=self.special_ids, grid=None)
        real = _shown(known, hidden)
        if self.by_class_token:
            return hidden[torch.arange(len(hidden), device=hidden.device), real.int().argmax(1)].float()
        if self.contents is not None and len(self.contents) == hidden.shape[1]:
            real = real & self.contents.to(hidden.device)
        elif known.ids is not None and known.ids.shape == real.shape and known.special:
            special = torch.tensor(sorted(known.special), device=hidden.device)
            real = real & ~torch.isin(known.ids.to(hidden.device), special)
        weights = real.float()
        return (hidden.float() * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1)

    def forward(self, inputs: Tensor | None = None, /, **named: Any) -> Float[Tensor, "n classes"]:
        """Returns the logits of inputs ``[n, ...]``, or of several of them by the name of the argument."""
        features = self.features(inputs, **named)
        return functional.linear(features, self.weight.to(features), self.bias.to(features))


@dataclass(frozen=True, eq=False)
class Probed:
    """A linear probe with its accuracy.

    Attributes:
        network: the network with the frozen map.
        accuracy, interval: share of the held-out inputs whose largest logit is their label, and its 95 %
            Clopper-Pearson interval.
        chance: share of the most frequent class of the held-out inputs.
        held_out: indices of the held-out inputs.
        training: indices of the training inputs.
        reads: which tokens are read, in words.
    """

    network: LinearProbe
    accuracy: float
    interval: tuple[float, float]
    chance: float
    held_out: Int[Tensor, " m"]
    training: Int[Tensor, " k"]
    reads: str


def with_linear_probe(
    network: nn.Module,
    inputs: Inputs,
    labels: Any,
    *,
    batch_size: int = 32,
    special_ids: Collection[int] | None = None,
) -> Probed:
    """Fits a linear probe. The network is not changed.

    The split does not depend on inputs or labels beyond their number, and the fit not on held-out labels.

    Args:
        network: network that returns hidden states ``[n, seq, dim]``, such as a BertModel.
        inputs: its inputs, one tensor ``[n, ...]``, or several by the name of the argument.
        labels: class of each sequence, see :func:`.as_labels`; sequences with negative labels are left out.
        batch_size: number of sequences per forward pass.
        special_ids: see :func:`.probe`.
    Raises:
        ValueError: the network returns no hidden states, fewer than 6 inputs have a label, or the training
            split has one class.
    """
    labels = as_labels("labels", labels, count=count(inputs)).cpu()
    labelled = (labels >= 0).nonzero().squeeze(1)
    if len(labelled) < FEWEST:
        raise ValueError(f"a linear probe needs at least {FEWEST} inputs with a label, got {len(labelled)}")
    order = labelled[torch.randperm(len(labelled), generator=fixed_generator())]
    held = max(round(HELD_OUT * len(order)), 1)
    held_out, training = order[:held].sort().values, order[held:].sort().values
    if len(labels[training].unique()) < 2:
        raise ValueError(f"the {len(training)} training inputs of the probe must have two classes, got one")
    by_class_token, contents = _layout(network, selected(inputs, training[:ALIKE]), special_ids)
    model = LinearProbe(network, by_class_token=by_class_token, contents=contents, special_ids=special_ids)
    with evaluation(network), torch.random.fork_rng():
        chosen = batches(selected(inputs, order), None, batch_size)
        rows = torch.cat([_features(model, batch).cpu() for batch in chosen]).double().numpy()
    x = np.empty((len(labels), rows.shape[1]))
    x[order.numpy()] = rows
    weight, bias = fitted(x[training.numpy()], labels[training].numpy())
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    model.weight, model.bias = (torch.from_numpy(each).float().to(device) for each in (weight, bias))
    found = (x[held_out.numpy()] @ weight.T + bias).argmax(1)
    truth = labels[held_out].numpy()
    right, chance = int((found == truth).sum()), int(np.bincount(truth).max()) / held
    low, high = clopper_pearson(right, held)
    reads = "the class token" if by_class_token else "the mean of the tokens with contents"
    return Probed(model.eval(), right / held, (float(low), float(high)), chance, held_out, training, reads)


def linear_probe_rows(
    network: nn.Module,
    inputs: Inputs,
    labels: Tensor | None,
    *,
    name: str,
    batch_size: int = 32,
    special_ids: Collection[int] | None = None,
) -> Sequence[Measurement]:
    """Returns the accuracy of a linear probe on held-out inputs as one row, or the reason why there is none;
    no row if there are no labels or if the network has outputs of its own.

    Args:
        network, inputs, labels, batch_size, special_ids: see :func:`with_linear_probe`.
        name: column ``model`` of the row.
    """
    if labels is None or not _is_headless(network, inputs):
        return ()
    columns: dict[str, Any] = {"unit": "share", "split": "held-out", "model": name}
    try:
        probed = with_linear_probe(network, inputs, labels, batch_size=batch_size, special_ids=special_ids)
    except ValueError as error:
        return (Measurement("network", "network", ACCURACY, None, reason=str(error), **columns),)
    place: dict[str, Any] = {
        "interval": probed.interval,
        "interval_kind": "over held-out inputs",
        "n": len(probed.held_out),
    }
    note = f"fitted on {len(probed.training)} other inputs; reads {probed.reads}"
    nulls = (Null(CONSTANT, (probed.chance,)),)
    row = Measurement(
        "network", "network", ACCURACY, probed.accuracy, nulls=nulls, note=note, **place, **columns
    )
    return (row,)


def fitted(
    x: Float[np.ndarray, "n dim"], y: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"]]:
    """Fits a multinomial logistic regression to standardised features and returns weights and biases for the
    features themselves, of classes 0 to the largest label.

    The strength of the penalty is that of most right predictions in cross-validation; among equals the
    strongest penalty.
    """
    from sklearn.model_selection import KFold

    folds = list(KFold(min(FOLDS, len(y)), shuffle=True, random_state=0).split(x))
    folds = [(train, test) for train, test in folds if len(set(y[train])) > 1]

    def right(strength: float) -> int:
        return sum(int((_regression(x[a], y[a], strength).predict(x[b]) == y[b]).sum()) for a, b in folds)

    model = _regression(x, y, max(STRENGTHS, key=right))
    scaler, regression = model[0], model[-1]
    weights, biases = regression.coef_ / scaler.scale_, regression.intercept_
    if len(regression.classes_) == 2:  # one logit, that of the second class
        weights, biases = np.concatenate([0 * weights, weights]), np.concatenate([0 * biases, biases])
    biases = biases - weights @ scaler.mean_
    classes = int(y.max()) + 1
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, UNSEEN)
    weight[regression.classes_], bias[regression.classes_] = weights, biases
    return weight, bias


def _regression(x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000)).fit(x, y)


def hidden_states(output: Any) -> Float[Tensor, "n seq dim"] | None:
    """Returns the last hidden states among the outputs of a network without class outputs; None if it has
    none.
    """
    if isinstance(getattr(output, "logits", None), Tensor):
        return None
    last = getattr(output, "last_hidden_state", None)
    first = last if isinstance(last, Tensor) else next(tensors_in(output), None)
    return first if first is not None and first.ndim == 3 and first.is_floating_point() else None


def _is_headless(network: nn.Module, inputs: Inputs) -> bool:
    with evaluation(network), torch.random.fork_rng():
        one = selected(inputs, slice(0, 1))
        output = network(**one) if isinstance(one, Mapping) else forward(network, one)
    return hidden_states(output) is not None


def _features(model: LinearProbe, batch: Batch) -> Float[Tensor, "n dim"]:
    inputs = batch.inputs
    return model.features(inputs) if isinstance(inputs, Tensor) else model.features(**inputs)


def _shown(known: Given, hidden: Float[Tensor, "n seq dim"]) -> Tensor:
    """Returns True for the real tokens, ``[n, seq]``, by the masks among the inputs."""
    real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    for mask in known.masks.values():
        if mask.shape == real.shape:
            real = real & mask.to(hidden.device)
    return real


class _Layout(Metric):
    """Finds which tokens of the last block have contents, and whether the first token sees others."""

    takes_padding = True

    def __init__(self):
        super().__init__()
        self.contents: Tensor | None = None
        self.first_sees_others = True

    def update(self, activations: Activations) -> None:
        """Keeps what the last module shows."""
        if activations.kind == "features":
            self.contents = activations.content
        elif activations.mask is not None and activations.mask.shape[-2:].numel() > 1:
            first = activations.mask[..., 0, 1:]
            self.first_sees_others = bool(first.any())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns no measurements."""
        return ()


def _layout(
    network: nn.Module, inputs: Inputs, special_ids: Collection[int] | None
) -> tuple[bool, Tensor | None]:
    """Returns whether the first token is a class token, and the tokens with contents, ``[seq]``, if they are
    the same in all sequences without masks among the inputs.
    """
    layout = _Layout()
    options: dict[str, Any] = {"draws": 0, "n": count(inputs), "special_ids": special_ids}
    try:
        with torch.random.fork_rng():
            measure_metrics(network, [Batch(inputs)], [layout], name="", **options)
    except NoAttention:
        return has_class_token(network), None
    contents = layout.contents
    if contents is None:
        return has_class_token(network) and layout.first_sees_others, None
    if layout.first_sees_others and not bool(contents[:, 0].any()):
        return True, None
    alike = isinstance(inputs, Tensor) and bool((contents == contents[:1]).all())
    return False, contents[0] if alike else None
