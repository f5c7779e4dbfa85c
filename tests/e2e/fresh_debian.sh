#!/usr/bin/env bash
# The newcomer's proof: a bare Debian 12 root with nothing but git, in which the checkout is cloned and the two
# commands of the README are run.
#
#   tests/e2e/fresh_debian.sh [COMMAND...]     default: scripts/quickstart.sh scripts/test.sh
#
# Each COMMAND is a shell line run in the clone; the first that fails ends the run with its exit code. What is
# committed is cloned, so commit first. Needs root, debootstrap, a network and 20 GB under ${TMPDIR:-/var/tmp}.
#   LOCKSTEP_FRESH_ROOT=DIR  use this folder as the root and keep it, so that a later run starts from there
#   DEBIAN_MIRROR=URL        default: debootstrap's own
# The host's name resolution, CA bundle, pip settings and proxies are handed in as they are. Mounts live in a mount
# namespace of their own and processes in a process namespace of their own: both vanish with this script.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" -ne 0 ]; then echo "fresh_debian: must run as root (debootstrap, chroot)" >&2; exit 2; fi
if ! command -v debootstrap > /dev/null; then echo "fresh_debian: needs debootstrap (apt-get install debootstrap)" >&2; exit 2; fi
if [ "${LOCKSTEP_FRESH_ISOLATED:-}" != yes ]; then
  exec env LOCKSTEP_FRESH_ISOLATED=yes unshare --mount --pid --fork --kill-child --propagation private "$0" "$@"
fi
if [ $# -eq 0 ]; then set -- scripts/quickstart.sh scripts/test.sh; fi

root=${LOCKSTEP_FRESH_ROOT:-$(mktemp -d "${TMPDIR:-/var/tmp}/lockstep-fresh.XXXXXX")}
clean_up() {
  local place
  for place in dev sys proc; do
    if mountpoint -q "$root/$place"; then umount --recursive --lazy "$root/$place"; fi
  done
  # --one-file-system: whatever might still be mounted below is not touched.
  if [ -z "${LOCKSTEP_FRESH_ROOT:-}" ]; then rm -rf --one-file-system "$root"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ ! -x "$root/usr/bin/apt-get" ]; then
  debootstrap --variant=minbase bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi

environment=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}")
while IFS= read -r line; do environment+=("$line"); done < <(
  env | grep -iE '^(pip_[a-z_]+|(https?|no|all)_proxy|ssl_cert_(file|dir)|requests_ca_bundle|curl_ca_bundle)=' || true)
inside() { env -i "${environment[@]}" chroot "$root" "$@"; }

inside sh -c 'export DEBIAN_FRONTEND=noninteractive; command -v git > /dev/null && [ -d /etc/ssl/certs ] ||
  { apt-get -qq update && apt-get -qq install -y --no-install-recommends git ca-certificates; }'
# After the package, whose installation writes the same file.
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

rm -rf "$root/root/lockstep"
git -c safe.directory="$PWD" bundle create -q "$root/root/lockstep.bundle" HEAD
inside git -c advice.detachedHead=false clone -q /root/lockstep.bundle /root/lockstep
echo "fresh_debian: root $root, commit $(inside git -C /root/lockstep log -1 --format='%h %s')"
for line in "$@"; do
  echo "fresh_debian: \$ $line"
  SECONDS=0
  code=0
  inside sh -c "cd /root/lockstep && $line" || code=$?
  echo "fresh_debian: '$line' ended with $code after $SECONDS s"
  if [ "$code" -ne 0 ]; then exit "$code"; fi
done
