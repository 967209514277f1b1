//! Configuration files and the settings that result from them.

use super::*;
use crate::commands::cli::{self, Action};
use crate::options::units::{SizeMax, Time};
use crate::options::values::{Driver, PlacementName};
use onrush_files::Types;
use std::collections::HashSet;
use std::ffi::OsString;
use std::time::Duration;

fn parse_error(text: &str) -> (usize, String) {
    parse(text).expect_err("wrong")
}

#[test]
fn a_file_sets_the_same_options_as_flags() {
    let text = "dir = '/srv'\nallow = ['put', 'delete']\nport = 81\nbind = '::1'\n\
        workers = 3\ndriver = 'io_uring'\nheader-timeout = '5s'\nmin-rate = '1KB'\n\
        body-max = '1GiB'\nring-buffer-size = 2048\nidle-timeout = 0\nlog-format = 'json'\n\
        site = true\nplacement = 'round-robin'\nrebalance = 'off'\n\
        host = ['a.example', '[::2]']\n\
        depth-max = 3\n";
    let settings = Settings::new(parse(text).unwrap(), None).unwrap();
    assert_eq!(settings.storage, Storage::Folder("/srv".into()));
    assert_eq!(
        settings.files.allow,
        Allow {
            put: true,
            delete: true,
            delete_folders: false
        }
    );
    assert_eq!(settings.addresses, ["[::1]:81"]);
    assert_eq!(settings.hosts, ["a.example", "::2"]);
    assert_eq!(settings.files.depth_max, 3);
    assert_eq!(settings.workers, Some(3));
    assert_eq!(settings.options.driver(), Driver::Uring);
    assert_eq!(settings.options.placement(), PlacementName::RoundRobin);
    assert_eq!(settings.options.rebalance(), Switch::Off);
    assert_eq!(settings.limits.head_timeout, Duration::from_secs(5));
    assert_eq!(settings.limits.rate_bytes_per_s_min, 1000);
    assert_eq!(settings.options.body_max().bytes, 1 << 30);
    assert_eq!(settings.limits.idle_timeout, Duration::ZERO);
    assert_eq!(settings.driver_config.ring_buffer_bytes, 2048);
    assert_eq!(settings.log.format, LogFormat::Json);
    assert!(settings.files.site && !settings.files.sink);
}

#[test]
fn by_default_the_server_is_read_only_and_on_loopback() {
    let settings = Settings::new(parse("").unwrap(), None).unwrap();
    assert_eq!(settings.addresses, ["127.0.0.1:8080"]);
    let defaults = Limits::default()
        .body_bytes_max(u64::MAX)
        .total_timeout(Duration::from_secs(24 * 3600))
        .rate_bytes_per_s_min(100);
    assert_eq!(settings.limits, defaults, "--help shows these times");
    assert_eq!(settings.options.body_max(), SizeMax::OFF);
    assert_eq!(settings.files, FilesOptions::default());
    assert_eq!(settings.access_log, AccessLog::Off);
    assert_eq!(settings.options.drain_timeout(), Time::seconds(30));
    let config = driver::Config::default();
    assert_eq!(settings.driver_config.ring_buffers, config.ring_buffers);
    assert_eq!(
        settings.driver_config.ring_buffer_bytes,
        config.ring_buffer_bytes
    );
}

#[test]
fn receive_memory_is_shared_and_always_fits_a_ring() {
    let share = |text: &str, workers| {
        let settings = Settings::new(parse(text).unwrap(), None).unwrap();
        settings.driver_config(workers).receive_bytes_max
    };
    assert_eq!(share("", 2), 128 << 20);
    assert_eq!(share("receive-memory = '64MiB'", 4), 16 << 20);
    assert_eq!(share("receive-memory = 'unlimited'", 1), usize::MAX);
    let ring = 256 * 4096;
    assert!(share("receive-memory = '1B'", 1) > 2 * ring);
    assert!(share("", 1000) > 2 * ring);
    assert_eq!(share("receive-memory = 0\nring-buffers = 16", 1), 1 << 20);
}

#[test]
fn defaults_depend_on_the_memory() {
    let with = |text: &str, mib: u64| {
        let settings = Settings::new(parse(text).unwrap(), Some(mib << 20)).unwrap();
        let cache = settings.files.cache_bytes_max as u64;
        let is_reduced = settings.reduced_defaults.is_some();
        (settings.receive_bytes_max >> 20, cache >> 20, is_reduced)
    };
    assert_eq!(with("", 4096), (256, 64, false));
    assert_eq!(with("", 1000), (200, 50, true));
    assert_eq!(with("", 96), (19, 4, true));
    assert_eq!(with("cache-size = '64MiB'", 96), (19, 64, true));
    let both = "receive-memory = '256MiB'\ncache-size = '1MiB'";
    assert_eq!(with(both, 96), (256, 1, false));
    let settings = Settings::new(parse("").unwrap(), Some(96 << 20)).unwrap();
    assert_eq!(settings.files.upload_bytes_max, 6 << 20);
}

#[test]
fn errors_name_the_line_and_the_key() {
    let (line, what) = parse_error("port = 1\nprot = 2\n");
    assert_eq!(
        (line, what.contains("unknown key `prot`")),
        (2, true),
        "{what}"
    );
    let (line, what) = parse_error("port = 1\nmin-rate = 'x' # fast\n");
    let is_named = what.starts_with("min-rate: 'x': write bytes per second");
    assert_eq!((line, is_named), (2, true), "{what}");
    let (line, what) = parse_error("\nport = 'x'\n");
    assert_eq!((line, what.starts_with("port: ")), (2, true), "{what}");
    assert!(
        parse_error("header_timeout = '1s'")
            .1
            .contains("unknown key `header_timeout`")
    );
    assert!(
        parse_error("header-timeout = 30")
            .1
            .contains("write a unit, as in 30s")
    );
    assert!(parse_error("port = 70000").1.starts_with("port: "));
    assert!(
        parse_error("allow = ['post']")
            .1
            .contains("'post': a change is put, delete, delete-folders or none")
    );
    assert!(
        parse_error("[server]\nport = 1")
            .1
            .contains("unknown key `server`")
    );
    assert!(!parse_error("port = \n").1.is_empty());
    for text in [
        "body-max = true",
        "bind = 'a:b'",
        "host = ['a:1']",
        "host = ['http://a']",
        "driver = 'kqueue'",
        "min-rate = 'unlimited'",
        "rebalance = 'maybe'",
        "site = 1",
        "host = 3",
        "placement = 'here'",
        "= 3",
        "port",
    ] {
        assert!(!parse_error(text).1.contains('\n'), "{text}");
    }
}

#[test]
fn lists_may_be_strings_and_switches_may_be_words() {
    let settings = |text: &str| Settings::new(parse(text).expect(text), None).expect(text);
    assert_eq!(settings("host = 'a.example'").hosts, ["a.example"]);
    assert_eq!(
        settings("host = 'a.example,[::2]'").hosts,
        ["a.example", "::2"]
    );
    assert_eq!(settings("host = ['a.example']").hosts, ["a.example"]);
    let both = Allow {
        put: true,
        delete: true,
        delete_folders: false,
    };
    assert_eq!(settings("allow = 'put,delete'").files.allow, both);
    let folders = Allow {
        put: false,
        delete: true,
        delete_folders: true,
    };
    assert_eq!(settings("allow = 'delete-folders'").files.allow, folders);
    assert!(settings("allow = 'put'").files.allow.put);
    for off in ["'off'", "false", "'false'"] {
        let settings = settings(&format!(
            "rebalance = {off}\ndefer-accept = {off}\naccess-log = {off}\nsite = {off}"
        ));
        let options = &settings.options;
        assert!(!options.rebalance().is_on() && !options.defer_accept() && !settings.files.site);
        assert_eq!(settings.access_log, AccessLog::Off);
    }
    assert!(settings("site = 'on'\naccess-log = true").files.site);
}

#[test]
fn an_address_without_a_port_has_the_port_of_the_port_option() {
    let addresses = |text: &str| Settings::new(parse(text).unwrap(), None).unwrap().addresses;
    let three = ["0.0.0.0:81", "[::1]:82", "unix:/run/s"];
    let list = "port = 81\nbind = ['0.0.0.0', '[::1]:82', 'unix:/run/s']";
    assert_eq!(addresses(list), three);
    assert_eq!(
        addresses("port = 81\nbind = '0.0.0.0,[::1]:82,unix:/run/s'"),
        three
    );
    assert_eq!(addresses("bind = 'localhost:0'"), ["localhost:0"]);
}

#[test]
fn a_format_enables_the_access_log() {
    let log = |text: &str| {
        let settings = Settings::new(parse(text).unwrap(), None).unwrap();
        (settings.access_log, settings.log.access_format)
    };
    let combined = "access-log-format = 'combined'";
    assert_eq!(log(combined), (AccessLog::On, AccessLogFormat::Combined));
    let off = log("access-log-format = 'text'\naccess-log = 'off'");
    assert_eq!(off, (AccessLog::Off, AccessLogFormat::Text));
    let json = log("log-format = 'json'\naccess-log = 'on'");
    assert_eq!(json, (AccessLog::On, AccessLogFormat::Json));
}

#[test]
fn a_bucket_may_be_named_store() {
    let store = parse("store = 's3://a/b'").unwrap();
    assert_eq!(store, parse("dir = 's3://a/b'").unwrap());
    for both in [
        "store = 's3://a'\ndir = '/srv'",
        "dir = '/srv'\nstore = 's3://a'",
    ] {
        let (line, what) = parse(both).unwrap_err();
        let reason = "dir and store are the same option; write one of them";
        assert!(line <= 2 && what.contains(reason), "{line}: {what}");
    }
}

#[test]
fn a_build_cache_permits_uploads_unless_it_is_limited() {
    let files = |text: &str| {
        let settings = Settings::new(parse(text).unwrap(), None).expect(text);
        (settings.files.allow, settings.files.hidden)
    };
    let allow = |put, delete| Allow {
        put,
        delete,
        delete_folders: false,
    };
    assert_eq!(files("cache = '1GiB'"), (allow(true, false), true));
    let more = "cache = '1GiB'\nallow = 'put,delete'\nhidden = false";
    assert_eq!(files(more), (allow(true, true), false));
    assert_eq!(
        files("cache = '1GiB'\nallow = 'none'").0,
        allow(false, false)
    );
    let users = "cache = '1GiB'\nauth = 'ann:secret'";
    assert_eq!(files(users).0, allow(true, true));
}

#[test]
fn every_option_changes_the_settings_by_file_and_by_flag() {
    for option in Options::ALL {
        // The compiler reports the method of an option that nothing reads.
        let shown = |options| {
            let mut settings = Settings::new(options, None).expect("they fit");
            if !option.has_default {
                settings.options = Options::default();
            }
            format!("{settings:?}")
        };
        let (key, value) = (option.name.replace('_', "-"), option.example);
        let default = match option.name {
            "tls_cert" | "tls_key" => Options::default(), // Neither works without the other.
            _ => parse(option.companions).expect(option.companions),
        };
        let text = format!("{key} = {value}\n{}", option.companions);
        let options = parse(&text).expect(&text);
        assert_ne!(shown(options.clone()), shown(default), "{text}");
        // The merge includes every option, on both sides.
        assert_eq!(Options::default().or(options.clone()), options, "{text}");
        assert_eq!(options.clone().or(Options::default()), options, "{text}");
        let table: toml::Table = text.parse().expect("it was read");
        let flags = table.iter().map(|(key, value)| match (&key[..], value) {
            ("dir", value) => text_of(value),
            (key, value) => format!("--{key}={}", text_of(value)),
        });
        if key != "types" {
            let arguments = ["onrush".to_owned()].into_iter().chain(flags);
            let read = cli::read(arguments.map(OsString::from).collect());
            let Ok(Action::Serve(read)) = read else {
                panic!("{text}: {read:?}");
            };
            assert_eq!(*read, options, "{text}");
        }
    }
    let command = cli::command();
    let variables = command
        .get_arguments()
        .filter_map(|argument| argument.get_env()?.to_str());
    let found: HashSet<String> = variables.map(str::to_lowercase).collect();
    let names = Options::ALL.iter().map(|option| option.name);
    let expected: HashSet<String> = names.map(|name| format!("onrush_{name}")).collect();
    let without: Vec<_> = expected.difference(&found).collect();
    assert_eq!(without, ["onrush_types"]); // A table of the file only.
}

#[test]
fn the_help_has_the_order_of_the_options() {
    let help = cli::command().render_long_help().to_string();
    let flags = help.lines().filter_map(|line| {
        let begin = line.trim_start();
        let (_, flag) = line.split_once("--").filter(|_| begin.starts_with('-'))?;
        flag.split(['[', ' ']).next()
    });
    let own = ["config", "completions", "man", "help", "version"];
    let flags: Vec<&str> = flags.filter(|flag| !own.contains(flag)).collect();
    let names = Options::ALL
        .iter()
        .map(|option| option.name.replace('_', "-"));
    let without_flag = ["dir", "types"];
    let names: Vec<_> = names
        .filter(|name| !without_flag.contains(&&name[..]))
        .collect();
    assert_eq!(flags, names);
}

/// A value of the configuration file as that of a flag.
fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::Array(values) => values.iter().map(text_of).collect::<Vec<_>>().join(","),
        toml::Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[test]
fn off_disables_limits() {
    for (time, expected) in [
        ("'off'", Duration::MAX),
        ("0", Duration::MAX),
        ("'1ms'", Duration::from_millis(1)),
    ] {
        let options = parse(&format!("drain-timeout = {time}")).unwrap();
        assert_eq!(
            options.drain_timeout().duration_or_max(),
            expected,
            "{time}"
        );
    }
    let times = ["header", "body", "write", "idle", "total"];
    for off in ["'off'", "0"] {
        let mut text = format!("min-rate = {off}\ncache-size = {off}\n");
        for time in times {
            text += &format!("{time}-timeout = {off}\n");
        }
        let settings = Settings::new(parse(&text).unwrap(), None).unwrap();
        let limits = &settings.limits;
        let all = [
            limits.head_timeout,
            limits.body_timeout,
            limits.write_timeout,
            limits.idle_timeout,
            limits.total_timeout,
        ];
        assert_eq!(all, [Duration::ZERO; 5], "{text}");
        assert_eq!(limits.rate_bytes_per_s_min, 0, "{text}");
        assert_eq!(settings.files.cache_bytes_max, 0, "{text}");
    }
    for off in ["off", "unlimited"] {
        let text = format!("body-max = '{off}'\nreceive-memory = '{off}'");
        let settings = Settings::new(parse(&text).unwrap(), None).unwrap();
        assert_eq!(settings.options.body_max(), SizeMax::OFF, "{off}");
        assert_eq!(settings.receive_bytes_max, u64::MAX, "{off}");
    }
}

#[test]
fn errors_name_the_key_the_value_and_what_is_accepted() {
    for (text, key, value, accepted) in [
        ("min-rate = 'fast'", "min-rate: ", "'fast'", "or off"),
        (
            "min-rate = '4GiB'",
            "min-rate: ",
            "'4GiB'",
            "less than 4GiB",
        ),
        (
            "idle-timeout = '3 weeks'",
            "idle-timeout: ",
            "3 weeks",
            "ms, s, m, h or d",
        ),
        ("body-max = '1Q'", "body-max: ", "'1Q'", "off or unlimited"),
        ("cache-size = '1Q'", "cache-size: ", "'1Q'", "or off"),
        ("admin = true", "admin: ", "true", "expected a port, or"),
        (
            "http-redirect = [1, 2]",
            "http-redirect: ",
            "[1, 2]",
            "expected a port, or",
        ),
        ("host = 'a:1'", "host: ", "'a:1'", "without a port"),
        (
            "host = ['a', 'b/c']",
            "host: ",
            "'b/c'",
            "host name or address",
        ),
        (
            "rebalance = 'maybe'",
            "rebalance: ",
            "'maybe'",
            "\"on\" or \"off\"",
        ),
        ("site = 7", "site: ", "7", "\"on\" or \"off\""),
        ("driver = 'x'", "driver: ", "`x`", "`io_uring`"),
    ] {
        let (_, what) = parse_error(text);
        assert!(what.starts_with(key), "{what}");
        assert!(what.contains(value) && what.contains(accepted), "{what}");
    }
    for (text, accepted) in [
        ("port = 'abc'", "write a number from 0 to 65535"),
        ("port = 99999", "write a number from 0 to 65535"),
        ("port = -1", "write a number from 0 to 65535"),
        ("connections-max = 'off'", "write a whole number"),
        ("workers = -1", "write a whole number"),
        ("workers = 0", "write a whole number from 1 to 1024"),
        ("cache-size = -1", "write a size as in 10MiB"),
        ("dir = data", "text must be in quotes"),
    ] {
        let (_, what) = parse_error(text);
        let (key, value) = text.split_once(" = ").expect("a pair");
        let is_named = what.starts_with(&format!("{key}: ")) && what.contains(accepted);
        assert!(is_named && what.contains(value), "{what}");
        assert!(
            !what.contains("u16") && !what.contains("invalid digit"),
            "{what}"
        );
    }
    for (text, parts) in [
        (
            "ring-buffer-size = '1B'",
            [
                "ring-buffer-size: ",
                "1 is not in the range from 512B to 1MiB",
            ],
        ),
        (
            "ring-buffers = 3",
            ["ring-buffers: ", "3 is not a power of two from 2 to 32768"],
        ),
    ] {
        let Err(Failure::Usage(what)) = Settings::new(parse(text).unwrap(), None) else {
            panic!("{text}");
        };
        assert!(parts.iter().all(|part| what.contains(part)), "{what}");
    }
}

#[test]
fn types_are_a_table() {
    let settings = |text: &str| Settings::new(parse(text).expect(text), None);
    let text = "port = 1\n[types]\nts = 'text/x-typescript'\nLOG = \"text/plain\"\n";
    let pairs = [("ts", "text/x-typescript"), ("log", "text/plain")];
    let types = settings(text).expect("good").files.types;
    assert_eq!(Ok(types), Types::new(pairs));
    for (text, what) in [
        (
            "[types]\nlog = 'text/plain'\nts = 'video'",
            "ts: \"video\" is not a media type",
        ),
        (
            "[types]\nlog = 'text/plain'\n'.ts' = 'a/b'",
            "\".ts\" is not an extension",
        ),
    ] {
        let (line, message) = parse_error(text);
        assert_eq!((line, message.contains(what)), (3, true), "{message}");
        assert!(!message.contains("ts: ts"), "{message}");
    }
    let (_, twice) = parse_error("[types]\nTS = 'a/b'\nts = 'a/b'");
    assert!(twice.contains("ts occurs twice"), "{twice}");
    assert_eq!(parse_error("[types]\nts = 1").0, 2);
    assert_eq!(parse_error("types = 'a/b'").0, 1);
}

#[test]
fn invalid_values_are_refused() {
    for text in [
        "workers = 0",
        "connections-max = 0",
        "backlog = 0",
        "file-threads = 0",
        "depth-max = 0",
        "depth-max = 5000",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    for text in [
        "ring-buffers = 3",
        "ring-buffers = 1",
        "ring-buffer-size = '1B'",
        "ring-buffers = 32768\nring-buffer-size = '1MiB'",
        "allow = ['put', 'none']",
    ] {
        let result = Settings::new(parse(text).unwrap(), None);
        assert!(matches!(result, Err(Failure::Usage(_))), "{text}");
    }
}
