#!/bin/sh
# roxmltree 0.21.2: a carriage return in front of a reference stays a carriage return.
#
# A reader expects: a parser translates each CR LF and each other CR of a document to LF before it
# looks at anything else (XML 1.0 §2.11). Only a character reference (`&#13;`) gives a CR. roxmltree
# does so in `x CR y`, at the end of a text, and in front of a CDATA section.
# What happens: in text, a CR that is followed by `&amp;` or another reference stays.
# Why it matters: a WebDAV server that stores a property which a client has sent, and one that
# compares what two parsers read, see two different values of one document. A server that writes
# such a text has to write `&#13;`, or the next parser reads LF. The parser of Python (expat), run
# beside it, reads LF.
#
# Needs: cargo with a registry, python3. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

command -v cargo > /dev/null && command -v python3 > /dev/null || exit 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
mkdir "$dir/src"
cat > "$dir/Cargo.toml" << 'END'
[package]
name = "line-ends"
version = "0.0.0"
edition = "2021"

[dependencies]
roxmltree = "=0.21.2"

[workspace]
END
cat > "$dir/src/main.rs" << 'END'
fn main() {
    for text in ["<a>1\r2</a>", "<a>1\r</a>", "<a>1\r&amp;</a>", "<a>1\r\r&amp;</a>"] {
        let document = roxmltree::Document::parse(text).unwrap();
        println!("{text:?} {:?}", document.root_element().text().unwrap());
    }
}
END
export CARGO_TARGET_DIR="$dir/target"
timeout 200 cargo build --quiet --manifest-path "$dir/Cargo.toml" || exit 2
found=$("$dir/target/debug/line-ends") || exit 1
echo "roxmltree 0.21.2:"
printf "%s\n" "$found"
expat=$(python3 -c '
import xml.etree.ElementTree as tree
print(ascii(tree.fromstring("<a>1\r&amp;</a>").text))')
printf "expat: %s\n" "$expat"
expected='"<a>1\r2</a>" "1\n2"
"<a>1\r</a>" "1\n"
"<a>1\r&amp;</a>" "1\r&"
"<a>1\r\r&amp;</a>" "1\n\r&"'
if [ "$found" != "$expected" ] || [ "$expat" != "'1\\n&'" ]; then
    echo "different from what is recorded" >&2
    exit 1
fi
echo "as recorded"
