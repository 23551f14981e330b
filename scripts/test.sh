#!/usr/bin/env bash
# Sets everything up and runs every test: C++ (ctest), then Python (pytest), on the emulated driver.
#   scripts/test.sh [--gpu] [--long] [PYTEST ARGUMENT...]
# --long  adds the C++ tests under AddressSanitizer + UBSan and under ThreadSanitizer, and the soaks.
# --gpu   runs the tests that need a GPU instead, under MPS, in the active Python, and downloads nothing; the commit
#         is read from PARALLEL_TENSOR_COMMIT where there is no .git.
# Paths in the pytest arguments are relative to the repository's root.
set -euo pipefail

gpu=false long=false arguments=()
for argument in "$@"; do
  case $argument in
    --gpu) gpu=true ;;
    --long) long=true ;;
    -h | --help) sed -n '2,7s/^# //p' "$0" && exit ;;
    *) arguments+=("$argument") ;;
  esac
done

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
needs g++ has_cxx_compiler

test_on_gpu() {
  export PARALLEL_TENSOR_VENV=active
  unset PARALLEL_TENSOR_DRIVER
  enter_environment
  python3 -c "import torch, pytest, pybind11, scikit_build_core" ||
    fail "--gpu installs nothing: the active Python needs torch, pytest, pybind11 and scikit-build-core"
  has_gpu || fail "--gpu, but the CUDA driver shows no GPU; without --gpu the tests run on the emulated driver"
  print_versions
  build_wheel gpu
  install_wheel
  export PARALLEL_TENSOR_WHEEL=$wheel
  PARALLEL_TENSOR_COMMIT=$(commit)
  export PARALLEL_TENSOR_COMMIT
  start_mps
  local folders=(tests/gpu) marks="gpu or multi_gpu"
  if [[ -d tests/multi_gpu ]]; then folders+=(tests/multi_gpu); fi
  if ! $long; then marks="($marks) and not long"; fi
  say "pytest, on the GPU"
  python3 -m pytest -m "$marks" "${folders[@]}" "${arguments[@]}"
}

# ctest_preset PRESET [WRAPPER...]: runs the tests of a build and says what was skipped and why.
ctest_preset() {
  local preset=$1 status=0
  shift
  say "ctest, preset $preset"
  "$@" ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error --output-junit ctest.xml || status=$?
  python3 - "build/$preset/ctest.xml" <<'PYTHON'
import re
import sys
import xml.etree.ElementTree as xml

cases = list(xml.parse(sys.argv[1]).getroot().iter("testcase"))
skipped = [case for case in cases if case.find("skipped") is not None]
print(f"ctest: {len(skipped)} of {len(cases)} skipped")
for case in skipped:
    reason = re.search(r": Skipped\n(.*?)\n\s*(\n|\[)", case.findtext("system-out") or "", re.DOTALL)
    print(f"  {case.get('name')}: {reason[1] if reason else case.find('skipped').get('message')}")
PYTHON
  return "$status"
}

sanitize() {
  local preset=$1
  shift
  say "building, preset $preset"
  cmake --preset "$preset"
  cmake --build --preset "$preset"
  ctest_preset "$preset" "$@"
}

if $gpu; then
  test_on_gpu
  exit
fi

needs libgtest-dev has_googletest
enter_environment
install_requirements test
export PARALLEL_TENSOR_DRIVER=emulated
print_versions

# The package and the C++ tests come out of one build.
say "building, preset dev"
build_wheel dev cmake.args=--preset=dev cmake.build-type=RelWithDebInfo
install_wheel
export PARALLEL_TENSOR_WHEEL=$wheel

ctest_preset dev
marks="not gpu and not multi_gpu"
if $long; then
  sanitize asan
  # ThreadSanitizer of older compilers cannot start where the kernel randomises addresses with more than 28 bits.
  no_randomisation=(setarch "$(uname -m)" --addr-no-randomize)
  "${no_randomisation[@]}" true 2>/dev/null || no_randomisation=()
  sanitize tsan "${no_randomisation[@]}"
else
  marks="$marks and not long"
fi
say "pytest"
python3 -m pytest -m "$marks" "${arguments[@]}"
