"""What the wheel holds, needs and says of itself."""

from __future__ import annotations

import email
import re
import zipfile
from pathlib import Path


def test_wheel_holds_module_driver_headers_and_cmake_package(root, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if re.fullmatch(r"parallel_tensor/_core\.[^/]+\.so", name)]
    assert "parallel_tensor/libparallel_tensor_emulated_driver.so" in names
    assert "parallel_tensor/py.typed" in names
    assert "parallel_tensor/lib/cmake/ParallelTensor/ParallelTensorConfig.cmake" in names
    headers = {
        f"parallel_tensor/include/{path.relative_to(root / 'include')}"
        for path in (root / "include").rglob("*")
        if path.suffix in {".h", ".hpp", ".cuh"}
    }
    assert headers <= set(names)
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"parallel_tensor"}


def test_wheel_has_the_version_of_the_header_and_needs_no_package(root, wheel):
    text = (root / "include/parallel_tensor/version.hpp").read_text()
    version = re.search(r'PARALLEL_TENSOR_VERSION "([^"]+)"', text)[1]
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == "parallel-tensor"
    assert metadata["Version"] == version
    needed = metadata.get_all("Requires-Dist", [])
    assert [line for line in needed if "extra ==" not in line] == []


def test_module_links_neither_torch_nor_cuda(run, package):
    for library in package.glob("*.so"):
        listing = run("readelf", "--dynamic", library).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
        assert needed
        assert [name for name in needed if re.match(r"lib(torch|c10|cuda|nv)", name)] == []


def test_import_works_in_a_clean_environment(run, clean_python):
    code = (
        "import sys, parallel_tensor as pt; print(pt.get_include(), pt.get_cmake_dir(), sep='\\n');"
        "print('torch' in sys.modules, 'numpy' in sys.modules);"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    include, cmake, modules, loaded = run(clean_python, "-I", "-c", code).stdout.splitlines()
    assert (Path(include) / "parallel_tensor/error.hpp").is_file()
    assert (Path(cmake) / "ParallelTensorConfig.cmake").is_file()
    assert modules == "False False"
    assert loaded == "False"


def test_emulated_driver_is_found_beside_the_module(run, clean_python):
    code = (
        "import parallel_tensor as p; p.use_driver('emulated', devices=2); print(p.driver_name())"
    )
    assert "emulated" in run(clean_python, "-I", "-c", code).stdout
