//! Validates media types (RFC 9110 §8.3.1) from outside before they are sent.

use onrush_proto::token;

/// Whether `value` is exactly one media type, with optional parameters. A list of types is invalid.
pub(in crate::files) fn is_valid(value: &[u8]) -> bool {
    let end = value.iter().position(|&byte| byte == b';');
    let (essence, mut rest) = value.split_at(end.unwrap_or(value.len()));
    let essence = token::trim(essence);
    let Some(slash) = essence.iter().position(|&byte| byte == b'/') else {
        return false;
    };
    if !token::is_token(&essence[..slash]) || !token::is_token(&essence[slash + 1..]) {
        return false;
    }
    // parameters = *( OWS ";" OWS [ name "=" ( token / quoted-string ) ] )
    while let Some(after) = rest.strip_prefix(b";") {
        let parameter = token::trim(after);
        let name = parameter
            .iter()
            .take_while(|&&b| token::is_tchar(b))
            .count();
        if name == 0 {
            rest = parameter;
            continue;
        }
        let Some(value) = parameter[name..].strip_prefix(b"=") else {
            return false;
        };
        rest = match token::quoted_string(value) {
            Some((_, after)) => token::trim(after),
            None => {
                let len = value.iter().take_while(|&&b| token::is_tchar(b)).count();
                if len == 0 {
                    return false;
                }
                token::trim(&value[len..])
            }
        };
    }
    rest.is_empty()
}

/// The parameters in `value`, with the semicolon before them, if its media type is `essence`.
pub(in crate::files) fn parameters<'a>(value: &'a [u8], essence: &str) -> Option<&'a [u8]> {
    let (start, rest) = value.split_at_checked(essence.len())?;
    let is_whole = matches!(token::trim(rest), [] | [b';', ..]);
    (is_whole && start.eq_ignore_ascii_case(essence.as_bytes())).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_media_type_is_valid() {
        for good in [
            "text/html",
            "text/html;charset=utf-8",
            "text/html; charset=\"utf-8\"",
            "text/html ; charset=utf-8 ; a=b",
            "text/html;",
            "text/html; ;a=b;",
            "application/vnd.apple.mpegurl",
            "application/x.y+json; v=\"a\\\"b, c\"",
        ] {
            assert!(is_valid(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "text",
            "text/",
            "/html",
            "text/html/x",
            "text/html, text/plain",
            "text/html; charset",
            "text/html; charset=",
            "text/html; charset=\"x",
            "text/html; charset=a b",
            "text/html; charset=a, b/c",
            "te xt/html",
            "text/ht\u{e4}ml",
        ] {
            assert!(!is_valid(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_media_type_is_compared_without_its_parameters() {
        let of = |value: &'static str| parameters(value.as_bytes(), "text/html");
        assert_eq!(of("text/html"), Some(&b""[..]));
        assert_eq!(
            of("Text/HTML; charset=utf-8"),
            Some(&b"; charset=utf-8"[..])
        );
        assert_eq!(of("text/html ;a=b"), Some(&b" ;a=b"[..]));
        for other in ["text/htm", "text/html5", "text/html, a/b", "text/plain", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
