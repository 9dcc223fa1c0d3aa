"""Sample images of a training with the network's answers, for the page; see :mod:`~..training.samples` for
the rules.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import format
from ..core.result import Result
from ..training.samples import CERTAIN, POOL, RIGHT, VALIDATION, WRONG

SIDE = 96  # pixels of an image on the page


@dataclass(frozen=True)
class Sample:
    """An image with its class and the network's answer.

    Attributes:
        image: PNG as a data URL.
        answer, label: names of the classes.
        confidence: probability of the answer, as text.
    """

    image: str
    answer: str
    label: str
    confidence: str

    @property
    def right(self) -> bool:
        """Whether the answer is the class of the image."""
        return self.answer == self.label


@dataclass(frozen=True)
class Group:
    """The samples of one rule.

    Attributes:
        title: heading.
        rule: how the samples were chosen.
        samples: the samples.
    """

    title: str
    rule: str
    samples: tuple[Sample, ...]


def groups(result: Result) -> list[Group]:
    """Returns the samples of a training by rule; empty if it stored none."""
    arrays = result.arrays
    if "samples/images" not in arrays:
        return []
    names = [str(name) for name in arrays["samples/names"]]
    samples = [
        Sample(_png(image), names[answer], names[label], format.percent(float(confidence)))
        for image, answer, label, confidence in zip(
            *(arrays[f"samples/{column}"] for column in ("images", "answers", "labels", "confidences"))
        )
    ]
    rules = [str(rule) for rule in arrays["samples/rules"]]
    pool = min(POOL, result.settings.get("test_samples") or POOL)
    texts = {
        VALIDATION: ("Validation images", "The first validation images, the same at every measurement."),
        RIGHT: (
            "Right",
            f"Of {pool:,} test images in random order, the first that the network classifies correctly.",
        ),
        WRONG: ("Wrong", "Of the same images, the first that it classifies incorrectly."),
        CERTAIN: (
            "Most certain errors",
            "Of the same images, the wrong answers with the largest probability. Some labels may be wrong.",
        ),
    }
    return [Group(*texts[rule], _of(rule, rules, samples)) for rule in dict.fromkeys(rules) if rule in texts]


def _of(rule: str, rules: Sequence[str], samples: Sequence[Sample]) -> tuple[Sample, ...]:
    return tuple(sample for name, sample in zip(rules, samples) if name == rule)


def _png(image: np.ndarray) -> str:
    """Encodes an image ``[c, h, w]``, 0 to 255, as a data URL; large images are scaled down to :data:`SIDE`
    pixels.
    """
    from PIL import Image

    pixels = np.moveaxis(image, 0, -1) if len(image) == 3 else image[0]
    picture = Image.fromarray(np.ascontiguousarray(pixels.astype(np.uint8)))
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
