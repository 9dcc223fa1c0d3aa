r"""Randomised copies of a network: the draws of the nulls that ask what the arrangement of its weights adds
to their size.

    EQUAL_SCALE      the entries of every trained matrix in random order within the matrix
    EQUAL_SPECTRUM   U S V^T with the singular values S of the matrix and random orthonormal U and V
    EQUAL_NORM       initial weights, each matrix scaled to its trained Frobenius norm
    UNTRAINED        initial weights

The first keeps every entry, hence mean, norm and histogram of each matrix. If the entries of each matrix are
independent and identically distributed, the network and its copies are exchangeable, so the rank of any
statistic among copies is uniform.

A matrix is a floating parameter that maps the tokens of a layer: the weight of a linear layer, a convolution
(flattened to [out, rest]) or an attention, or another parameter with at least two axes, such as the
dictionary of a CRATE. A stack of matrices [n, out, in] is n matrices, and queries, keys and values in one
parameter are three. The first and the second null keep everything else: embeddings and weights tied to them,
positions, class tokens, the map that reads the pixels, norms, biases and scales.
"""

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..core.statistics import EQUAL_NORM, EQUAL_SCALE, EQUAL_SPECTRUM, UNTRAINED
from .user_model import untrained_network
from .weights import INSIDE

KINDS = (EQUAL_SCALE, EQUAL_SPECTRUM, EQUAL_NORM, UNTRAINED)
PIXELS = 4  # a convolution of at most as many channels reads the pixels of images
# the map of the inputs by the last two names of its path: patch_embed.proj, to_patch_embedding.2, embed
READS_INPUTS = re.compile(r"(?<!un)(?<!decoder_)embed(?!_out)|patch(?!_?merg)", re.IGNORECASE)
# words in the names of parameters of other modules that are no matrices
KEPT = {"pos", "cls", "class", "token", "tokens", "mask", "latent", "latents", "prompt", "bias", "biases"}
KEPT |= {"scale", "scales", "gamma", "gain", "temperature", "norm"}
KEPT_BEGINNINGS = ("position", "regist", "embed")
# modules that hold queries, keys and values in one matrix, and those that store them head by head
FUSED = {"qkv", "in_proj", "c_attn", "query_key_value", "Wqkv", "to_qkv", "qkv_proj", "W_pack"}
BY_HEAD = ("GPTNeoX", "Bloom", "Falcon")
# attributes of attention modules, or of their configurations
HEADS = ("num_heads", "heads", "num_attention_heads", "n_head", "n_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
HEAD_WIDTHS = ("head_dim", "head_size", "attention_head_size", "dim_head")


@dataclass(frozen=True, eq=False)
class _Part:
    """A matrix, as a part of a parameter.

    Attributes:
        name: name of the parameter.
        pick: function that returns the part of the parameter as a view [*rest].
        rows: number of rows of the matrix.
    """

    name: str
    pick: Callable[[Tensor], Tensor]
    rows: int


class Copies:
    """Randomised copies of one network, drawn one after the other into the same module.

    The network itself is not changed; it must keep its weights while copies are drawn. Memory: one more
    network; a second one while a draw makes initial weights.

    Args:
        network: the network, on any device, in any precision.

    Attributes:
        matrices: number of matrices.
        share: share of the parameters in these matrices.

    Raises:
        ValueError: the network has no weights (meta device), holds integers in place of weights, cannot be
            copied, or has no matrix.
    """

    def __init__(self, network: nn.Module):
        while inside := next((network._modules[key] for key in INSIDE if key in network._modules), None):
            network = inside
        self.network, self.name = network, type(network).__name__
        _check(network, self.name)
        try:
            self._copy = copy.deepcopy(network)
        except Exception as error:  # modules of users raise errors of many kinds
            raise ValueError(
                f"{self.name} cannot be copied ({type(error).__name__}: {str(error)[:120]})"
            ) from error
        self._copy.eval()
        self._computed = _without_parametrisations(self._copy)
        self._copy.requires_grad_(False)
        self._parts = list(_parts_of(self._copy))
        if not self._parts:
            raise ValueError(f"{self.name} has no matrix whose entries could be permuted")
        parameters = dict(self._copy.named_parameters())
        self.matrices = len(self._parts)
        permuted = sum(part.pick(parameters[part.name]).numel() for part in self._parts)
        self.share = permuted / sum(parameter.numel() for parameter in parameters.values())

    @torch.no_grad()
    def draw(self, kind: str, seed: int) -> nn.Module:
        """Draws a copy, in evaluation mode and without gradients. It is the same module at every draw.

        The draw depends on the seed and the type of the device alone; the global random generator is left as
        it is.

        Args:
            kind: ``EQUAL_SCALE``, ``EQUAL_SPECTRUM``, ``EQUAL_NORM`` or ``UNTRAINED`` of
                :mod:`.core.statistics`.
            seed: seed of the draw.
        Raises:
            ValueError: the kind is unknown, or the network cannot be drawn anew.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
        targets = _tensors(self._copy)
        is_new = kind in (EQUAL_NORM, UNTRAINED)
        fresh = untrained_network(self.network, seed) if is_new else None
        drawn = set() if is_new else {part.name for part in self._parts}
        for name, target in targets.items():
            source = self._trained(name) if fresh is None else _tensor(fresh, name)
            # a buffer may be expanded from fewer numbers, which cannot be overwritten
            if name not in drawn and (isinstance(target, nn.Parameter) or not torch.equal(target, source)):
                target.copy_(source)
        if kind == EQUAL_NORM:
            self._rescale(targets, seed)
        elif fresh is None:
            self._rearrange(targets, kind, seed)
        return self._copy.eval()

    def _trained(self, name: str) -> Tensor:
        """Returns a parameter or buffer of the network by its name in the copy."""
        return self._computed[name] if name in self._computed else _tensor(self.network, name)

    def _rearrange(self, targets: Mapping[str, Tensor], kind: str, seed: int) -> None:
        """Draws every matrix from the trained one."""
        generators = _Generators(seed)
        for index, part in enumerate(self._parts):
            trained, target = part.pick(self._trained(part.name)), part.pick(targets[part.name])
            generator = generators.of(target.device)
            if kind == EQUAL_SCALE:
                drawn = _permuted(trained, generator)
            else:
                drawn = _rotated(self._spectra[index], part.rows, trained.numel() // part.rows, generator)
            target.copy_(drawn.view(target.shape))

    @cached_property
    def _spectra(self) -> list[Float[Tensor, " k"]]:
        """Singular values of the trained matrices."""
        matrices = (part.pick(self._trained(part.name)).reshape(part.rows, -1) for part in self._parts)
        return [torch.linalg.svdvals(_wide(matrix)) for matrix in matrices]

    def _rescale(self, targets: Mapping[str, Tensor], seed: int) -> None:
        """Scales every parameter with at least two axes to its trained norm, matrix by matrix. Where the
        initial entries are all zero, normal ones take their place.
        """
        generators, parts = _Generators(seed), {part.name: [] for part in self._parts}
        for part in self._parts:
            parts[part.name].append(part.pick)
        for name, parameter in self._copy.named_parameters():
            trained = self._trained(name)
            if parameter.ndim < 2 or not parameter.is_floating_point():
                continue
            for pick in parts.get(name, [_whole]):
                target = pick(targets[name])
                norm, size = _wide(pick(trained)).norm(), _wide(target).norm()
                if not float(size):
                    noise = torch.randn(
                        target.shape, generator=generators.of(target.device), device=target.device
                    )
                    target.copy_(noise * (norm / noise.norm()))
                else:
                    target.copy_(_wide(target) * (norm / size))


class _Generators:
    """Random generators of one seed by device."""

    def __init__(self, seed: int):
        self.seed, self.known = seed, {}

    def of(self, device: torch.device) -> torch.Generator:
        if device not in self.known:
            self.known[device] = torch.Generator(device).manual_seed(self.seed)
        return self.known[device]


def _permuted(values: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the entries in random order, ``[n]``."""
    flat = values.reshape(-1)
    # 32 bits: three times as fast as 64 on a CPU
    dtype = torch.int32 if len(flat) < 2**31 else torch.int64
    order = torch.randperm(len(flat), generator=generator, device=flat.device, dtype=dtype)
    if flat.itemsize == 1:  # eight-bit floats have few operations
        return flat.view(torch.uint8).index_select(0, order).view(flat.dtype)
    return flat.index_select(0, order)


def _rotated(
    spectrum: Float[Tensor, " k"], rows: int, columns: int, generator: torch.Generator
) -> Float[Tensor, "rows columns"]:
    """Returns U S V^T with independent, uniformly distributed orthonormal U [rows, k] and V [columns, k]."""
    left, right = (_orthonormal(n, spectrum, generator) for n in (rows, columns))
    return (left * spectrum) @ right.mT


def _orthonormal(n: int, like: Float[Tensor, " k"], generator: torch.Generator) -> Float[Tensor, "n k"]:
    noise = torch.randn(n, len(like), generator=generator, device=like.device, dtype=like.dtype)
    q, r = torch.linalg.qr(noise)
    # with a positive diagonal of R the columns are uniformly distributed
    return q * r.diagonal().sign()


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _whole(parameter: Tensor) -> Tensor:
    return parameter


def _check(network: nn.Module, name: str) -> None:
    """Checks that the weights of a network can be drawn again.

    Raises:
        ValueError: they have no values, are integers, or are stored in a tensor of a special kind.
    """
    for key, parameter in network.named_parameters():
        if parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
            raise ValueError(f"{name} has no values for {key}, so no copy of it can be drawn")
        if parameter.ndim > 1 and not (parameter.is_floating_point() or parameter.is_complex()):
            raise ValueError(f"{name} is quantised: {key} holds integers, whose copies are not drawn")
        if type(parameter.data) is not Tensor:
            raise ValueError(
                f"{name} stores {key} as {type(parameter.data).__name__}, whose copies are not drawn"
            )
    for key, module in network.named_modules():
        if ".quantized." in f"{type(module).__module__}." or "qweight" in module._buffers:
            raise ValueError(f"{name} is quantised: {key or name} holds integers, whose copies are not drawn")


def _without_parametrisations(network: nn.Module) -> dict[str, Tensor]:
    """Replaces values that parametrisations compute by parameters, and returns them by name."""
    computed = {}
    for path, module in list(network.named_modules()):
        names = list(getattr(module, "parametrizations", ()))
        if names:  # torch removes them from the class, which a copied module shares with the original
            kind = type(module)
            members = {
                key: value for key, value in vars(kind).items() if key not in ("__dict__", "__weakref__")
            }
            own: Any = type(kind.__name__, kind.__bases__, members)
            module.__class__ = own
        for name in names:
            parametrize.remove_parametrizations(module, name)
            value = getattr(module, name).detach().clone()
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(value))
            computed[f"{path}.{name}" if path else name] = value.clone()
    return computed


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _tensor(network: nn.Module, name: str) -> Tensor:
    """Returns the values of a parameter or buffer, also of one that a parametrisation computes."""
    path, _, attribute = name.rpartition(".")
    return getattr(network.get_submodule(path), attribute).detach()


def _parts_of(network: nn.Module) -> Iterator[_Part]:
    """Yields the matrices of a network. A parameter that one of its modules keeps is no matrix in any."""
    modules = dict(network.named_modules())
    kept = {
        id(parameter)
        for path, module in modules.items()
        for name, parameter in module._parameters.items()
        if parameter is not None and _is_kept(module, path, name, parameter)
    }
    for full, parameter in network.named_parameters():
        path, _, name = full.rpartition(".")
        if id(parameter) in kept:
            continue
        module, parent = modules[path], modules[path.rpartition(".")[0]]
        for pick in _picks(module, parent, path.rpartition(".")[2], name, parameter):
            view = pick(parameter)
            rows = view.shape[0] if name == "weight" and _is_convolution(module) else -1
            yield _Part(full, pick, rows if rows > 0 else view.numel() // view.shape[-1])


def _is_kept(module: nn.Module, path: str, name: str, parameter: Tensor) -> bool:
    """Whether a parameter is no matrix of a layer."""
    kind = getattr(module, "original_name", type(module).__name__)  # of a compiled script
    if parameter.ndim < 2 or not parameter.is_floating_point() or not parameter.numel():
        return True
    if "norm" in kind.lower() or ("Embed" in kind and "Unembed" not in kind):
        return True
    if _is_linear(module) or _is_convolution(module):
        reads = READS_INPUTS.search(".".join(path.split(".")[-2:])) is not None
        return reads or (isinstance(module, nn.modules.conv._ConvNd) and module.in_channels <= PIXELS)
    if isinstance(module, nn.MultiheadAttention):
        return name in ("bias_k", "bias_v")
    words = re.split(r"[._\d]+", name.lower())
    named = any(word in KEPT or word.startswith(KEPT_BEGINNINGS) for word in words)
    return named or sum(length > 1 for length in parameter.shape) < 2


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a module is the linear layer of GPT-2, with a weight ``[in, out]``."""
    return type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int)


def _picks(
    module: nn.Module, parent: nn.Module, own: str, name: str, parameter: Tensor
) -> list[Callable[[Tensor], Tensor]]:
    """Returns functions that return the matrices of a parameter as views.

    Args:
        module, own: the module of the parameter, and its name in the module around it.
        parent: the module around it.
        name: name of the parameter in the module.
    """
    if _is_convolution(module):
        return [_whole]
    if parameter.ndim > 2:
        places = itertools.product(*map(range, parameter.shape[:-2]))
        return [partial(_stacked, index=index) for index in places]
    across = _is_transposed(module)
    outgoing, incoming = parameter.mT.shape if across else parameter.shape
    if name == "in_proj_weight":
        widths = [outgoing // 3] * 3
    elif own in FUSED and _is_linear(module):
        heads, groups, width = _heads(parent)
        if type(parent).__name__.startswith(BY_HEAD) and outgoing == (heads + 2 * groups) * width and groups:
            return [
                partial(_by_head, groups=groups, width=width, first=first, last=last)
                for first, last in ((0, -2), (-2, -1), (-1, None))
            ]
        widths = _widths(outgoing, incoming, heads, groups, width)
    else:
        widths = [outgoing]
    if len(widths) == 1:
        return [_whole]
    starts = [sum(widths[:index]) for index in range(len(widths))]
    return [partial(_rows, start=a, length=b, across=across) for a, b in zip(starts, widths)]


def _widths(outgoing: int, incoming: int, heads: int, groups: int, width: int) -> list[int]:
    """Returns the widths of queries, keys and values in one matrix; that of the whole if it is only one, as
    in a CRATE, or if they are not known.
    """
    if heads and width:
        if outgoing == heads * width:
            return [outgoing]
        if outgoing == (heads + 2 * groups) * width:
            return [heads * width, groups * width, groups * width]
    whole = next((number for number in (3, 2) if outgoing == number * incoming), 1)
    return [outgoing // whole] * whole


def _heads(attention: nn.Module) -> tuple[int, int, int]:
    """Returns the numbers of heads of queries and of keys of an attention, and the width of a head; 0 if
    unknown.
    """

    def known(names: tuple[str, ...]) -> int:
        places: tuple[Any, ...] = attention, getattr(attention, "config", None)
        values = (getattr(place, name, None) for place in places for name in names)
        return next((value for value in values if isinstance(value, int)), 0)

    heads = known(HEADS)
    return heads, known(KEY_HEADS) or heads, known(HEAD_WIDTHS)


def _stacked(parameter: Tensor, *, index: tuple[int, ...]) -> Tensor:
    """Returns one matrix of a stack ``[*n, out, in]``."""
    return parameter[index]


def _rows(parameter: Tensor, *, start: int, length: int, across: bool) -> Tensor:
    """Returns some outputs of a linear map, [length, in]; across: the weight is [in, out]."""
    return (parameter.mT if across else parameter)[start : start + length]


def _by_head(parameter: Tensor, *, groups: int, width: int, first: int, last: int | None) -> Tensor:
    """Returns queries, keys or values ``[groups, number, width, in]`` of a weight in which each group of
    heads has its queries first, then one key and one value.
    """
    return parameter.view(groups, -1, width, parameter.shape[-1])[:, first:last]
