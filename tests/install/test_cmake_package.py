"""An outside CMake project uses an installed package, a wheel, or the sources."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def configure(run, root):
    def configure(folder, *settings, source=root / "tests/install/consumer", **options):
        return run("cmake", "-G", "Ninja", "-S", source, "-B", folder, *settings, **options)

    return configure


@pytest.fixture
def build_and_run(run, package):
    def build_and_run(folder):
        run("cmake", "--build", folder)
        driver = package / "libparallel_tensor_emulated_driver.so"
        environment = {**os.environ, "PARALLEL_TENSOR_DRIVER": str(driver)}
        assert run(folder / "consumer", env=environment).stdout.startswith("parallel-tensor ")

    return build_and_run


def test_a_project_finds_the_package_of_the_wheel(configure, build_and_run, package, tmp_path):
    configure(tmp_path, f"-DParallelTensor_DIR={package}/lib/cmake/ParallelTensor")
    build_and_run(tmp_path)


def test_a_project_finds_an_installed_package(configure, build_and_run, run, root, tmp_path):
    settings = (
        "-DPARALLEL_TENSOR_BUILD_LIBRARIES=OFF",
        f"-DCMAKE_INSTALL_PREFIX={tmp_path}/prefix",
    )
    configure(tmp_path / "ours", *settings, source=root)
    run("cmake", "--install", tmp_path / "ours")
    configure(tmp_path / "theirs", f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix")
    build_and_run(tmp_path / "theirs")


def test_a_project_takes_in_the_sources(configure, build_and_run, root, tmp_path):
    configure(tmp_path, f"-DPARALLEL_TENSOR_SOURCE={root}")
    build_and_run(tmp_path)


@pytest.mark.parametrize("version", ["0.0", "99.0"])
def test_a_project_that_wants_another_version_is_refused(configure, package, tmp_path, version):
    cmake = package / "lib/cmake/ParallelTensor"
    settings = (f"-DParallelTensor_DIR={cmake}", f"-DWANTED_VERSION={version}")
    refused = configure(tmp_path, *settings, check=False)
    assert refused.returncode != 0
    assert "version" in refused.stderr
