//! The field `If` (RFC 4918 §10.4): parsing.

/// One test of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The resource is covered by the lock with this token.
    Token(String),
    /// The resource has this entity tag, with its quotes.
    Tag(String),
}

/// A list of conditions that must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// The URL of the resource; `None`: that of the request.
    pub(super) resource: Option<String>,
    /// Each test, and whether it must hold or must not hold.
    pub(super) conditions: Vec<(bool, Test)>,
}

/// Parses the value. One of the lists must hold. `None` if it is malformed.
pub(super) fn parse(value: &str) -> Option<Vec<List>> {
    let mut rest = value.trim_start();
    let mut lists = Vec::new();
    let mut resource: Option<String> = None;
    let mut has_list = true;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('<') {
            // A tag may not follow a list without one, nor another tag.
            if !has_list || (resource.is_none() && !lists.is_empty()) {
                return None;
            }
            let (url, after) = after.split_once('>')?;
            (resource, rest, has_list) = (Some(url.to_owned()), after, false);
        } else {
            let (conditions, after) = list(rest.strip_prefix('(')?)?;
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

/// The conditions up to the closing parenthesis, and what follows it.
fn list(mut rest: &str) -> Option<(Vec<(bool, Test)>, &str)> {
    let mut conditions = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(')') {
            return (!conditions.is_empty()).then_some((conditions, after));
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
            (test, rest) = (Test::Token(token.to_owned()), after);
        } else {
            let (tag, after) = rest.strip_prefix('[')?.split_once(']')?;
            (test, rest) = (Test::Tag(tag.trim().to_owned()), after);
        }
        conditions.push((!negated, test));
    }
}

/// All tokens of the lists: the client has sent them.
pub(super) fn tokens(lists: &[List]) -> Vec<String> {
    let conditions = lists.iter().flat_map(|list| &list.conditions);
    let token = |(_, test): &(bool, Test)| match test {
        Test::Token(token) => Some(token.clone()),
        Test::Tag(_) => None,
    };
    conditions.filter_map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_or_refused() {
        let token = |text: &str| Test::Token(text.to_owned());
        let tag = |text: &str| Test::Tag(text.to_owned());
        let list = |resource: Option<&str>, conditions: &[(bool, Test)]| List {
            resource: resource.map(str::to_owned),
            conditions: conditions.to_vec(),
        };
        assert_eq!(
            parse("(<urn:x> [\"e)\"]) (Not <DAV:no-lock>)"),
            Some(vec![
                list(None, &[(true, token("urn:x")), (true, tag("\"e)\""))]),
                list(None, &[(false, token("DAV:no-lock"))]),
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
        let lists = parse("</a> (<t:1> [\"x\"]) (Not <t:2>)").expect("valid");
        assert_eq!(tokens(&lists), ["t:1", "t:2"]);
    }
}
