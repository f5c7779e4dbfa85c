#!/usr/bin/env bash
# Installs what Lockstep needs and is not there yet: system packages, and LibTorch as a wheel in .venv/.
#
#   scripts/setup.sh [--dry-run] [--no-packages]
#
#   --dry-run      say what would be done, change nothing
#   --no-packages  leave the system's packages alone (not Debian or Ubuntu, or no rights)
#   LIBTORCH=DIR   use this LibTorch (an unpacked archive, or .../site-packages/torch) instead of a wheel
#
# Run it as often as you like: what is there is kept, what was half made is made again. pip's own configuration and
# mirrors are used as they are. Exit 0 ready, 2 something is missing that this script may not or cannot install.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache libcli11-dev nlohmann-json3-dev libtomlplusplus-dev zlib1g-dev libssl-dev
  libgtest-dev libgmock-dev pkg-config dataset-fashion-mnist ca-certificates python3)
[ -n "${LIBTORCH:-}" ] || packages+=(python3-venv)
wheel_needs_gb=12
dry_run=false system_packages=true

say() { printf '==> %s\n' "$*"; }
refuse() { printf 'setup: %s\n' "$@" >&2; exit 2; }
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=true ;;
    --no-packages) system_packages=false ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) refuse "unknown argument '$argument'; accepted: --dry-run, --no-packages, --help" ;;
  esac
done

install_packages() {
  command -v dpkg-query > /dev/null || refuse "this is neither Debian nor Ubuntu: install the counterparts of" \
    "  ${packages[*]}" "and run scripts/setup.sh --no-packages"
  local missing=() package as_root=()
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then say "system packages: all ${#packages[@]} are there"; return; fi
  say "system packages: installing ${missing[*]}"
  if $dry_run; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || refuse "no rights to install packages. As root, run" \
      "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" "and then scripts/setup.sh again"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; }; then
    refuse "apt-get could not install: ${missing[*]}" "its message is above; run scripts/setup.sh again when it is solved"
  fi
}

driver_version() {  # of the NVIDIA kernel driver, empty without one
  local source=${LOCKSTEP_DRIVER_FILE:-/proc/driver/nvidia/version}
  if [ -r "$source" ]; then grep -m1 -oE '[0-9]{3}\.[0-9.]+' "$source" || true; return; fi
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | grep -m1 -oE '^[0-9]{3}\.[0-9.]+' || true
}

# Succeeds when .venv holds a LibTorch that loads and that the driver ($1, may be empty) can serve.
wheel_is_usable() {
  [ -x .venv/bin/python3 ] && .venv/bin/python3 - "${1:-none}" << 'PYTHON' 2> /dev/null
import sys, numpy, torch
driver = sys.argv[1]
new_enough = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 9)
needs_580 = torch.version.cuda is not None and int(torch.version.cuda.split(".")[0]) >= 13
sys.exit(not new_enough or (driver != "none" and int(driver.split(".")[0]) < 580 and needs_580))
PYTHON
}

install_wheel() {
  local driver version reason free_gb cache=()
  driver=$(driver_version)
  if [ -z "$driver" ]; then version=2.11.0 reason="no NVIDIA driver was found; the CPU part of this one is used"
  elif [ "${driver%%.*}" -ge 580 ]; then version=2.11.0 reason="driver $driver serves CUDA 13"
  else version=2.10.0 reason="driver $driver is older than 580, which CUDA 13 needs; this one has CUDA 12.8"; fi
  say "LibTorch: $version ($reason)"
  if wheel_is_usable "$driver"; then say "LibTorch: .venv holds a usable one already"; return; fi
  free_gb=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1000000))
  [ "$free_gb" -ge $wheel_needs_gb ] || refuse "only $free_gb GB of disk are free here, $wheel_needs_gb GB are needed" \
    "for LibTorch's wheel and the build: nothing was downloaded. Make room, or pass LIBTORCH=DIR."
  if $dry_run; then return; fi
  say "LibTorch: installing into .venv (about 5 GB on disk, some minutes)"
  python3 -m venv --clear .venv
  mkdir -p .venv/tmp  # the downloads are larger than many a /tmp
  .venv/bin/pip config list | grep -q cache-dir || cache=(--no-cache-dir)
  TMPDIR=$PWD/.venv/tmp .venv/bin/pip install "${cache[@]}" "torch==$version" numpy ||
    refuse "pip could not install torch==$version: its message is above; run scripts/setup.sh again when it is solved"
  rmdir .venv/tmp
  wheel_is_usable "$driver" || refuse "the wheel in .venv does not load: .venv/bin/python3 -c 'import torch' says why"
}

if $system_packages; then install_packages; fi
if [ -n "${LIBTORCH:-}" ]; then
  [ -e "$LIBTORCH/lib/libtorch_cpu.so" ] || refuse "LIBTORCH=$LIBTORCH holds no lib/libtorch_cpu.so"
  say "LibTorch: $LIBTORCH, as LIBTORCH says"
else
  install_wheel
fi
if $dry_run; then say "dry run: nothing was changed"; else say "setup is complete"; fi
