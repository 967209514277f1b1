//! Entity tags (RFC 9110 §8.8.3): parse, compare strongly and weakly, lists.
