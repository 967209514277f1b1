//! The pages of docs/recipes about build caches that speak JavaScript: Turborepo, nx, moon, Rush.

use super::{Recipe, onrush, output_within, recipes_with, tools};
use super::{TIME_MAX, pattern};
use std::path::PathBuf;
use xtask::node;

/// A workspace of npm with one package, whose build writes a different file each time.
const WORKSPACE: [(&str, &str); 6] = [
    (
        "package.json",
        r#"{"name": "ours", "private": true, "workspaces": ["packages/*"],
            "packageManager": "npm@10.9.4"}"#,
    ),
    (
        "package-lock.json",
        r#"{"name": "ours", "lockfileVersion": 3, "requires": true, "packages": {
            "": {"name": "ours", "workspaces": ["packages/*"]},
            "node_modules/a": {"resolved": "packages/a", "link": true},
            "packages/a": {"name": "a", "version": "1.0.0"}}}"#,
    ),
    (
        "packages/a/package.json",
        r#"{"name": "a", "version": "1.0.0", "scripts": {
            "build": "mkdir -p dist && cat /proc/sys/kernel/random/uuid > dist/out"}}"#,
    ),
    (
        "turbo.json",
        r#"{"tasks": {"build": {"outputs": ["dist/**"]}}, "remoteCache": {"signature": true}}"#,
    ),
    (
        "nx.json",
        r#"{"neverConnectToCloud": true, "analytics": false, "targetDefaults": {
            "build": {"cache": true, "outputs": ["{projectRoot}/dist"]}}}"#,
    ),
    (
        ".gitignore",
        "node_modules\ndist\ncache\nhome\n.turbo\n.nx\n",
    ),
];

#[test]
#[ignore = "nightly"] // package managers
fn turborepo_and_nx_share_results() {
    let modules = tools().join("js/node_modules");
    let programs = ["turbo", "nx", "node", "git"];
    if node::recent().is_none() {
        return;
    }
    for mut recipe in recipes_with("js-build-caches", &programs, &[modules.join(".bin")]) {
        let title = recipe.title();
        for (name, content) in WORKSPACE {
            recipe.folder().file(name, content);
        }
        let link = recipe.folder().path().join("node_modules");
        std::os::unix::fs::symlink(&modules, link).expect("a link");
        recipe.run("git init --quiet .\ngit add .\n");
        recipe.step();
        for tool in ["turbo", "nx"] {
            recipe.run("rm -rf packages/a/dist .turbo .nx node_modules/.cache/turbo\n");
            recipe.step();
            let built = recipe.read("packages/a/dist/out");
            // Another machine: nothing local is left.
            recipe.run("rm -rf packages/a/dist .turbo .nx node_modules/.cache/turbo\n");
            recipe.again();
            let found = recipe.read("packages/a/dist/out");
            assert_eq!(found, built, "{title}: {tool} has not built again");
        }
        let log = recipe.server().logs("/v1/cache/");
        assert!(log.contains("/v8/artifacts/status"), "{title}: {log}");
    }
}

/// Makes a repository of Git of the folder.
const COMMIT: &str = "git init --quiet .
git add .
git -c user.name=Ann -c user.email=ann@example.org commit --quiet --message one
";

/// Programs that setup has installed from npm.
fn programs() -> PathBuf {
    tools().join("js/node_modules/.bin")
}

/// Makes a file `users.toml` with a user, and returns a token of it.
fn token(recipe: &Recipe) -> String {
    let user = |arguments: &[&str]| {
        let mut command = onrush();
        command.current_dir(recipe.folder().path()).arg("user");
        command.args(arguments).args(["--auth-file", "users.toml"]);
        let output = output_within(&mut command, TIME_MAX);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    user(&["add", "ci", "--no-password", "--rights", "/=read,write"]);
    user(&["token", "ci"]).trim_end().to_owned()
}

#[test]
#[ignore = "nightly"] // package managers
fn moon_shares_results() {
    if node::recent().is_none() {
        return;
    }
    for mut recipe in recipes_with("moon", &["moon", "node", "git"], &[programs()]) {
        let title = recipe.title();
        let settings = "projects: ['packages/*']\ntelemetry: false\n";
        recipe.folder().file(".moon/workspace.yml", settings);
        let build = "mkdir -p dist && cat /proc/sys/kernel/random/uuid > dist/out && \
                     cp src/large dist/ && : > dist/empty";
        let task = format!("script: '{build}'\n    inputs: ['src/**/*']\n    outputs: ['dist']");
        let task = format!("tasks:\n  build:\n    {task}\n");
        recipe.folder().file("packages/a/moon.yml", task);
        let large = pattern(1, 2_000_000);
        recipe.folder().file("packages/a/src/large", large.clone());
        let ignored = ".moon/cache\ndist\n/cache\n/home\n/users.toml\n";
        recipe.folder().file(".gitignore", ignored);
        recipe.run(COMMIT);
        recipe.step();
        recipe.step();
        let built = recipe.read("packages/a/dist/out");
        // Another machine: nothing local is left.
        let forget = "rm -rf packages/a/dist .moon/cache\n";
        let is_found = |recipe: &mut Recipe, by: &str| {
            recipe.run(forget);
            let said = recipe.run(by);
            assert!(said.contains("cached from remote"), "{title}: {said}");
            assert_eq!(recipe.read("packages/a/dist/out"), built, "{title}");
            assert!(recipe.read("packages/a/dist/large") == large, "{title}");
            assert_eq!(recipe.read("packages/a/dist/empty"), b"", "{title}");
        };
        let build = recipe.last.clone();
        is_found(&mut recipe, &build);
        let log = recipe.server().logs("method=GET target=/moon-outputs/cas/");
        assert!(
            log.contains("method=PUT target=/moon-outputs/ac/"),
            "{title}: {log}"
        );
        // With users, it needs a token.
        let token = token(&recipe);
        recipe.run("onrush ./cache --cache 1G --auth-file users.toml\n");
        recipe.run(forget);
        let said = recipe.run(&build);
        assert!(!said.contains("cached from remote"), "{title}: {said}");
        let login = format!("export CACHE_TOKEN={token} MOON_REMOTE_AUTH_TOKEN=CACHE_TOKEN\n");
        is_found(&mut recipe, &(login + &build));
    }
}

/// A workspace of Rush with two packages, of which one needs the other. The versions are those of
/// `xtask/src/npm.rs`.
const RUSH: [(&str, &str); 7] = [
    (
        "rush.json",
        r#"{"rushVersion": "5.179.0", "pnpmVersion": "9.15.9",
            "nodeSupportedVersionRange": ">=20.9.0", "projects": [
            {"packageName": "a", "projectFolder": "a"},
            {"packageName": "b", "projectFolder": "b"}]}"#,
    ),
    (
        "common/config/rush/pnpm-config.json",
        r#"{"useWorkspaces": true}"#,
    ),
    (
        "a/package.json",
        r#"{"name": "a", "version": "1.0.0", "scripts": {
            "build": "mkdir -p lib && cat /proc/sys/kernel/random/uuid > lib/out"}}"#,
    ),
    (
        "b/package.json",
        r#"{"name": "b", "version": "1.0.0", "dependencies": {"a": "workspace:*"}, "scripts": {
            "build": "mkdir -p lib && cat ../a/lib/out src/large > lib/out"}}"#,
    ),
    ("a/config/rush-project.json", RUSH_PROJECT),
    ("b/config/rush-project.json", RUSH_PROJECT),
    (
        ".gitignore",
        "node_modules\nlib\ntemp\n.rush\n*.log\n/cache\n/home\n/users.toml\n",
    ),
];
const RUSH_PROJECT: &str =
    r#"{"operationSettings": [{"operationName": "build", "outputFolderNames": ["lib"]}]}"#;

#[test]
#[ignore = "nightly"] // package managers
fn rush_shares_results() {
    let pnpm = tools().join("rush");
    if node::recent().is_none() || !pnpm.exists() {
        return;
    }
    // Rush finds pnpm there, and needs no registry.
    let offline = "export npm_config_registry=http://127.0.0.1:9 npm_config_fetch_retries=0\n";
    let offline = format!("export RUSH_GLOBAL_FOLDER={}\n{offline}", pnpm.display());
    let folders = [programs(), tools().join("npm/bin")];
    for mut recipe in recipes_with("rush", &["rush", "node", "npm", "git"], &folders) {
        let title = recipe.title();
        for (name, content) in RUSH {
            recipe.folder().file(name, content);
        }
        let large = pattern(1, 2_000_000);
        recipe.folder().file("b/src/large", large.clone());
        recipe.step();
        recipe.step();
        recipe.run(&format!("{COMMIT}{offline}rush update\n"));
        let build = recipe.blocks.next().expect("the last block");
        let build = format!("{offline}{build}");
        // Without a credential, a result that is missing is asked for once.
        recipe.run(&build);
        let built = recipe.read("a/lib/out");
        let both = [built.as_slice(), &large].concat();
        assert!(recipe.read("b/lib/out") == both, "{title}");
        let log = recipe.server().logs("method=PUT target=/rush/");
        let missed = log.matches("method=GET target=/rush/").count();
        assert_eq!(missed, 2, "{title}: {log}");
        let is_found = |recipe: &mut Recipe, by: &str| {
            // Another machine: nothing local is left.
            recipe.run("rm -rf a/lib b/lib common/temp/build-cache\n");
            let said = recipe.run(by);
            assert!(said.contains("FROM CACHE: 2 operations"), "{title}: {said}");
            assert_eq!(recipe.read("a/lib/out"), built, "{title}");
            assert!(recipe.read("b/lib/out") == both, "{title}");
        };
        is_found(&mut recipe, &build);
        // With users, it needs a token. The address is no part of the keys.
        let token = token(&recipe);
        recipe.run("onrush ./cache --cache 1G --auth-file users.toml\n");
        let address = recipe.server().address().to_string();
        let settings = "common/config/rush/build-cache.json";
        recipe.run(&format!(
            "sed -i 's|http://[^/]*|http://{address}|' {settings}\n"
        ));
        let login = format!("export RUSH_BUILD_CACHE_CREDENTIAL='Bearer {token}'\n");
        is_found(&mut recipe, &(login + &build));
        recipe.server().logs("user=ci");
    }
}
