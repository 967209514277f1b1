//! The field `If` (RFC 4918 §10.4): parsing.

use super::table::Token;

/// The maximum number of conditions in all lists. Each is compared with locks, and each list may
/// need a lookup.
const CONDITIONS_MAX: usize = 64;

/// One test of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) enum Test {
    /// The resource is covered by the lock with this token. `None`: no lock can have it.
    Token(Option<Token>),
    /// The resource has this entity tag, with its quotes.
    Tag(String),
}

/// A list of conditions that must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct List {
    /// The URL of the resource; `None`: that of the request.
    pub(in crate::files) resource: Option<String>,
    /// Each test, and whether it must hold or must not hold.
    pub(in crate::files) conditions: Vec<(bool, Test)>,
}

/// Parses the value. One of the lists must hold. `None` if it is malformed, or has too many
/// conditions.
pub(in crate::files) fn parse(value: &str) -> Option<Vec<List>> {
    let mut rest = value.trim_start();
    let mut lists = Vec::new();
    let mut resource: Option<String> = None;
    let mut has_list = true;
    let mut room = CONDITIONS_MAX;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('<') {
            // A tag may not follow a list without one, nor another tag.
            if !has_list || (resource.is_none() && !lists.is_empty()) {
                return None;
            }
            let (url, after) = after.split_once('>')?;
            (resource, rest, has_list) = (Some(url.to_owned()), after, false);
        } else {
            let (conditions, after) = list(rest.strip_prefix('(')?, room)?;
            room -= conditions.len();
            lists.push(List {
                resource: resource.clone(),
                conditions,
            });
            (rest, has_list) = (after, true);
        }
        rest = rest.trim_start();
    }
    (has_list && !lists.is_empty()).then_some(lists)
}

/// The conditions up to the closing parenthesis, at most `max`, and what follows it.
fn list(mut rest: &str, max: usize) -> Option<(Vec<(bool, Test)>, &str)> {
    let mut conditions = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(')') {
            return (!conditions.is_empty()).then_some((conditions, after));
        }
        if conditions.len() == max {
            return None;
        }
        let negated = rest
            .get(..3)
            .is_some_and(|not| not.eq_ignore_ascii_case("not"));
        if negated {
            rest = rest[3..].trim_start();
        }
        let test;
        if let Some(after) = rest.strip_prefix('<') {
            let (token, after) = after.split_once('>')?;
            (test, rest) = (Test::Token(Token::parse(token)), after);
        } else {
            let (tag, after) = rest.strip_prefix('[')?.split_once(']')?;
            (test, rest) = (Test::Tag(tag.trim().to_owned()), after);
        }
        conditions.push((!negated, test));
    }
}

/// All tokens of the lists that a lock can have: the client has sent them.
pub(in crate::files) fn tokens(lists: &[List]) -> Vec<Token> {
    let conditions = lists.iter().flat_map(|list| &list.conditions);
    let token = |(_, test): &(bool, Test)| match test {
        Test::Token(token) => *token,
        Test::Tag(_) => None,
    };
    conditions.filter_map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_or_refused() {
        let uuid = |last: u8| format!("urn:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6b{last:02x}");
        let token = |text: &str| Test::Token(Token::parse(text));
        let tag = |text: &str| Test::Tag(text.to_owned());
        let list = |resource: Option<&str>, conditions: &[(bool, Test)]| List {
            resource: resource.map(str::to_owned),
            conditions: conditions.to_vec(),
        };
        assert_eq!(
            parse(&format!("(<{}> [\"e)\"]) (Not <DAV:no-lock>)", uuid(1))),
            Some(vec![
                list(None, &[(true, token(&uuid(1))), (true, tag("\"e)\""))]),
                list(None, &[(false, Test::Token(None))]),
            ])
        );
        assert_eq!(
            parse("</a> (<t:1>)([W/\"x\"]) <http://h/b>(not [\"y\"])"),
            Some(vec![
                list(Some("/a"), &[(true, token("t:1"))]),
                list(Some("/a"), &[(true, tag("W/\"x\""))]),
                list(Some("http://h/b"), &[(false, tag("\"y\""))]),
            ])
        );
        for wrong in [
            "",
            "()",
            "(",
            "(<t>",
            "(<t)",
            "t",
            "</a>",
            "</a> </b> (<t>)",
            "(<t>) </a> (<t>)",
            "(<t>) x",
            "([x)",
            "(Not)",
            "(é)",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let text = format!("</a> (<{}> [\"x\"]) (Not <{}> <t:1>)", uuid(1), uuid(2));
        let texts = tokens(&parse(&text).expect("valid"));
        let texts: Vec<String> = texts.iter().map(Token::to_string).collect();
        assert_eq!(texts, [uuid(1), uuid(2)]);
        for (lists, conditions, is_accepted) in [(1, 64, true), (1, 65, false), (13, 5, false)] {
            let list = format!("({})", "<t>".repeat(conditions));
            let parsed = parse(&list.repeat(lists));
            assert_eq!(parsed.is_some(), is_accepted, "{lists} {conditions}");
        }
    }
}
