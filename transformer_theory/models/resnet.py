"""Three 18-layer residual networks for small images. Their features have norm one, as in the experiments on
rate reduction.

    z^{l+1} = relu(z^l + conv(relu(conv(z^l)))),   features = head(mean over pixels of z^L) / norm

There are eight blocks of two 3 x 3 convolutions, each followed by batch normalisation, in four stages of two
blocks. Each stage except the first halves the image side; where the shape changes, the first skip of the
stage is a 1 x 1 convolution.

===============  ==========================  =================  ===============  ==========================
network          stem                        stages             head             published
===============  ==========================  =================  ===============  ==========================
ResNet18         3 x 3                       64, 128, 256, 512  2 linear layers  supervised, 32 pixels
ResNet18Control  3 x 3                       64, 128, 256, dim  none             self-supervised, 32 pixels
ResNet18STL      5 x 5, stride 2, 3 x 3 max  32, 32, 64, dim    none             self-supervised, 96 pixels
===============  ==========================  =================  ===============  ==========================

With dim = 128 they have 11,497,664, 3,546,432 and 735,072 parameters, as the released networks.
Shapes: images [batch, channels, h, w], features [batch, dim] of norm 1.
Source: :cite:t:`he2016deep`, :cite:t:`yu2020learning`.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with a skip connection, [batch, incoming, h, w] -> [batch, outgoing, h / stride, w /
    stride].

    Args:
        incoming, outgoing: channels of input and output.
        stride: stride of the first convolution.
    """

    def __init__(self, incoming: int, outgoing: int, *, stride: int):
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(incoming, outgoing, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
            nn.ReLU(),
            nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.skip = nn.Identity()
        if stride > 1 or incoming != outgoing:
            self.skip = nn.Sequential(
                nn.Conv2d(incoming, outgoing, 1, stride=stride, bias=False), nn.BatchNorm2d(outgoing)
            )

    def forward(self, inputs: Float[Tensor, "batch incoming h w"]) -> Float[Tensor, "batch outgoing h2 w2"]:
        return functional.relu(self.skip(inputs) + self.change(inputs))


class ResNet18(nn.Module):
    """Maps images [batch, channels, h, w] to features [batch, dim] of norm 1; the head has two linear layers.

    Args:
        dim: dimension of the features.
        channels: channels of the images.
        width: channels of the first stage; 64 in the published runs. Each later stage doubles them.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int = 128, *, channels: int = 3, width: int = 64):
        super().__init__()
        _check_sizes(dim, channels, width)
        self.stem = _stem(channels, width)
        self.blocks = _stages(width, (width, 2 * width, 4 * width, 8 * width))
        last = 8 * width
        self.head = nn.Sequential(
            nn.Linear(last, last, bias=False), nn.BatchNorm1d(last), nn.ReLU(), nn.Linear(last, dim)
        )

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch dim"]:
        return functional.normalize(self.head(self.blocks(self.stem(images)).mean((2, 3))), dim=1)


class ResNet18Control(nn.Module):
    """Maps images [batch, channels, h, w] to features [batch, dim] of norm 1 without a head: the last stage
    has ``dim`` channels.

    Args:
        dim: dimension of the features, and channels of the last stage.
        channels: channels of the images.
        width: channels of the first stage; 64 in the published runs. The second and third stage double them.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int = 128, *, channels: int = 3, width: int = 64):
        super().__init__()
        _check_sizes(dim, channels, width)
        self.stem = _stem(channels, width)
        self.blocks = _stages(width, (width, 2 * width, 4 * width, dim))

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch dim"]:
        return functional.normalize(self.blocks(self.stem(images)).mean((2, 3)), dim=1)


class ResNet18STL(nn.Module):
    """Maps images [batch, channels, h, w] of about 96 pixels to features [batch, dim] of norm 1; the stem
    divides the side by four.

    Args:
        dim: dimension of the features, and channels of the last stage.
        channels: channels of the images.
        width: channels of the first two stages; 32 in the published runs. The third stage doubles them.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int = 128, *, channels: int = 3, width: int = 32):
        super().__init__()
        _check_sizes(dim, channels, width)
        # Padding by 3, one more than a 5 x 5 kernel needs, as released: 96 pixels become 49, then 25.
        first = nn.Conv2d(channels, width, 5, stride=2, padding=3, bias=False)
        self.stem = nn.Sequential(
            first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
        )
        self.blocks = _stages(width, (width, width, 2 * width, dim))

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch dim"]:
        return functional.normalize(self.blocks(self.stem(images)).mean((2, 3)), dim=1)


def _check_sizes(dim: int, channels: int, width: int) -> None:
    if min(dim, channels, width) < 1:
        raise ValueError(f"dim, channels and width must be at least 1, got {dim}, {channels} and {width}")


def _stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


def _stages(incoming: int, widths: tuple[int, ...]) -> nn.Sequential:
    """Returns two residual blocks for each width; each stage but the first halves the side of the image."""
    blocks = []
    for stage, width in enumerate(widths):
        blocks += [Residual(incoming, width, stride=1 if stage == 0 else 2), Residual(width, width, stride=1)]
        incoming = width
    return nn.Sequential(*blocks)
