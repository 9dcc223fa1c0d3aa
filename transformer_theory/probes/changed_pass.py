"""Forward passes in which attention is changed.

    with changed_attention(model, change) as changed:
        outputs = model(inputs)

A ``TorchFunctionMode`` recognises attention as the probe does (:mod:`.forward_pass`): calls of torch's
attention functions, attention written out as softmax(Q K^T) V, and calls of other kernels through the
registry of ``transformers``. The change receives weights and values of each attention
(:class:`~..core.intervention.Attended`). Where it changes neither, bit for bit, the output of the model's own
kernel stays; elsewhere the product of the new weights and values takes its place. With ``site="output"`` the
change waits for the product of the heads with their output matrix, which is the next product of a tensor with
these entries and a matrix, and may replace it as well (:class:`~..core.intervention.Projected`). With
``site="block"`` the change receives what goes into a block and comes out
(:class:`~..core.intervention.BlockPass`), and hooks replace its output. With ``site="inputs"`` it receives
the inputs of the network (:class:`~..core.intervention.InputPass`). No parameter, buffer or module is
touched.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..core.intervention import Attended, BlockPass, Change, InputPass, NotChanged, Projected, Site
from .attention_calls import CALLS, MULTI_HEAD
from .emission import Call
from .evaluation import device_of, evaluation
from .explicit import FOLLOWED, ExplicitCall, Softmaxes
from .flow import operation, tensors_in
from .forward_pass import NoAttention
from .modules import Blocks, check_stored, check_whole, first_tensor, named, original_of
from .padding import zeros_at_padding
from .projections import in_order
from .redirect import Redirect, aside, eager, in_this_thread, inside_vmap
from .registry import RegistryCall, observed_registry
from .token_masks import given

NOT_FOUND = (
    "no attention was found in {} that can be changed; choose such an implementation of the model "
    "(transformers: attn_implementation='sdpa' or 'eager')"
)
NO_BLOCK = (
    "no block of {} is a module that receives tokens and returns as many of the same size, so that no block "
    "can be changed"
)
NO_INPUTS = "no argument of {} is a tensor, so that its inputs cannot be changed"
CACHES = {"past_key_value": None, "past_key_values": None, "layer_past": None, "use_cache": False}
NO_MATRIX = (
    "the heads of the attention of {} are not multiplied by one output matrix, so that what they add to the "
    "stream is not known"
)
AXES = (
    "the attention of {} has the leading axes {}, in which the {} sequences of the batch are not found, so "
    "that it is not changed"
)
NOT_ALONE = (
    "{} is probed or changed by another block, which would observe the change; end that block before this one"
)
VMAP = "{} runs inside torch.vmap, where values cannot be read; change it outside vmap"

# relative tolerance with which the heads are found again as the argument of the product with their output
# matrix, for float32 and float64; 30 times as large for half precision
HEADS_RTOL = 1e-3


@contextlib.contextmanager
def changed_attention(
    model: nn.Module,
    change: Change,
    *,
    site: Site = "attention",
    seed: int = 0,
    structure: Any = None,
) -> Iterator["ChangedAttention"]:
    """Changes all attention, all blocks, or the inputs of a model inside a ``with`` statement, in evaluation
    mode and without gradients.

    Afterwards the model is as before: parameters, buffers, and the mode of every module. A change that only
    reads, and returns what it receives, leaves all outputs as they are to the last bit.

    Args:
        model: any module, compiled, wrapped or neither, whose inputs are batches ``[n, ...]``. The block must
            call the model itself, not a copy.
        change: the change of each attention or block, or of the inputs.
        site: what is changed.
        seed: seed of :attr:`.Attended.generator`, which starts at the first pass of the block.
        structure: value of :attr:`.Attended.structure`.
    Yields:
        Numbers of attentions, blocks or inputs that were found and changed so far.
    Raises:
        NoAttention: a forward pass ran, and no attention was found in it, or no block that can be changed.
        ValueError: another thread is measuring the model, another block probes or changes it, it runs inside
            ``torch.vmap``, its parameters have no values, the sequences of the batch are not found in an
            attention, heads have no output matrix (``site="output"``), new weights or outputs are not finite,
            or inputs are to be changed and no argument of the network is a tensor.
    """
    check_stored(model, type(original_of(model)).__name__)
    generator = torch.Generator(device_of(model)).manual_seed(seed)
    changed = ChangedAttention(model, change, generator, structure, site)
    redirect = changed.redirect = Redirect(model, "forward", changed.run)
    try:
        with evaluation(model):
            yield changed
    finally:
        redirect.close()
    if changed.passes and not changed.found:
        attended = site == "block" and changed.layer >= 0
        raise NoAttention((NO_BLOCK if attended else NOT_FOUND).format(changed.name))


def check_changed(changed: "ChangedAttention", name: str) -> None:
    """Checks that an intervention changed the forward passes of a block.

    Raises:
        NotChanged: no weight and no value, no output of a block, or no input changed, bit for bit.
    """
    if not changed.changed:
        what = {
            "attention": f"no weight and no value in {changed.found} attentions",
            "output": f"no output in {changed.found} attentions",
            "block": f"no output in {changed.found} blocks",
            "inputs": f"no input in {changed.found} forward passes",
        }[changed.site]
        raise NotChanged(f"{name} changed {what} of {changed.name}, bit for bit, so that it was not applied")


@dataclass
class _Place:
    """A module that is running, with its name, and its arguments if they are needed."""

    name: str
    args: tuple = ()
    kwargs: dict | None = None


@dataclass
class _Waiting:
    """An attention that waits for the product of its heads with their output matrix.

    Attributes:
        attended: the attention.
        place: its module.
    """

    attended: Attended
    place: _Place


class ChangedAttention(TorchFunctionMode):
    """The forward passes of a block, see :func:`changed_attention`.

    Attributes:
        found: number of attentions, blocks or inputs in all passes.
        changed: number of them whose weights, values, outputs or entries were changed.
        passes: number of forward passes.
        labels, numbers: class of each sequence of the next pass, and its number among all that are scored,
            which the change receives. The number is the place in the batch if it is None.
        next_ids: next id of each token of the next pass, which the change receives.
    """

    def __init__(self, model: nn.Module, change: Change, generator: Generator, structure: Any, site: Site):
        super().__init__()
        self.site: Site = site
        self.labels: Tensor | None = None
        self.numbers: Int[Tensor, " batch"] | None = None
        self.next_ids: Tensor | None = None
        self.redirect: Redirect  # of the model
        self.model, self.change, self.generator, self.structure = model, change, generator, structure
        self.name = type(original_of(model)).__name__
        self.found = self.changed = self.passes = 0
        self.modules = {module: name for name, module in named(model)}

    def run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls the original method of the model with changed attention, and returns its output."""
        if inside_vmap(self.model, args, kwargs):
            raise ValueError(VMAP.format(self.name))
        if not self.redirect.is_alone:
            raise ValueError(NOT_ALONE.format(self.name))
        inputs = first_tensor(args, kwargs)
        self.sequences = 1 if inputs is None or not inputs.ndim else len(inputs)
        self.softmaxes, self.blocks = Softmaxes(), Blocks(self.modules)
        self.stack = [_Place("", args, kwargs)]
        self.layer, self.block, self.heads, self.repeating = -1, "", 0, False
        self.attending: dict[str, _Place] = {}  # modules with attention in the present block
        self.waiting: _Waiting | None = None
        self.seen: list[Tensor] = []  # the keys that its queries may see, [windows, keys]
        self.masks: Mapping[str, Tensor] = {}  # of real tokens, which the network receives
        if self.site == "block":
            options = {"some": lambda x: x, "special_ids": (), "grid": None}
            self.masks = given(self.model, args, kwargs, **options).masks
        self.passes += 1
        if self.site == "inputs":
            args, kwargs = self._with_inputs(inputs, args, kwargs)
            return original(*args, **kwargs)
        handles = []
        enter, leave = in_this_thread(self._enter), in_this_thread(self._leave)
        try:
            for module in self.modules:
                if module is not self.model and not isinstance(module, torch.jit.ScriptModule):
                    # around the hooks of the user, which are a part of the module
                    handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
                    handles.append(module.register_forward_hook(leave, always_call=True))
            with (
                zeros_at_padding(self.modules, args, kwargs),
                eager(),
                observed_registry(self._around_registry),
                self,
            ):
                output = original(*args, **kwargs)
                self._check_none_waits()
                return output
        finally:
            for handle in handles:
                handle.remove()

    def _with_inputs(self, inputs: Tensor | None, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Returns the arguments of the network with changed inputs."""
        if inputs is None or not any(x is inputs for x in (*args, *kwargs.values())):
            raise ValueError(NO_INPUTS.format(self.name))
        self.found += 1
        numbers = torch.arange(self.sequences) if self.numbers is None else self.numbers
        new = self.change(InputPass(inputs, numbers, self.generator, self.structure)).inputs
        if _same(new, inputs):
            return args, kwargs
        self.changed += 1
        changed = {key: new if x is inputs else x for key, x in kwargs.items()}
        return tuple(new if x is inputs else x for x in args), changed

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        name = self.modules[module]
        self.stack.append(_Place(name) if self.site == "attention" else _Place(name, args, kwargs))

    def _leave(self, module: nn.Module, args: tuple, output: Any) -> Any:
        place = self.stack.pop()
        # a block is left after its attention; members of no list are attention modules themselves
        inside = self.site == "block" and not self.repeating and self.layer >= 0 and self.attending
        if inside and place.name == self.block and place.name not in self.attending:
            with aside():
                return self._of_block(module, place, output)
        return None

    # operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in CALLS:
            output = func(*args, **kwargs)
            with aside():
                return self._of_call(func, args, kwargs, output)
        name = operation(func).name
        if self.waiting is not None and (product := _product_with_matrix(name, args, kwargs)) is not None:
            output = func(*args, **kwargs)
            with aside():
                new = self._of_output(product, output)
                return output if new is None else new
        inputs = list(tensors_in(args, kwargs)) if name in FOLLOWED else []
        if not inputs or not self.softmaxes.concerns(name, inputs):
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        with aside():
            call = self.softmaxes.record(func, args, kwargs, output)
            return output if call is None else self._of_product(name, args, call, output)

    def _of_call(self, func: Callable, args: tuple, kwargs: dict, output: Any) -> Any:
        """Returns the output of one of torch's attention functions, changed."""
        call = CALLS[func](*args, **kwargs)
        if func is not functional.multi_head_attention_forward:
            new = self._changed(call, output.shape[:-2])
            return output if new is None else new.reshape(output.shape).to(output.dtype)
        tokens, weights = output
        found = self._changed(call, call.query.shape[:2])
        bound = MULTI_HEAD.bind(*args, **kwargs).arguments
        matrix, bias = bound["out_proj_weight"], bound["out_proj_bias"]
        if self.waiting is not None:
            heads = _joined(self.waiting.attended).transpose(0, 1)  # [tokens, batch, heads * dim]
            new = self._of_output(_Product(heads, matrix, bias), tokens)
            return output if new is None else (new, weights)
        if found is None:
            return output
        # [batch, heads, tokens, dim] -> [tokens, batch, heads * dim]
        joined = found.permute(2, 0, 1, 3).flatten(2).to(tokens.dtype)
        return functional.linear(joined, matrix, bias).reshape(tokens.shape), weights

    def _of_product(self, name: str, args: tuple, call: ExplicitCall, output: Tensor) -> Tensor:
        """Returns the product of weights and values that a model wrote out, changed."""
        lead = call.softmax.shape[:-2]
        new = self._changed(call, lead)
        if new is None:
            return output
        if name == "einsum":
            # The letters of the weights are those of [*lead, q, k]; the values have one more, which the
            # output has in any place.
            weights, out = self._letters(args[0], call)
            letter = next(letter for letter in out if letter not in weights)
            new = in_order(new, weights[:-1] + letter, out)
        return new.reshape(output.shape).to(output.dtype)

    @staticmethod
    def _letters(equation: str, call: ExplicitCall) -> tuple[str, str]:
        """Returns the letters of the weights and of the output in an einsum of weights and values."""
        inputs, _, out = equation.replace(" ", "").partition("->")
        first, second = inputs.split(",")
        summed = next(letter for letter in first if letter in second and letter not in out)
        # The queries are in the output and in the weights alone; the weights end with queries and keys.
        return (first if first[-1] == summed and first[-2] not in second else second), out

    def _around_registry(
        self, function: Callable, record: Callable[[], RegistryCall], args: tuple, kwargs: dict
    ) -> Any:
        """Calls a function of transformers' registry, and changes its output unless the operations in it were
        recognised as attention.
        """
        before = self.found
        output = function(*args, **kwargs)
        if self.found > before:
            return output
        with aside():
            tokens = first_tensor((output,), {})
            call = record()
            new = None if tokens is None else self._changed(call, call.query.shape[:2])
            if new is None or tokens is None:
                return output
            new = new.transpose(1, 2).reshape(tokens.shape).to(tokens.dtype)
            return (new, *output[1:]) if isinstance(output, tuple) else new

    # blocks

    def _of_block(self, module: nn.Module, place: _Place, output: Any) -> Any:
        """Returns the changed output of a block; None if the change leaves it, or the module is no map of
        tokens to tokens.
        """
        kwargs = place.kwargs or {}
        tokens, new = first_tensor(place.args, kwargs), first_tensor((output,), {})
        if tokens is None or new is None or tokens.ndim != 3 or tokens.shape != new.shape:
            return None
        n = self.sequences
        swapped = len(tokens) != n and tokens.shape[1] == n

        def batch_first(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if swapped else x

        def again(other: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
            arguments = [batch_first(other) if x is tokens else x for x in place.args]
            named = {key: batch_first(other) if x is tokens else x for key, x in kwargs.items()}
            named |= {key: value for key, value in CACHES.items() if key in named}
            if weights is not None:
                check_whole(self.model, self.name)
            self.repeating = True
            try:
                if weights is None:
                    repeated = module(*arguments, **named)
                else:
                    repeated = functional_call(module, dict(weights), tuple(arguments), named)
                found = first_tensor((repeated,), {})
            finally:
                self.repeating = False
            assert found is not None  # as in the first run
            return batch_first(found.detach())

        self.found += 1
        before = batch_first(new.detach())
        passed = BlockPass(
            layer=self.layer,
            tokens=batch_first(tokens.detach()),
            output=before,
            again=again,
            name=place.name,
            module=module,
            attention=next(iter(self.attending)),
            generator=self.generator,
            structure=self.structure,
            labels=self.labels,
            real=self._real(before),
        )
        changed = self.change(passed).output
        if _same(changed, before):
            return None
        if not bool(changed.isfinite().all()):
            raise ValueError(
                f"changed outputs must be finite, got NaN or infinity in {place.name}, layer {self.layer}"
            )
        self.changed += 1
        changed = batch_first(changed).to(new.dtype)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def _real(self, tokens: Float[Tensor, "batch seq dim"]) -> Bool[Tensor, "batch seq"] | None:
        """Returns which tokens of the block are no padding; None if all are real."""
        seen = [keys for keys in self.seen if keys.shape == tokens.shape[:2]]
        real = torch.stack(seen).any(0) if seen else torch.ones_like(tokens[..., 0], dtype=torch.bool)
        for name, mask in self.masks.items():
            other = "coder" in self.block and ("decoder" in name) != ("decoder" in self.block)
            if mask.shape == real.shape and not other:
                real = real & mask.to(real.device)
        return None if bool(real.all()) else real

    def _keys_of(self, call: Call, lead: torch.Size, name: str) -> Bool[Tensor, "windows k"]:
        """Returns the keys of an attention that some query may see in some head."""
        (q, _), keys = call.query.shape[-2:], call.key.shape[-2]
        if call.allowed is None:
            return torch.ones(self.sequences, keys, dtype=torch.bool, device=call.key.device)
        shape = call.query.shape[:-2]
        shaped, _ = self._axes(shape, lead, name)
        return shaped(call.allowed.expand(*shape, q, keys)).flatten(1, 2).any(1)

    # attention

    def _changed(self, call: Call, lead: torch.Size) -> Float[Tensor, "..."] | None:
        """Returns the changed output of an attention, ``[*lead, q, value_dim]`` up to a reshape; None if the
        change leaves weights and values as they are.

        Args:
            call: the attention.
            lead: leading axes of its output.
        """
        if self.repeating:
            return None
        place = self.stack[-1]
        first_head = self._place(place)
        if self.site == "block":
            self.seen.append(self._keys_of(call, lead, place.name))
            return None
        self._check_none_waits()
        weights = call.weights().detach()
        shaped, back = self._axes(weights.shape[:-2], lead, place.name)
        everywhere = torch.ones((), dtype=torch.bool, device=weights.device)
        allowed = everywhere if call.allowed is None else call.allowed
        attended = Attended(
            layer=self.layer,
            first_head=first_head,
            sequences=self.sequences,
            query=shaped(call.query.detach()),
            key=shaped(call.key.detach()),
            value=shaped(call.value.detach()),
            weights=shaped(weights),
            scale=None if getattr(call, "softcap", None) is not None else call.scale,
            mask=shaped(allowed.expand(weights.shape)),
            generator=self.generator,
            structure=self.structure,
            labels=self.labels,
            numbers=self.numbers,
            next_ids=self.next_ids,
        )
        self.found += 1
        self.heads = first_head + attended.weights.shape[1]
        if self.site == "output":
            self.waiting = _Waiting(attended, place)
            return None
        new = self.change(attended)
        if _same(new.weights, attended.weights) and _same(new.value, attended.value):
            return None
        if not bool(new.weights.isfinite().all()):
            raise ValueError(
                f"changed weights must be finite, got NaN or infinity in {place.name or self.name}, layer "
                f"{self.layer}"
            )
        self.changed += 1
        return back(new.output)

    def _check_none_waits(self) -> None:
        if self.waiting is not None:
            raise ValueError(NO_MATRIX.format(self.waiting.place.name or self.name))

    def _of_output(self, product: "_Product", output: Tensor) -> Tensor | None:
        """Returns the changed product of the heads with their output matrix; None if the change leaves it, or
        the argument of the product is something else.

        Args:
            product: a product with a matrix.
            output: its result.
        """
        assert self.waiting is not None
        attended, place = self.waiting.attended, self.waiting.place
        windows, heads, q = attended.weights.shape[:3]
        joined, x = _joined(attended), product.argument
        if x.numel() != joined.numel() or x.shape[-1] != joined.shape[-1]:
            return None
        # The argument is [..., windows, tokens, heads * dim] up to a reshape, or with tokens first.
        swapped = next((first for first in (False, True) if _agree(joined, x, tokens_first=first)), None)
        if swapped is None:
            return None
        self.waiting = None

        def shaped(x: Tensor) -> Tensor:
            return x.reshape(q, windows, -1).transpose(0, 1) if swapped else x.reshape(windows, q, -1)

        passed = Projected(
            **{field.name: getattr(attended, field.name) for field in fields(Attended)},
            tokens=_tokens_of(place, attended),
            matrix=product.matrix.detach().unflatten(1, (heads, -1)).transpose(0, 1),
            added=shaped(output.detach()),
            name=self.block,
            module=self.blocks.by_name[self.block],
            attention=place.name,
        )
        new = self.change(passed)
        added = new.added
        if _same(added, passed.added):
            if _same(new.weights, attended.weights) and _same(new.value, attended.value):
                return None
            added = functional.linear(_joined(new).to(product.matrix.dtype), product.matrix, product.bias)
        if not bool(added.isfinite().all()):
            raise ValueError(
                f"changed outputs must be finite, got NaN or infinity in {place.name or self.name}, layer "
                f"{self.layer}"
            )
        self.changed += 1
        return (added.transpose(0, 1) if swapped else added).reshape(output.shape).to(output.dtype)

    def _place(self, place: _Place) -> int:
        """Finds the layer of an attention, and returns the number of heads before it in its block."""
        block = self.blocks.name_of(place.name)
        if self.layer < 0 or block != self.block or self.attending.get(place.name, place) is not place:
            self.layer, self.block, self.heads = self.blocks.number(block), block, 0
            self.attending, self.seen = {}, []
        self.attending[place.name] = place
        return self.heads

    def _axes(self, shape: torch.Size, lead: torch.Size, name: str) -> tuple[Callable, Callable]:
        """Returns functions from tensors of a call to ``[windows, heads, ...]``, and back.

        A single leading axis, batch first, is split; of two, the first is the batch, unless only the second
        one can be.

        Args:
            shape: leading axes of the weights.
            lead: leading axes of the output.
            name: name of the module.
        """
        n = self.sequences
        if len(lead) == 1 and lead[0] % n == 0:
            shape = torch.Size((n, lead[0] // n))
        elif len(lead) > 2:
            shape = torch.Size((lead[:-1].numel(), lead[-1]))
        elif len(lead) == 0:
            shape = torch.Size((1, 1))
        swapped = len(lead) == 2 and shape[0] % n > 0 and shape[1] % n == 0
        if shape[0] % n and not swapped:
            raise ValueError(AXES.format(name or self.name, list(lead), n))

        def shaped(x: Tensor) -> Tensor:
            x = x.reshape(*shape, *x.shape[-2:])
            return x.transpose(0, 1) if swapped else x

        return shaped, lambda x: x.transpose(0, 1) if swapped else x


@dataclass
class _Product:
    """A product ``argument @ matrix.T + bias`` with a matrix ``[out, in]``."""

    argument: Float[Tensor, "*lead in"]
    matrix: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None


def _product_with_matrix(name: str, args: tuple, kwargs: dict) -> _Product | None:
    """Returns an operation as the product of a tensor with a matrix; None if it is another one."""
    if name == "linear" and len(args) >= 2:
        return _Product(args[0], args[1], args[2] if len(args) > 2 else kwargs.get("bias"))
    if name == "addmm" and len(args) == 3 and not kwargs:
        return _Product(args[1], args[2].mT, args[0])
    if name in ("matmul", "mm") and len(args) == 2 and args[1].ndim == 2:
        return _Product(args[0], args[1].mT)
    return None


def _joined(attended: Attended) -> Float[Tensor, "windows q width"]:
    """Returns the products of weights and values of all heads, side by side."""
    heads = attended.output
    return heads.transpose(1, 2).flatten(2)


def _agree(joined: Float[Tensor, "windows q width"], x: Float[Tensor, "..."], *, tokens_first: bool) -> bool:
    """Whether a tensor has the entries of the heads, up to rounding."""
    ours = joined.transpose(0, 1) if tokens_first else joined
    difference = torch.linalg.vector_norm(x.detach().reshape(ours.shape).to(ours.dtype) - ours)
    rtol = HEADS_RTOL * (1 if x.dtype in (torch.float32, torch.float64) else 30)
    return bool(difference <= rtol * torch.linalg.vector_norm(ours))


def _tokens_of(place: _Place, attended: Attended) -> Float[Tensor, "windows k dim"] | None:
    """Returns the tokens ``[windows, keys, dim]`` that go into the module of an attention; None if there are
    none among its arguments, or two different ones, as in attention to other tokens.
    """
    tensors = [x for x in (*place.args, *(place.kwargs or {}).values()) if isinstance(x, Tensor)]
    streams = [x for x in tensors if x.is_floating_point() and x.ndim == 3]
    if not streams:
        return None
    first = streams[0]
    if any(x is not first and x.shape[-1] == first.shape[-1] for x in streams):
        return None
    shape = len(attended.key), attended.key.shape[2]
    batch_first, tokens_first = first.shape[:2] == shape, first.shape[:2] == shape[::-1]
    if not batch_first and not tokens_first:
        return None
    return (first if batch_first else first.transpose(0, 1)).detach()


def _same(new: Tensor, old: Tensor) -> bool:
    """Whether two tensors are the same to the last bit."""
    return new is old or (new.shape == old.shape and bool((new == old).all()))
