"""Ranks as processes on one GPU; the caller may have started MPS."""

import ctypes
import functools
from pathlib import Path

import pytest


def why_no_gpu() -> str:
    """Why the CUDA driver shows no GPU; empty when it shows one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver: {error}"
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"cuInit returned {code}" if code else "" if count.value else "no device is visible"


@functools.cache
def reason() -> str:
    return why_no_gpu()


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch):
    """A GPU, on which nothing makes a multicast object."""
    if reason():
        pytest.skip(f"needs one GPU: {reason()}")
    monkeypatch.setenv("PARALLEL_TENSOR_MULTICAST", "0")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")


@pytest.fixture
def gpu_ranks(ranks):
    """As `ranks`, on the GPU."""

    def run(n, function, *args, timeout=120.0):
        return ranks(n, function, *args, timeout=timeout, driver=None)

    return run
