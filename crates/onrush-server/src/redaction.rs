//! Secrets of URLs in the access log, of signed URLs and of unfinished uploads: who reads the log
//! must not be able to use them.

use std::borrow::Cow;

/// The parameter whose value makes a signed URL valid, and that of the id of an upload.
const PARAMETERS: [&str; 2] = ["onrush-signature=", "upload-id="];

/// Replaces the secrets of each URL in a line of the log. The line may be text, in which a
/// character is itself, or contain values as lists of the numbers of their bytes.
pub(crate) fn redact(line: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(line);
    for parameter in PARAMETERS {
        if let Cow::Owned(replaced) = redact_parameter(&text, parameter) {
            text = Cow::Owned(replaced);
        }
    }
    text
}

fn redact_parameter<'t>(line: &'t str, parameter: &str) -> Cow<'t, str> {
    let is_signature = |c: char| c.is_ascii_alphanumeric() || "-_%+/=".contains(c);
    let text = replace(line, parameter, "REDACTED", is_signature);
    let numbers = |separator: &str| {
        let numbers = parameter.bytes().map(|byte| byte.to_string() + separator);
        numbers.collect::<String>()
    };
    // The value ends with its list: what follows a signature is of no use in such a rare entry.
    let is_number = |c: char| c.is_ascii_digit() || ", ".contains(c);
    let mut text = text;
    for separator in [",", ", "] {
        // 88 is an X, so that the list stays one.
        let replaced = replace(&text, &numbers(separator), "88", is_number);
        if let Cow::Owned(replaced) = replaced {
            text = Cow::Owned(replaced);
        }
    }
    text
}

/// Replaces what follows each `mark` by `replacement`, as far as `is_replaced`.
fn replace<'t>(
    text: &'t str,
    mark: &str,
    replacement: &str,
    is_replaced: impl Fn(char) -> bool,
) -> Cow<'t, str> {
    if !text.contains(mark) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(mark);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        replaced.push_str(mark);
        replaced.push_str(replacement);
        replaced.push_str(part.trim_start_matches(&is_replaced));
    }
    Cow::Owned(replaced)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The target of a signed URL, twice.
    pub(crate) const SIGNED: &str =
        "/a?onrush-user=ann&onrush-expires=1&onrush-signature=c2VjcmV0-_&onrush-signature=c2VjcmV0";

    #[test]
    fn only_signatures_are_replaced() {
        assert_eq!(
            redact(SIGNED),
            "/a?onrush-user=ann&onrush-expires=1&onrush-signature=REDACTED&\
             onrush-signature=REDACTED"
        );
        assert_eq!(redact("/a?upload-id=0f&x=1"), "/a?upload-id=REDACTED&x=1");
        assert!(matches!(redact("/a?x=1"), Cow::Borrowed("/a?x=1")));
        let bytes = format!("{:?} x", b"\xffonrush-signature=c2&x");
        let expected = format!("{:?} x", b"\xffonrush-signature=X");
        assert_eq!(redact(&bytes), expected);
        assert_eq!(
            redact(&bytes.replace(", ", ",")),
            expected.replace(", ", ",")
        );
    }
}
