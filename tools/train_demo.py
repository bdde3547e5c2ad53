"""Train the built-in example and quantize it: `python tools/train_demo.py [FOLDER]`.

A two-block attention classifier on scikit-learn's 8 x 8 digits, float32, exported to ONNX, and
its int8 copy as ONNX Runtime's `quantize_static` makes it by default. Nothing is planted: the
network masks out patches without ink the way BERT exports do, by adding -10000 to their
attention scores, and per-tensor min-max calibration takes that -10000 for the end of the range.

Writes model.onnx, model.int8.onnx, held_out.npz (array `pixels`) and labels.npy. The same
versions on the same kind of processor write the same bytes.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits
from torch import Tensor, nn

TRAINED_ON = 1200  # of 1,797 images; the rest is held out
EPOCHS = 60
BATCH = 64
MASKED = -10000.0


class Block(nn.Module):
    """Attention and feed-forward, each after a LayerNorm and around a residual."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward_in = nn.Linear(width, hidden)
        self.feed_forward_out = nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (batch, tokens, width) to itself; mask (batch, 1, 1, tokens) is added to scores."""
        batch, tokens, width = x.shape
        head = width // self.heads
        packed = self.query_key_value(self.attention_norm(x))
        packed = packed.reshape(batch, tokens, 3, self.heads, head).permute(2, 0, 3, 1, 4)
        query, key, value = packed.unbind(0)  # (batch, heads, tokens, head)
        scores = query @ key.transpose(-1, -2) / math.sqrt(head) + mask
        mixed = torch.softmax(scores, -1) @ value
        x = x + self.attention_output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        hidden = nn.functional.gelu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + self.feed_forward_out(hidden)


class DigitReader(nn.Module):
    """Sixteen 2 x 2 patches and a class token; patches without ink are masked out."""

    def __init__(self, width: int = 32, heads: int = 4, hidden: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(16, width) * 0.3)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (batch, 64) in 0..16 to logits (batch, 10)."""
        batch = pixels.shape[0]
        patches = pixels.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
        empty = (patches.sum(-1) == 0).float()
        mask = nn.functional.pad(empty, (1, 0)).reshape(-1, 1, 1, 17) * MASKED
        x = self.embed(patches / 16) + self.position
        x = torch.cat([self.class_token.expand(batch, 1, x.shape[-1]), x], 1)
        for block in self.blocks:
            x = block(x, mask)
        return self.classify(self.norm(x[:, 0]))


class TrainingImages(CalibrationDataReader):
    """Feeds the training images to ONNX Runtime's calibration, a hundred at a time."""

    def __init__(self, pixels: NDArray[np.float32]) -> None:
        self.batches = iter(np.split(pixels, len(pixels) // 100))

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the next batch, None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {"pixels": batch}


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's digits in a fixed random order: pixels (1797, 64) in 0..16, labels."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    return pixels[order].astype(np.float32), labels[order]


def train(pixels: Tensor, labels: Tensor) -> DigitReader:
    """Fit the classifier by AdamW with a one-cycle schedule; a few seconds on one core."""
    torch.manual_seed(0)
    model = DigitReader()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = math.ceil(len(pixels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 4e-3, epochs=EPOCHS, steps_per_epoch=steps
    )
    for _ in range(EPOCHS):
        for index in torch.randperm(len(pixels)).split(BATCH):
            loss = nn.functional.cross_entropy(model(pixels[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def write(folder: Path) -> None:
    """Train, export and quantize; leave the four files of the example in folder."""
    torch.set_num_threads(1)  # a fixed order of summation
    pixels, labels = digits()
    model = train(torch.tensor(pixels[:TRAINED_ON]), torch.tensor(labels[:TRAINED_ON]))
    folder.mkdir(parents=True, exist_ok=True)
    float_path, int8_path = folder / "model.onnx", folder / "model.int8.onnx"
    torch.onnx.export(
        model,
        (torch.tensor(pixels[:2]),),
        str(float_path),
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    quant_pre_process(str(float_path), str(float_path))
    quantize_static(str(float_path), str(int8_path), TrainingImages(pixels[:TRAINED_ON]))
    for path in (float_path, int8_path):
        onnx.checker.check_model(str(path))
    np.savez_compressed(folder / "held_out.npz", pixels=pixels[TRAINED_ON:])
    np.save(folder / "labels.npy", labels[TRAINED_ON:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(__file__).parents[1] / "src" / "foldmark" / "demo",
    )
    write(parser.parse_args().folder)
