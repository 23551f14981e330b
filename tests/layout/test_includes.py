"""No layer reaches up: the `#include` lines against the table of layers in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"

LOWER = {"base", "posix", "driver", "memory", "managed", "exchange"}

# What the headers of a folder may include of ours, their own folder aside. Headers that lie in no
# folder are "base" (these three) or "shared", layer 3.
BASE = ("error", "version", "dtype")
ALLOWED = {
    "base": set(),
    "posix": {"base"},
    "driver": {"base"},
    "memory": {"base", "driver", "posix"},
    "managed": {"base", "driver"},
    "exchange": {"base", "posix"},
    "device": {"base"},
    "shared": {*LOWER, "device"},
    "collectives": {*LOWER, "device", "shared"},
    "interop": {*LOWER, "device", "shared", "collectives"},
}

CUDA = re.compile(r"cuda\w*\.hp?p?|cuda/.*|cooperative_groups.*|nv\w*\.h")
TORCH = re.compile(r"(ATen|torch|c10)/.*")


def part_of(header: str) -> str:
    """The row of the table that a header belongs to: "memory/mapping.hpp" -> "memory"."""
    folder, _, name = header.rpartition("/")
    if folder:
        return folder.split("/")[0]
    return "base" if name.partition(".")[0] in BASE else "shared"


def includes_of(text: str) -> list[str]:
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def without_strings(text: str) -> str:
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def violations(header: str, text: str) -> list[str]:
    """What one header, named relative to include/parallel_tensor, does that its layer may not."""
    part = part_of(header)
    found = []
    for included in includes_of(text):
        if included.startswith("parallel_tensor/"):
            target = part_of(included.removeprefix("parallel_tensor/"))
            inside = header == "interop/thunderkittens.cuh" and included.endswith(
                "interop/torch.hpp"
            )
            if part == "interop" and target == "interop" and not inside:
                found.append(f"{header} includes {included}: interop headers stand alone")
            elif target not in ALLOWED[part] | {part}:
                found.append(f"{header} includes {included}: {part} may not know {target}")
        elif CUDA.fullmatch(included) and part in {"base", "posix", "exchange"}:
            found.append(f"{header} includes {included}: {part} may not know CUDA")
        elif TORCH.fullmatch(included) and header != "interop/torch.hpp":
            found.append(f"{header} includes {included}: only interop/torch.hpp may")
        elif included.startswith("pybind11/") and not header.startswith("interop/t"):
            found.append(f"{header} includes {included}: headers know no Python")
    code = without_strings(without_comments(text))
    if part != "interop" and re.search(r"\b(at|c10)::", code):
        found.append(f"{header} names at:: or c10::")
    if part != "driver":
        found += [
            f"{header} uses {name}: symbols are loaded in driver/"
            for name in re.findall(r"\b(?:dlopen|dlsym|cuGetProcAddress\w*)\b", code)
        ]
        # A call through the table reads `api.cuMemCreate(...)`; a bare name needs libcuda to link.
        found += [
            f"{header} names {name} outside the driver table"
            for name in re.findall(r"(?<![.\w])(?:::)?(cu[A-Z]\w*)", code)
        ]
    return found


def public_headers() -> list[str]:
    base = INCLUDE / "parallel_tensor"
    return sorted(
        str(path.relative_to(base))
        for path in base.rglob("*")
        if path.suffix in {".h", ".hpp", ".cuh"}
    )


@pytest.mark.parametrize("header", public_headers())
def test_header_stays_in_its_layer(header):
    text = (INCLUDE / "parallel_tensor" / header).read_text()
    assert violations(header, text) == []
    assert "#pragma once" in text or header.endswith(".h")
    for included in includes_of(text):
        if included.startswith("parallel_tensor/"):
            assert (INCLUDE / included).is_file(), (
                f"{header} includes {included}, which does not exist"
            )


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("error.hpp", "#include <parallel_tensor/posix/descriptor.hpp>"),
        ("posix/socket.hpp", '#include "parallel_tensor/driver/table.hpp"'),
        ("posix/socket.hpp", "#include <cuda.h>"),
        ("driver/table.hpp", '#include "parallel_tensor/posix/descriptor.hpp"'),
        ("exchange/group.hpp", '#  include "parallel_tensor/memory/mapping.hpp"'),
        ("exchange/group.hpp", "#include <cuda_runtime.h>"),
        ("memory/mapping.hpp", '#include "parallel_tensor/exchange/group.hpp"'),
        ("memory/mapping.hpp", '#include "parallel_tensor/parallel_buffer.hpp"'),
        ("memory/mapping.hpp", "CUresult code = cuMemMap(address, bytes, 0, handle, 0);"),
        ("memory/mapping.hpp", 'auto create = dlsym(library, "cuMemCreate");'),
        ("workspace.hpp", '#include "parallel_tensor/collectives/barrier.hpp"'),
        ("device/barrier.cuh", '#include "parallel_tensor/collectives/barrier.hpp"'),
        ("collectives/barrier.hpp", '#include "parallel_tensor/interop/dlpack.hpp"'),
        ("collectives/barrier.hpp", "#include <ATen/ATen.h>"),
        ("interop/torch.hpp", '#include "parallel_tensor/interop/dlpack.hpp"'),
        ("interop/dlpack.hpp", "#include <torch/extension.h>"),
    ],
)
def test_a_header_that_reaches_up_is_found(header, line):
    assert len(violations(header, f"#pragma once\n{line}\n")) == 1


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("memory/mapping.hpp", '#include "parallel_tensor/posix/descriptor.hpp"'),
        (
            "memory/mapping.hpp",
            'driver::check(driver::api.cuMemMap.result(a), "cuMemMap");  // cuMemMap',
        ),
        ("parallel_buffer.hpp", '#include "parallel_tensor/workspace.hpp"'),
        ("interop/thunderkittens.cuh", '#include "parallel_tensor/interop/torch.hpp"'),
        ("interop/torch.hpp", "#include <ATen/ATen.h>"),
    ],
)
def test_what_a_layer_may_know_passes(header, line):
    assert violations(header, f"#pragma once\n{line}\n") == []


def cycle_in(includes: dict[str, list[str]]) -> list[str]:
    """The headers that cannot be put in an order in which each comes after what it includes."""
    left = dict(includes)
    while ready := [header for header, needed in left.items() if not left.keys() & set(needed)]:
        for header in ready:
            del left[header]
    return sorted(left)


def test_headers_include_each_other_in_one_direction():
    includes = {
        f"parallel_tensor/{header}": includes_of((INCLUDE / "parallel_tensor" / header).read_text())
        for header in public_headers()
    }
    # group_inline.hpp is the second part of group.hpp, which includes it last.
    for header, needed in includes.items():
        if header.replace("_inline.", ".") != header:
            needed.remove(header.replace("_inline.", "."))
    assert cycle_in(includes) == []
    includes["parallel_tensor/error.hpp"].append("parallel_tensor/dtype.hpp")
    assert cycle_in(includes)


def sources(*folders: str) -> list[str]:
    paths = (path for folder in folders for path in (ROOT / "src" / folder).rglob("*"))
    return sorted(
        str(path.relative_to(ROOT))
        for path in paths
        if path.suffix in {".cpp", ".hpp", ".cu", ".h"}
    )


@pytest.mark.parametrize("source", sources("emulator"))
def test_the_emulated_driver_knows_nothing_of_the_library(source):
    ours = [
        name
        for name in includes_of((ROOT / source).read_text())
        if name.startswith("parallel_tensor/")
    ]
    assert ours == []


@pytest.mark.parametrize("source", sources("kernels", "collectives", "binding"))
def test_no_source_knows_torch_or_the_cuda_runtime(source):
    included = includes_of((ROOT / source).read_text())
    assert [
        name for name in included if TORCH.fullmatch(name) or name.startswith("cuda_runtime")
    ] == []


@pytest.mark.parametrize("source", [name for name in sources("kernels") if name.endswith(".cu")])
def test_a_kernel_is_a_wrapper_over_device_code(source):
    included = [
        name
        for name in includes_of((ROOT / source).read_text())
        if name.startswith("parallel_tensor/")
    ]
    assert [name for name in included if not name.startswith("parallel_tensor/device/")] == []
