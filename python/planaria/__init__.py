"""Arrays, layouts, checkpoints and training: one global tensor, any layout.

``import planaria`` imports neither NumPy nor torch; both are used where they are installed.
"""

import atexit as _atexit
import typing as _typing

from . import _planaria
from ._checkpoint import Checkpoint, convert, diff, inspect, merge, open, verify
from ._errors import (
    ArgumentError,
    ArrayIndexError,
    CheckpointError,
    CommError,
    ConfigError,
    DamagedError,
    DeviceError,
    DTypeError,
    Error,
    ExistsError,
    InternalError,
    LayoutError,
    MismatchError,
    NotFoundError,
    OutOfMemoryError,
    RangeError,
    RunError,
    ShapeError,
)
from ._load import load
from ._planaria import (
    Array,
    Comm,
    DType,
    Layout,
    Mesh,
    Plan,
    Stored,
    Tensor,
    alone,
    array,
    from_dlpack,
    grad,
    mesh,
    mpi,
    no_grad,
    plan,
    tensor,
)
from ._planaria import run_threads as threads
from ._plot import Picture, Schedule, plot, schedule
from ._save import SaveHandle, async_save, save
from ._train import Outcome, RunPlan, Step, Trainer, plan_run
from ._reports import ConvertReport, DiffReport, InspectReport, LoadReport, SaveReport, VerifyReport

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from . import array_api as array_api
    from . import torch as torch
    from . import transformers as transformers
else:
    _LATER = ("array_api", "torch", "transformers")

    def __getattr__(name: str) -> _typing.Any:
        """Modules that are imported when they are asked for."""
        if name in _LATER:
            import importlib

            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module 'planaria' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})


_atexit.register(_planaria.end_mpi)
_atexit.register(_planaria.end_ranks)

__all__ = [
    "ArgumentError",
    "Array",
    "ArrayIndexError",
    "Checkpoint",
    "CheckpointError",
    "Comm",
    "CommError",
    "ConfigError",
    "ConvertReport",
    "DType",
    "DTypeError",
    "DamagedError",
    "DeviceError",
    "DiffReport",
    "Error",
    "ExistsError",
    "InspectReport",
    "InternalError",
    "Layout",
    "LayoutError",
    "LoadReport",
    "Mesh",
    "MismatchError",
    "NotFoundError",
    "OutOfMemoryError",
    "Outcome",
    "Picture",
    "Plan",
    "RangeError",
    "RunError",
    "RunPlan",
    "SaveHandle",
    "SaveReport",
    "Schedule",
    "ShapeError",
    "Step",
    "Stored",
    "Tensor",
    "Trainer",
    "VerifyReport",
    "alone",
    "array",
    "async_save",
    "convert",
    "diff",
    "from_dlpack",
    "grad",
    "inspect",
    "load",
    "merge",
    "mesh",
    "mpi",
    "no_grad",
    "open",
    "plan",
    "plan_run",
    "plot",
    "save",
    "schedule",
    "tensor",
    "threads",
    "verify",
]
