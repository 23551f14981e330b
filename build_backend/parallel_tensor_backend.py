"""The build backend of the wheel: scikit-build-core's, and nvcc when the machine has no CUDA 13."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig

CUDA_PACKAGES = [
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-nvvm==13.0.*",
]


def toolkit_nvcc() -> str | None:
    """The nvcc of a toolkit, 13 or newer, looked for where cmake/CudaToolkit.cmake does."""
    if os.environ.get("PARALLEL_TENSOR_CUDA") == "packages":
        return None
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "bin") for home in homes if home]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if nvcc is None:
        return None
    answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release (\d+)\.", answer.stdout)
    return nvcc if release and int(release[1]) >= 13 else None


def any_nvcc() -> str | None:
    """The nvcc that a build here would use: a toolkit's, else the one of the installed packages."""
    packaged = os.path.join(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin")
    return toolkit_nvcc() or shutil.which("nvcc", path=packaged)


def cuda_requirements() -> list[str]:
    """The packages that hold nvcc and the CUDA headers, or nothing when a toolkit is installed."""
    if toolkit_nvcc() or os.environ.get("PARALLEL_TENSOR_CUDA") == "toolkit":
        return []
    return CUDA_PACKAGES


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    from scikit_build_core import build

    return [*build.get_requires_for_build_wheel(config_settings), *cuda_requirements()]


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    from scikit_build_core import build

    return [*build.get_requires_for_build_editable(config_settings), *cuda_requirements()]


def __getattr__(name: str):
    """Every other hook of PEP 517 and PEP 660 is scikit-build-core's own."""
    from scikit_build_core import build

    return getattr(build, name)
