"""The hidden states of a network as a data set: the tokens inside a trained network, in the form that every theory uses."""

from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ..core.errors import nearest
from ..data.tokens import TokenData


def features(model: nn.Module, data: TokenData, *, layer: int | str = -1, inputs: str = "tokens", batch_size: int = 256) -> TokenData:
    """The data as a network represents them: tokens are the output of one block, ``[n, seq', dim']``, float64.

    The model runs in evaluation mode without gradients (its mode is restored), in its own precision and on its own device. A model of
    ``transformers`` receives its ``main_input_name`` as a keyword. The query is the class token if a parameter is called ``cls_token``
    (position 0), else the last token. Labels and images are kept; ids and next_id only if the sequence keeps its length, since a class
    token has no word. If a block treats windows as sequences of their own, they are joined again, in their order.

    Args:
        model: the network.
        data: its inputs.
        layer: number of a block of the model's longest ``ModuleList`` (-1: the last), or a glob that names one module (``"blocks.1"``).
        inputs: the field of the data that the model takes: ``"tokens"``, ``"images"`` or ``"ids"``.
        batch_size: sequences per forward pass.
    Raises:
        ValueError: no such block, several match, the block does not return ``[batch, seq, dim]``, or the data lack ``inputs``.
    """
    if inputs not in ("tokens", "images", "ids"):
        raise ValueError(f"inputs must be 'tokens', 'images' or 'ids', got {inputs!r}")
    source = getattr(data, inputs)
    if source is None:
        raise ValueError(f"the model needs {inputs}, but {data.name} has none; choose another field with inputs=")
    name, block = _block(model, layer)
    parameter = next(model.parameters(), torch.empty(0))
    outputs: list[Tensor] = []
    handle = block.register_forward_hook(lambda module, args, output: outputs.append(_hidden_state(output, name)))
    keyword = getattr(model, "main_input_name", None)
    chunks = source.split(batch_size)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for chunk in chunks:
                batch = chunk.to(parameter.device, parameter.dtype) if chunk.is_floating_point() else chunk.to(parameter.device)
                model(**{keyword: batch}) if isinstance(keyword, str) else model(batch)
    finally:
        model.train(training)
        handle.remove()
    n, seq = data.tokens.shape[:2]
    if len(outputs) != len(chunks) or any(len(output) % len(chunk) for output, chunk in zip(outputs, chunks)):
        count = sum(map(len, outputs))
        raise ValueError(f"block {name} must run once per forward pass, got {count} outputs for {n} sequences; choose another layer")
    joined = [output.reshape(len(chunk), -1, output.shape[-1]) for output, chunk in zip(outputs, chunks)]
    tokens = torch.cat(joined).to("cpu", torch.float64)
    same_length = tokens.shape[1] == seq
    return TokenData(
        tokens=tokens,
        labels=data.labels,
        query=tokens[:, 0] if _has_class_token(model) else tokens[:, -1],
        ids=data.ids if same_length else None,
        next_id=data.next_id if same_length else None,
        images=data.images,
        vocab_size=data.vocab_size if same_length else None,
        name=f"{data.name}, {type(model).__name__} {name}",
        sources=data.sources,
    )


def _has_class_token(model: nn.Module) -> bool:
    """Whether a parameter, of the model or of one inside it, is called ``cls_token``."""
    return any(name.rpartition(".")[2] == "cls_token" for name, _ in model.named_parameters())


def _block(model: nn.Module, layer: int | str) -> tuple[str, nn.Module]:
    """The named or numbered block: numbers count the longest ModuleList of the model."""
    if isinstance(layer, str):
        names = [name for name, _ in model.named_modules() if name]
        matches = [name for name in names if fnmatchcase(name, layer)]
        if len(matches) != 1:
            count = f"{len(matches)} ({', '.join(matches[:3])}, ...)" if matches else f"none{nearest(layer, names)}"
            raise ValueError(f"layer must name one module, {layer!r} matches {count}")
        return matches[0], model.get_submodule(matches[0])
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no ModuleList of blocks to count; pass the name of a module as layer")
    name, blocks = max(lists, key=lambda pair: len(pair[1]))
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must lie in [-{len(blocks)}, {len(blocks)}), got {layer}; {name} has {len(blocks)} blocks")
    layer %= len(blocks)
    return f"{name}.{layer}", blocks[layer]


def _hidden_state(output, name: str) -> Tensor:
    """The hidden state of a block, which may return a tuple with the hidden state first."""
    tensor = output[0] if isinstance(output, tuple) else output
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        got = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"block {name} must return [batch, seq, dim], got {got}; choose another layer")
    return tensor.detach()
