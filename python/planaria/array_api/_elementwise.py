"""Functions of elements; each is a kernel of the core by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .. import _planaria
from .._planaria import Array
from ._dtypes import FLOATS, result_type

Number: TypeAlias = bool | int | float
Unary: TypeAlias = Callable[[Array], Array]
Binary: TypeAlias = Callable[[Array | Number, Array | Number], Array]


def _unary(name: str, what: str) -> Unary:
    def function(x: Array, /) -> Array:
        return _planaria.unary(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


def _binary(name: str, what: str) -> Binary:
    def function(x1: Array | Number, x2: Array | Number, /) -> Array:
        return _planaria.binary(name, x1, x2)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


abs: Unary = _unary("abs", "Absolute value.")
acos: Unary = _unary("acos", "Inverse cosine.")
acosh: Unary = _unary("acosh", "Inverse hyperbolic cosine.")
asin: Unary = _unary("asin", "Inverse sine.")
asinh: Unary = _unary("asinh", "Inverse hyperbolic sine.")
atan: Unary = _unary("atan", "Inverse tangent.")
atanh: Unary = _unary("atanh", "Inverse hyperbolic tangent.")
bitwise_invert: Unary = _unary("bitwise_invert", "Every bit flipped.")
ceil: Unary = _unary("ceil", "The least whole number not below.")
cos: Unary = _unary("cos", "Cosine.")
cosh: Unary = _unary("cosh", "Hyperbolic cosine.")
exp: Unary = _unary("exp", "e to the element.")
expm1: Unary = _unary("expm1", "e to the element, less 1, accurate near 0.")
floor: Unary = _unary("floor", "The greatest whole number not above.")
isfinite: Unary = _unary("isfinite", "Neither infinite nor NaN.")
isinf: Unary = _unary("isinf", "Infinite.")
isnan: Unary = _unary("isnan", "Not a number.")
log: Unary = _unary("log", "Natural logarithm.")
log10: Unary = _unary("log10", "Logarithm to base 10.")
log1p: Unary = _unary("log1p", "Logarithm of 1 plus the element, accurate near 0.")
log2: Unary = _unary("log2", "Logarithm to base 2.")
logical_not: Unary = _unary("logical_not", "True where the element is false.")
negative: Unary = _unary("negative", "Minus the element.")
positive: Unary = _unary("positive", "The element.")
reciprocal: Unary = _unary("reciprocal", "1 over the element.")
round: Unary = _unary("round", "The nearest whole number; of two the even one.")
sign: Unary = _unary("sign", "-1, 0 or 1.")
signbit: Unary = _unary("signbit", "Whether the sign bit is set.")
sin: Unary = _unary("sin", "Sine.")
sinh: Unary = _unary("sinh", "Hyperbolic sine.")
sqrt: Unary = _unary("sqrt", "Square root.")
square: Unary = _unary("square", "The element times itself.")
tan: Unary = _unary("tan", "Tangent.")
tanh: Unary = _unary("tanh", "Hyperbolic tangent.")
trunc: Unary = _unary("trunc", "The whole part.")

add: Binary = _binary("add", "Sum.")
atan2: Binary = _binary("atan2", "Angle of the point (x2, x1).")
bitwise_and: Binary = _binary("bitwise_and", "Bits of both.")
bitwise_left_shift: Binary = _binary("bitwise_left_shift", "Bits moved to the left.")
bitwise_or: Binary = _binary("bitwise_or", "Bits of either.")
bitwise_right_shift: Binary = _binary("bitwise_right_shift", "Bits moved to the right.")
bitwise_xor: Binary = _binary("bitwise_xor", "Bits of one of the two.")
copysign: Binary = _binary("copysign", "The size of x1 with the sign of x2.")
divide: Binary = _binary("divide", "Quotient.")
equal: Binary = _binary("equal", "x1 == x2.")
floor_divide: Binary = _binary("floor_divide", "Quotient, rounded down.")
greater: Binary = _binary("greater", "x1 > x2.")
greater_equal: Binary = _binary("greater_equal", "x1 >= x2.")
hypot: Binary = _binary("hypot", "Length of the vector (x1, x2).")
less: Binary = _binary("less", "x1 < x2.")
less_equal: Binary = _binary("less_equal", "x1 <= x2.")
logaddexp: Binary = _binary("logaddexp", "Logarithm of the sum of exponentials.")
logical_and: Binary = _binary("logical_and", "True where both are.")
logical_or: Binary = _binary("logical_or", "True where either is.")
logical_xor: Binary = _binary("logical_xor", "True where one of the two is.")
maximum: Binary = _binary("maximum", "The larger.")
minimum: Binary = _binary("minimum", "The smaller.")
multiply: Binary = _binary("multiply", "Product.")
nextafter: Binary = _binary("nextafter", "The next value of the dtype from x1 toward x2.")
not_equal: Binary = _binary("not_equal", "x1 != x2.")
pow: Binary = _binary("pow", "x1 to the power x2.")
remainder: Binary = _binary("remainder", "What is left after floor_divide; it has the sign of x2.")
subtract: Binary = _binary("subtract", "Difference.")


def conj(x: Array, /) -> Array:
    """The complex conjugate; real numbers are their own."""
    return positive(x)


def clip(x: Array, /, min: Array | Number | None = None, max: Array | Number | None = None) -> Array:
    """Elements no smaller than ``min`` and no larger than ``max``."""
    out: Array = positive(x)
    for bound, kernel in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            limit = bound if isinstance(bound, Array) else _planaria.full([], _fitting(bound, x), x.dtype)
            out = _planaria.binary(kernel, out, limit.astype(x.dtype))
    return out


def _fitting(bound: Number, x: Array) -> Number:
    return bound if x.dtype in FLOATS.values() or not isinstance(bound, float) else int(bound)


def where(condition: Array, x1: Array | Number, x2: Array | Number, /) -> Array:
    """Elements of ``x1`` where the condition is true, of ``x2`` where it is not."""
    result_type(*[x for x in (x1, x2)])
    return _planaria.choose(condition, x1, x2)
