#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests; then the torch-free part once more under
# AddressSanitizer + UBSan, and the collectives under ThreadSanitizer. The last line is the total.
#
#   scripts/test.sh [--slow] [--no-python-tests] [--no-sanitizers]
#
#   --slow             also the tests that take minutes (label slow)
#   --no-python-tests  without those that need a Python with torch (label python): for a LibTorch without one
#   --no-sanitizers    the release build alone
# Exit 0 when every test passed, 1 when one failed or was not built, 2 when something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=(gpu1 gpu2 fresh)
slow=false
sanitizers=(asan-ubsan tsan)
for argument in "$@"; do
  case $argument in
    --slow) slow=true ;;
    --no-python-tests) left_out+=(python) ;;
    --no-sanitizers) sanitizers=() ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test: unknown argument '$argument'; accepted: --slow, --no-python-tests, --no-sanitizers, --help" >&2; exit 2 ;;
  esac
done
$slow || left_out+=(slow)

say() { printf '==> %s\n' "$*"; }
one_of() { local IFS='|'; echo "^($*)\$"; }  # a regular expression for ctest
export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}  # nothing but packages is written outside the checkout
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
passed=0 failed=0 skipped=()

# build TARGET PRESET [cmake argument...]
build() {
  local target=$1
  shift
  say "building build/$1"
  cmake --preset "$@" > "build/$1-configure.log" || { cat "build/$1-configure.log"; exit 1; }
  cmake --build "build/$1" --parallel "$jobs" --target "$target"
}

# run_tests PRESET CTEST_ARGUMENT...: adds to the totals; a test that did not run counts as failed
run_tests() {
  local preset=$1 log
  shift
  log=$(mktemp)
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" || true
  local totals count
  totals=$(grep -oE '[0-9]+ tests? failed out of [0-9]+' "$log" || true)
  rm -f "$log"
  if [ -z "$totals" ]; then failed=$((failed + 1)); return; fi
  count=${totals##* }
  # A program passes although tests in it were skipped: each of those is told with its reason.
  local line
  while IFS= read -r line; do skipped+=("$preset: $line"); done < <(awk '
    /: Skipped$/ { getline reason }
    /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { print $4 ": " reason }' "build/$preset/Testing/Temporary/LastTest.log")
  failed=$((failed + ${totals%% *}))
  passed=$((passed + count - ${totals%% *}))
}

scripts/setup.sh
mkdir -p build
build all release -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_EXAMPLES=ON
say "release: the tests that do not watch the clock, $jobs at a time"
run_tests release -L '^(unit|steady)$' -LE "$(one_of "${left_out[@]}")" -j "$jobs"
say "release: the tests that start processes, one at a time since they watch the clock"
run_tests release -LE "$(one_of unit steady "${left_out[@]}")"

for preset in "${sanitizers[@]}"; do
  # ThreadSanitizer for what threads share memory in; the other units have one thread.
  target=lockstep_unit_tests which=(-L '^unit$')
  if [ "$preset" = tsan ]; then target=comm_test which=(-R '^comm$'); fi
  build "$target" "$preset"
  say "$preset: the torch-free units"
  run_tests "$preset" "${which[@]}" -LE "$(one_of "${left_out[@]}")" -j "$jobs"
done

say "left out: tests with the labels ${left_out[*]}"
cat << 'NEXT'
    slow    scripts/test.sh --slow
    gpu1    on a machine with a GPU:    ctest --test-dir build/release -L gpu1
    gpu2    on a machine with two GPUs: ctest --test-dir build/release -L gpu2
    fresh   as root, needs debootstrap: tests/e2e/fresh_debian.sh
NEXT
if [ ${#skipped[@]} -gt 0 ]; then
  say "${#skipped[@]} tests inside these programs were skipped, which is no pass:"
  printf '    %s\n' "${skipped[@]}"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
