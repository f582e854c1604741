"""Functions of elements; each is a kernel of the core by its name."""

from __future__ import annotations

from typing import Any

from .. import _planaria
from .._planaria import Array
from ._dtypes import FLOATS, result_type

Number = bool | int | float


def _unary(name: str, what: str) -> Any:
    def function(x: Array, /) -> Array:
        return _planaria.unary(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


def _binary(name: str, what: str) -> Any:
    def function(x1: Array | Number, x2: Array | Number, /) -> Array:
        return _planaria.binary(name, x1, x2)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


abs = _unary("abs", "Absolute value.")
acos = _unary("acos", "Inverse cosine.")
acosh = _unary("acosh", "Inverse hyperbolic cosine.")
asin = _unary("asin", "Inverse sine.")
asinh = _unary("asinh", "Inverse hyperbolic sine.")
atan = _unary("atan", "Inverse tangent.")
atanh = _unary("atanh", "Inverse hyperbolic tangent.")
bitwise_invert = _unary("bitwise_invert", "Every bit flipped.")
ceil = _unary("ceil", "The least whole number not below.")
cos = _unary("cos", "Cosine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
exp = _unary("exp", "e to the element.")
expm1 = _unary("expm1", "e to the element, less 1, accurate near 0.")
floor = _unary("floor", "The greatest whole number not above.")
isfinite = _unary("isfinite", "Neither infinite nor NaN.")
isinf = _unary("isinf", "Infinite.")
isnan = _unary("isnan", "Not a number.")
log = _unary("log", "Natural logarithm.")
log10 = _unary("log10", "Logarithm to base 10.")
log1p = _unary("log1p", "Logarithm of 1 plus the element, accurate near 0.")
log2 = _unary("log2", "Logarithm to base 2.")
logical_not = _unary("logical_not", "True where the element is false.")
negative = _unary("negative", "Minus the element.")
positive = _unary("positive", "The element.")
reciprocal = _unary("reciprocal", "1 over the element.")
round = _unary("round", "The nearest whole number; of two the even one.")
sign = _unary("sign", "-1, 0 or 1.")
signbit = _unary("signbit", "Whether the sign bit is set.")
sin = _unary("sin", "Sine.")
sinh = _unary("sinh", "Hyperbolic sine.")
sqrt = _unary("sqrt", "Square root.")
square = _unary("square", "The element times itself.")
tan = _unary("tan", "Tangent.")
tanh = _unary("tanh", "Hyperbolic tangent.")
trunc = _unary("trunc", "The whole part.")

add = _binary("add", "Sum.")
atan2 = _binary("atan2", "Angle of the point (x2, x1).")
bitwise_and = _binary("bitwise_and", "Bits of both.")
bitwise_left_shift = _binary("bitwise_left_shift", "Bits moved to the left.")
bitwise_or = _binary("bitwise_or", "Bits of either.")
bitwise_right_shift = _binary("bitwise_right_shift", "Bits moved to the right.")
bitwise_xor = _binary("bitwise_xor", "Bits of one of the two.")
copysign = _binary("copysign", "The size of x1 with the sign of x2.")
divide = _binary("divide", "Quotient.")
equal = _binary("equal", "x1 == x2.")
floor_divide = _binary("floor_divide", "Quotient, rounded down.")
greater = _binary("greater", "x1 > x2.")
greater_equal = _binary("greater_equal", "x1 >= x2.")
hypot = _binary("hypot", "Length of the vector (x1, x2).")
less = _binary("less", "x1 < x2.")
less_equal = _binary("less_equal", "x1 <= x2.")
logaddexp = _binary("logaddexp", "Logarithm of the sum of exponentials.")
logical_and = _binary("logical_and", "True where both are.")
logical_or = _binary("logical_or", "True where either is.")
logical_xor = _binary("logical_xor", "True where one of the two is.")
maximum = _binary("maximum", "The larger.")
minimum = _binary("minimum", "The smaller.")
multiply = _binary("multiply", "Product.")
nextafter = _binary("nextafter", "The next value of the dtype from x1 toward x2.")
not_equal = _binary("not_equal", "x1 != x2.")
pow = _binary("pow", "x1 to the power x2.")
remainder = _binary("remainder", "What is left after floor_divide; it has the sign of x2.")
subtract = _binary("subtract", "Difference.")


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


__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]
