"""Export of networks: to ONNX, and to the exported programs of torch, each for any batch size. Every file is
compared with its network.

models.export(models.load("runs/crate"), "crate.onnx")     # images [batch, c, h, w] in [0, 1] -> logits
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import NotConverged, first_line
from ..core.files import replacing
from ..core.memory import gib
from .convolutions import Convolutions
from .crate import ExactAttention
from .embedding import Patches, Tokens

OPSET = 18  # version of the ONNX operators
INPUT, OUTPUT = "inputs", "outputs"  # names in an ONNX file
MAX_BATCH = 2**16
BATCHES = (1, 3)  # batch sizes at which a file is compared with its network; that of the traced example is 2
# largest difference that is accepted, relative to the largest output; rounding in float32 makes 1e-6
RTOL = 1e-4
FORMATS = (".onnx", ".pt2")
# weights in one ONNX file; torch puts more into a second file, which keeps the name of the draft
ONNX_BYTES = 3 * 2**29


def export(model: nn.Module, path: str | Path, *, inputs: Tensor | None = None) -> float:
    """Writes a network as a file that runs without this library, for any batch size, and compares the file
    with the network.

    Args:
        model: a network with one input, whose first axis is the batch. It is exported in evaluation mode; its
            mode is restored.
        path: a file that ends in ``.onnx`` (operators of version 18; input ``inputs``, output ``outputs``) or
            ``.pt2`` (``torch.export.load`` reads it). An existing file is replaced.
        inputs: an example [1 or more, ...]. None: drawn in the shape of the network's images or tokens.
    Returns:
        The largest absolute difference between the outputs of file and network, over inputs of batch size 1
        and 3.
    Raises:
        ValueError: the path has another suffix, no module of the network states the shape of its inputs, the
            network chooses its operations by the values of its tokens (``crate-exact``), does not return one
            tensor for one input, is too large for an ONNX file, or has operations or a precision that the
            format does not have.
        ImportError: ONNX was asked for, and one of onnx, onnxscript and onnxruntime is not installed.
        NotConverged: file and network differ by more than rounding; the file is not written.
        FileNotFoundError: the folder does not exist.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(
            f"path must end in {' or '.join(FORMATS)}, got {path}; the suffix determines the format"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"the exported file must go into a folder that exists, got {path}; make {path.parent} first"
        )
    if any(isinstance(module, ExactAttention) for module in model.modules()):
        raise ValueError(
            "model must have a fixed graph, got crate-exact, which chooses its precision by the values of "
            "the tokens"
        )
    size = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    if path.suffix == ".onnx" and size > ONNX_BYTES:
        raise ValueError(
            f"the weights must fit into one ONNX file of {gib(ONNX_BYTES)}, got {gib(size)}; export to .pt2"
        )
    example = _example(model) if inputs is None else inputs
    if not isinstance(example, Tensor) or not example.ndim:
        raise ValueError(
            f"inputs must be a tensor [1 or more, ...], got {type(example).__name__}; pass an example of "
            "the network's input"
        )
    batches = [_drawn(example, count) for count in (2, *BATCHES)]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected = _outputs(model, batches[1:])
            with replacing(path) as draft:
                try:
                    run = (_to_onnx if path.suffix == ".onnx" else _to_program)(model, batches[0], draft)
                    answers = [run(batch) for batch in batches[1:]]
                except (ImportError, OSError):
                    raise
                except Exception as error:
                    # torch and onnxruntime raise their own errors for what they do not know
                    hint = (
                        "export a network in float32 whose operations do not depend on the values of its "
                        "inputs"
                    )
                    raise ValueError(
                        f"{type(model).__name__} cannot be exported to {path.suffix} ({first_line(error)}); "
                        f"{hint}"
                    ) from error
                difference = _difference(answers, expected)
    finally:
        model.train(training)
    return difference


def _outputs(model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Returns the outputs of a network. Raises ValueError if it needs more than one input, or returns
    something other than a tensor.
    """
    try:
        outputs = [model(batch) for batch in inputs]
    except TypeError as error:
        raise ValueError(
            f"model must take one input, got {type(model).__name__} ({first_line(error)}); wrap it in a "
            "module"
        ) from error
    if wrong := next((value for value in outputs if not isinstance(value, Tensor)), None):
        raise ValueError(
            f"model must return a tensor, got {type(wrong).__name__} from {type(model).__name__}; wrap it "
            "in a module"
        )
    return outputs


def _difference(answers: list[Tensor], expected: list[Tensor]) -> float:
    """Returns the largest absolute difference. Raises NotConverged if it exceeds RTOL of the largest output,
    or is NaN.
    """
    difference = max(float((answer - outputs).abs().max()) for answer, outputs in zip(answers, expected))
    scale = max(float(outputs.abs().max()) for outputs in expected)
    if not difference <= RTOL * scale:
        raise NotConverged(
            f"file and network must agree to {RTOL:g} of the largest output {scale:.3g}, got "
            f"{difference:.3g}; nothing is written"
        )
    return difference


def _to_program(model: nn.Module, inputs: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    """Writes an exported program of torch. Returns the function that the file computes."""
    program = torch.export.export(model, (inputs,), dynamic_shapes=_any_batch())
    with path.open("wb") as file:  # a file object: torch would refuse the suffix of a draft
        torch.export.save(program, file)
    with path.open("rb") as file:
        return torch.export.load(file).module()


def _to_onnx(model: nn.Module, inputs: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    """Writes an ONNX file. Returns the function that onnxruntime computes from it."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            "an export to ONNX needs onnx, onnxscript and onnxruntime; pip install onnx onnxscript "
            "onnxruntime"
        ) from error
    names: dict[str, Any] = {
        "input_names": [INPUT],
        "output_names": [OUTPUT],
        "opset_version": OPSET,
        "verbose": False,
    }
    # torch reports on every start that torchvision is missing, and warns of its own deprecated functions.
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(model, (inputs,), dynamo=True, dynamic_shapes=_any_batch(), **names)
    finally:
        registration.setLevel(level)
    assert program is not None
    program.save(str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(None, {INPUT: batch.numpy()})[0])


def _any_batch() -> tuple[dict[int, Any]]:
    """Returns dynamic shapes of one input whose first axis is free."""
    return ({0: torch.export.Dim("batch", min=1, max=MAX_BATCH)},)


def _example(model: nn.Module) -> Float[Tensor, "1 ..."]:
    """Returns an input of the network. Raises ValueError if no module of the network states its shape."""
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    for module in model.modules():
        if isinstance(module, Patches | Convolutions):
            return torch.zeros(1, module.channels, module.image_size, module.image_size, dtype=dtype)
        if isinstance(module, Tokens):
            return torch.zeros(1, module.seq, module.dim, dtype=dtype)
    raise ValueError(
        f"inputs must be given for {type(model).__name__}, whose modules do not state the shape; pass an "
        "example [1, ...]"
    )


def _drawn(example: Tensor, count: int) -> Tensor:
    """Returns inputs ``[count, ...]`` of the shape and dtype of an example: numbers in [0, 1), or integers up
    to those of the example.
    """
    generator = torch.Generator().manual_seed(count)
    shape = (count, *example.shape[1:])
    if example.is_floating_point():
        return torch.rand(shape, generator=generator, dtype=example.dtype)
    return torch.randint(int(example.max()) + 1, shape, generator=generator, dtype=example.dtype)
