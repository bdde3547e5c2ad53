"""The proof as a versioned JSON document."""

from dataclasses import asdict
from typing import Any

from foldmark.proof.sentences import (
    bound_sentence,
    integer_sentence,
    saturation_sentence,
    signed_sentence,
    verdict,
)
from foldmark.proof.verify import Proof

__all__ = ["SCHEMA", "proof_document"]

SCHEMA = "foldmark.verify/1"


def proof_document(proof: Proof) -> dict[str, Any]:
    """Return the proof as plain values; fields may be added to the schema, never renamed."""
    kernels = proof.kernels
    return {
        "schema": SCHEMA,
        "models": {"float": proof.float_path, "quantized": proof.quantized_path},
        "verdict": verdict(proof),
        "sentences": [
            text
            for text in (
                integer_sentence(proof),
                bound_sentence(proof),
                signed_sentence(proof),
                saturation_sentence(proof),
            )
            if text
        ],
        "data": {
            "source": proof.data,
            "random": proof.data_is_random,
            "samples": proof.quality.samples,
        },
        "machine": {
            "processor": proof.machine.processor,
            "instructions": list(proof.machine.instructions),
            "threads": proof.threads,
            "runtime": proof.runtime,
        },
        "size": {
            "float_bytes": proof.float_size.total,
            "bytes": proof.size.total,
            "lines": [
                {"role": each.role.value, "bytes": each.size, "tensors": each.tensors}
                for each in proof.size.lines
            ],
            "kept_float": [asdict(each) for each in proof.size.kept_float],
        },
        "speed": [asdict(each) | {"within_noise": each.within_noise} for each in proof.speeds],
        "quality": asdict(proof.quality),
        "kernels": {
            "integer_share": kernels.integer_share,
            "shares": [asdict(each) | {"executor": each.executor.value} for each in kernels.shares],
            "conversion_seconds": kernels.conversion_seconds,
            "other_seconds": kernels.other_seconds,
            "unfused": [asdict(each) for each in kernels.unfused],
            "lost_fusions": [asdict(each) for each in kernels.lost],
            "hidden": list(kernels.hidden),
            "signed": [each.node for each in kernels.signed],
        },
        "bound": asdict(proof.bound),
        "saturation": [asdict(each) for each in proof.saturations],
        "saturation_cost": None if proof.saturation_cost is None else asdict(proof.saturation_cost),
    }
