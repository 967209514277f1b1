#!/bin/sh
# bindfs 1.14.7 and ntfs-3g 2022.10.3 (Debian bookworm): a file that is replaced by rename(2) is
# missing for a moment if a reader has it open.
#
# A reader expects: rename(2) replaces a file atomically. "There is no point at which another
# process attempting to access newpath will find it missing" (rename(2)).
# What happens: one open(2) in ten fails with ENOENT, while another process replaces the file and
# none ever removes it. libfuse keeps the content of an open file by renaming it to
# `.fuse_hiddenNNN` first, and then renames the new one into its place; other requests run between
# both. The same happens with exfat-fuse; with mergerfs, which does not hide files, few opens fail
# with ESTALE instead. `.fuse_hiddenNNN` is also an entry of the folder until the file is closed,
# so the folder cannot be removed (ENOTEMPTY).
# Why it matters: "write a temporary file, then rename it" is how servers publish. On such a mount
# a reader gets 404 for a file that is always there, unless the server tries again.
#
# Needs: Linux, root, /dev/fuse, python3, apt-get (bindfs). Exit: 0 as recorded, 1 different, 2
# could not be tried.
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

cat > "$dir/try.py" <<'PY'
import os, sys, threading, time


def missing(folder):
    """How many of some thousand opens find no file while another thread replaces it."""
    name, new = os.path.join(folder, "name"), os.path.join(folder, "new")
    ended = threading.Event()

    def replace():
        while not ended.is_set():
            with open(new, "w") as file:
                file.write("content")
            os.rename(new, name)

    with open(name, "w") as file:
        file.write("content")
    writer = threading.Thread(target=replace)
    writer.start()
    opens = failures = 0
    end = time.monotonic() + 5
    while time.monotonic() < end:
        opens += 1
        try:
            with open(name) as file:
                file.read()
        except FileNotFoundError:
            failures += 1
    ended.set()
    writer.join()
    return opens, failures


direct, shown = missing(sys.argv[1]), missing(sys.argv[2])
print(f"without FUSE: {direct[0]} opens, {direct[1]} without a file")
print(f"bindfs: {shown[0]} opens, {shown[1]} without a file")
if direct[1] != 0 or shown[1] == 0:
    sys.exit("different from what is recorded")
print("as recorded")
PY
timeout 60 python3 "$dir/try.py" "$dir" "$dir/shown" || exit 1
