//! Range requests (RFC 9110 §14): parse `bytes=` sets against a length; coalesce; bounds against amplification.
