"""Conversions between 16-bit values and float32, eight at once: vector code for loops too short to be autovectorized.

The formulas are those of `narrow_rows.bfloat16_of`, `float16_of` and `value_noise`, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES_OF_HALVES = 8
WORD = ir.IntType(32)
WORDS, HALVES = (ir.VectorType(ir.IntType(bits), LANES_OF_HALVES) for bits in (32, 16))
FLOATS, FLOAT16S = (ir.VectorType(kind, LANES_OF_HALVES) for kind in (ir.FloatType(), ir.HalfType()))


@dataclass(frozen=True, slots=True)
class Lanes:
    """Eight uint32 lanes with Python's operators. An `int` operand is broadcast to all lanes."""

    builder: Any
    values: Any

    def _with(self, operation: Callable[..., Any], other: Lanes | int) -> Lanes:
        values = other.values if isinstance(other, Lanes) else ir.Constant(WORDS, [other] * LANES_OF_HALVES)
        return Lanes(self.builder, operation(self.values, values))

    def __add__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.add, other)

    def __sub__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.sub, other)

    def __mul__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.mul, other)

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.and_, other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.or_, other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.xor, other)

    def __lshift__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.shl, other)

    def __rshift__(self, other: Lanes | int) -> Lanes:
        return self._with(self.builder.lshr, other)

    def where(self, condition: str, other: int, yes: Lanes | int, no: Lanes | int) -> Lanes:
        """`yes` in lanes for which the signed comparison `condition` with `other` holds, `no` in the others."""
        lane = ir.Constant(WORDS, [other] * LANES_OF_HALVES)
        chosen = [self._with(lambda own, others: others, choice).values for choice in (yes, no)]
        return Lanes(self.builder, self.builder.select(self.builder.icmp_signed(condition, self.values, lane), *chosen))


def _splat(builder: Any, value: Any) -> Lanes:
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), value, WORD(0))
    none = ir.Constant(WORDS, [0] * LANES_OF_HALVES)
    return Lanes(builder, builder.shuffle_vector(one, ir.Constant(WORDS, ir.Undefined), none))


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _store(builder: Any, values: Any, address: Any, align: int) -> None:
    builder.store(values, builder.inttoptr(address, values.type.as_pointer())).align = align


def _converting(kind: Any, align: int, formula: Callable[[Any, Any], Any]) -> Any:
    @intrinsic
    def convert(typingctx: Any, source: Any, target: Any) -> Any:
        """Convert the value of this kind at one address to 32-bit values at another."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _store(builder, formula(builder, _load(builder, args[0], kind, align)), args[1], 4)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    return convert


widen_bfloat16s = _converting(
    HALVES, 2, lambda builder, halves: (Lanes(builder, builder.zext(halves, WORDS)) << 16).values
)
widen_float16s = _converting(FLOAT16S, 2, lambda builder, halves: builder.fpext(halves, FLOATS))
"""Functions that widen eight values at one address to eight float32 values at another."""
copy_word = _converting(WORD, 4, lambda builder, word: word)
"""Function that copies 32 bits from one address to another."""


def _noise(builder: Any, of_row: Any, place: Any) -> Lanes:
    """Random bits of the values at `place` and the seven places after it."""
    places = _splat(builder, place) + Lanes(builder, ir.Constant(WORDS, list(range(LANES_OF_HALVES))))
    x = _splat(builder, of_row) + places * 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


def _bfloat16s(bits: Lanes, noise: Lanes) -> Lanes:
    cut = bits >> 16
    rounded = (bits + (noise >> 16)) >> 16
    finite = (rounded & 0x7F80).where("==", 0x7F80, cut, rounded)
    infinite = (bits & 0x7FFFFF).where("==", 0, cut, cut | 0x40)
    return (bits & 0x7F800000).where("==", 0x7F800000, infinite, finite)


def _float16s(bits: Lanes, noise: Lanes) -> Lanes:
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    missing = exponent.where("<", 113, (exponent ^ 0xFFFFFFFF) + 114, 0)
    shift = missing.where("<", 18, missing + 13, 31)
    down = (shift ^ 0xFFFFFFFF) + 33
    rounded = ((fraction | 0x800000) + (noise >> down)) >> shift
    half = rounded + (exponent.where("<", 113, 0, exponent - 113) << 10)
    half = half.where(">", 0x7BFF, 0x7BFF, half)
    half = missing.where(">", 18, 0, half)
    half = exponent.where("==", 255, fraction.where("==", 0, 0x7C00, 0x7E00), half)
    return half | ((bits >> 16) & 0x8000)


def _narrowing(formula: Callable[[Lanes, Lanes], Lanes]) -> Any:
    @intrinsic
    def narrow_eight(typingctx: Any, source: Any, target: Any, of_row: Any, place: Any, to_nearest: Any) -> Any:
        """Round eight float32 values at one address to eight narrow values at another. `of_row` and `place` are those
        of `value_noise` for the first value; they are ignored if values are rounded to nearest."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            bits = Lanes(builder, _load(builder, args[0], WORDS, 4))
            noise = _noise(builder, args[2], args[3])
            nearest = ir.Constant(WORDS, [1 << 31] * LANES_OF_HALVES)
            flag = builder.trunc(args[4], ir.IntType(1))
            noise = Lanes(builder, builder.select(flag, nearest, noise.values))
            _store(builder, builder.trunc(formula(bits, noise).values, HALVES), args[1], 2)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.uint32, types.uint32, types.boolean), codegen

    return narrow_eight


narrow_bfloat16s, narrow_float16s = _narrowing(_bfloat16s), _narrowing(_float16s)
