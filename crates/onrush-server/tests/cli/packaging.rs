//! The files of packaging/ that belong to the program: the configuration of the package, and what
//! monitoring asks for.

use crate::program::{Folder, Server, curl, is_installed, onrush, output};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

#[test]
fn the_configuration_of_the_package_is_valid() {
    let config = std::fs::read_to_string(packaging().join("onrush.toml")).expect("a file");
    let (folder, etc) = (Folder::new(), Folder::new());
    let served = folder.path().join("data");
    std::fs::create_dir(&served).expect("created");
    let here = |text: &str| {
        let text = text.replace("/var/lib/onrush", &folder.path().display().to_string());
        text.replace("/var/cache/onrush", &folder.path().display().to_string())
    };
    let check = |name: &str, text: &str| {
        let config = etc.file(name, here(text));
        let output = output(onrush().arg("check").arg("--config").arg(config));
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).expect("UTF-8");
        assert_eq!(output.status.code(), Some(0), "{name}: {printed}");
        printed
    };
    check("as-installed.toml", &config);
    // The examples in it. Each is a paragraph that ends with keys.
    let mut user = onrush();
    let users = folder.path().join("users.toml");
    user.args(["user", "add", "ann", "--no-password", "--auth-file"]);
    assert!(output(user.arg(&users)).status.success());
    let examples: Vec<&str> = config.split("\n\n").skip(2).collect();
    assert_eq!(examples.len(), 2, "{config}");
    for (number, example) in examples.iter().enumerate() {
        let keys: String = (example.lines())
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| line.contains(" = "))
            .map(|line| format!("{line}\n"))
            .collect();
        let has_dir = keys.contains("dir = ");
        let dir = if has_dir {
            ""
        } else {
            "dir = \"/var/lib/onrush/data\"\n"
        };
        check(&format!("example-{number}.toml"), &format!("{dir}{keys}"));
    }
}

/// The labels of each metric, by its name.
type Series = BTreeMap<String, BTreeSet<String>>;

/// Adds the samples that a server shows.
fn scrape(server: &Server, series: &mut Series) {
    let printed = server.prints("admin http://");
    let (_, admin) = printed.split_once("admin ").expect("printed");
    let admin = admin.lines().next().expect("a line").trim();
    let page = curl(&[&format!("{admin}metrics")]);
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let known = series.entry(name.to_owned()).or_default();
        known.extend(named_labels(labels.trim_end_matches('}')));
    }
}

/// The names of labels in a selector or a sample, without braces.
fn named_labels(labels: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = labels;
    while let Some((before, after)) = rest.split_once('"') {
        let name = before.trim_matches([',', ' ', '=', '~', '!']);
        names.push(name.to_owned());
        rest = after.split_once('"').map_or("", |(_, rest)| rest);
    }
    names
}

/// The metrics that an expression names, each with the labels that it selects or groups by.
fn metrics_of(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut grouped = Vec::new();
    for part in expression.split(" by (").skip(1) {
        let (labels, _) = part.split_once(')').expect("a list");
        grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
    }
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = ["onrush_", "http_server_", "process_"]
        .iter()
        .filter_map(|prefix| rest.find(prefix))
        .min()
    {
        let (name, after) = rest[at..].split_at(rest[at..].find(|c| !is_name(c)).unwrap_or(0));
        let selected = after
            .strip_prefix('{')
            .and_then(|text| text.split_once('}'));
        let mut labels = selected.map_or(Vec::new(), |(labels, _)| named_labels(labels));
        if let Some(label) = after.strip_prefix(", ") {
            // label_values(metric, label)
            labels.push(label.trim_end_matches(')').to_owned());
        }
        labels.extend(grouped.iter().cloned());
        found.push((name.to_owned(), labels));
        rest = selected.map_or(after, |(_, rest)| rest);
    }
    found
}

/// All values of `key` in a JSON document.
fn values<'v>(document: &'v serde_json::Value, key: &str, found: &mut Vec<&'v str>) {
    match document {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => values(value, key, found),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

/// The metrics of servers with every kind of storage.
fn all_series() -> Series {
    let mut series = Series::new();
    let admin = ["--admin", "127.0.0.1:0"];
    let folder = Folder::new();
    let secured = [
        "--tls-self-signed",
        "--quota",
        "/=1GiB",
        "--auth",
        "ann:secret",
    ];
    let server = Server::start(folder.path(), &[&admin[..], &secured].concat());
    for login in ["ann:secret", "ann:wrong"] {
        curl(&["-k", "-o", "/dev/null", "-u", login, &server.url]);
    }
    scrape(&server, &mut series);
    let folder = Folder::new();
    let server = Server::start(folder.path(), &[&admin[..], &["--cache", "1GiB"]].concat());
    scrape(&server, &mut series);
    let mut command = onrush();
    let cache = Folder::new();
    // A service that refuses connections.
    command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    command.env("AWS_ACCESS_KEY_ID", "key");
    command.env("AWS_SECRET_ACCESS_KEY", "secret");
    command.args(["s3://bucket", "--port", "0", "--edge"]);
    command.arg(cache.path()).args(admin);
    let server = Server::run(command);
    curl(&["-o", "/dev/null", &format!("{}/x", server.url)]);
    scrape(&server, &mut series);
    series
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
    if !is_installed("curl") {
        return;
    }
    let monitoring = packaging().join("monitoring");
    let dashboard = std::fs::read(monitoring.join("grafana-dashboard.json")).expect("a file");
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).expect("JSON");
    let mut expressions = Vec::new();
    values(&dashboard, "expr", &mut expressions);
    values(&dashboard, "query", &mut expressions);
    assert!(expressions.len() > 30, "{expressions:?}");
    let alerts = std::fs::read_to_string(monitoring.join("onrush-alerts.yml")).expect("a file");
    expressions.extend(alerts.split("expr:").skip(1).map(|rule| {
        let end = ["\n        for:", "\n        labels:"];
        let end = end.iter().filter_map(|end| rule.find(end)).min();
        &rule[..end.expect("a rule")]
    }));
    let series = all_series();
    for expression in expressions {
        for (name, labels) in metrics_of(expression) {
            let known = series.get(&name);
            let known = known.unwrap_or_else(|| panic!("{name} does not exist: {expression}"));
            for label in labels {
                // These are of Prometheus.
                let is_known = ["job", "instance"].contains(&&*label) || known.contains(&label);
                assert!(is_known, "{name} has no label {label:?}: {expression}");
            }
        }
    }
}

#[test]
#[ignore = "nightly"] // Prometheus is large
fn promtool_accepts_the_alerts() {
    if !is_installed("promtool") {
        return;
    }
    let monitoring = packaging().join("monitoring");
    for (task, file) in [
        ("check", "onrush-alerts.yml"),
        ("test", "onrush-alerts-test.yml"),
    ] {
        let mut promtool = Command::new("promtool");
        promtool
            .args([task, "rules", file])
            .current_dir(&monitoring);
        let output = output(&mut promtool);
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(output.status.success(), "{task}: {printed}");
    }
}

#[test]
fn the_image_has_a_program_that_starts_and_reports_its_health() {
    let text = std::fs::read_to_string(packaging().join("Containerfile")).expect("a file");
    let (_, image) = text.split_once("\nFROM scratch\n").expect("a last stage");
    let words = image.split_whitespace();
    let variables: BTreeMap<&str, &str> = words
        .filter(|word| word.starts_with("ONRUSH_"))
        .filter_map(|word| word.split_once('='))
        .collect();
    assert_eq!(variables.len(), 3, "{variables:?}");
    assert!(image.contains(&format!("\nVOLUME {}\n", variables["ONRUSH_DIR"])));
    assert!(image.contains("\nENTRYPOINT [\"/onrush\"]\n"), "{image}");
    // The same without its addresses and its folder.
    let folder = Folder::new();
    let mut command = onrush();
    for name in variables.keys() {
        let value = match *name {
            "ONRUSH_DIR" => folder.path().display().to_string(),
            _ => "127.0.0.1:0".to_owned(),
        };
        command.env(name, value);
    }
    let server = Server::run(command);
    let printed = server.prints("admin http://");
    assert!(!server.log().contains("unknown environment variable"));
    let (_, admin) = printed.split_once("admin http://").expect("printed");
    let admin = admin.split('/').next().expect("an address");
    let (_, check) = image.split_once(" CMD [\"/onrush\", ").expect("a check");
    let (argument, _) = check.split_once(']').expect("its end");
    let mut health = onrush();
    health.arg(argument.trim_matches('"'));
    let output = output(health.env("ONRUSH_ADMIN", admin));
    assert_eq!(output.stdout, b"ready\n");
}
