//! Each option that names a file is checked.

use super::*;
use crate::commands::cli;
use crate::config::{Settings, parse};
use crate::options::{Definition, Options};
use clap::ValueHint;
use std::fs;
use std::os::unix::fs::symlink;
use testing::TempDir;

/// What the check of these options says.
fn checked(text: &str) -> Result<(), String> {
    let settings = Settings::new(parse(text).expect(text), None).expect(text);
    settings.trusted_files.check()
}

/// The options whose values are paths, besides the served folder. A flag of another type that names
/// a file is one as well.
fn path_options() -> Vec<String> {
    let command = cli::command();
    let paths = command.get_arguments().filter(|argument| {
        let names = argument.get_value_names().unwrap_or_default();
        let is_named = names
            .iter()
            .any(|name| ["FILE", "DIR"].contains(&name.as_str()));
        let hint = argument.get_value_hint();
        is_named
            || matches!(
                hint,
                ValueHint::FilePath | ValueHint::DirPath | ValueHint::AnyPath
            )
    });
    let names = paths.map(|argument| argument.get_id().as_str().to_owned());
    let others = ["dir", "config", "man"]; // The last one is written.
    names
        .filter(|name| !others.contains(&name.as_str()))
        .collect()
}

#[test]
fn no_option_names_a_file_that_clients_can_replace() {
    let dir = TempDir::new();
    let (served, outside) = (dir.path().join("served"), dir.path().join("outside"));
    for folder in [
        &served,
        &served.join(".onrush"),
        &served.join("sub"),
        &outside,
    ] {
        fs::create_dir(folder).expect("a folder");
    }
    symlink(served.join("sub"), outside.join("to-folder")).expect("a link");
    symlink(served.join("sub/x"), outside.join("to-file")).expect("a link");
    symlink(&outside, served.join("sub/out")).expect("a link");
    let options = path_options();
    assert!(options.len() >= 9, "{options:?}");
    for option in options {
        let known = |definition: &&Definition| definition.name == option;
        let definition = Options::ALL.iter().find(known).expect("an option");
        let is_secret = SECRET.contains(&&option[..]);
        let key = option.replace('_', "-");
        let of = |path: PathBuf, more: &str| {
            let path = path.display();
            // A certificate needs a key, and a key a certificate.
            let pair = match &option[..] {
                "tls_cert" => "tls-key = '/k'".to_owned(),
                "tls_key" => "tls-cert = '/c'".to_owned(),
                _ => definition.companions.to_owned(),
            };
            let dir = served.display();
            checked(&format!("dir = '{dir}'\n{key} = '{path}'\n{pair}\n{more}"))
        };
        let written = "allow = 'put'";
        for inside in [
            served.join("x"),
            served.join("sub/none/x"),
            served.join("sub/../x"),
            served.join("sub/out/x"),
            outside.join("to-folder/x"),
            outside.join("to-file"),
            outside.join("../served/x"),
        ] {
            let message = of(inside.clone(), written).expect_err("refused");
            let begins = message.starts_with(&format!("--{key}: {}", inside.display()));
            assert!(
                begins && message.contains("is in the served folder"),
                "{message}"
            );
            assert_eq!(of(inside, "").is_err(), is_secret, "{key}");
        }
        for safe in [
            outside.join("x"),
            served.join(".onrush/x"),
            served.join("../x"),
        ] {
            assert_eq!(of(safe, written), Ok(()), "{key}");
        }
        let hidden = served.join(".conf/x");
        assert_eq!(of(hidden.clone(), written).is_err(), is_secret, "{key}");
        let shown = "allow = 'put'\nshow = '.conf*'";
        assert!(of(hidden.clone(), shown).is_err(), "{key}");
        let other = of(hidden.clone(), "allow = 'put'\nshow = '.z*'");
        assert_eq!(other.is_err(), is_secret, "{key}");
        assert!(of(hidden, "allow = 'put'\nhidden = true").is_err(), "{key}");
    }
}

#[test]
fn a_configuration_file_is_a_trusted_file() {
    let dir = TempDir::new();
    for (has_password, allow, is_refused) in [
        (false, "", false),
        (true, "", true),
        (false, "allow = 'delete'", true),
    ] {
        let mut options = parse(&format!("dir = '{}'\n{allow}", dir.path().display()));
        let options_read = options.as_mut().expect("valid");
        options_read.config = Some(ConfigFile {
            path: dir.path().join("onrush.toml"),
            has_password,
        });
        let settings = Settings::new(options_read.clone(), None).expect("valid");
        let checked = settings.trusted_files.check();
        assert_eq!(checked.is_err(), is_refused, "{checked:?}");
    }
}

#[test]
fn the_files_of_some_options_are_checked_alone() {
    let dir = TempDir::new();
    let at = dir.path().display();
    let text = format!("dir = '{at}'\nauth-file = '{at}/users'\n");
    let settings = Settings::new(parse(&text).expect("valid"), None).expect("valid");
    assert!(settings.trusted_files.check_of(&["auth_file"]).is_err());
    assert_eq!(settings.trusted_files.check_of(&["tls_cert"]), Ok(()));
}
