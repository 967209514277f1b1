//! Which content becomes smaller.

use onrush_proto::token;

const BYTES_MIN: u64 = 1024;

/// Whether compression is worth it for content of this media type and length: the type is one of
/// [`is_compressible`], and it has at least 1 KiB, or an unknown length. Less fits into one or two
/// packets with its head anyway.
///
/// # Examples
/// ```
/// use onrush::compression::is_worth_it;
///
/// assert!(is_worth_it("text/plain", Some(1024)) && is_worth_it("text/plain", None));
/// assert!(!is_worth_it("text/plain", Some(1023)) && !is_worth_it("image/png", None));
/// ```
pub fn is_worth_it(content_type: &str, bytes: Option<u64>) -> bool {
    bytes.is_none_or(|bytes| bytes >= BYTES_MIN) && is_compressible(content_type)
}

/// Whether content of this media type usually becomes smaller: text, JSON, XML, scripts,
/// WebAssembly and others, but not images, video and archives.
///
/// # Examples
/// ```
/// use onrush::compression::is_compressible;
///
/// assert!(is_compressible("text/html; charset=utf-8") && is_compressible("image/svg+xml"));
/// assert!(!is_compressible("image/png") && !is_compressible("application/zip"));
/// ```
pub fn is_compressible(content_type: &str) -> bool {
    let essence = token::essence(content_type).to_ascii_lowercase();
    let (kind, subtype) = essence.split_once('/').unwrap_or_default();
    match kind {
        "text" => true,
        "application" | "image" | "model" => {
            let known = [
                "json",
                "javascript",
                "xml",
                "wasm",
                "x-ndjson",
                "sql",
                "toml",
                "yaml",
                "x-yaml",
                "rtf",
                "x-sh",
                "bmp",
                "vnd.ms-fontobject",
            ];
            let suffixes = ["+json", "+xml", "+yaml"];
            known.contains(&subtype) || suffixes.iter().any(|suffix| subtype.ends_with(suffix))
        }
        "font" => matches!(subtype, "ttf" | "otf" | "collection"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressed_and_media_are_not() {
        for yes in [
            "text/html; charset=utf-8",
            "text/x-anything",
            "Application/JSON",
            "application/ld+json",
            "application/manifest+json",
            "image/svg+xml",
            "application/wasm",
            "application/javascript",
            "font/ttf",
        ] {
            assert!(is_compressible(yes), "{yes}");
        }
        for no in [
            "image/png",
            "image/jpeg",
            "video/mp4",
            "application/zip",
            "application/gzip",
            "application/octet-stream",
            "application/pdf",
            "font/woff2",
            "multipart/mixed",
            "",
            "text",
        ] {
            assert!(!is_compressible(no), "{no}");
        }
    }
}
