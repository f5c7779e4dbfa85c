#!/usr/bin/env bash
# From a bare machine to a trained model: installs what is missing, builds, trains on real Fashion-MNIST with two
# processes and ends with the table single / dp / ddp. Uses the GPUs by itself where there are some.
#
#   scripts/quickstart.sh [FLAG of lockstep compare...]     for example --epochs 1
#
# Run it as often as you like. LIBTORCH=DIR uses that LibTorch instead of a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

say() { printf '==> %s\n' "$*"; }
# Nothing but packages is written outside the checkout.
export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}

scripts/setup.sh
say "building the command, the worker and the library in build/release"
log=build/quickstart-configure.log
mkdir -p build
cmake --preset release > "$log" || { cat "$log"; exit 1; }
targets=(bin/lockstep bin/lockstep-worker)
if ninja -C build/release -t query lockstep_all > /dev/null 2>&1; then targets+=(lockstep_all); fi
cmake --build build/release --target "${targets[@]}"

command="build/release/bin/lockstep"
flags=(--model mlp --data fashion-mnist --strategies "single,dp,ddp" --nproc 2 --epochs 4 --optimizer adam --lr 0.001
  --batch-size 32 "$@")
say "training: $command compare ${flags[*]}"
"$command" compare "${flags[@]}"

cat << 'NEXT'

Where to look next:
  build/release/bin/lockstep --help       every command; doctor says whether this machine is ready
  build/release/bin/lockstep train --model cnn --data fashion-mnist --strategy ddp --nproc 2
  examples/                               programs of your own: from one device to several in five lines
  scripts/test.sh                         the tests
  README.md, ARCHITECTURE.md              what works today, and where things are
NEXT
