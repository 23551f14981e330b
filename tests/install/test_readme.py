"""The code that the README shows runs as it stands there."""

from __future__ import annotations

import os
import re
import sys

import pytest


@pytest.fixture
def code_of(root):
    """The only block of a language in the README."""

    def code_of(language: str) -> str:
        blocks = re.findall(
            rf"```{language}\n(.*?)```", (root / "README.md").read_text(), re.DOTALL
        )
        assert len(blocks) == 1
        return blocks[0]

    return code_of


def test_python_code_runs_under_torchrun(run, code_of, tmp_path):
    pytest.importorskip("torch", reason="the code uses torch")
    program = tmp_path / "readme.py"
    program.write_text(code_of("python"))
    environment = {**os.environ, "PARALLEL_TENSOR_DRIVER": "emulated", "OMP_NUM_THREADS": "1"}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    printed = run(*launcher, program, env=environment, cwd=tmp_path).stdout
    assert "tensor(1., dtype=torch.bfloat16)" in printed
    assert "tensor(0., dtype=torch.bfloat16)" in printed


def test_cpp_code_compiles(run, code_of, package, tmp_path):
    include, body = code_of("cpp").split("\n", 1)
    program = tmp_path / "readme.cpp"
    program.write_text(f"{include}\nvoid readme() {{\n{body}\n(void)mine;\n(void)theirs;\n}}\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(Readme LANGUAGES CXX)\n"
        "find_package(ParallelTensor CONFIG REQUIRED)\nadd_library(app OBJECT readme.cpp)\n"
        "target_link_libraries(app PRIVATE ParallelTensor::parallel_tensor)\n"
    )
    where = f"-DParallelTensor_DIR={package}/lib/cmake/ParallelTensor"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", where)
    run("cmake", "--build", tmp_path / "build")


def test_commands_and_links_exist(root):
    text = (root / "README.md").read_text()
    commands = re.findall(r"^(scripts/\S+)", text, re.MULTILINE)
    assert commands
    assert [name for name in commands if not os.access(root / name, os.X_OK)] == []
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [name for name in links if not (root / name).exists()] == []
