//! Splits a source file into code, comments and tokens. It is not a parser: it recognises only
//! comments and literals, so that a string is not mistaken for code.

/// One file of the repository.
pub(super) struct Source {
    /// Path from the repository's root, with `/` as the separator.
    pub(super) path: String,
    pub(super) text: String,
    /// `text` with a space for each character of a comment or a literal; empty unless Rust.
    pub(super) code: String,
    /// `text` with a space for each character outside a comment; empty unless Rust.
    pub(super) comments: String,
}

/// A word, `::`, or one other character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'c> {
    pub(super) text: &'c str,
    /// From 1.
    pub(super) line: usize,
}

impl Source {
    pub(super) fn new(path: String, text: String) -> Source {
        let (code, comments) = match path.ends_with(".rs") {
            true => split(&text),
            false => Default::default(),
        };
        Source {
            path,
            text,
            code,
            comments,
        }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The tokens of the code.
    pub(super) fn tokens(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (at, line) in self.code.lines().enumerate() {
            let mut rest = line.trim_start();
            while let Some(first) = rest.chars().next() {
                let len = match first {
                    ':' if rest.starts_with("::") => 2,
                    c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                    c => c.len_utf8(),
                };
                tokens.push(Token {
                    text: &rest[..len],
                    line: at + 1,
                });
                rest = rest[len..].trim_start();
            }
        }
        tokens
    }

    /// The tokens of the code without items under `#[cfg(test)]`.
    pub(super) fn product_tokens(&self) -> Vec<Token<'_>> {
        let tokens = self.tokens();
        let mut kept = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let attribute = attribute_len(&tokens[at..]);
            if is_test_only(&tokens[at..at + attribute]) {
                at += attribute;
                at += item_len(&tokens[at..]);
            } else {
                let step = attribute.max(1);
                kept.extend_from_slice(&tokens[at..at + step]);
                at += step;
            }
        }
        kept
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Number of tokens of the outer attribute at the start; 0 if there is none.
fn attribute_len(tokens: &[Token<'_>]) -> usize {
    match tokens {
        [hash, open, ..] if hash.text == "#" && open.text == "[" => 1 + group_len(&tokens[1..]),
        _ => 0,
    }
}

fn is_test_only(attribute: &[Token<'_>]) -> bool {
    let has = |word| attribute.iter().any(|token| token.text == word);
    attribute.get(2).is_some_and(|token| token.text == "cfg") && has("test") && !has("not")
}

/// Number of tokens of the item at the start: to its `;`, or to the end of its braces.
fn item_len(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" => return at + 1,
            "{" => return at + group_len(&tokens[at..]),
            "(" | "[" => at += group_len(&tokens[at..]),
            _ => at += 1,
        }
    }
    tokens.len()
}

/// Number of tokens of the group that the first token opens, including its closing token.
fn group_len(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Splits `text` into code and comments. In each, spaces replace the other part and all literals.
/// Both keep the line ends.
fn split(text: &str) -> (String, String) {
    let blank = |c| if c == '\n' { '\n' } else { ' ' };
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let hidden = literal_len(rest, &code);
        let (piece, after) = rest.split_at(hidden.max(first.len_utf8()));
        let blanks = piece.chars().map(blank);
        if hidden == 0 {
            code.push_str(piece);
            comments.extend(blanks);
        } else if first == '/' {
            code.extend(blanks);
            comments.push_str(piece);
        } else {
            code.extend(blanks.clone());
            comments.extend(blanks);
        }
        rest = after;
    }
    (code, comments)
}

/// Number of bytes at the start that are a comment or a literal; 0 for code. `before` is the code
/// so far.
fn literal_len(rest: &str, before: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_len(rest);
    }
    let in_word = before.chars().next_back().is_some_and(is_word);
    if !in_word && let Some(len) = raw_string_len(rest) {
        return len;
    }
    match rest.as_bytes() {
        [b'"', ..] => quoted_len(rest, b'"'),
        [b'\'', b'\\', ..] => quoted_len(rest, b'\''),
        // One character and a quote; otherwise it is a lifetime.
        [b'\'', ..] => {
            let mut chars = rest.char_indices().skip(2);
            chars
                .next()
                .filter(|&(_, c)| c == '\'')
                .map_or(0, |(at, _)| at + 1)
        }
        _ => 0,
    }
}

fn block_comment_len(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// `r"…"`, `r#"…"#`, and the same after `b` or `c`.
fn raw_string_len(rest: &str) -> Option<usize> {
    let start = rest
        .strip_prefix(['b', 'c'])
        .unwrap_or(rest)
        .strip_prefix('r')?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    let body = start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let len = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(rest.len() - body.len() + len)
}

/// The length of a literal that `quote` opens and closes.
fn quoted_len(rest: &str, quote: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Source {
        Source::new("x.rs".to_owned(), text.to_owned())
    }

    fn words(tokens: &[Token<'_>]) -> Vec<String> {
        tokens.iter().map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "a // b\nc /* d /* e */ f */ g \"h \\\" i\" j r#\"k \" l\"# m 'n' o '\\'' p\n\
            fn q<'r>(s: &'r str) b\"t\" br\"u\" c\"v\" for_r\"w\"";
        let source = rust(text);
        let expected = "a c g j m o p fn q < ' r > ( s : & ' r str ) b c for_r";
        assert_eq!(words(&source.tokens()).join(" "), expected);
        let comments: Vec<&str> = source.comments.split_whitespace().collect();
        assert_eq!(comments.join(" "), "// b /* d /* e */ f */");
        assert_eq!(source.code.lines().count(), text.lines().count());
        assert_eq!(source.comments.lines().count(), text.lines().count());
    }

    #[test]
    fn tokens_have_their_lines() {
        let source = rust("use a::b;\n\n  /* x\n */ c\n");
        let tokens = source.tokens();
        assert_eq!(words(&tokens), ["use", "a", "::", "b", ";", "c"]);
        assert_eq!(tokens.last().map(|token| token.line), Some(4));
    }

    #[test]
    fn test_items_are_left_out() {
        let source = rust(
            "#[cfg(test)] mod a; #[derive(X)] struct B; #[cfg(not(test))] fn c() {}\n\
             #[cfg(test)] #[allow(dead_code)] fn d(x: [u8; 3]) { if x { y } } fn e() {}",
        );
        let kept = words(&source.product_tokens());
        for (word, is_kept) in [
            ("a", false),
            ("B", true),
            ("c", true),
            ("d", false),
            ("e", true),
        ] {
            assert_eq!(
                kept.iter().any(|kept| kept == word),
                is_kept,
                "{word} in {kept:?}"
            );
        }
    }
}
