"""An inspection as text for a terminal of 80 columns."""

import textwrap

from foldmark.compare.inspection import Inspection, TensorReport
from foldmark.formats.stored import StoredTensor
from foldmark.report.words import byte_text, printable

__all__ = ["cut", "text"]

_WIDTH = 80
# So many tensors are listed unless all are asked for.
_LISTED = 8
_WARNINGS = 12


def text(inspection: Inspection, everything: bool) -> str:
    """Return the verdict, the schemes, the bytes, the tensors and the warnings."""
    parts = [_verdict(inspection), _schemes(inspection), _account(inspection)]
    parts.append(_tensors(inspection, everything))
    parts.append(_warnings(inspection, everything))
    return "\n\n".join(part for part in parts if part)


def _quantized(inspection: Inspection) -> list[TensorReport]:
    return [report for report in inspection.reports if report.tensor.layout.is_quantized]


def _verdict(inspection: Inspection) -> str:
    artefact, quantized = inspection.artefact, _quantized(inspection)
    name = printable(artefact.path.name)
    size = byte_text(artefact.size)
    warnings = len(inspection.warnings) + sum(len(r.warnings) for r in inspection.reports)
    if not quantized:
        count = len(artefact.tensors)
        held = f"{count} tensors, none of them quantized"
        if count < 2:
            held = "1 tensor, which is not quantized" if count else "no tensors"
        sentence = f"{name} ({artefact.format_name}, {size}) holds {held}"
    else:
        weights = sum(r.tensor.elements for r in quantized)
        bits = 8 * sum(r.tensor.nbytes for r in quantized) / max(1, weights)
        count = len(artefact.tensors)
        held = f"{len(quantized)} of {count} tensors {'is' if len(quantized) == 1 else 'are'}"
        if count == 1:
            held = "its one tensor is"
        sentence = (
            f"{name} ({artefact.format_name}, {size}): {held} quantized, at {bits:.2f} bits a "
            "weight, scales and zero points counted"
        )
    told = {0: "Nothing looks wrong.", 1: "1 warning below."}.get(
        warnings, f"{warnings} warnings below."
    )
    return textwrap.fill(f"{sentence}. {told}", _WIDTH)


def _scheme(tensor: StoredTensor) -> str:
    layout = tensor.layout
    if not layout.is_quantized:
        return layout.number_format
    words = [layout.number_format, layout.granularity(tensor.shape)]
    if layout.zero_point == "stored":
        words.append("zero points")
    elif layout.zero_point == "real":
        words.append("minima")
    return ", ".join(words) + f" ({layout.packing})"


def _schemes(inspection: Inspection) -> str:
    """Count tensors and bytes by scheme."""
    rows: dict[str, list[int]] = {}
    for report in inspection.reports:
        row = rows.setdefault(_scheme(report.tensor), [0, 0, 0])
        row[0] += 1
        row[1] += report.tensor.elements
        row[2] += report.tensor.nbytes
    lines = [f"{'scheme':<51}{'tensors':>8}{'weights':>14}{'bits':>7}"]
    for scheme, (count, elements, nbytes) in sorted(rows.items(), key=lambda r: -r[1][2]):
        bits = f"{8 * nbytes / elements:.2f}" if elements else "-"
        first, *more = textwrap.wrap(printable(scheme), 50, subsequent_indent="  ")
        lines.append(f"{first:<51}{count:>8}{elements:>14,}{bits:>7}")
        lines += more
    return "\n".join(lines)


def cut(words: str, width: int) -> str:
    """Shorten a name to a width, its middle left out."""
    words = printable(words)
    if len(words) <= width:
        return words
    head = (width - 1) // 2
    return f"{words[:head]}…{words[len(words) - (width - 1 - head) :]}"


def _account(inspection: Inspection) -> str:
    total = inspection.artefact.size
    lines = ["bytes"]
    for name, nbytes in inspection.account.items():
        lines.append(f"  {name:<30}{nbytes:>18,}{nbytes / total:>8.1%}")
    lines.append(f"  {'all':<30}{sum(inspection.account.values()):>18,}{1:>8.0%}")
    return "\n".join(lines)


def _tensors(inspection: Inspection, everything: bool) -> str:
    quantized = _quantized(inspection)
    if not quantized:
        return ""
    shown = quantized
    if not everything:
        largest = sorted(quantized, key=lambda r: -r.tensor.nbytes)[:_LISTED]
        shown = [report for report in quantized if report in largest]
    lines = [f"{'tensor':<38}{'shape':>18}{'bits':>8}{'codes in use':>16}"]
    for report in shown:
        lines += _tensor_lines(report, inspection.modules.get(report.tensor.name, ""))
    if len(shown) < len(quantized):
        left = len(quantized) - len(shown)
        lines.append(
            f"... and {left} smaller ones (--all lists them)"
            if left > 1
            else "... and a smaller one (--all lists it)"
        )
    return "\n".join(lines)


def _tensor_lines(report: TensorReport, module: str) -> list[str]:
    tensor = report.tensor
    shape = " x ".join(str(n) for n in tensor.shape) or "scalar"
    codes = f"{report.codes.used} of {report.codes.possible}" if report.codes else "-"
    lines = [
        f"{cut(module or tensor.name, 37):<38}{cut(shape, 17):>18}"
        f"{tensor.bits_per_weight:>8.2f}{codes:>16}"
    ]
    if module:
        lines.append(f"named {printable(tensor.name)} in the file")
    if report.traces is not None and report.traces.sentence():
        lines.append(f"rule: {report.traces.sentence()}")
    if report.setter is not None:
        index = ", ".join(str(i) for i in report.setter.index)
        others = ""
        if report.codes is not None:
            low, high = report.codes.middle
            others = f"; 99 % of codes in {low}..{high}"
        lines.append(
            f"largest scale set by [{index}] = {report.setter.value:.4g}, "
            f"code {report.setter.code}{others}"
        )
    if tensor.note:
        lines.append(tensor.note)
    return [
        lines[0],
        *(
            textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
            for line in lines[1:]
        ),
    ]


def _warnings(inspection: Inspection, everything: bool) -> str:
    found = list(inspection.warnings)
    for report in inspection.reports:
        found += [f"{report.tensor.name}: {warning}" for warning in report.warnings]
    if not found:
        return ""
    shown = found if everything else found[:_WARNINGS]
    lines = ["warnings"]
    for warning in shown:
        lines.append(
            textwrap.fill(printable(warning), _WIDTH, initial_indent="  ", subsequent_indent="    ")
        )
    if len(shown) < len(found):
        lines.append(f"  ... and {len(found) - len(shown)} more (--all lists them)")
    return "\n".join(lines)
