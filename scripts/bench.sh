#!/usr/bin/env bash
# Sets everything up and runs benchmarks/bench_*.py one after the other; each writes its rows to benchmarks/results/.
#   scripts/bench.sh [--gpu] [--active] [ARGUMENT OF THE BENCHMARKS...]
# --gpu     measures on the GPU, under MPS, in the active Python, and downloads nothing.
# --active  installs into the active Python instead of the repository's own .venv.
set -euo pipefail

gpu=false arguments=()
for argument in "$@"; do
  case $argument in
    --gpu) gpu=true PARALLEL_TENSOR_VENV=active && export PARALLEL_TENSOR_VENV ;;
    --active) export PARALLEL_TENSOR_VENV=active ;;
    -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;;
    *) arguments+=("$argument") ;;
  esac
done

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
needs g++ has_cxx_compiler
enter_environment
PARALLEL_TENSOR_COMMIT=$(commit)
export PARALLEL_TENSOR_COMMIT
if $gpu; then
  unset PARALLEL_TENSOR_DRIVER
  has_gpu || fail "--gpu, but the CUDA driver shows no GPU"
  print_versions
  build_wheel gpu
  install_wheel
  start_mps
else
  install_requirements benchmarks
  choose_driver
  print_versions
  build_wheel demo
  install_wheel
fi

compgen -G "benchmarks/bench_*.py" >/dev/null || fail "there is no benchmarks/bench_*.py"
status=0
for benchmark in benchmarks/bench_*.py; do
  say "$benchmark"
  python3 "$benchmark" "${arguments[@]}" || { status=1 && echo "$benchmark failed" >&2; }
done
exit "$status"
