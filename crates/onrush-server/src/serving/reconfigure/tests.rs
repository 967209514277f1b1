//! Which options apply to a running server, and whether the page about them is complete.

use super::*;
use crate::config::parse;
use std::collections::BTreeMap;

/// The page that lists all options.
const PAGE: &str = include_str!("../../../../../docs/service.md");

/// The options in the first column of the table below a heading of the page.
fn listed(heading: &str) -> BTreeMap<String, String> {
    let (_, section) = PAGE.split_once(heading).expect("the heading");
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let mut found = BTreeMap::new();
    for row in rows {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (names, what) = (cells.next().expect("names"), cells.next().expect("a text"));
        for name in names.split('`').skip(1).step_by(2) {
            let earlier = found.insert(name.replace('-', "_"), what.to_owned());
            assert_eq!(earlier, None, "{name} is listed twice");
        }
    }
    found
}

#[test]
fn the_page_lists_each_option_once() {
    let (applied, others) = (listed("### Applied at once"), listed("### Needs a restart"));
    for name in Options::NAMES {
        let needs_restart = NEED_RESTART.contains(name);
        assert_eq!(others.contains_key(*name), needs_restart, "{name}");
        assert_eq!(applied.contains_key(*name), !needs_restart, "{name}");
    }
    assert_eq!(applied.len() + others.len(), Options::NAMES.len());
    for (name, reason) in others {
        assert!(reason.len() > 10, "{name}: {reason}");
    }
}

#[test]
fn some_options_apply_only_to_what_the_server_has() {
    let settings = |text: &str| Settings::new(parse(text).unwrap(), None).unwrap();
    let plain = settings("");
    let (tls, acme) = (
        settings("tls-self-signed = true"),
        settings("acme = 'a.example'"),
    );
    for (name, without, with) in [
        ("hsts", &plain, &tls),
        ("tls_cert", &plain, &tls),
        ("edge_size", &plain, &settings("edge = '/e'")),
        ("cache", &plain, &settings("cache = '1GiB'")),
    ] {
        assert!(is_applicable(name, with, with), "{name}");
        assert!(!is_applicable(name, without, with), "{name}");
        assert!(!is_applicable(name, with, without), "{name}");
    }
    // The identities of open connections are those of the earlier authorities.
    assert!(!is_applicable("tls_client_ca", &tls, &tls));
    assert!(!is_applicable("tls_client_optional", &tls, &tls));
    assert!(!is_applicable("tls_cert", &acme, &tls));
    assert!(is_applicable("allow", &plain, &acme));
}
