//! Complains about words and phrases of the project's former private style, in comments, literals
//! and documents. Checks prose, not code.

use super::{Complaint, source::Source};

/// Retired phrases in lower case, and what to write instead. A `^` matches the beginning of a
/// sentence.
const PHRASES: [(&str, &str); 36] = [
    ("^who", NAME_IT),
    ("answer", "a response"),
    ("answered", "responded, served or rejected"),
    ("answering", "responding"),
    ("answers", "responses, or responds"),
    ("befall", "affect"),
    ("befalls", "affects"),
    ("crew", "worker set or thread pool"),
    ("dearer", "more expensive"),
    ("figures", "metrics, results or values"),
    ("floors", "layers"),
    ("for want of", "for lack of, or without"),
    ("for who", NAME_IT),
    ("gives how", "returns how"),
    ("gives what", "returns what"),
    ("gives whether", "returns whether"),
    ("in the midst", "during, or in the middle"),
    (
        "must not know",
        "what the module does, and which modules it may use",
    ),
    ("next who", NAME_IT),
    ("nobody", "no client, no caller, no other code"),
    ("of who", NAME_IT),
    ("one turn", "one iteration, or one poll"),
    ("see to it", "ensure"),
    ("sees to it", "ensures"),
    ("so that what", "a sentence with a noun as its subject"),
    ("somebody", NAME_IT),
    ("this turn", "this iteration"),
    ("throw away", "discard"),
    ("thrown away", "discarded"),
    ("throws away", "discards"),
    ("told", "reported, notified or configured"),
    ("turn of the loop", "iteration"),
    ("turn of the worker", "iteration"),
    ("unanswered", "without a response"),
    ("what is there", "what exists, or what has arrived"),
    ("whoever", NAME_IT),
];

const NAME_IT: &str = "the name of the subject, such as the client, the caller or the task";

/// Files that name the phrases, and files that a program wrote.
const EXEMPT: [&str; 4] = [
    "CHANGELOG.md",
    "bench/results/",
    "xtask/src/tidy/phrases.rs",
    "xtask/src/tidy/retired.rs",
];

/// The endings of files that contain prose.
const PROSE: [&str; 4] = [".rs", ".md", ".sh", ".toml"];

pub(super) fn check(file: &Source, found: &mut Vec<Complaint>) {
    let has_prose = PROSE.iter().any(|ending| file.path.ends_with(ending));
    if !has_prose || EXEMPT.iter().any(|path| file.path.starts_with(path)) {
        return;
    }
    let prose = prose(file);
    let words = words(&prose);
    for at in 0..words.len() {
        for (phrase, instead) in &PHRASES {
            if begins_with(&words[at..], phrase) {
                let phrase = phrase.trim_start_matches('^');
                let message = format!("the phrase \"{phrase}\" is retired: write {instead}");
                found.push(Complaint::new(&file.path, words[at].line, message));
            }
        }
    }
}

/// The text of a file with a space for each character of code.
fn prose(file: &Source) -> String {
    if !file.is_rust() {
        return file.text.clone();
    }
    let both = file.text.chars().zip(file.code.chars());
    let only_prose = both.map(|(whole, code)| match whole == code && code != '\n' {
        true => ' ',
        false => whole,
    });
    only_prose.collect()
}

/// What separates a word from the word before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    Space,
    /// A mark within a sentence. No phrase continues after it.
    Mark,
    /// The end of a sentence, a heading, a table cell or a literal.
    End,
}

/// A word without the marks around it. Paths and numbers are words, too.
#[derive(Debug, PartialEq, Eq)]
struct Word<'p> {
    text: &'p str,
    /// From 1.
    line: usize,
    /// What is before the word.
    gap: Gap,
}

fn words(prose: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut gap = Gap::End;
    for (at, line) in prose.lines().enumerate() {
        let line = line.trim_start();
        let line = match line.strip_prefix("//") {
            Some(comment) => comment.trim_start_matches(['/', '!']),
            None => line,
        };
        // A blank line, a line of code, or the line between two paragraphs of a comment.
        if line.trim().is_empty() {
            gap = Gap::End;
        }
        // The end of a literal's line is not part of its text.
        let pieces = line.split_whitespace().filter(|piece| *piece != "\\");
        for piece in pieces {
            let text = piece.trim_matches(is_mark);
            let is_word = text.contains(char::is_alphanumeric);
            if !is_word {
                // Such as `|`, `-` or `//`.
                gap = gap.max(Gap::of(piece)).max(Gap::Mark);
                if piece.starts_with(['-', '*', '/']) {
                    gap = Gap::End;
                }
                continue;
            }
            let begin = piece.len() - piece.trim_start_matches(is_mark).len();
            let (before, after) = (&piece[..begin], &piece[begin + text.len()..]);
            words.push(Word {
                text,
                line: at + 1,
                gap: gap.max(Gap::of(before)),
            });
            gap = Gap::of(after);
        }
    }
    words
}

impl Gap {
    fn of(marks: &str) -> Gap {
        match marks {
            "" => Gap::Space,
            marks if marks.contains(['.', '!', '?', '|', '#', '"']) => Gap::End,
            _ => Gap::Mark,
        }
    }
}

/// Whether a character at the edge of a word is not part of it. Braces are part of it: the literal
/// `{answer}` contains an identifier.
fn is_mark(c: char) -> bool {
    !c.is_alphanumeric() && !matches!(c, '{' | '}' | '/' | '_' | '\\')
}

fn begins_with(words: &[Word<'_>], phrase: &str) -> bool {
    let (phrase, begins) = match phrase.strip_prefix('^') {
        Some(phrase) => (phrase, true),
        None => (phrase, false),
    };
    let mut words = words.iter();
    phrase.split(' ').enumerate().all(|(at, wanted)| {
        words.next().is_some_and(|word| {
            let fits = match at {
                0 => !begins || word.gap == Gap::End,
                _ => word.gap == Gap::Space,
            };
            fits && word.text.eq_ignore_ascii_case(wanted)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{super::complaint_lines, *};

    /// The lines with complaints.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        complaint_lines(check, path, text)
    }

    #[test]
    fn phrases_are_found_in_comments_literals_and_documents() {
        assert_eq!(
            lines("x.rs", "//! A module. Must not\n//! know more.\n"),
            [1]
        );
        assert_eq!(
            lines("x.rs", "fn f() {}\n/// Is (nobody's) `answer`.\n"),
            [2]
        );
        assert_eq!(
            lines("x.rs", "let x = \"bodies are thrown \\\n    away\";\n"),
            [1]
        );
        assert_eq!(lines("x.md", "# A\n\nThe answers,\nthe Crew.\n"), [3, 4]);
        assert_eq!(lines("x.toml", "# Whoever reads this.\nx = 1\n"), [1]);
        assert_eq!(lines("x.csv", "answer,1\n"), []);
        assert_eq!(lines("bench/results/x.md", "answers\n"), []);
        assert_eq!(lines("CHANGELOG.md", "answers\n"), []);
    }

    #[test]
    fn code_is_not_prose() {
        let text = "fn answer(told: u8) {\n    crew(\"{told} /who a_told told.rs\", answer)\n}\n";
        assert_eq!(lines("x.rs", text), []);
    }

    #[test]
    fn a_phrase_does_not_continue_after_a_mark() {
        assert_eq!(
            lines("x.md", "It is thrown. Away it goes; thrown, away.\n"),
            []
        );
        assert_eq!(lines("x.rs", "f(\"thrown\", \"away\");\n"), []);
        assert_eq!(lines("x.rs", "// It is thrown\nf();\n// away.\n"), []);
        assert_eq!(lines("x.rs", "/// It is thrown\n///\n/// away.\n"), []);
    }

    #[test]
    fn a_sentence_begins_after_a_mark_or_a_gap() {
        for text in [
            "// Who waits is woken.\n",
            "// One ends.\n// Who waits is woken.\n",
            "f(\"x\"); // Who waits is woken.\n",
            "// First.\n//\n// - who waits is woken\n",
        ] {
            let last = text.lines().count();
            assert_eq!(lines("x.rs", text), [last], "{text}");
        }
        assert_eq!(lines("x.md", "| a | who waits |\n"), [1]);
        assert_eq!(
            lines("x.md", "A client, who\nwaits, and a client\nwho waits.\n"),
            []
        );
    }

    #[test]
    fn the_list_is_sorted_and_in_lower_case() {
        assert!(PHRASES.is_sorted_by(|a, b| a.0 < b.0));
        for (phrase, _) in PHRASES {
            assert_eq!(phrase.to_lowercase(), phrase);
        }
    }
}
