"""The built wheel, and a clean environment that holds it and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_command(*command, check=True, timeout=280, **options) -> subprocess.CompletedProcess:
    """Runs a command to its end; unless check=False, fails with its output when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout, **options
    )
    assert not check or done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def run():
    return run_command


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def wheel(run, tmp_path_factory) -> Path:
    """The wheel that scripts/test.sh built, or one that is built now."""
    built = os.environ.get("PARALLEL_TENSOR_WHEEL")
    if built:
        return Path(built)
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--config-settings=build-dir=build/install"]
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, ROOT, timeout=1200)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def clean_python(run, wheel, tmp_path_factory) -> Path:
    """A Python with the wheel and no other package."""
    folder = tmp_path_factory.mktemp("clean environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    return python


@pytest.fixture(scope="session")
def package(run, clean_python) -> Path:
    """The folder of the installed package."""
    code = "import parallel_tensor; print(parallel_tensor.__path__[0])"
    return Path(run(clean_python, "-I", "-c", code).stdout.strip())
