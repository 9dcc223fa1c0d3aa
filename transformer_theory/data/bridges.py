"""Bridges: the same data in the form that each theory reads.

Images become tokens (:func:`patches`), tokens become words of a finite vocabulary (:func:`codebook`), words become unit vectors
(:func:`one_hot`), and the tokens inside a trained network become data for any theory (:func:`features`).
Words from k-means clusters of patches are the "visual words" of :cite:t:`sivic2003video`.
"""

from fnmatch import fnmatchcase

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.errors import nearest
from .tokens import TokenData


def patches(images: Float[Tensor, "n c h w"], size: int) -> Float[Tensor, "n seq dim"]:
    """Cuts images into square patches, row by row: token ``i * (w / size) + j`` is the patch in row i and column j.

    Inside a patch the order is row, column, channel, so that ``dim = size * size * c`` and ``seq = (h / size) * (w / size)``.

    >>> from transformer_theory import data
    >>> images = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> data.patches(images, 2)[0, 1]  # the patch on the upper right
    tensor([2., 3., 6., 7.])

    Raises:
        ValueError: height or width is no multiple of ``size``.
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape [n, channels, height, width], got {list(images.shape)}; add a channel: images[:, None]")
    height, width = images.shape[-2:]
    if size < 1 or height % size or width % size:
        raise ValueError(f"size must divide height and width, got size {size} for {height} x {width} images; crop, or choose another size")
    return rearrange(images, "n c (h p) (w q) -> n (h w) (p q c)", p=size, q=size)


def codebook(
    tokens: Float[Tensor, "*batch dim"], k: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, "*batch"], Float[Tensor, "k dim"]]:
    """Words of a vocabulary of ``k``: each token gets the number of its nearest centre (k-means, Euclidean distance).

    Centres are sorted by their norm, so that word 0 is the emptiest. The generator seeds k-means, which runs on one thread:
    the same generator state gives the same words.

    Returns:
        ids ``[*batch]`` in 0..k-1 and centres [k, dim] (type of the tokens).
    Raises:
        ValueError: k is not between 1 and the number of different tokens.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    points = tokens.reshape(-1, tokens.shape[-1])
    different = len(points.unique(dim=0))
    if not 1 <= k <= different:
        raise ValueError(f"k must lie between 1 and the number of different tokens, {different}, got {k}; choose a smaller codebook")
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with threadpool_limits(limits=1):
        fitted = KMeans(k, n_init=1, random_state=seed).fit(points.double().cpu().numpy())  # pyright: ignore[reportArgumentType]
    centres = torch.from_numpy(fitted.cluster_centers_).to(points)
    centres = centres[torch.linalg.vector_norm(centres, dim=-1).argsort(stable=True)]
    # distances from differences, not from squared norms, which lose digits for near points
    ids = torch.cat(
        [torch.cdist(chunk, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=-1) for chunk in points.split(65_536)]
    )
    return ids.reshape(tokens.shape[:-1]), centres


def one_hot(ids: Int[Tensor, "*batch"], vocab_size: int) -> Float[Tensor, "*batch vocab"]:
    """Unit vectors of discrete tokens, float64: the embedding of scan-and-snap, where words are orthonormal.

    Raises:
        ValueError: an id lies outside ``[0, vocab_size)``.
    """
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ValueError(f"ids must lie in [0, {vocab_size}), got {wrong}; pass a larger vocab_size or recode")
    return nn.functional.one_hot(ids.long(), vocab_size).double()


def features(model: nn.Module, data: TokenData, *, layer: int | str = -1, inputs: str = "tokens", batch_size: int = 256) -> TokenData:
    """The data as a network sees them: tokens are the output of one block, ``[n, seq', dim']``, float64.

    The model runs in evaluation mode without gradients (its mode is restored) in its own precision and on its own device; a model of
    ``transformers`` is given its ``main_input_name`` as a keyword. The query is the class token if a parameter is called ``cls_token``
    (position 0), else the last token. Labels and images are kept; ids and next_id only if the sequence kept its length, since a class token
    has no word. Windows that a block takes for sequences of their own are joined again, in their order.

    Args:
        layer: number of a block of the model's longest ``ModuleList`` (-1: the last), or a glob that names one module (``"blocks.1"``).
        inputs: the field of the data that the model reads: ``"tokens"``, ``"images"`` or ``"ids"``.
        batch_size: sequences a forward pass.
    Raises:
        ValueError: no such block, several fit, the block does not return ``[batch, seq, dim]``, or the data lack ``inputs``.
    """
    if inputs not in ("tokens", "images", "ids"):
        raise ValueError(f"inputs must be 'tokens', 'images' or 'ids', got {inputs!r}")
    source = getattr(data, inputs)
    if source is None:
        raise ValueError(f"the model should read {inputs}, but {data.name} has none; choose another field with inputs=")
    name, block = _block(model, layer)
    parameter = next(model.parameters(), torch.empty(0))
    seen: list[Tensor] = []
    handle = block.register_forward_hook(lambda module, args, output: seen.append(_first(output, name)))
    keyword = getattr(model, "main_input_name", None)
    chunks = source.split(batch_size)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for chunk in chunks:
                given = chunk.to(parameter.device, parameter.dtype) if chunk.is_floating_point() else chunk.to(parameter.device)
                model(**{keyword: given}) if isinstance(keyword, str) else model(given)
    finally:
        model.train(training)
        handle.remove()
    n, seq = data.tokens.shape[:2]
    if len(seen) != len(chunks) or any(len(each) % len(chunk) for each, chunk in zip(seen, chunks)):
        raise ValueError(
            f"block {name} must run once a forward pass, got {sum(map(len, seen))} outputs for {n} sequences; choose another layer"
        )
    joined = [each.reshape(len(chunk), -1, each.shape[-1]) for each, chunk in zip(seen, chunks)]
    tokens = torch.cat(joined).to("cpu", torch.float64)
    keeps = tokens.shape[1] == seq
    return TokenData(
        tokens=tokens,
        labels=data.labels,
        query=tokens[:, 0] if _has_class_token(model) else tokens[:, -1],
        ids=data.ids if keeps else None,
        next_id=data.next_id if keeps else None,
        images=data.images,
        vocab_size=data.vocab_size if keeps else None,
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
        fits = [name for name in names if fnmatchcase(name, layer)]
        if len(fits) != 1:
            came = f"{len(fits)} ({', '.join(fits[:3])}, ...)" if fits else f"none{nearest(layer, names)}"
            raise ValueError(f"layer must name one module, {layer!r} fits {came}")
        return fits[0], model.get_submodule(fits[0])
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no ModuleList of blocks to count; pass the name of a module as layer")
    name, blocks = max(lists, key=lambda pair: len(pair[1]))
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must lie in [-{len(blocks)}, {len(blocks)}), got {layer}; {name} has {len(blocks)} blocks")
    layer %= len(blocks)
    return f"{name}.{layer}", blocks[layer]


def _first(output, name: str) -> Tensor:
    """The hidden state of a block that may return a tuple with it in front."""
    tensor = output[0] if isinstance(output, tuple) else output
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        came = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"block {name} must return [batch, seq, dim], got {came}; choose another layer")
    return tensor.detach()
