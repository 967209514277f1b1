//! Which of the two forms an answer takes, text for people or JSON (RFC 9110 §12.5.1).
//!
//! This module must not know what is answered.

use onrush::Request;
use onrush_proto::token;

/// Whether the client would rather have JSON than HTML or text. Without an opinion: no.
pub(super) fn prefers_json(request: &Request) -> bool {
    if request.header("accept").is_none() {
        return false; // Looking for one field is cheaper than a walk through all.
    }
    let mut wish = Preferences::default();
    for (name, value) in request.headers() {
        if name.eq_ignore_ascii_case("accept") {
            wish.scan_member(value);
        }
    }
    wish.json()
}

/// What has been read of `Accept`. Weights are thousandths.
#[derive(Default)]
struct Preferences {
    json: Option<u16>,
    html: Option<u16>,
    /// The first of the two that was named.
    json_first: bool,
    /// What `text/*` or `*/*` say of HTML, when it is not named itself.
    any: u16,
}

impl Preferences {
    fn scan_member(&mut self, value: &[u8]) {
        for member in token::list(value) {
            let mut parts = member.split(|&b| b == b';').map(token::trim);
            let range = parts.next().unwrap_or_default();
            let weight = parts.find_map(weight).unwrap_or(1000);
            let is = |name: &str| range.eq_ignore_ascii_case(name.as_bytes());
            if is("application/json") || is("application/problem+json") {
                self.json_first |= self.html.is_none();
                self.json = self.json.max(Some(weight));
            } else if is("text/html") || is("text/plain") {
                self.html = self.html.max(Some(weight));
            } else if is("*/*") || is("text/*") {
                self.any = self.any.max(weight);
            }
        }
    }

    /// JSON is chosen only by its name: a wildcard means a client that takes what it gets. Named
    /// beside HTML at the same weight the first one named is meant.
    fn json(&self) -> bool {
        match (self.json, self.html) {
            (None | Some(0), _) => false,
            (Some(json), Some(html)) => json > html || (json == html && self.json_first),
            (Some(json), None) => json >= self.any,
        }
    }
}

/// The weight in `q=0.5`; malformed ones count as nothing said.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, digits) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let weight: f32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (0.0..=1.0)
        .contains(&weight)
        .then_some((weight * 1000.0) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_only_for_those_who_name_it() {
        let table: [(&str, bool); 13] = [
            ("", false),
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("application/json", true),
            ("Application/JSON", true),
            ("application/json, text/plain, */*", true),
            ("text/html, application/json", false),
            ("application/json, text/html", true),
            ("application/json;q=0.5, text/html", false),
            ("text/html;q=0.5, application/json;q=0.9", true),
            ("application/json;q=0.5, */*", false),
            ("application/json;q=0", false),
            ("application/problem+json", true),
        ];
        for (value, expected) in table {
            let mut wish = Preferences::default();
            wish.scan_member(value.as_bytes());
            assert_eq!(wish.json(), expected, "{value}");
        }
    }
}
