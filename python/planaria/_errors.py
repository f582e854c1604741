"""The exceptions. Each is also the built-in one that fits, so that code which knows only those still catches it."""


class Error(Exception):
    """Anything that planaria refuses or fails at."""


class ArgumentError(Error, ValueError):
    """A value outside what an operation accepts."""


class RangeError(ArgumentError, OverflowError):
    """An integer that its place cannot hold."""


class LayoutError(Error, ValueError):
    """A mesh, placement or layout that does not make sense."""


class ShapeError(Error, ValueError):
    """Shapes that do not go together."""


class ConfigError(Error, ValueError):
    """A configuration that cannot be run; ``key`` says where, as in ``train.steps``."""

    key: str = ""


class DTypeError(Error, TypeError):
    """A dtype that is not known, or that an operation does not take."""


class ArrayIndexError(Error, IndexError):
    """An index expression that does not fit its array."""


class DeviceError(Error, RuntimeError):
    """A device that cannot do this, or operands on two of them."""


class OutOfMemoryError(Error, MemoryError):
    """Memory that could not be had."""


class CheckpointError(Error, OSError):
    """A checkpoint that cannot be read or written."""


class NotFoundError(CheckpointError, FileNotFoundError):
    """No checkpoint, or no tensor of that name in it."""


class ExistsError(CheckpointError, FileExistsError):
    """A committed checkpoint stands where one should be written; pass ``overwrite=True``."""


class MismatchError(CheckpointError, ValueError):
    """A checkpoint and the state it should fill differ. No tensor was changed."""

    missing: list[str] = []
    unexpected: list[str] = []
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    dtypes: dict[str, tuple[str, str]] = {}


class DamagedError(CheckpointError):
    """Bytes that do not have their checksum, or files that are cut short."""

    tensor: str = ""
    file: str = ""
    start: int = 0
    stop: int = 0


class CommError(Error, RuntimeError):
    """A collective that failed: a lost peer, a timeout, calls that do not match."""


class RunError(Error, RuntimeError):
    """A run that could not go on."""


class InternalError(Error, RuntimeError):
    """A bug in planaria itself."""
