//! HTTP dates (RFC 9110 §5.6.7). Formatting into 29 bytes without allocation; parsing by httpdate.
