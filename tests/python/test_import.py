import os
import statistics
import subprocess
import sys
import time

import pytest


def python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.strip()


def test_it_imports_neither_torch_nor_numpy_nor_its_testing_helpers():
    code = (
        "import sys, parallel_tensor; "
        "print(*(m for m in ('torch', 'numpy', 'pytest', 'parallel_tensor.testing', "
        "'parallel_tensor.emulator') if m in sys.modules))"
    )
    assert python(code) == ""


@pytest.mark.parametrize("choice", ["", "emulated", "cuda", "/nowhere/libcuda.so"])
def test_it_loads_no_driver_whatever_the_environment_asks_for(choice):
    code = (
        "import parallel_tensor; "
        "maps = open('/proc/self/maps').read(); "
        "print(parallel_tensor._core.driver_loaded(), 'libcuda' in maps, 'emulated' in maps)"
    )
    assert python(code, PARALLEL_TENSOR_DRIVER=choice) == "False False False"


def test_it_takes_less_than_150_ms():
    bare, whole = [], []
    for _ in range(5):
        for code, times in (("pass", bare), ("import parallel_tensor", whole)):
            start = time.monotonic()
            python(code)
            times.append(time.monotonic() - start)
    assert statistics.median(whole) - statistics.median(bare) < 0.150


def test_everything_it_names_is_there():
    assert (
        python("import parallel_tensor as pt; print([n for n in pt.__all__ if not hasattr(pt, n)])")
        == "[]"
    )
