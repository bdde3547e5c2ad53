"""An inspection as a JSON document, schema foldmark.inspect/1: fields may be added, not renamed."""

from foldmark.compare.inspection import Inspection, TensorReport

__all__ = ["inspection_document"]

_SCHEMA = "foldmark.inspect/1"


def inspection_document(inspection: Inspection) -> dict[str, object]:
    """Return plain dictionaries, lists, strings and numbers."""
    artefact = inspection.artefact
    return {
        "schema": _SCHEMA,
        "file": str(artefact.path),
        "format": artefact.format_name,
        "bytes": artefact.size,
        "account": inspection.account,
        "metadata": dict(artefact.metadata),
        "tensors": [
            _tensor(report) | {"module": inspection.modules.get(report.tensor.name, "")}
            for report in inspection.reports
        ],
        "warnings": list(inspection.warnings),
    }


def _tensor(report: TensorReport) -> dict[str, object]:
    tensor, layout = report.tensor, report.tensor.layout
    described: dict[str, object] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "number_format": layout.number_format,
        "packing": layout.packing,
        "block": None if layout.block is None else list(layout.block),
        "granularity": layout.granularity(tensor.shape),
        "scale_format": layout.scale_format,
        "zero_point": layout.zero_point,
        "bytes": {part.value: nbytes for part, nbytes in tensor.parts.items()},
        "bits_per_weight": tensor.bits_per_weight,
        "spans": [
            {"file": span.source.path.name, "offset": span.offset, "bytes": span.nbytes}
            for span in tensor.spans
        ],
        "warnings": list(report.warnings),
    }
    if report.codes is not None:
        described["codes"] = {
            "used": report.codes.used,
            "possible": report.codes.possible,
            "lowest": report.codes.lowest,
            "highest": report.codes.highest,
            "middle_99_percent": list(report.codes.middle),
        }
    if report.scales is not None:
        described["scales"] = {
            name: getattr(report.scales, name)
            for name in (
                "count", "smallest", "largest", "zero", "subnormal", "negative", "infinite", "nan"
            )
        }  # fmt: skip
    if report.setter is not None:
        described["scale_setter"] = {
            "index": list(report.setter.index),
            "code": report.setter.code,
            "value": report.setter.value,
        }
    if report.traces is not None:
        described["rule"] = {
            "range": report.traces.range_rule,
            "scales": report.traces.scale_grid,
            "blocks_seen": report.traces.blocks,
        }
    return described
