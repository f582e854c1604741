"""Lets the array API suite run on a namespace without complex dtypes; loaded with ``-p``.

The suite looks for the widest complex dtype while it is imported and finds none. Cases of complex functions, and special
cases that name real and imaginary parts, do not apply.
"""

import builtins

_max = builtins.max


def _tolerant(*args, **options):
    if len(args) == 1 and isinstance(args[0], list) and not args[0]:
        return (None, 0)
    return _max(*args, **options)


builtins.max = _tolerant
try:
    from array_api_tests import dtype_helpers
finally:
    builtins.max = _max
dtype_helpers.widest_complex_dtype = dtype_helpers.widest_real_dtype

_COMPLEX = ("real(", "imag(", "[real", "[imag", "[conj", "-real]", "-imag]", "-conj]", "test_real", "test_imag", "test_conj")

_EXTENSIONS = ("test_has_names[linalg-", "test_has_names[fft-")
"""Names of extensions, which the suite asks for even where they are disabled."""


def pytest_collection_modifyitems(config, items):
    """Leaves out what is about complex numbers, and names of extensions."""
    left = [item for item in items if any(word in item.nodeid for word in _COMPLEX + _EXTENSIONS)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
