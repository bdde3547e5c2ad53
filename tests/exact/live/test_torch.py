"""PyTorch 2.13 and torchao: observers, kernels and affine primitives give the rules' codes."""

import numpy as np
import pytest
from tests.exact.live.groups import groups

from foldmark import rules
from foldmark.exact import catalog
from foldmark.exact.affine import fake_quantize, quantize
from foldmark.exact.group import quantize_group
from foldmark.exact.number import FloatFormat
from foldmark.exact.rule import Rule
from foldmark.exact.tools.entry import Operator, Procedure

torch = pytest.importorskip("torch")

SCALES = (1.0, 0.1, 0.3, 0.00214854861)
ZEROS = (0, 3, -5)


def half_steps(scale: float) -> np.ndarray:
    ties = (np.arange(-40, 40) + np.float32(0.5)) * np.float32(scale)
    return np.concatenate([ties, np.nextafter(ties, np.float32(9)), [-1e30, 1e30]]).astype("f4")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("zero", ZEROS)
def test_quantize_per_tensor_and_channel(scale: float, zero: int) -> None:
    values = half_steps(scale)
    tensor = torch.tensor(values)
    per_tensor = torch.quantize_per_tensor(tensor, scale, zero, torch.qint8).int_repr()
    per_channel = torch.quantize_per_channel(
        tensor[None], torch.tensor([scale]), torch.tensor([zero]), 0, torch.qint8
    ).int_repr()[0]
    given = (values.tolist(), float(np.float32(scale)), zero)
    assert quantize(*given, rules.TORCH_2_13_PER_TENSOR_INT8.affine) == per_tensor.tolist()
    assert quantize(*given, rules.TORCH_2_13_PER_CHANNEL_INT8.affine) == per_channel.tolist()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("zero", ZEROS)
def test_fake_quantize(scale: float, zero: int) -> None:
    values = half_steps(scale)[:-2]
    tensor = torch.tensor(values)
    whole = torch.fake_quantize_per_tensor_affine(tensor, scale, zero, -128, 127)
    single = float(np.float32(scale))
    codes = quantize(values.tolist(), single, zero, rules.TORCH_FAKE_QUANTIZE_INT8.affine)
    assert (np.float32(single) * (np.array(codes) - zero).astype("f4")).tolist() == whole.tolist()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("zero", ZEROS)
def test_decomposed(scale: float, zero: int) -> None:
    import torch.ao.quantization.fx._decomposed

    values = half_steps(scale)[:-2]
    theirs = torch.ops.quantized_decomposed.quantize_per_tensor(
        torch.tensor(values), scale, zero, -128, 127, torch.int8
    )
    codes = quantize(values.tolist(), scale, zero, rules.TORCH_DECOMPOSED_INT8.affine)
    assert codes == theirs.tolist()


def observers() -> list:
    from torch.ao.quantization import observer as o

    affine, symmetric = torch.per_tensor_affine, torch.per_tensor_symmetric
    minmax = o.MinMaxObserver
    narrow = (
        o.default_weight_observer_range_neg_127_to_127
        if hasattr(o, "default_weight_observer_range_neg_127_to_127")
        else o.weight_observer_range_neg_127_to_127
    )
    return [
        (rules.TORCH_OBSERVER_UINT8, minmax.with_args(dtype=torch.quint8, qscheme=affine)),
        (rules.TORCH_OBSERVER_UINT8_REDUCED, o.default_observer),
        (
            rules.TORCH_OBSERVER_UINT8_SYMMETRIC,
            minmax.with_args(dtype=torch.quint8, qscheme=symmetric),
        ),
        (rules.TORCH_OBSERVER_INT8, o.default_weight_observer),
        (
            rules.TORCH_OBSERVER_INT8_REDUCED,
            minmax.with_args(dtype=torch.qint8, qscheme=symmetric, reduce_range=True),
        ),
        (rules.TORCH_OBSERVER_INT8_NARROW, narrow),
        (
            rules.TORCH_OBSERVER_UINT8,
            o.MovingAverageMinMaxObserver.with_args(dtype=torch.quint8, qscheme=affine),
        ),
    ]


@pytest.mark.parametrize("index", range(7))
@pytest.mark.filterwarnings("ignore")
def test_observers(index: int) -> None:
    rule, make = observers()[index]
    for values in groups():
        observer = make()
        observer(torch.tensor(values))
        scale, zero = observer.calculate_qparams()
        theirs = torch.quantize_per_tensor(
            torch.tensor(values), float(scale), int(zero), observer.dtype
        )
        ours = quantize_group(values.tolist(), rule)
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())
        assert list(ours.codes) == theirs.int_repr().tolist()


@pytest.mark.filterwarnings("ignore")
def test_histogram_observer() -> None:
    from torch.ao.quantization.observer import HistogramObserver

    procedure = rules.TORCH_HISTOGRAM_UINT8
    assert isinstance(procedure, Procedure)
    for values in groups()[::3]:
        observer = HistogramObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine)
        observer(torch.tensor(values))
        scale, zero = observer.calculate_qparams()
        ours = procedure.quantize(values.tolist(), catalog.FLOAT32)
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())


@pytest.mark.parametrize("reduced", [False, True])
def test_dynamic_parameters(reduced: bool) -> None:
    rule = rules.TORCH_DYNAMIC_UINT8_REDUCED if reduced else rules.TORCH_DYNAMIC_UINT8
    tiny = [np.float32([1e-6, -1e-6, 0]), np.float32([1e-6, 0]), np.float32([-2e-5, -1e-6])]
    for values in (*groups(), *tiny):
        scale, zero = torch._choose_qparams_per_tensor(torch.tensor(values), reduced)
        ours = quantize_group(values.tolist(), rule)
        assert (ours.scale, ours.zero_point) == (scale, zero)


DTYPES = {catalog.FLOAT32: torch.float32, catalog.BFLOAT16: torch.bfloat16}


def in_dtype(values: np.ndarray, data: FloatFormat) -> torch.Tensor:
    return torch.tensor(values).to(DTYPES[data])


@pytest.mark.parametrize("data", DTYPES, ids=lambda f: f.name)
@pytest.mark.parametrize("mapping", ["SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"])
@pytest.mark.parametrize("bits", [4, 8])
def test_torchao_affine(data: FloatFormat, mapping: str, bits: int) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    kind = {"SYMMETRIC_NO_CLIPPING_ERR": "WITHOUT_CLIPPING"}.get(mapping, mapping)
    rule = getattr(rules, f"TORCHAO_INT{bits}_{kind}")
    ends = (rule.codes.minimum, rule.codes.maximum)
    for values in groups():
        tensor = in_dtype(values, data)[None]
        scale, zero = primitives.choose_qparams_affine(
            tensor, getattr(primitives.MappingType, mapping), (1, 64), torch.int8, *ends
        )
        codes = primitives.quantize_affine(tensor, (1, 64), scale, zero, torch.int8, *ends)
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())
        assert list(ours.codes) == codes[0].tolist()


@pytest.mark.parametrize("data", DTYPES, ids=lambda f: f.name)
def test_torchao_tinygemm(data: FloatFormat) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    rule = rules.TORCHAO_TINYGEMM_INT4
    assert isinstance(rule, Rule)
    for values in groups():
        tensor = in_dtype(values, data)[None]
        scale, zero = primitives._choose_qparams_affine_tinygemm(
            tensor,
            primitives.MappingType.ASYMMETRIC,
            (1, 64),
            torch.int32,
            0,
            15,
            eps=1e-6,
            scale_dtype=tensor.dtype,
            zero_point_dtype=tensor.dtype,
        )
        codes = primitives._quantize_affine_tinygemm(
            tensor, (1, 64), scale, zero, torch.int32, 0, 15
        )
        ours = quantize_group(tensor[0].float().tolist(), rule, data)
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())
        assert list(ours.codes) == codes[0].tolist()


def test_operators_of_2_13_and_its_neighbours_differ() -> None:
    new, old = rules.TORCH_2_13_PER_TENSOR_INT8, rules.TORCH_QUANTIZE_INT8
    assert isinstance(new, Operator) and isinstance(old, Operator)
    assert quantize([0.5], 1.0, 1, new.affine) != quantize([0.5], 1.0, 1, old.affine)


@pytest.mark.parametrize("zero", [0.3, 1.0, 2.5])
def test_a_float_zero_point_is_added_before_rounding(zero: float) -> None:
    values = half_steps(0.125)[:-2]
    restored = torch.fake_quantize_per_channel_affine(
        torch.tensor(values)[None], torch.tensor([0.125]), torch.tensor([zero]), 0, -128, 127
    )
    rule = rules.TORCH_FAKE_QUANTIZE_FLOAT_ZERO_INT8.affine
    ours = fake_quantize(values.tolist(), 0.125, float(np.float32(zero)), rule)
    assert ours == restored[0].tolist()


def test_an_observer_of_half_the_codes_puts_zero_in_their_middle() -> None:
    for values in groups():
        observer = torch.ao.quantization.MinMaxObserver(
            dtype=torch.quint8, qscheme=torch.per_tensor_symmetric, quant_min=0, quant_max=127
        )
        tensor = torch.tensor(values)
        observer(tensor)
        scale, zero = observer.calculate_qparams()
        codes = torch.quantize_per_tensor(tensor, scale.item(), int(zero), torch.quint8)
        ours = quantize_group(values.tolist(), rules.TORCH_OBSERVER_UINT8_SYMMETRIC_REDUCED)
        assert (ours.scale, ours.zero_point) == (scale.item(), int(zero))
        assert list(ours.codes) == codes.int_repr().tolist()
