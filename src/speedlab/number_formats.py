"""What the bits of a floating-point format can hold: range, step, and the exact rounding of one value into it.

Plain arithmetic on Python's floats, which have 53 bits and so hold every value of every format here. It knows no torch
and no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from speedlab.errors import BadInput, check_choice


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """A binary floating-point format with one sign bit; `stored_bits` counts unused ones too.

    infinity: whether the largest exponent pattern is kept for infinity and NaN, as IEEE 754 says. Where it is not,
    that pattern holds ordinary values, and only all bits set means NaN.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    stored_bits: int
    infinity: bool = True

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self) -> int:
        """Exponent of the smallest normal value, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """Largest finite value."""
        if self.infinity:
            return (2 - 2.0**-self.fraction_bits) * 2.0**self.bias
        return (2 - 2.0 ** (1 - self.fraction_bits)) * 2.0 ** (self.bias + 1)

    @property
    def step_at_one(self) -> float:
        """Distance from 1 to the next larger value (eps)."""
        return 2.0**-self.fraction_bits

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with all its fraction bits."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value at all; it has one bit of precision."""
        return 2.0 ** (self.smallest_exponent - self.fraction_bits)


FORMATS: dict[str, NumberFormat] = {
    form.name: form
    for form in (
        NumberFormat(name="float32", exponent_bits=8, fraction_bits=23, stored_bits=32),
        NumberFormat(name="TF32", exponent_bits=8, fraction_bits=10, stored_bits=32),
        NumberFormat(name="bfloat16", exponent_bits=8, fraction_bits=7, stored_bits=16),
        NumberFormat(name="float16", exponent_bits=5, fraction_bits=10, stored_bits=16),
        # Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
        NumberFormat(name="float8_e4m3", exponent_bits=4, fraction_bits=3, stored_bits=8, infinity=False),
        NumberFormat(name="float8_e5m2", exponent_bits=5, fraction_bits=2, stored_bits=8),
    )
}


def get_format(name: str) -> NumberFormat:
    check_choice("number format", name, FORMATS)
    return FORMATS[name]


def round_to(value: float, form: NumberFormat) -> float:
    """The nearest value of the format, ties to the one with an even last bit (IEEE 754's default rounding).

    Too large for it is infinity, or NaN where the format has none (a cast may give the largest value there). TF32 is a
    format of registers: how a matmul rounds float32 to it is up to the hardware and library; this is the nearest value.

    round_to(1.0005, FORMATS["bfloat16"]) is 1.0: the next value is 1.0078125.
    """
    if value == 0.0 or math.isnan(value):
        return value
    rounded = math.inf if math.isinf(value) else round(abs(value) / step_at(value, form)) * step_at(value, form)
    if rounded > form.largest:
        rounded = math.inf if form.infinity else math.nan
    return math.copysign(rounded, value)


def step_at(value: float, form: NumberFormat) -> float:
    """Distance between neighbours of the format in the power of two where a finite value lies."""
    exponent = math.frexp(value)[1] - 1  # frexp's fraction is in [0.5, 1)
    return 2.0 ** (max(exponent, form.smallest_exponent) - form.fraction_bits)


def bit_pattern(value: float, form: NumberFormat) -> str:
    """Sign, exponent and fraction of a value that the format holds exactly, as "0 01111111 0000000" for 1 in bfloat16.

    `BadInput` for a value that it can only hold rounded.
    """
    if math.isnan(value) or round_to(value, form) != value:
        raise BadInput(f"{value!r} is no value of {form.name}: round it first, it becomes {round_to(value, form)!r}")
    size = abs(value)
    if math.isinf(size):
        exponent, fraction = 2**form.exponent_bits - 1, 0
    elif size < form.smallest_normal:
        exponent, fraction = 0, round(size / form.smallest_subnormal)
    else:
        power = math.frexp(size)[1] - 1
        exponent, fraction = power + form.bias, round((size / 2.0**power - 1) * 2**form.fraction_bits)
    sign = int(math.copysign(1.0, value) < 0)
    return f"{sign} {exponent:0{form.exponent_bits}b} {fraction:0{form.fraction_bits}b}"
