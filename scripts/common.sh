# shellcheck shell=bash
# What the scripts share. Sourced by them, from any folder; afterwards the working folder is the repository's root.
#
# PARALLEL_TENSOR_VENV=active   use the Python that is active instead of the repository's own .venv
# PYTHON=/path/to/python3       the Python that .venv is made from (3.10 or newer)

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root" || exit 1
missing_packages=()
constraints=()
mps_folder=""

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '\nerror: %s\n' "$*" >&2
  exit 1
}

# needs PACKAGE COMMAND...: remembers the Debian package when the command, which probes for what it holds, fails.
needs() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing_packages+=("$package")
}

# Installs what `needs` found missing, or says how to.
install_missing_packages() {
  [[ ${#missing_packages[@]} -gt 0 ]] || return 0
  if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    say "installing with apt-get: ${missing_packages[*]}"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing_packages[@]}" >/dev/null
    missing_packages=()
  else
    fail "this machine lacks what these packages hold: ${missing_packages[*]}
Install them first, on Debian or Ubuntu with: sudo apt-get install ${missing_packages[*]}"
  fi
}

has_cxx_compiler() { [[ -n ${CXX:-} ]] || command -v g++ || command -v clang++; }

has_googletest() {
  local folder
  for folder in /usr /usr/local ${CMAKE_PREFIX_PATH:+"${CMAKE_PREFIX_PATH%%:*}"}; do
    compgen -G "$folder/lib*/cmake/GTest/GTestConfig.cmake" && return
    compgen -G "$folder/lib/*/cmake/GTest/GTestConfig.cmake" && return
  done
  return 1
}

has_python_headers() { "$1" -c "import os, sysconfig as s; os.stat(os.path.join(s.get_path('include'), 'Python.h'))"; }

# Installs the system packages that `needs` found missing and puts a Python environment first in PATH: the active one when
# PARALLEL_TENSOR_VENV=active, else .venv, made when missing.
enter_environment() {
  if [[ ${PARALLEL_TENSOR_VENV:-} == active ]]; then
    install_missing_packages
    command -v python3 >/dev/null || fail "PARALLEL_TENSOR_VENV=active, but no python3 is in PATH"
    return
  fi
  local python=${PYTHON:-python3}
  needs python3 command -v "$python"
  needs python3-venv "$python" -c "import ensurepip, venv"
  needs python3-dev has_python_headers "$python"
  install_missing_packages
  "$python" -c "import sys; sys.exit(sys.version_info < (3, 10))" ||
    fail "$python is $("$python" --version 2>&1), but 3.10 or newer is needed; name another one: PYTHON=/path/to/python3"
  # A .venv that was copied from another folder still points there.
  if ! grep -qF -- "$root/.venv" .venv/bin/activate 2>/dev/null || ! .venv/bin/python3 -m pip --version >/dev/null 2>&1; then
    say "making .venv from $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
    .venv/bin/python3 -m pip install --quiet --disable-pip-version-check 'pip>=23.1'
  fi
  export VIRTUAL_ENV="$root/.venv" PATH="$root/.venv/bin:$PATH"
  unset PYTHONHOME
  constraints=(-c scripts/constraints.txt)
}

pip_install() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet "${constraints[@]}" "$@" ||
    fail "pip could not install: $*"
}

# requirements [EXTRA]: what a build here and an extra of pyproject.toml need, one per line; nvcc and the CUDA headers are
# among them when the machine has no CUDA 13 toolkit.
requirements() {
  PYTHONPATH=build_backend python3 - "$@" <<'PYTHON'
import sys

import parallel_tensor_backend

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
needed = [*settings["build-system"]["requires"], "cmake>=3.25", "ninja"]
needed += parallel_tensor_backend.cuda_requirements()
for extra in sys.argv[1:]:
    needed += settings["project"]["optional-dependencies"][extra]
print(*needed, sep="\n")
PYTHON
}

# install_requirements [EXTRA]: what `requirements` names.
install_requirements() {
  local needed
  needed=$(requirements "$@")
  mapfile -t needed <<<"$needed"
  say "Python packages: ${needed[*]}"
  pip_install "${needed[@]}"
}

# Sets CXX, so that what is printed is what compiles.
choose_compiler() { export CXX=${CXX:-$(command -v g++ || command -v clang++)}; }

# build_wheel FOLDER [SETTING...]: builds in build/FOLDER, leaves the package in build/FOLDER/wheel and its path in `wheel`.
build_wheel() {
  local folder=build/$1 setting settings=()
  shift
  for setting in "$@"; do settings+=(--config-settings "$setting"); done
  rm -rf "$folder/wheel"
  python3 -m pip wheel --verbose --no-deps --no-index --no-build-isolation --disable-pip-version-check \
    --config-settings "build-dir=$folder" "${settings[@]}" --wheel-dir "$folder/wheel" . ||
    fail "the package did not build; the compiler's message stands above"
  wheel=$(compgen -G "$root/$folder/wheel/*.whl")
}

install_wheel() {
  pip_install --no-deps --no-index --force-reinstall "$wheel"
}

# True when the CUDA driver shows at least one GPU.
has_gpu() {
  python3 - <<'PYTHON'
import ctypes
import sys

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(1)
count = ctypes.c_int()
sys.exit(bool(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0))
PYTHON
}

# Uses the emulated driver when there is no GPU and nobody chose a driver, and says so.
choose_driver() {
  if [[ -n ${PARALLEL_TENSOR_DRIVER:-} ]]; then
    say "driver: $PARALLEL_TENSOR_DRIVER, as PARALLEL_TENSOR_DRIVER asks"
  elif has_gpu; then
    say "driver: the CUDA driver of this machine"
  else
    export PARALLEL_TENSOR_DRIVER=emulated
    say "driver: no GPU was found, so this runs on the emulated driver (PARALLEL_TENSOR_DRIVER=emulated)"
  fi
}

commit() { echo "${PARALLEL_TENSOR_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}"; }

# What this run uses, one line each.
print_versions() {
  local nvcc torch
  choose_compiler
  nvcc=$(PYTHONPATH=build_backend python3 -c "import parallel_tensor_backend as b; print(b.any_nvcc() or 'nvcc')")
  torch=$(python3 -c "from importlib.metadata import version; print(version('torch'))" 2>/dev/null || echo none)
  say "this run uses"
  printf '%-9s %s\n' commit "$(commit)" compiler "$("$CXX" --version | head -n 1) ($CXX)"
  if command -v clang++ >/dev/null; then printf '%-9s %s\n' clang "$(clang++ --version | head -n 1)"; fi
  printf '%-9s %s\n' cmake "$(cmake --version | head -n 1), ninja $(ninja --version)"
  printf '%-9s %s\n' CUDA "$("$nvcc" --version 2>/dev/null | sed -n 's/^Cuda compilation tools, //p') ($nvcc)"
  printf '%-9s %s\n' Python "$(python3 --version) ($(command -v python3))" torch "$torch" driver "$(driver)"
}

# The driver that the ranks will use.
driver() {
  if [[ -n ${PARALLEL_TENSOR_DRIVER:-} ]]; then
    echo "$PARALLEL_TENSOR_DRIVER"
  else
    nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null || echo "the CUDA driver of this machine"
  fi
}

# Starts MPS, without which several ranks on one GPU take turns; stopped again when the script ends.
start_mps() {
  if ! command -v nvidia-cuda-mps-control >/dev/null; then
    say "nvidia-cuda-mps-control was not found: ranks that share a GPU take turns, and figures mean little"
    return
  fi
  mps_folder=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY="$mps_folder/pipe" CUDA_MPS_LOG_DIRECTORY="$mps_folder/log"
  mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  trap stop_mps EXIT
  nvidia-cuda-mps-control -d
  say "MPS runs, pipe folder $CUDA_MPS_PIPE_DIRECTORY"
}

stop_mps() {
  [[ -n $mps_folder ]] || return 0
  echo quit | timeout 30 nvidia-cuda-mps-control >/dev/null || echo "MPS did not stop within 30 s" >&2
  rm -rf "$mps_folder"
  mps_folder=""
}
