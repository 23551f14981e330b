"""What this package sees of the machine."""

from __future__ import annotations

import os
import platform
from typing import Any

from . import _core, _dtype
from .errors import Error

__all__ = ["info"]


def info() -> dict[str, Any]:
    """Versions, the driver, its devices and the environment variables in effect.

    Loads the driver; where there is none, "driver" is None and "driver_error" says why.
    """
    torch = _dtype.loaded_torch()
    result: dict[str, Any] = {
        "parallel_tensor": _core.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__ if torch is not None else None,
        "driver": None,
        "driver_error": None,
        "devices": [],
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("PARALLEL_TENSOR_") or name == "CUDA_VISIBLE_DEVICES"
        },
    }
    try:
        result["driver"] = _core.driver_name()
    except Error as error:
        result["driver_error"] = str(error)
        return result
    result["driver_origin"] = _core.driver_origin()
    result["driver_version"] = _core.driver_version()
    result["devices"] = [_core.describe_device(n) for n in range(_core.device_count())]
    return result
