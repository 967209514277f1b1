#!/bin/sh
# bindfs 1.14.7 (Debian bookworm, libfuse 2.9.9): `touch -m` says success and sets no time.
#
# A reader expects: utimensat(2) sets the modification time and leaves the other one with
# `UTIME_OMIT`, or fails. `touch -m`, rsync without access times and most libraries do it so.
# What happens: the call returns 0, and the time stays. libfuse 2 drops a change of one of both
# times if the program does not say that it knows `UTIME_OMIT`, and reports no error. A change of
# both times works. exfat-fuse 1.3.0 is the same; ntfs-3g and mergerfs are not.
# Why it matters: a server that sets the time of an object, and derives its entity tag from it,
# gets the time of the last write instead. Two contents of one size within a tick of the clock may
# have one tag. A server has to set both times, or to read the time back.
#
# Needs: Linux, root, /dev/fuse, apt-get (bindfs). Exit: 0 as recorded, 1 different, 2 could not
# be tried.
set -eu

[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || exit 2
command -v bindfs > /dev/null ||
    DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install -qq -y bindfs > /dev/null || exit 2
dir=$(mktemp -d)
trap 'umount -l "$dir/shown" 2> /dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
mkdir "$dir/real" "$dir/shown"
bindfs --version
bindfs "$dir/real" "$dir/shown" || exit 2

year() { date -u -r "$1" +%Y; }
echo content > "$dir/shown/both"
echo content > "$dir/shown/one"
touch -d '2001-02-03 UTC' "$dir/shown/both" || exit 1
touch -m -d '2001-02-03 UTC' "$dir/shown/one" || exit 1
echo content > "$dir/direct"
touch -m -d '2001-02-03 UTC' "$dir/direct" || exit 1
echo "both times on bindfs: $(year "$dir/shown/both")"
echo "one time on bindfs: $(year "$dir/shown/one"), with exit status 0"
echo "one time without bindfs: $(year "$dir/direct")"
if [ "$(year "$dir/shown/both")" != 2001 ] || [ "$(year "$dir/direct")" != 2001 ] ||
    [ "$(year "$dir/shown/one")" = 2001 ]; then
    echo "different from what is recorded" >&2
    exit 1
fi
echo "as recorded"
