//! The pages of docs/recipes about packages: apt, pip, npm, Go, Cargo, pacman, dnf, zypper, OSTree,
//! Nix.

use super::{Recipe, pattern, recipes, recipes_with, tools};
use std::fs;
use std::path::PathBuf;

#[test]
#[ignore = "nightly"] // package managers
fn apt_reads_a_pool_and_a_flat_repository() {
    let programs = [
        "apt-get",
        "apt-ftparchive",
        "dpkg-scanpackages",
        "gpg",
        "xz",
    ];
    for mut recipe in recipes("apt", &programs) {
        let title = recipe.title();
        for _ in [
            "package",
            "lists",
            "flat",
            "serve",
            "configuration",
            "update",
        ] {
            recipe.step();
        }
        let package = recipe.read("repo/pool/hello_1.0_all.deb");
        assert!(recipe.read("hello_1.0_all.deb") == package, "{title}");
        let unchanged = recipe.again();
        assert!(unchanged.contains("Hit:1"), "{title}: {unchanged}");
        recipe.finish();
        assert!(recipe.read("hello_1.0_all.deb") == package, "{title}");
        recipe.run("gpgconf --kill gpg-agent\n");
    }
}

/// Wheels that contain a module each, and a project for Poetry.
const WHEELS: &str = r#"mkdir dist poem project
python3 - <<'END'
import zipfile
for folder, name, version in [
    ('.', 'hello', '1.0'), ('dist', 'greeter', '1.0'), ('dist', 'greeter', '2.0'),
    ('poem', 'poem', '1.0'),
]:
    about = f'{name}-{version}.dist-info/'
    files = {
        f'{name}.py': f"GREETING = 'hello'\n",
        about + 'METADATA': f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n',
        about + 'WHEEL': 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    }
    files[about + 'RECORD'] = ''.join(name + ',,\n' for name in files) + about + 'RECORD,,\n'
    with zipfile.ZipFile(f'{folder}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
END
mv poem project/poem
cat > project/pyproject.toml <<'END'
[project]
name = "poem"
version = "1.0"
description = ""
END
"#;

#[test]
#[ignore = "nightly"] // package managers
fn pip_installs_from_folders() {
    let python = ["uploads", "tuspy"].map(|name| tools().join("python").join(name).join("bin"));
    let programs = ["pip", "python3", "curl", "twine", "uv", "poetry"];
    for mut recipe in recipes_with("pip", &programs, &python) {
        let title = recipe.title();
        recipe.run(WHEELS);
        recipe.finish();
        for name in ["greeter-1.0", "greeter-2.0"] {
            let stored = recipe.read(&format!("index/greeter/{name}-py3-none-any.whl"));
            let sent = recipe.read(&format!("dist/{name}-py3-none-any.whl"));
            assert!(stored == sent, "{title}: {name}");
        }
        let poem = "poem/poem-1.0-py3-none-any.whl";
        let stored = recipe.read(&format!("index/{poem}"));
        assert!(stored == recipe.read(&format!("project/{poem}")), "{title}");
        let newest = recipe.read("uv-site/greeter-2.0.dist-info/METADATA");
        assert!(newest.ends_with(b"Version: 2.0\n"), "{title}");
        let module = recipe.read("site/hello.py");
        assert_eq!(module, b"GREETING = 'hello'\n", "{title}");
        let name = "hello-1.0-py3-none-any.whl";
        let downloaded = recipe.read(&format!("wheels/{name}"));
        assert!(downloaded == recipe.read(name), "{title}");
    }
}

#[test]
#[ignore = "nightly"] // package managers
fn npm_installs_from_files() {
    let npm = [tools().join("npm/bin")];
    for mut recipe in recipes_with("npm", &["npm", "node"], &npm) {
        let files = [
            (
                "hello/package.json",
                r#"{"name": "hello", "version": "1.2.0"}"#,
            ),
            ("hello/index.js", "module.exports = 'hello';"),
            (
                "greeter/package.json",
                r#"{"name": "greeter", "version": "1.0.0", "dependencies": {"hello": "^1.0.0"}}"#,
            ),
            (
                "greeter/index.js",
                "module.exports = require('hello') + ', world';",
            ),
            (
                "scoped/package.json",
                r#"{"name": "@kit/tool", "version": "1.0.0"}"#,
            ),
            ("scoped/index.js", "module.exports = 'tool';"),
        ];
        for (name, content) in files {
            recipe.folder().file(name, content);
        }
        for _ in ["script", "serve", "publish"] {
            recipe.step();
        }
        let printed = recipe.step();
        assert!(
            printed.contains("hello, world\n"),
            "{}: {printed}",
            recipe.title()
        );
        let installed = recipe.read("project/node_modules/hello/index.js");
        assert_eq!(
            installed,
            recipe.read("hello/index.js"),
            "{}",
            recipe.title()
        );
        // A new version is found at once.
        recipe.folder().file(
            "hello/package.json",
            r#"{"name": "hello", "version": "1.3.0"}"#,
        );
        recipe.run("node publish.js hello registry http://127.0.0.1:8080\n");
        recipe.run("cd project\nnpm update\n");
        let manifest = recipe.read("project/node_modules/hello/package.json");
        let manifest = String::from_utf8_lossy(&manifest).into_owned();
        assert!(manifest.contains("1.3.0"), "{}: {manifest}", recipe.title());
        // A package with a scope, whose slash npm encodes.
        recipe.run("node publish.js scoped registry http://127.0.0.1:8080\n");
        recipe.run("cd project\nnpm install @kit/tool\n");
        let installed = recipe.read("project/node_modules/@kit/tool/index.js");
        assert_eq!(
            installed,
            recipe.read("scoped/index.js"),
            "{}",
            recipe.title()
        );
        recipe.finish();
    }
}

/// The toolchains that `cargo xtask setup --nightly` has fetched, because Debian's may be too old
/// for others.
fn toolchains() -> Vec<PathBuf> {
    let entries = fs::read_dir(tools().join("golang.org"));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("bin")).collect()
}

/// A module with two versions.
fn make_module(recipe: &mut Recipe) {
    recipe
        .folder()
        .file("hello/go.mod", "module example.org/hello\n\ngo 1.19\n");
    recipe.folder().file("hello/hello.go", "package hello\n");
    recipe
        .folder()
        .file("hello/inner/inner.go", "package inner\n");
    recipe.run(
        "git config --global user.name Ann\n\
         git config --global user.email ann@example.org\n\
         git init --quiet hello\n\
         cd hello\n\
         git add .\n\
         git commit --quiet -m one\n\
         git tag v1.0.0\n\
         echo 'const Greeting = \"hello\"' >> hello.go\n\
         git commit --quiet -a -m two\n\
         git tag v1.1.0\n",
    );
}

#[test]
#[ignore = "nightly"] // package managers
fn go_fetches_modules() {
    for mut recipe in recipes_with("go-proxy", &["go", "git", "zip"], &toolchains()) {
        let title = recipe.title();
        make_module(&mut recipe);
        recipe.finish();
        let needed = String::from_utf8(recipe.read("use/go.mod")).expect("UTF-8");
        assert!(
            needed.contains("example.org/hello v1.1.0"),
            "{title}: {needed}"
        );
        for cache in ["modules", "another"] {
            let module = recipe.read(&format!("{cache}/example.org/hello@v1.1.0/hello.go"));
            assert!(module == recipe.read("hello/hello.go"), "{title}: {cache}");
        }
    }
}

#[test]
#[ignore = "nightly"] // package managers
fn cargo_fetches_crates() {
    for mut recipe in recipes("cargo", &["cargo", "sha256sum"]) {
        let title = recipe.title();
        let package = |name: &str, version: &str| {
            let named = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            format!("[package]\n{named}edition = \"2021\"\n\n[workspace]\n")
        };
        for (name, content) in [
            ("hello/Cargo.toml", package("hello", "1.0.0")),
            (
                "hello/src/lib.rs",
                "pub const GREETING: &str = \"hello\";\n".to_owned(),
            ),
            ("app/Cargo.toml", package("app", "0.1.0")),
            (
                "app/src/main.rs",
                "fn main() {\n    println!(\"{}\", hello::GREETING);\n}\n".to_owned(),
            ),
        ] {
            recipe.folder().file(name, content);
        }
        for _ in ["registry", "version", "serve"] {
            recipe.step();
        }
        // The address of the server is known now; a reader has it from the start.
        let config = "cat > registry/config.json <<'END'\n\
                      {\"dl\": \"http://127.0.0.1:8080/crates/{crate}-{version}.crate\"}\nEND\n";
        recipe.run(config);
        assert_eq!(recipe.step(), "hello\n", "{title}");
        let lock = String::from_utf8(recipe.read("app/Cargo.lock")).expect("UTF-8");
        assert!(lock.contains("checksum = "), "{title}: {lock}");
        recipe.finish();
        recipe.server().logs("/crates/hello-1.0.0.crate");
    }
}

/// A package of dnf.
const SPEC: &str = "Name: hello
Version: 1.0
Release: 1
Summary: hello
License: MIT
BuildArch: noarch
%description
hello
%install
mkdir -p %{buildroot}/usr/share/hello
echo hello > %{buildroot}/usr/share/hello/text
%files
/usr/share/hello/text
";
const RPM: &str = "rpmbuild -bb --quiet --define \"_topdir $PWD/rpm\" hello.spec\n\
    cp rpm/RPMS/noarch/hello-*.noarch.rpm .\n";

/// A package of pacman, which `makepkg` makes only without the rights of root.
const PACKAGE: &str = "mkdir -p package/usr/share/hello\n\
    echo hello > package/usr/share/hello/text\n\
    printf 'pkgname = hello\\npkgbase = hello\\npkgver = 1.0-1\\npkgdesc = hello\\n\
    builddate = 1\\npackager = Ann\\nsize = 6\\narch = any\\n' > package/.PKGINFO\n\
    tar -C package -czf hello-1.0-1-any.pkg.tar.gz .PKGINFO usr\n";

#[test]
#[ignore = "nightly"] // package managers
fn pacman_dnf_zypper_and_ostree_fetch_from_folders() {
    let programs = [
        "gpg",
        "unshare",
        "zypper",
        "pacman",
        "repo-add",
        "fakeroot",
        "bsdtar",
        "rpmbuild",
        "createrepo_c",
        "dnf",
        "ostree",
    ];
    for mut recipe in recipes("linux-packages", &programs) {
        let title = recipe.title();
        recipe.run(PACKAGE);
        recipe.folder().file("hello.spec", SPEC);
        recipe.run(RPM);
        recipe.folder().file("tree/etc/motd", "hello");
        recipe.folder().file("tree/large", vec![7; 300_000]);
        for _ in ["index", "serve", "install"] {
            recipe.step();
        }
        assert_eq!(
            recipe.read("system/usr/share/hello/text"),
            b"hello\n",
            "{title}"
        );
        recipe.step();
        recipe.step();
        let installed = recipe.read("fedora/usr/share/hello/text");
        assert_eq!(installed, b"hello\n", "{title}");
        zypper_installs_and_updates(&mut recipe);
        recipe.step();
        recipe.step();
        assert_eq!(recipe.read("checkout/etc/motd"), b"hello", "{title}");
        assert_eq!(recipe.read("checkout/large").len(), 300_000, "{title}");
        recipe.finish();
    }
}

/// Runs the part of the page about zypper, and has it find a second version.
fn zypper_installs_and_updates(recipe: &mut Recipe) {
    let title = recipe.title();
    recipe.step();
    recipe.step();
    let sign = recipe.last.clone();
    recipe.step();
    let installed = recipe.read("suse/usr/share/hello/text");
    assert_eq!(installed, b"hello\n", "{title}");
    let second = SPEC.replace("1.0", "2.0").replace("echo hello", "echo two");
    recipe.folder().file("hello.spec", second);
    recipe.run(RPM);
    recipe.run("cp hello-2.0-1.noarch.rpm www/rpm/\ncreaterepo_c --quiet --zck www/rpm\n");
    let zypper = "unshare --map-root-user zypper --non-interactive --root $PWD/suse";
    // The old signature is not that of the new index.
    recipe.run(&format!("! {zypper} refresh\n"));
    recipe.run(&sign);
    recipe.run(&format!("{zypper} refresh\n{zypper} update\n"));
    let updated = recipe.read("suse/usr/share/hello/text");
    assert_eq!(updated, b"two\n", "{title}");
    recipe.server().logs("/rpm/hello-2.0-1.noarch.rpm");
    recipe.run("gpgconf --kill gpg-agent\n");
}

/// What Nix has to know about a machine without its daemon, and without its public cache.
const NIX_SETTINGS: &str = "experimental-features = nix-command
build-users-group =
substituters =
";

/// A derivation that needs no other one: Nix itself makes the links of its result.
const DERIVATION: &str = "derivation {
  name = \"linked\";
  system = \"builtin\";
  builder = \"builtin:buildenv\";
  derivations = [ \"true\" 5 1 ./hello ];
  manifest = builtins.toFile \"manifest\" \"\";
}
";

#[test]
#[ignore = "nightly"] // package managers
fn nix_copies_to_a_binary_cache_and_back() {
    for mut recipe in recipes("nix", &["nix", "nix-build"]) {
        let title = recipe.title();
        let content = pattern(1, 3_000_000);
        recipe.folder().file("hello/share/data", content.clone());
        recipe.folder().file("hello.nix", DERIVATION);
        let settings = recipe.folder();
        settings.file("home/.config/nix/nix.conf", NIX_SETTINGS);
        for _ in ["keys", "serve", "copy"] {
            recipe.step();
        }
        let path = String::from_utf8(recipe.read("path")).expect("UTF-8");
        let path = path.trim_end().trim_start_matches('/').to_owned();
        // The result is a link into another path, which was copied as well.
        let data = |recipe: &Recipe, store: &str| {
            let link = recipe.folder().path().join(store).join(&path);
            let inside = fs::read_link(link.join("share")).expect("a link");
            let inside = inside.strip_prefix("/").expect("a path of the store");
            recipe.read(&format!("{store}/{}/data", inside.display()))
        };
        assert!(data(&recipe, "store") == content, "{title}");
        for store in ["other", "third"] {
            recipe.step();
            assert!(data(&recipe, store) == content, "{title}: {store}");
        }
        let log = recipe.server().logs("method=GET target=/nar/");
        assert!(log.contains("method=PUT target=/nar/"), "{title}: {log}");
        // Without its key, a cache is not trusted.
        let from = "nix copy --store $PWD/fourth --from http://127.0.0.1:8080 $(cat path)";
        recipe.run(&format!("! {from} 2> said\n"));
        let said = String::from_utf8_lossy(&recipe.read("said")).into_owned();
        assert!(said.contains("lacks a valid signature"), "{title}: {said}");
        // Users are those of the file.
        recipe.run("onrush ./users --auth ann:secret --public-read\n");
        let to = "nix copy --store $PWD/store --to http://127.0.0.1:8080 $(cat path)\n";
        recipe.run(&format!("! {to}"));
        recipe.server().logs("status=401");
        let login = "echo machine 127.0.0.1 login ann password secret > netrc\n";
        recipe.run(login);
        recipe.run(&to.replace("copy", "copy --option netrc-file $PWD/netrc"));
        recipe.server().logs("method=PUT target=/nix-cache-info");
        // Nix makes folders that their owner cannot change.
        recipe.run("chmod -R u+w store other third fourth\n");
    }
}

/// A package of conda.
const CONDA_PACKAGE: &str = r#"python3 - <<'END'
import hashlib, io, json, tarfile
files = {'share/hello/text': b'hello\n'}
paths = [
    {'_path': name, 'path_type': 'hardlink', 'sha256': hashlib.sha256(content).hexdigest(),
     'size_in_bytes': len(content)}
    for name, content in files.items()
]
about = {'name': 'hello', 'version': '1.0', 'build': '0', 'build_number': 0, 'depends': [],
         'subdir': 'noarch', 'noarch': 'generic'}
files['info/index.json'] = json.dumps(about).encode()
files['info/paths.json'] = json.dumps({'paths': paths, 'paths_version': 1}).encode()
with tarfile.open('hello-1.0-0.tar.bz2', 'w:bz2') as package:
    for name, content in files.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        package.addfile(entry, io.BytesIO(content))
END
"#;

#[test]
#[ignore = "nightly"] // package managers
fn conda_packages_are_installed() {
    let environment = tools().join("python/rattler");
    if !environment.exists() {
        return;
    }
    for mut recipe in recipes_with("conda", &["python3"], &[environment.join("bin")]) {
        let title = recipe.title();
        recipe.run(CONDA_PACKAGE);
        recipe.finish();
        let installed = recipe.read("environment/share/hello/text");
        assert_eq!(installed, b"hello\n", "{title}");
        recipe.server().logs("/noarch/hello-1.0-0.tar.bz2");
    }
}

/// Maven gets its plugins from Debian, and not from its own server.
const MAVEN_SETTINGS: &str = "<settings><mirrors><mirror><id>debian</id>\
    <mirrorOf>central</mirrorOf><url>file:///usr/share/maven-repo</url></mirror></mirrors>\
    </settings>";
const PARENT: &str = "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>\
    <artifactId>parent</artifactId><version>1.0</version><packaging>pom</packaging></project>";

#[test]
#[ignore = "nightly"] // package managers
fn maven_deploys_and_fetches() {
    let plugin = "/usr/share/maven-repo/org/apache/maven/plugins/maven-deploy-plugin/3.0.0";
    if !PathBuf::from(plugin).exists() {
        return;
    }
    for mut recipe in recipes("maven", &["mvn"]) {
        let title = recipe.title();
        recipe
            .folder()
            .file("home/.m2/settings.xml", MAVEN_SETTINGS);
        recipe.folder().file("hello.jar", "an archive");
        recipe.folder().file("parent.xml", PARENT);
        recipe.step();
        recipe.step();
        let stored = recipe.read("repository/releases/org/example/hello/1.0/hello-1.0.jar");
        assert_eq!(stored, b"an archive", "{title}");
        recipe.finish();
        let name = "home/.m2/repository/org/example/parent/1.0/parent-1.0.pom";
        assert_eq!(recipe.read(name), PARENT.as_bytes(), "{title}");
        // A second version extends the index.
        recipe.run(
            "mvn --batch-mode --quiet \\\n\
             org.apache.maven.plugins:maven-deploy-plugin:3.0.0:deploy-file \\\n\
             -DrepositoryId=ours -Durl=http://127.0.0.1:8080/releases -Dfile=hello.jar \\\n\
             -DgroupId=org.example -DartifactId=hello -Dversion=2.0\n",
        );
        let index = recipe.read("repository/releases/org/example/hello/maven-metadata.xml");
        let index = String::from_utf8_lossy(&index).into_owned();
        let has_both = ["1.0", "2.0"].map(|one| index.contains(&format!("<version>{one}<")));
        assert_eq!(has_both, [true; 2], "{title}: {index}");
        let url = "http://127.0.0.1:8080/releases/org/example/hello/1.0/hello-1.0.jar";
        let head = recipe.run(&format!("curl --silent --head {url}\n"));
        assert!(!head.contains("no-store"), "{title}: {head}");
    }
}
