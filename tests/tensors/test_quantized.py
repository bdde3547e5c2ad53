"""Quantized tensors: their invariants, their bytes, and the calls that make them."""

import ml_dtypes
import numpy as np
import pytest

import foldmark as fm
from foldmark.errors import DataMismatch, InvalidScheme, NonFiniteValue
from foldmark.exact import group as exact
from foldmark.exact.catalog import INT4, INT8, UINT4, UINT8
from foldmark.tensors.scheme import Scheme


def weights(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    numbers = np.random.default_rng(len(shape)).standard_normal(shape)
    return (np.round(numbers * 32) / 32).astype(dtype)


BLOCKS = [
    fm.per_tensor(),
    fm.per_axis(0),
    fm.per_axis(1),
    fm.per_axis(-1),
    fm.per_group(3),
    fm.per_group(4, axis=0),
    fm.tile((2, 3)),
]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


def block_by_block(array: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return codes and scales as the oracle gives them, one block after the other."""
    from foldmark.kernels.floats import format_of

    shape, grid = scheme.block.of(array.shape), scheme.block.grid(array.shape)
    codes, scales = np.empty(array.shape, np.int64), np.empty(grid)
    for place in np.ndindex(*grid):
        cut = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, shape, strict=True))
        numbers = [float(number) for number in array[cut].ravel()]
        group = exact.quantize_group(numbers, scheme.rule, format_of(array.dtype))
        codes[cut] = np.reshape(group.codes, array[cut].shape)
        scales[place] = group.scale
    return codes, scales


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", [(6, 8), (5, 7), (3, 4, 5), (1, 1)])
@pytest.mark.parametrize("scheme", [fm.symmetric(INT8), fm.asymmetric(UINT4)], ids=str)
def test_every_granularity_is_the_oracles(
    block: fm.BlockShape, shape: tuple[int, ...], scheme: Scheme
) -> None:
    scheme = Scheme(scheme.rule, block)
    array = weights(shape)
    codes, scales = block_by_block(array, scheme)
    tensor = fm.quantize(array, scheme)
    assert tensor.codes.tolist() == codes.tolist()
    assert tensor.scale.tolist() == scales.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[::-1],
        lambda x: x[1:, 1:],
        lambda x: np.broadcast_to(x[0], x.shape),
        lambda x: x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind == "f" else x,
    ],
    ids=["transposed", "strided", "reversed", "inner", "broadcast", "big-endian"],
)
def test_views_are_as_good_as_copies(dtype: type, view: object) -> None:
    array = view(weights((40, 50), dtype))
    scheme = fm.asymmetric(UINT8, fm.per_axis(0))
    seen, copied = fm.quantize(array, scheme), fm.quantize(np.array(array, dtype), scheme)
    assert np.array_equal(seen.codes, copied.codes)
    assert np.array_equal(seen.scale, copied.scale)
    assert np.array_equal(seen.dequantize(), copied.dequantize())


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)])
@pytest.mark.parametrize("block", [fm.per_tensor(), fm.per_axis(0), fm.per_group(4)], ids=str)
def test_nothing_is_quantized_to_nothing(shape: tuple[int, ...], block: fm.BlockShape) -> None:
    tensor = fm.quantize(np.ones(shape, np.float32), fm.asymmetric(UINT8, block))
    assert tensor.codes.shape == tensor.dequantize().shape == shape
    assert tensor.bits_per_weight == 0.0
    assert np.isfinite(tensor.scale).all()


def test_a_scalar_has_one_scale() -> None:
    tensor = fm.quantize(np.float32(2.0), fm.symmetric(INT8))
    assert tensor.scale.shape == ()
    assert tensor.codes.item() == 127


def test_a_row_of_zeros_has_a_finite_scale_and_the_code_of_zero() -> None:
    array = weights((4, 6))
    array[1] = 0
    for scheme in (fm.symmetric(INT8, fm.per_axis(0)), fm.asymmetric(UINT8, fm.per_axis(0))):
        tensor = fm.quantize(array, scheme)
        assert np.isfinite(tensor.scale).all()
        assert (tensor.scale > 0).all()
        assert (tensor.dequantize()[1] == 0).all()


def test_numbers_too_small_for_a_scale_become_zero() -> None:
    array = np.array([1e-44, -1e-44, 3e-45], np.float32)
    tensor = fm.quantize(array, fm.symmetric(INT8))
    assert tensor.codes.tolist() == [0, 0, 0]
    assert tensor.scale.item() == 1.0


def test_float16_weights_keep_a_float32_scale() -> None:
    array = np.array([6e-8, -6e-8], np.float16)  # a float16 scale would be zero
    tensor = fm.quantize(array, fm.symmetric(INT8))
    assert tensor.scale.dtype == np.float32
    assert tensor.codes.tolist() == [127, -127]


@pytest.mark.parametrize(("bad", "index"), [(np.nan, (1, 2)), (-np.inf, (3, 0))])
def test_the_first_number_that_is_none_is_named(bad: float, index: tuple[int, int]) -> None:
    array = weights((5, 4))
    array[index] = bad
    array[4, 3] = np.nan
    with pytest.raises(NonFiniteValue, match=rf"index \[{index[0]}, {index[1]}\]"):
        fm.quantize(array, fm.symmetric(INT8))
    with pytest.raises(NonFiniteValue, match=rf"index \[{index[1]}, {index[0]}\]"):
        fm.quantize(array[:4].T, fm.symmetric(INT8, fm.per_axis(0)))


def test_bytes_count_scales_and_zero_points() -> None:
    array = weights((8, 64))
    per_group = fm.quantize(array, fm.asymmetric(UINT4, fm.per_group(32)))
    assert per_group.nbytes == 8 * 64 // 2 + 16 * 4 + 16 // 2
    assert per_group.bits_per_weight == 4 + 32 / 32 + 4 / 32
    assert fm.quantize(array, fm.symmetric(INT8)).nbytes == 8 * 64 + 4


def test_tensors_are_immutable() -> None:
    tensor = fm.quantize(weights((4, 4)), fm.symmetric(INT8))
    for part in (tensor.codes, tensor.scale, tensor.zero_point):
        with pytest.raises(ValueError, match="read-only"):
            part[...] = 0
    with pytest.raises(AttributeError):
        tensor.codes = tensor.codes  # type: ignore[misc]


def test_invariants_name_both_shapes() -> None:
    tensor = fm.quantize(weights((4, 6)), fm.symmetric(INT8, fm.per_axis(0)))
    scale, zero, scheme = tensor.scale, tensor.zero_point, tensor.scheme
    with pytest.raises(DataMismatch, match=r"\(1, 4\) beside codes of shape \(4, 6\).*\(4, 1\)"):
        fm.QuantizedTensor(tensor.codes, scale.T, zero, scheme)
    with pytest.raises(DataMismatch, match="zero_point: every block needs one zero point"):
        fm.QuantizedTensor(tensor.codes, scale, zero[:2], scheme)
    with pytest.raises(DataMismatch, match="codes are integers"):
        fm.QuantizedTensor(tensor.dequantize(), scale, zero, scheme)
    small = Scheme(fm.symmetric(INT4).rule, fm.per_axis(0))
    with pytest.raises(DataMismatch, match=r"-8 to 7 \(int4\)"):
        fm.QuantizedTensor(tensor.codes, scale, zero, small)
    with pytest.raises(DataMismatch, match="zero points are codes"):
        fm.QuantizedTensor(tensor.codes, scale, zero.astype(np.float32), scheme)


def test_block_shapes_that_contradict_themselves() -> None:
    with pytest.raises(InvalidScheme):
        fm.per_group(0)
    with pytest.raises(InvalidScheme):
        fm.BlockShape(((0, 1), (0, 2)))
    with pytest.raises(InvalidScheme, match="no axis 2"):
        fm.quantize(weights((2, 2)), fm.symmetric(INT8, fm.per_axis(2)))
    with pytest.raises(InvalidScheme, match="signed"):
        fm.symmetric(UINT8)


@pytest.mark.parametrize("wrong", [[1.0, 2.0], "text", object()])
def test_what_is_no_array_is_refused(wrong: object) -> None:
    with pytest.raises(DataMismatch, match="not an array"):
        fm.quantize(wrong, fm.symmetric(INT8))


def test_integers_are_not_quantized() -> None:
    with pytest.raises(DataMismatch, match="real numbers are needed"):
        fm.quantize(np.arange(4), fm.symmetric(INT8))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_torch_tensors_are_taken_as_they_are(name: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.linspace(-3, 3, 24).reshape(4, 6).to(getattr(torch, name)).requires_grad_()
    scheme = fm.symmetric(INT8, fm.per_axis(0))
    numbers = tensor.detach().double().numpy()
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
    expected = fm.quantize(numbers.astype(dtype), scheme)
    assert np.array_equal(fm.quantize(tensor, scheme).codes, expected.codes)
    assert np.array_equal(
        fm.quantize(tensor.T, scheme).codes, fm.quantize(numbers.astype(dtype).T, scheme).codes
    )


def test_dlpack_without_array() -> None:
    class OnlyDlpack:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    array = weights((3, 4))
    codes = fm.quantize(OnlyDlpack(array), fm.symmetric(INT8)).codes
    assert np.array_equal(codes, fm.quantize(array, fm.symmetric(INT8)).codes)


def test_fake_quantize_is_quantize_and_back() -> None:
    array = weights((7, 9), np.float16)
    scheme = fm.asymmetric(UINT4, fm.per_group(4))
    there = fm.fake_quantize(array, scheme)
    assert there.dtype == np.float16
    assert np.array_equal(there, fm.dequantize(fm.quantize(array, scheme)))


def test_first_difference() -> None:
    a = np.zeros((300, 400), np.float32)
    b = a.copy()
    assert fm.first_difference(a, b) is None
    b[0, 0] = -0.0
    a[1, 1] = b[1, 1] = np.nan
    assert fm.first_difference(a, b) is None
    b[250, 3], b[299, 399] = 2.0, np.nan
    found = fm.first_difference(a, b)
    assert (found.index, found.first, found.second, found.count) == ((250, 3), 0.0, 2.0, 2)
    assert str(found) == "2 of 120000 differ, first at [250, 3]: 0.0 and 2.0"
    assert fm.first_difference(a.T, b.T).index == (3, 250)
    with pytest.raises(DataMismatch, match="different shapes"):
        fm.first_difference(a, b[:2])
