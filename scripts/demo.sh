#!/usr/bin/env bash
# Sets everything up and runs the first example: ranks share tensors and all-reduce the gradients of a small model.
#   scripts/demo.sh [--active] [RANKS]
# RANKS is 4 unless given. --active installs into the active Python instead of the repository's own .venv.
# Without a GPU it runs on the emulated driver and says so.
set -euo pipefail

ranks=4
for argument in "$@"; do
  case $argument in
    --active) export PARALLEL_TENSOR_VENV=active ;;
    -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;;
    [1-9] | [1-9][0-9]) ranks=$argument ;;
    *) echo "usage: $0 [--active] [RANKS]" >&2 && exit 2 ;;
  esac
done

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
needs g++ has_cxx_compiler
enter_environment
install_requirements examples
choose_driver
print_versions
build_wheel demo
install_wheel

say "examples/01_all_reduce with $ranks ranks"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" examples/01_all_reduce/all_reduce.py
