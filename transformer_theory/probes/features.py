"""Hidden states of a trained network as a data set, in the form that every theory accepts."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ..core.errors import nearest
from ..core.measurement import Measurement
from ..core.metric import Activations, Metric
from ..data.bridges import codebook, number_of_words
from ..data.tokens import TokenData
from .evaluation import evaluation, forward
from .forward_pass import NoAttention
from .probing import probe


def features(
    model: nn.Module, data: TokenData, *, layer: int | str = -1, inputs: str = "tokens", batch_size: int = 256
) -> TokenData:
    """Returns the data with the output of one block as tokens, ``[n, seq', dim']``, float64.

    The model runs without gradients, in evaluation mode (its mode is restored), in its own precision and on
    its own device. A model of ``transformers`` receives the inputs as the keyword argument that its
    ``main_input_name`` names. The query is the first token if a parameter is called ``cls_token``, otherwise
    the last token. Labels and images are copied from the data, and so are ids and next_id if the sequence has
    the same length; a class token has no id. If a block divides a sequence into windows, the windows are
    concatenated in order.

    Args:
        model: the network.
        data: the inputs.
        layer: index of a block in the order of execution (-1: the last block), or a glob that matches one
            module, such as ``"blocks.1"``. Blocks are those of a probe: the layers around each attention of
            the residual stream. In a network without attention they are the modules of its longest
            ``ModuleList``.
        inputs: field of the data that the model receives: ``"tokens"``, ``"images"`` or ``"ids"``.
        batch_size: number of sequences per forward pass.
    Raises:
        ValueError: the block does not exist, several modules match, the block does not return ``[batch, seq,
            dim]`` once per forward pass, or the data lack ``inputs``.
    """
    if inputs not in ("tokens", "images", "ids"):
        raise ValueError(f"inputs must be 'tokens', 'images' or 'ids', got {inputs!r}")
    source = getattr(data, inputs)
    if source is None:
        raise ValueError(
            f"the model needs {inputs}, but {data.name} has none; choose another field with inputs="
        )
    chunks, seq = source.split(batch_size), data.tokens.shape[1]
    name, outputs = (
        _of_module(model, layer, chunks) if isinstance(layer, str) else _of_block(model, layer, chunks)
    )
    if len(outputs) != len(chunks) or any(len(output) % len(chunk) for output, chunk in zip(outputs, chunks)):
        count = sum(map(len, outputs))
        raise ValueError(
            f"block {name} must run once per forward pass, got {count} outputs for {len(source)} sequences; "
            "choose another layer"
        )
    # A block of windows returns [batch * windows, tokens of a window, dim].
    joined = [output.reshape(len(chunk), -1, output.shape[-1]) for output, chunk in zip(outputs, chunks)]
    tokens = torch.cat(joined).to("cpu", torch.float64)
    same_length = tokens.shape[1] == seq
    return TokenData(
        tokens=tokens,
        labels=data.labels,
        query=tokens[:, 0] if has_class_token(model) else tokens[:, -1],
        ids=data.ids if same_length else None,
        next_id=data.next_id if same_length else None,
        images=data.images,
        vocab_size=data.vocab_size if same_length else None,
        name=f"{data.name}, {type(model).__name__} {name}",
        sources=data.sources,
    )


def features_with_words(
    model: nn.Module,
    data: TokenData,
    *,
    words: int,
    generator: torch.Generator,
    layer: int | str = -1,
    inputs: str = "tokens",
) -> TokenData:
    """Returns :func:`features` with ids from a codebook of these tokens; without ids if the data lack ids or
    labels.

    As in the raw data, ids of labels follow the ids of words, and ``next_id`` is the id of the label. A class
    token, which is the query of every sequence, gets one extra id.

    Args:
        model: network.
        data: inputs.
        words: number of words of the codebook; fewer if there are fewer different tokens.
        generator: random generator of the codebook.
        layer: see :func:`features`.
        inputs: see :func:`features`.
    """
    result = features(model, data, layer=layer, inputs=inputs)
    if data.ids is None or data.labels is None:
        return result
    position = result.query_position
    is_patch = torch.ones(result.tokens.shape[1], dtype=torch.bool)
    if position is not None and result.tokens.shape[1] > data.tokens.shape[1]:
        is_patch[position] = False
    k = number_of_words(result.tokens[:, is_patch], words)
    ids = torch.full(result.tokens.shape[:2], k)
    ids[:, is_patch], _ = codebook(result.tokens[:, is_patch], k, generator=generator)
    return replace(result, ids=ids, next_id=k + 1 + data.labels, vocab_size=k + 1 + data.classes)


def has_class_token(model: nn.Module) -> bool:
    """Whether the model or one of its submodules has a parameter called ``cls_token``."""
    return any(name.rpartition(".")[2] == "cls_token" for name, _ in model.named_parameters())


class _Blocks(Metric):
    """Collects the names of all blocks and the outputs of one, one tensor per forward pass.

    A negative ``layer`` counts from the last block, so the outputs of all blocks are kept until
    :meth:`choose`.
    """

    takes_padding = True

    def __init__(self, layer: int):
        super().__init__()
        self.layer = layer
        self.names: dict[int, str] = {}
        self.outputs: dict[int, list[Tensor]] = {}

    def update(self, activations: Activations) -> None:
        """Adds the output of one block; attention is only needed to find the blocks."""
        if activations.kind != "features":
            return
        self.names[activations.layer] = activations.name
        if self.layer < 0 or self.layer == activations.layer:
            self.outputs.setdefault(activations.layer, []).append(activations.output)

    def choose(self) -> None:
        """Replaces a negative ``layer`` by the number of the block, once a forward pass has met
        all blocks.
        """
        if -len(self.names) <= self.layer < 0:
            self.layer = sorted(self.names)[self.layer]
            self.outputs = {self.layer: self.outputs[self.layer]}

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns no measurements."""
        return ()


def _of_block(model: nn.Module, layer: int, chunks: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """Returns the name and the outputs of a block, by its index in the order of execution."""
    blocks = _Blocks(layer)
    try:
        with evaluation(model), probe(model, [blocks]) as p, p.accumulate():
            for chunk in chunks:
                forward(model, chunk)
                blocks.choose()
    except NoAttention:
        return _of_module(model, _member(model, layer), chunks)
    count = len(blocks.names)
    if not -count <= layer < count:
        raise ValueError(
            f"layer must lie in [-{count}, {count}), got {layer}; {type(model).__name__} has {count} blocks"
        )
    number = sorted(blocks.names)[layer]
    return blocks.names[number], blocks.outputs[number]


def _member(model: nn.Module, layer: int) -> str:
    """Returns the name of a block by its index in the longest ModuleList of a network without attention."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(
            f"{type(model).__name__} has no ModuleList of blocks to count; pass the name of a module as layer"
        )
    name, blocks = max(lists, key=lambda pair: len(pair[1]))
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(
            f"layer must lie in [-{len(blocks)}, {len(blocks)}), got {layer}; {name} has {len(blocks)} blocks"
        )
    return f"{name}.{layer % len(blocks)}"


def _of_module(model: nn.Module, pattern: str, chunks: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """Returns the name and the outputs of the only module whose name matches a glob."""
    names = [name for name, _ in model.named_modules() if name]
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if len(matches) != 1:
        count = (
            f"{len(matches)} ({', '.join(matches[:3])}, ...)" if matches else f"none{nearest(pattern, names)}"
        )
        raise ValueError(f"layer must name one module, {pattern!r} matches {count}")
    (name,) = matches
    outputs: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(
        lambda module, args, output: outputs.append(_hidden_state(output, name))
    )
    try:
        with evaluation(model):
            for chunk in chunks:
                forward(model, chunk)
    finally:
        handle.remove()
    return name, outputs


def _hidden_state(output, name: str) -> Tensor:
    """Returns the hidden state from the output of a block, which may be a tuple with the hidden
    state first.
    """
    tensor = output[0] if isinstance(output, tuple) else output
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        got = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"block {name} must return [batch, seq, dim], got {got}; choose another layer")
    return tensor.detach()
