"""An 18-layer residual network for small images. Its features have norm one, as in the experiments on rate reduction.

    z^{l+1} = relu(z^l + conv(relu(conv(z^l)))),   features = head(mean over pixels of z^L) / norm

There are eight blocks of two 3 x 3 convolutions, each followed by batch normalisation, in four stages of two blocks. Each stage
except the first halves the image side and doubles the channels, so its first skip is a 1 x 1 convolution. The first convolution is 3 x 3
without pooling, which suits images of 32 pixels.
Shapes: images [batch, channels, h, w], features [batch, dim] of norm 1.
Source: :cite:t:`he2016deep`, :cite:t:`yu2020learning`.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with a skip connection, [batch, incoming, h, w] -> [batch, outgoing, h / stride, w / stride].

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
            self.skip = nn.Sequential(nn.Conv2d(incoming, outgoing, 1, stride=stride, bias=False), nn.BatchNorm2d(outgoing))

    def forward(self, inputs: Float[Tensor, "batch incoming h w"]) -> Float[Tensor, "batch outgoing h2 w2"]:
        return functional.relu(self.skip(inputs) + self.change(inputs))


class ResNet18(nn.Module):
    """Maps images [batch, channels, h, w] to features [batch, dim] of norm 1; the head has two linear layers.

    Args:
        dim: dimension of the features.
        channels: channels of the images.
        width: channels of the first stage; 64 in the published runs.
    Raises:
        ValueError: a size is below 1.
    """

    def __init__(self, dim: int = 128, *, channels: int = 3, width: int = 64):
        super().__init__()
        if min(dim, channels, width) < 1:
            raise ValueError(f"dim, channels and width must be at least 1, got {dim}, {channels} and {width}")
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, incoming = [], width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(Residual(incoming, width << stage, stride=stride))
                incoming = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(incoming, incoming, bias=False), nn.BatchNorm1d(incoming), nn.ReLU(), nn.Linear(incoming, dim))

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch dim"]:
        return functional.normalize(self.head(self.blocks(self.stem(images)).mean((2, 3))), dim=1)
