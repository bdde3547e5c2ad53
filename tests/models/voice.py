"""Silero's voice activity detector, and sound with known voiced stretches to feed it.

The sound is synthetic: an impulse train of gliding pitch through three moving resonances, in
syllables, between stretches of coloured noise. A window's label is whether it was made by that
voice; nobody listened to it.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

RATE, WINDOW, CONTEXT = 16000, 512, 64
_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))


def detector() -> Path:
    """Return the model with If and LSTM: input [b, 576], state [2, b, 128], sr -> output, stateN.

    Its 16 kHz branch alone, as its package has it.
    """
    return Path(str(files("silero_vad"))) / "data" / "silero_vad_16k_op15.onnx"


def sound(seconds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return samples at 16 kHz and, for each, whether the voice was on."""
    draw = np.random.default_rng(seed)
    total = seconds * RATE
    noise = np.cumsum(draw.standard_normal(total)) * 1e-3
    noise -= np.convolve(noise, np.ones(400) / 400, "same")
    signal = noise * draw.uniform(0.5, 3.0) + 0.003 * draw.standard_normal(total)
    voiced = np.zeros(total, bool)
    place = int(0.3 * RATE)
    while place < total - RATE:
        words = draw.integers(3, 9)
        for _ in range(words):
            length = int(draw.uniform(0.12, 0.3) * RATE)
            if place + length >= total:
                break
            signal[place : place + length] += _syllable(length, draw)
            voiced[place : place + length] = True
            place += length
        place += int(draw.uniform(0.6, 1.6) * RATE)
    return (signal / np.abs(signal).max() * 0.7).astype(np.float32), voiced


def _syllable(length: int, draw: np.random.Generator) -> np.ndarray:
    pitch = np.linspace(draw.uniform(100, 220), draw.uniform(90, 200), length)
    phase = np.cumsum(pitch / RATE)
    pulses = np.diff(np.floor(phase), prepend=0.0) + 0.02 * draw.standard_normal(length)
    first, last = (np.array(_VOWELS[i], float) for i in draw.integers(0, len(_VOWELS), 2))
    voice = pulses
    for index, width in enumerate((80, 100, 140)):
        centre = np.linspace(first[index], last[index], length)
        voice = _resonate(voice, centre, width)
    envelope = np.sin(np.pi * np.linspace(0, 1, length)) ** 0.5
    return voice / (np.abs(voice).max() + 1e-9) * envelope * draw.uniform(0.3, 0.9)


def _resonate(x: np.ndarray, centre: np.ndarray, width: float) -> np.ndarray:
    """A resonance of moving frequency: y = x + 2 r cos(w) y' - r r y''."""
    radius = np.exp(-np.pi * width / RATE)
    turn = 2 * radius * np.cos(2 * np.pi * centre / RATE)
    out = np.zeros(len(x) + 2)
    for i in range(len(x)):
        out[i + 2] = x[i] + turn[i] * out[i + 1] - radius * radius * out[i]
    return out[2:]


@cache
def windows(seconds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the detector's inputs as it meets them in a stream, one window a sample, and labels.

    The state that a window finds is what the float model left after the window before.
    """
    import onnxruntime

    signal, voiced = sound(seconds, seed)
    session = onnxruntime.InferenceSession(detector(), providers=["CPUExecutionProvider"])
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
    found: dict[str, list] = {"input": [], "state": [], "labels": []}
    for start in range(0, len(signal) - WINDOW + 1, WINDOW):
        window = np.concatenate([context, signal[start : start + WINDOW]])[None]
        share = voiced[start : start + WINDOW].mean()
        if share in (0, 1):  # a window on the edge is neither
            found["input"].append(window)
            found["state"].append(state)
            found["labels"].append(int(share))
        feeds = {"input": window, "state": state, "sr": np.array(RATE, np.int64)}
        _, state = session.run(None, feeds)
        context = window[0, -CONTEXT:]
    arrays = {name: np.stack(values) for name, values in found.items()}
    return arrays | {"sr": np.array(RATE, np.int64)}


def hits(outputs, labels) -> float:
    """Part of the windows that are judged right at a threshold of one half."""
    return float(((outputs["output"][:, 0] > 0.5) == (labels > 0)).mean())
