"""Small networks trained on scikit-learn's 8 x 8 digits, with held-out labelled images."""

from functools import cache
from pathlib import Path

import numpy as np
from tests.models.store import built


@cache
def images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (training images, training labels, held-out images, held-out labels); NCHW, 0..1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images / 16).astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order], digits.target[order].astype(np.int64)
    return pixels[:1397], labels[:1397], pixels[1397:], labels[1397:]


def _residual():
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.first_norm = nn.BatchNorm2d(width)
            self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.second_norm = nn.BatchNorm2d(width)

        def forward(self, x):
            y = self.first_norm(self.first(x)).relu()
            return (x + self.second_norm(self.second(y))).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 16, 3, padding=1)
            self.block1 = Block(16)
            self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
            self.block2 = Block(32)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            x = self.block1(self.stem(x).relu())
            x = self.block2(self.down(x).relu())
            return self.head(x.mean((2, 3)))

    return Net()


def _train(path: Path) -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(2)
    x, y, _, _ = images()
    pixels, labels = torch.from_numpy(x), torch.from_numpy(y)
    module = _residual()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(8):
        for rows in torch.randperm(len(pixels)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(pixels[rows]), labels[rows]).backward()
            optimizer.step()
    module.eval()
    torch.onnx.export(
        module,
        (pixels[:2],),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )


def residual_network() -> Path:
    """Return the float32 residual CNN: image [batch, 1, 8, 8] -> logits [batch, 10]."""
    return built("digits.onnx", _train)


def held_out(samples: int) -> dict[str, np.ndarray]:
    """Return held-out images and their labels, ready as data."""
    _, _, x, y = images()
    return {"image": x[:samples], "labels": y[:samples]}
