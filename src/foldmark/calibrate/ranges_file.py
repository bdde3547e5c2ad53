"""Calibrations on disk: JSON that can be read, merged and reused."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from foldmark.calibrate.calibration import Calibration
from foldmark.calibrate.histogram import Histogram
from foldmark.calibrate.observers import Observer, Range
from foldmark.calibrate.statistics import Channels, Detail, Statistics
from foldmark.errors import FileUnreadable, FormatNotRecognised, TruncatedFile
from foldmark.formats.whole_file import write_whole

__all__ = ["SCHEMA", "load_calibration", "save_calibration"]

SCHEMA = "foldmark.ranges/1"


def save_calibration(calibration: Calibration, path: Path, observer: Observer) -> None:
    """Write a calibration and the ranges that `observer` chooses from it; beside, then renamed."""
    ranges, by_channel = calibration.ranges(observer), calibration.channel_ranges(observer)
    document = {
        "schema": SCHEMA,
        "observer": {
            "method": observer.method.value,
            "symmetry": observer.symmetry.name.lower(),
            "bits": observer.bits,
        },
        "samples": calibration.samples,
        "batches": calibration.batches,
        "settled_after": calibration.settled_after,
        "sources": list(calibration.sources),
        "unseen": list(calibration.unseen),
        "tensors": {
            name: _tensor(each)
            | ({"low": ranges[name].low, "high": ranges[name].high} if name in ranges else {})
            | _channels(calibration.channels.get(name), by_channel.get(name))
            for name, each in calibration.tensors.items()
        },
    }
    try:
        write_whole(json.dumps(document) + "\n", path)
    except OSError as error:
        raise FileUnreadable(
            "can't be written", where=str(path), got=(error.strerror or "").lower()
        ) from None


def load_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        FileUnreadable: there is none.
        FormatNotRecognised, TruncatedFile: it is not one that foldmark wrote.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise FileUnreadable("can't be read", where=str(path), got=reason) from None
    except ValueError:
        raise TruncatedFile(
            "not whole JSON", where=str(path), todo="run foldmark calibrate again"
        ) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FormatNotRecognised("not a file of ranges", where=str(path), expected=SCHEMA)
    try:
        return Calibration(
            {name: _statistics(each) for name, each in document["tensors"].items()},
            int(document["samples"]),
            int(document["batches"]),
            int(document["settled_after"]),
            tuple(document["sources"]),
            {
                name: _read_channels(each["channels"])
                for name, each in document["tensors"].items()
                if "channels" in each
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatNotRecognised(
            f"a file of ranges with a part missing or damaged: {error}", where=str(path)
        ) from None


def _tensor(statistics: Statistics) -> dict[str, Any]:
    described: dict[str, Any] = {
        "detail": statistics.detail.name.lower(),
        "constant": statistics.constant,
        "batches": statistics.batches,
        "values": statistics.values,
    }
    if statistics.batches:
        described |= {
            "minimum": statistics.minimum,
            "maximum": statistics.maximum,
            "average_minimum": statistics.average_minimum,
            "average_maximum": statistics.average_maximum,
        }
    histogram = statistics.histogram
    if len(histogram.counts):
        described["histogram"] = {
            "exponent": histogram.exponent,
            "first": histogram.first,
            "zeros": histogram.zeros,
            "counts": histogram.counts.tolist(),
        }
    return described


def _channels(seen: Channels | None, ranges: list[Range] | None) -> dict[str, Any]:
    """Describe a tensor's channels: the ranges that were chosen, and what was seen of each."""
    if seen is None:
        return {}
    return {
        "channels": {
            "axis": seen.axis,
            "detail": seen.detail.name.lower(),
            "varies": seen.varies,
            "low": [each.low for each in ranges or ()],
            "high": [each.high for each in ranges or ()],
            "seen": [_tensor(each) for each in seen.each],
        }
    }


def _read_channels(described: dict[str, Any]) -> Channels:
    each = [_statistics(channel) for channel in described["seen"]]
    detail = Detail[described["detail"].upper()]
    return Channels(int(described["axis"]), detail, each=each, varies=bool(described["varies"]))


def _statistics(described: dict[str, Any]) -> Statistics:
    found = Statistics(Detail[described["detail"].upper()], float(described["constant"]))
    found.batches, found.values = int(described["batches"]), int(described["values"])
    if found.batches:
        for name in ("minimum", "maximum", "average_minimum", "average_maximum"):
            value = float(described[name])
            if not np.isfinite(value):
                raise ValueError(f"{name} is not finite")
            setattr(found, name, value)
    if "histogram" in described:
        stored = described["histogram"]
        found.histogram = Histogram(
            int(stored["exponent"]),
            int(stored["first"]),
            np.array(stored["counts"], np.int64),
            int(stored["zeros"]),
            found.minimum,
            found.maximum,
        )
    return found
