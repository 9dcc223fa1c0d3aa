"""Sample images of a training: what the network says of them, and where it looks. They are chosen by rules,
which the page states.

While the network learns, the samples are the first validation images, the same at each interval. At the end
they are test images: of :data:`POOL` images drawn once for all trainings, the first that are right, the first
that are wrong, and the wrong ones of which the network is most certain. Attention maps belong to validation
images, and to the network before its first step and the stored one.
"""

from collections.abc import Mapping

import numpy as np
import torch

from ...core.statistics import fixed_generator
from ...core.table import Arrays
from ...data.image_data import Images
from ...models.image_networks import Pixels
from ...probes.attention_maps import attention_maps, first_samples
from ..monitor import MAP_NUMBERS, PICTURED, measured_network
from ..objectives.protocol import outputs, scaled

COUNT = 8  # samples of each rule
POOL = 2_048  # test images among which the samples are chosen
PER_PASS = 512  # images per forward pass
VALIDATION, RIGHT, WRONG, CERTAIN = "validation", "right", "wrong", "most certain errors"


def validation_samples(model: Pixels, images: Images) -> Arrays:
    """Returns the first :data:`COUNT` validation images with the network's answers; empty if it is no
    classifier of their classes.
    """
    return _answered(model, images[:COUNT], lambda sure, right: {VALIDATION: np.arange(len(sure))})


def test_samples(model: Pixels, images: Images) -> Arrays:
    """Returns test images with the network's answers: right ones, wrong ones, and the most certain errors;
    see :mod:`.samples`.
    """

    def chosen(sure: np.ndarray, right: np.ndarray) -> Mapping[str, np.ndarray]:
        wrong = np.flatnonzero(~right)
        worst = wrong[np.argsort(-sure[wrong], kind="stable")]
        return {RIGHT: np.flatnonzero(right)[:COUNT], WRONG: wrong[:COUNT], CERTAIN: worst[:COUNT]}

    return _answered(model, images.mixed(fixed_generator())[:POOL], chosen)


test_samples.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]  # pytest would collect it by its name


def _answered(model: Pixels, images: Images, rules) -> Arrays:
    """Returns the images that the rules choose: ``samples/...`` with images, labels, answers, confidences,
    rules and names of the classes.

    Args:
        model: network on images in [0, 1].
        images: images with labels.
        rules: function of confidences and of whether each answer is right, which returns the indices of each
            rule.
    """
    try:
        logits = outputs(model, images.pixels, batch_size=PER_PASS)
    except RuntimeError:  # a network of another objective that cannot be called on images alone
        return Arrays()
    if logits.ndim != 2 or logits.shape[1] != images.classes or not torch.isfinite(logits).all():
        return Arrays()
    confidence, answer = (part.numpy() for part in logits.softmax(1).max(1))
    labels = images.labels.numpy()
    chosen = rules(confidence, answer == labels)
    index = np.concatenate([np.asarray(part, dtype=int) for part in chosen.values()])
    return Arrays(
        {
            "samples/images": images.pixels[torch.as_tensor(index)].numpy(),
            "samples/labels": labels[index],
            "samples/answers": answer[index],
            "samples/confidences": confidence[index].astype(np.float32),
            "samples/rules": np.array([name for name, part in chosen.items() for _ in part], dtype="U32"),
            "samples/names": np.array(images.names, dtype=str),
        }
    )


def pictured(
    model: Pixels, images: Images, step: int, before: Mapping[str, np.ndarray], *, name: str
) -> Arrays:
    """Returns attention maps on the first images, of this network and of an earlier one, in the format of a
    comparison.

    If several processes train, each must call this function.

    Args:
        model: network on images in [0, 1].
        images: validation images; the first :data:`.monitor.PICTURED` are used.
        step: step of the network.
        before: result of an earlier call, whose first step is kept; empty for the first call.
        name: name of the network.
    Returns:
        Empty if the network has no attention maps. Else ``network/images`` [n, c, h, w],
        ``network/<name>/steps`` [s] and ``network/<name>/attention`` [s, layers, 1, n, queries, keys], means
        over heads.
    """
    inputs = scaled(images.pixels[:PICTURED], next(model.parameters()))
    maps = attention_maps(measured_network(model), inputs, keep=PICTURED)
    maps = None if maps is None else first_samples(maps, MAP_NUMBERS)
    if maps is None or not maps.size:
        return Arrays()
    maps, steps, attention = (
        maps.mean(axis=1, keepdims=True)[None],
        np.array([step]),
        f"network/{name}/attention",
    )
    first = before.get(attention)
    if first is not None and first.shape[1:] == maps.shape[1:] and before[f"network/{name}/steps"][0] != step:
        maps = np.concatenate([first[:1], maps])
        steps = np.concatenate([before[f"network/{name}/steps"][:1], steps])
    shown = inputs[: maps.shape[3]].float().cpu().numpy()
    return Arrays({"network/images": shown, attention: maps, f"network/{name}/steps": steps})
