#!/usr/bin/env bash
# Formats and checks every tracked file with the pinned tools of .pre-commit-config.yaml; fails when one had to change.
#   scripts/lint.sh [ARGUMENT OF pre-commit run...]      scripts/lint.sh --files include/parallel_tensor/error.hpp
set -euo pipefail

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
needs git command -v git
enter_environment
pip_install pre-commit
say "lint: $(python3 -m pre_commit --version), $(python3 --version)"
if [[ $# -eq 0 ]]; then set -- --all-files --show-diff-on-failure; fi
exec python3 -m pre_commit run "$@"
