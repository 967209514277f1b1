//! Chooses the form of a response, text or JSON, from `Accept` (RFC 9110 §12.5.1).

use onrush::Request;
use onrush_proto::token;

/// Whether the client prefers JSON to HTML and text. `false` if it states no preference.
pub(in crate::files) fn prefers_json(request: &Request) -> bool {
    if request.header("accept").is_none() {
        return false; // Looking up one field is cheaper than a pass over all fields.
    }
    let mut preferences = Preferences::default();
    for (name, value) in request.headers() {
        if name.eq_ignore_ascii_case("accept") {
            preferences.add_field(value);
        }
    }
    preferences.prefers_json()
}

/// Whether the client names `text/html`, as browsers do, and programs that accept `*/*` do not.
pub(crate) fn names_html(request: &Request) -> bool {
    let is_html = |member: &[u8]| {
        let (range, _) = token::weighted(member);
        range.eq_ignore_ascii_case(b"text/html")
    };
    request
        .header_values("accept")
        .any(|value| token::list(value).any(is_html))
}

/// Whether the client prefers HTML, which it names, to JSON and plain text: browsers do.
pub(in crate::files) fn prefers_html(request: &Request) -> bool {
    let mut weights = [None; 2];
    for member in request.header_values("accept").flat_map(token::list) {
        let (range, weight) = token::weighted(member);
        let is = |name: &str| range.eq_ignore_ascii_case(name.as_bytes());
        if is("text/html") {
            weights[0] = weights[0].max(Some(weight));
        } else if is("application/json") || is("text/plain") {
            weights[1] = weights[1].max(Some(weight));
        }
    }
    match weights {
        [None | Some(0), _] => false,
        [html, other] => html >= other,
    }
}

/// The preferences in `Accept`. Weights are thousandths.
#[derive(Default)]
struct Preferences {
    json: Option<u16>,
    html: Option<u16>,
    /// JSON is named before HTML.
    json_first: bool,
    /// The weight of `text/*` or `*/*`, which applies to HTML unless HTML is named itself.
    wildcard: u16,
}

impl Preferences {
    /// Adds the members of one `Accept` line.
    fn add_field(&mut self, value: &[u8]) {
        for member in token::list(value) {
            let (range, weight) = token::weighted(member);
            let is = |name: &str| range.eq_ignore_ascii_case(name.as_bytes());
            if is("application/json") || is("application/problem+json") {
                self.json_first |= self.html.is_none();
                self.json = self.json.max(Some(weight));
            } else if is("text/html") || is("text/plain") {
                self.html = self.html.max(Some(weight));
            } else if is("*/*") || is("text/*") {
                self.wildcard = self.wildcard.max(weight);
            }
        }
    }

    /// JSON is chosen only if it is named: a wildcard means that the client accepts anything. If
    /// HTML has the same weight, the type that is named first is chosen.
    fn prefers_json(&self) -> bool {
        match (self.json, self.html) {
            (None | Some(0), _) => false,
            (Some(json), Some(html)) => json > html || (json == html && self.json_first),
            (Some(json), None) => json >= self.wildcard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_chosen_only_if_it_is_named() {
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
            let mut preferences = Preferences::default();
            preferences.add_field(value.as_bytes());
            assert_eq!(preferences.prefers_json(), expected, "{value}");
        }
    }
}
