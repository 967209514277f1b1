//! Files with the content of an object in a coding, beside the object: their names.

use onrush::compression::Coding;

/// What follows the name of an object in the name of a file with its content in this coding.
pub(in crate::files) fn extension(coding: Coding) -> &'static str {
    match coding {
        Coding::Zstd => ".zst",
        Coding::Brotli => ".br",
        Coding::Gzip => ".gz",
    }
}

/// The coding of a file with this name, and the name of the object that it belongs to.
pub(in crate::files) fn of_sibling(name: &[u8]) -> Option<(Coding, &[u8])> {
    Coding::ALL.into_iter().find_map(|coding| {
        let original = name.strip_suffix(extension(coding).as_bytes())?;
        let has_name = !matches!(original, [] | [.., b'/']);
        has_name.then_some((coding, original))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_are_named_after_their_object() {
        let of = |name: &'static str| {
            let found = of_sibling(name.as_bytes());
            found.map(|(coding, original)| (coding, std::str::from_utf8(original).unwrap()))
        };
        assert_eq!(of("a/b.css.gz"), Some((Coding::Gzip, "a/b.css")));
        assert_eq!(of("b.zst"), Some((Coding::Zstd, "b")));
        assert_eq!(of("b.css.br"), Some((Coding::Brotli, "b.css")));
        for name in [".gz", "a/.br", "a.gzip", "a.GZ", "gz", ""] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
