#!/usr/bin/env bash
# Packs the command for a machine without package managers: build/bundle/lockstep/ and build/bundle/lockstep.tar.gz.
#
#   scripts/bundle.sh
#
# In it: lockstep, lockstep-worker, the shared libraries they need beyond glibc, libstdc++ and LibTorch, Fashion-MNIST,
# and a README. There, LibTorch (the version that this was built with) is found through the variable LIBTORCH.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

say() { printf '==> %s\n' "$*"; }
max_bytes=$((60 * 1024 * 1024))
bundle=build/bundle/lockstep
data=/usr/share/datasets/fashion-mnist
export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}

scripts/setup.sh
# shellcheck disable=SC2016  # $ORIGIN is the loader's, not the shell's
cmake --preset release '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' > /dev/null
cmake --build build/release --target bin/lockstep bin/lockstep-worker

rm -rf build/bundle
mkdir -p "$bundle"/{bin,libexec,lib,data/fashion-mnist}
cp build/release/bin/lockstep{,-worker} "$bundle/libexec/"
strip "$bundle"/libexec/*
cp "$data"/*.gz "$bundle/data/fashion-mnist/"
cp LICENSE "$bundle/"

# Whatever the loader resolves, but for the C and C++ runtime, which the other machine has, and LibTorch.
torch_lib=$(dirname "$(ldd build/release/bin/lockstep-worker | awk '$1 == "libtorch_cpu.so" {print $3}')")
ldd build/release/bin/lockstep build/release/bin/lockstep-worker | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  while read -r library; do
    case $library in
      "$torch_lib"/* | */nvidia/*/lib/*) ;;
      */libc.so.* | */libm.so.* | */libdl.so.* | */librt.so.* | */libpthread.so.*) ;;
      */libstdc++.so.* | */libgcc_s.so.*) ;;
      *) cp --dereference "$library" "$bundle/lib/" ;;
    esac
  done

cat > "$bundle/bin/lockstep" << 'WRAPPER'
#!/bin/sh
# Finds LibTorch and the data of this bundle, then becomes the command.
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)

if [ -z "${LIBTORCH:-}" ]; then
  LIBTORCH=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2> /dev/null)
fi
if [ -n "$LIBTORCH" ]; then
  export LIBTORCH
  path=$LIBTORCH/lib
  for folder in "$LIBTORCH"/../nvidia/*/lib; do
    if [ -d "$folder" ]; then path=$path:$folder; fi
  done
  export LD_LIBRARY_PATH="$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

if [ ! -d /usr/share/datasets/fashion-mnist ]; then export LOCKSTEP_DATASETS="${LOCKSTEP_DATASETS:-$here/data}"; fi
exec "$here/libexec/lockstep" "$@"
WRAPPER
chmod +x "$bundle/bin/lockstep"

symbols() { objdump -T "$bundle"/libexec/* "$bundle"/lib/*.so* | grep -oE "$1_[0-9.]+" | sort -Vu | tail -1; }
torch_version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch_lib/../version.py" 2> /dev/null || cat "$torch_lib/../build-version")
cat > "$bundle/README.txt" << README
Lockstep, bundled on $(date -u +%Y-%m-%d) from commit $(git rev-parse --short HEAD 2> /dev/null || echo unknown).

  export LIBTORCH=/path/to/site-packages/torch     (or an unpacked LibTorch archive); without it python3's torch is used
  bin/lockstep doctor                              is this machine ready
  bin/lockstep train --model mlp --data fashion-mnist --optimizer adam --lr 0.001

Needs Linux $(uname -m) with $(symbols GLIBC) and $(symbols GLIBCXX) or newer, and LibTorch ${torch_version:-of the version it was built with}.
Fashion-MNIST lies in data/fashion-mnist: "--data fashion-mnist" finds it.
README
cp "$bundle/README.txt" build/bundle/README.txt
tar -C build/bundle -czf build/bundle/lockstep.tar.gz lockstep
size=$(stat -c %s build/bundle/lockstep.tar.gz)
if [ "$size" -gt $max_bytes ]; then echo "bundle: $size bytes, more than $max_bytes" >&2; exit 1; fi
say "build/bundle/lockstep.tar.gz: $((size / 1024 / 1024)) MiB"
