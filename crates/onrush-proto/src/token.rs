//! Tokens, comma lists and quoted strings (RFC 9110 §5.6).
