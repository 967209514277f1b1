//! Conditional requests (RFC 9110 §13) evaluated in the order the RFC gives.
