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
fn the_page_lists_the_options_that_need_a_restart() {
    let (applied, others) = (listed("### Applied at once"), listed("### Needs a restart"));
    for option in Options::ALL {
        let needs_restart = option.effect == Effect::Restart;
        assert_eq!(
            others.contains_key(option.name),
            needs_restart,
            "{}",
            option.name
        );
    }
    for name in applied.keys().chain(others.keys()) {
        assert!(
            Options::ALL.iter().any(|option| option.name == name),
            "{name}"
        );
        assert!(
            !applied.contains_key(name) || !others.contains_key(name),
            "{name}"
        );
    }
    for (name, reason) in others {
        assert!(reason.len() > 10, "{name}: {reason}");
    }
}

#[test]
fn some_options_apply_only_to_what_the_server_has() {
    let settings = |text: &str| Settings::new(parse(text).unwrap(), None).unwrap();
    let effect = |name| {
        let mut all = Options::ALL.iter();
        all.find(|option| option.name == name)
            .expect("an option")
            .effect
    };
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
        assert!(is_applicable(effect(name), with, with), "{name}");
        assert!(!is_applicable(effect(name), without, with), "{name}");
        assert!(!is_applicable(effect(name), with, without), "{name}");
    }
    // The identities of open connections are those of the earlier authorities.
    assert!(!is_applicable(effect("tls_client_ca"), &tls, &tls));
    assert!(!is_applicable(effect("tls_client_optional"), &tls, &tls));
    assert!(!is_applicable(effect("tls_cert"), &acme, &tls));
    assert!(is_applicable(effect("allow"), &plain, &acme));
}
