"""Formats and rounding against PyTorch's casts, value by value and bit by bit."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from speedlab.errors import BadInput
from speedlab.number_formats import FORMATS, bit_pattern, get_format, round_to, step_at

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
every_dtype = pytest.mark.parametrize("name", DTYPES)


def trial_values(name: str) -> torch.Tensor:
    """float32 values over the whole range of a format: random ones, its limits, ties around them."""
    form = FORMATS[name]
    generator = torch.Generator().manual_seed(1)
    exponents = torch.randint(-150, 128, (4000,), generator=generator).double()
    random = (torch.rand(4000, generator=generator).double() + 1) * 2.0**exponents
    steps = torch.arange(0, 40).double() / 4 * form.smallest_subnormal
    near_one = 1 + torch.arange(-16, 17).double() / 4 * form.step_at_one
    near_end = form.largest + torch.arange(-4, 5).double() / 4 * step_at(form.largest, form)
    positive = torch.cat([random, steps, near_one, near_end])
    return torch.cat([positive, -positive, torch.tensor([math.inf, -math.inf])]).float()


@every_dtype
def test_rounding_is_what_a_cast_does(name: str) -> None:
    values = trial_values(name)
    cast = values.to(DTYPES[name]).double().tolist()
    for value, expected in zip(values.double().tolist(), cast, strict=True):
        found = round_to(value, FORMATS[name])
        if math.isnan(found):  # a format without infinity: torch's cast gives NaN or the largest value, by version
            assert abs(value) > FORMATS[name].largest and (math.isnan(expected) or abs(expected) == 448.0)
            continue
        assert found == expected and math.copysign(1.0, found) == math.copysign(1.0, expected), value


@every_dtype
def test_limits_are_those_of_torch(name: str) -> None:
    form, info = FORMATS[name], torch.finfo(DTYPES[name])
    assert (form.largest, form.step_at_one, form.smallest_normal) == (info.max, info.eps, info.smallest_normal)
    assert form.stored_bits == info.bits == 1 + form.exponent_bits + form.fraction_bits
    assert form.smallest_subnormal == torch.tensor(1, dtype=INTEGERS[info.bits // 8]).view(DTYPES[name]).item()


@every_dtype
def test_bit_patterns_are_those_in_memory(name: str) -> None:
    form = FORMATS[name]
    for value in (0.0, -0.0, 1.0, -1.75, form.largest, form.smallest_normal, -form.smallest_subnormal, math.inf):
        if math.isinf(value) and not form.infinity:
            continue
        stored = torch.tensor(value, dtype=DTYPES[name]).view(INTEGERS[form.stored_bits // 8]).item()
        expected = format(stored % 2**form.stored_bits, f"0{form.stored_bits}b")
        assert bit_pattern(value, form).replace(" ", "") == expected
    assert [len(part) for part in bit_pattern(1.0, form).split()] == [1, form.exponent_bits, form.fraction_bits]


def test_tf32_is_float32_without_the_last_13_bits() -> None:
    """TF32 has no dtype: half of the last bit that stays is added to the pattern, one less where that bit is even."""
    for value in trial_values("float32").tolist():
        if not abs(value) < torch.finfo(torch.float32).max:
            continue
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        kept = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000
        assert round_to(value, FORMATS["TF32"]) == struct.unpack("<f", struct.pack("<I", kept))[0]


def test_what_a_format_cannot_hold_has_no_bit_pattern() -> None:
    with pytest.raises(BadInput, match=r"1\.0005 is no value of bfloat16.*becomes 1\.0"):
        bit_pattern(1.0005, FORMATS["bfloat16"])
    with pytest.raises(BadInput, match="number format"):
        get_format("float12")
    assert math.isnan(round_to(math.nan, FORMATS["float16"]))
