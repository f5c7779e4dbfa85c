#!/usr/bin/env bash
# Every static check, for developers, in seconds: layers, files, format, shell scripts, and the tests of these tools.
#
#   scripts/check.sh [--tidy]
#
#   --tidy  clang-tidy as well, over the sources that differ from the main branch (minutes)
# Exit 0 when all passed, 1 otherwise; a tool that is missing counts as a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/release
failed=0
step() {
  printf '==> %s\n' "$*"
  "$@" || failed=$((failed + 1))
}
tidy_changed() {
  local changed
  mapfile -t changed < <(git diff --name-only --diff-filter=d main -- '*.cpp')
  if [ ${#changed[@]} -eq 0 ]; then echo "no source differs from main"; return; fi
  # GCC's OpenMP header is not in clang's path, and nothing that it checks depends on it.
  clang-tidy -p "$build" --quiet --extra-arg=-fno-openmp "${changed[@]}"
}

step python3 -m unittest discover -s tools/tests -q
step tools/check_layers.py
step tools/check_files.py --build "$build" --without benchmarks
step tools/check_format
step shellcheck scripts/*.sh .ci/run tools/check_format tests/e2e/*.sh
if [ "${1:-}" = --tidy ]; then step tidy_changed; fi

if [ "$failed" -gt 0 ]; then echo "$failed check(s) failed" >&2; exit 1; fi
echo "all checks passed"
