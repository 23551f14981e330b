"""Where nvcc and cuda.h come from: a toolkit of release 13 or newer, else packages of PyPI."""

from __future__ import annotations

import importlib.util
import os

import pytest


@pytest.fixture
def backend(monkeypatch, root):
    for name in ("CUDA_HOME", "CUDA_PATH", "PARALLEL_TENSOR_CUDA"):
        monkeypatch.delenv(name, raising=False)
    file = root / "build_backend/parallel_tensor_backend.py"
    spec = importlib.util.spec_from_file_location("parallel_tensor_backend", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_toolkit(folder, release):
    program = folder / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.1\n")
    program.chmod(0o755)
    (folder / "include").mkdir()
    (folder / "include" / "cuda.h").touch()
    return folder


def test_a_new_toolkit_needs_no_packages(backend, monkeypatch, tmp_path):
    home = make_toolkit(tmp_path, "13.1")
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert backend.toolkit_nvcc() == str(home / "bin" / "nvcc")
    assert backend.cuda_requirements() == []


def test_an_old_toolkit_does_not_count(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path, "12.4")))
    assert backend.toolkit_nvcc() != str(tmp_path / "bin" / "nvcc")


def test_packages_when_they_are_asked_for(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path, "13.0")))
    monkeypatch.setenv("PARALLEL_TENSOR_CUDA", "packages")
    wanted = backend.cuda_requirements()
    assert [requirement.split("==")[0] for requirement in wanted] == [
        "nvidia-cuda-nvcc",
        "nvidia-cuda-crt",
        "nvidia-cuda-cccl",
        "nvidia-cuda-runtime",
        "nvidia-nvvm",
    ]
    assert {requirement.split("==")[1] for requirement in wanted} == {"13.0.*"}
    assert set(wanted) <= set(backend.get_requires_for_build_wheel({}))


@pytest.fixture
def configure(run, root):
    """Configures our own project, headers alone, with CUDA_HOME and the settings given."""

    def configure(folder, *settings, cuda_home=None, check=True):
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "PARALLEL_"))
        }
        if cuda_home:
            environment["CUDA_HOME"] = str(cuda_home)
        command = ("cmake", "-G", "Ninja", "-S", root, "-B", folder)
        settings = ("-DPARALLEL_TENSOR_BUILD_LIBRARIES=OFF", *settings)
        return run(*command, *settings, env=environment, check=check)

    return configure


def test_cmake_takes_the_toolkit_that_cuda_home_names(configure, tmp_path):
    home = make_toolkit(tmp_path / "a toolkit", "13.0")
    configure(tmp_path / "build", cuda_home=home)
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert f"PARALLEL_TENSOR_NVCC:FILEPATH={home}/bin/nvcc\n" in cache
    assert f"PARALLEL_TENSOR_CUDA_INCLUDE_DIR:PATH={home}/include\n" in cache


def test_cmake_passes_over_an_old_compiler(configure, tmp_path):
    home = make_toolkit(tmp_path / "old", "12.4")
    configure(tmp_path / "build", cuda_home=home)
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert f"PARALLEL_TENSOR_NVCC:FILEPATH={home}/bin/nvcc\n" not in cache


def test_cmake_without_any_cuda_names_the_packages(configure, clean_python, tmp_path):
    settings = ("-DPARALLEL_TENSOR_CUDA=packages", f"-DPython_EXECUTABLE={clean_python}")
    refused = configure(tmp_path, *settings, check=False)
    assert refused.returncode != 0
    assert "nvidia-cuda-nvcc" in refused.stderr
