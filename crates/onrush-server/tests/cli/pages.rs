//! Manual pages and completion scripts of all commands.

use crate::program::{Folder, onrush, output};
use std::process::Command;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    let written = output(onrush().arg(format!("--man={}", folder.path().display())));
    assert_eq!(
        (written.status.code(), text(&written.stdout)),
        (Some(0), String::new())
    );
    for (name, part) in [
        ("onrush.1", "onrush\\-user(1)"),
        ("onrush.1", ".SH SIGNALS\nOn SIGTERM"),
        ("onrush-user-add.1", "\\-\\-no\\-password"),
        ("onrush-check.1", "\\-\\-auth\\-file"),
        ("onrush-health.1", "\\-\\-timeout"),
    ] {
        let manual = std::fs::read_to_string(folder.path().join(name)).expect(name);
        assert!(manual.contains(part), "{name}: {manual}");
    }
    let missing = folder.path().join("missing");
    let failed = output(onrush().arg(format!("--man={}", missing.display())));
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(text(&failed.stderr).lines().count(), 1);
}

#[test]
fn completion_scripts_are_read_by_their_shell() {
    let mut shell = Command::new("bash");
    let script = format!(
        "eval \"$('{}' --completions bash)\"",
        env!("CARGO_BIN_EXE_onrush")
    );
    let output = output(shell.args(["-c", &format!("{script}; complete -p onrush")]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn commands_and_their_options_are_completed() {
    let mut shell = Command::new("bash");
    let script = format!(
        "eval \"$('{}' --completions bash)\"
         complete_words() {{
             COMP_WORDS=(onrush \"$@\") COMP_CWORD=$#
             _onrush onrush \"${{@: -1}}\" \"${{@: -2:1}}\"
             echo \"${{COMPREPLY[@]}}\"
         }}
         complete_words he
         complete_words user add --no
         complete_words check --auth-f",
        env!("CARGO_BIN_EXE_onrush")
    );
    let output = output(shell.args(["-c", &script]));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "health\n--no-password\n--auth-file\n");
}
