//! `onrush user`: edits the users file. Comments and the order of the file are kept.

use super::parse;
use super::terminal;
use crate::process::failure::{Failure, error_text, one_line, write_line};
use crate::process::key_files;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, CommandFactory, Parser, Subcommand};
use onrush_files::access::PasswordHash;
use onrush_files::access::users::{check_name, read_private, token_hash};
use onrush_files::{PathRights, Rights, Users};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

/// Edit the users of --auth-file
///
/// A running server reads the file again on SIGHUP (kill -HUP PID).
#[derive(Debug, Parser)]
#[command(name = "onrush user")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a user; asks for the password on the terminal, or reads it from stdin
    Add {
        #[command(flatten)]
        user: UserArguments,

        /// Rights, as read,list or as /PATH=read,list; may be repeated [default: all]
        ///
        /// Of the paths that cover an object, the longest counts. The rights are read, list,
        /// create, write (which includes create), delete, all and none.
        #[arg(long, value_name = "RIGHTS")]
        rights: Vec<String>,

        /// A client certificate of the user, as cn:NAME, dns:NAME, email:ADDRESS, uri:URI or
        /// ip:ADDRESS; may be repeated
        #[arg(long, value_name = "NAME")]
        certificate: Vec<String>,

        /// Without a password: the user logs in by a token or a certificate
        #[arg(long)]
        no_password: bool,
    },
    /// Remove a user, with all tokens and signed URLs
    ///
    /// A running server takes this over on SIGHUP (kill -HUP PID).
    Remove(UserArguments),
    /// List the users and their rights
    List(FileArgument),
    /// Change the password, asked on the terminal or read from stdin; revokes signed URLs
    ///
    /// A running server takes this over on SIGHUP (kill -HUP PID). Until then the old password and
    /// the signed URLs work.
    Passwd(UserArguments),
    /// Make a token for a program and print it; it cannot be shown again
    Token {
        #[command(flatten)]
        user: UserArguments,

        /// A name for the token, to recognise it in the file
        #[arg(long = "name", value_name = "NAME", default_value = "token")]
        token: String,

        /// Remove the token of this name instead
        #[arg(long)]
        remove: bool,
    },
}

#[derive(Args, Debug)]
struct UserArguments {
    /// The name of the user
    name: String,

    #[command(flatten)]
    file: FileArgument,
}

#[derive(Args, Debug)]
struct FileArgument {
    /// The users file
    #[arg(long, value_name = "FILE", env = "ONRUSH_AUTH_FILE", hide_env = true)]
    auth_file: PathBuf,
}

/// The definition of its command line.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// The command `onrush user`. `words` begin with `user`.
pub(crate) fn main(words: &[OsString]) -> Result<(), Failure> {
    let Some(Arguments { command }) = parse::parse(words, "onrush user")? else {
        return Ok(());
    };
    match command {
        Command::Add {
            user,
            rights,
            certificate,
            no_password,
        } => {
            let rights = rules(&rights)?;
            add(&user, &rights, &certificate, no_password)
        }
        Command::Remove(user) => remove(&user).map(revoked),
        Command::List(file) => list(&file.auth_file),
        Command::Passwd(user) => change_password(&user).map(revoked),
        Command::Token {
            user,
            token,
            remove: false,
        } => add_token(&user, &token),
        Command::Token {
            user,
            token,
            remove: true,
        } => remove_token(&user, &token).map(revoked),
    }
}

/// Says that what was revoked still works at a running server.
fn revoked((): ()) {
    write_line("onrush: a running server takes this over on SIGHUP (kill -HUP PID)");
}

/// A users file that is being edited. Other programs that edit it wait.
struct Editing {
    path: PathBuf,
    /// What a new file begins with.
    header: &'static str,
    document: DocumentMut,
    _lock: File,
}

impl Editing {
    /// Opens a file, which may be missing if `create`.
    fn open(path: &Path, create: bool) -> Result<Editing, Failure> {
        let usage = |error: String| Failure::usage(one_line(&error));
        // A rename would replace a link, not the file that the server reads.
        let resolved = match path.is_symlink() {
            true => path.canonicalize().map_err(|error| {
                let (shown, reason) = (path.display(), error_text(&error));
                usage(format!("{shown} is a link that leads to no file: {reason}"))
            })?,
            false => path.to_owned(),
        };
        let path = resolved.as_path();
        // A rename replaces the file, so the folder is locked.
        let folder = key_files::folder_of(path);
        let locked = File::open(folder).and_then(|folder| {
            flock(&folder, FlockOperation::LockExclusive)?;
            Ok(folder)
        });
        let lock = locked.map_err(|error| {
            usage(format!(
                "{} cannot be opened: {}",
                folder.display(),
                error_text(&error)
            ))
        })?;
        let is_new = create && !path.try_exists().unwrap_or(true);
        let (header, text) = match is_new {
            true => (HEADER, String::new()),
            false => ("", read_private(path).map_err(usage)?),
        };
        let shown = path.display();
        Users::parse(&text).map_err(|error| usage(format!("{shown}{error}")))?;
        let document = text.parse();
        let document = document.map_err(|error| usage(format!("{shown}: {error}")))?;
        Ok(Editing {
            path: path.to_owned(),
            header,
            document,
            _lock: lock,
        })
    }

    /// Replaces the file, if the result is valid.
    fn save(self) -> Result<(), Failure> {
        let text = format!("{}{}", self.header, self.document);
        Users::parse(&text).map_err(|error| Failure::usage(error.trim_start_matches(": ")))?;
        key_files::replace(&self.path, &text, 0o600).map_err(|error| {
            let (shown, reason) = (self.path.display(), error_text(&error));
            Failure::run(format!("{shown} cannot be written: {reason}"))
        })
    }

    /// The table of a user.
    fn user(&mut self, name: &str) -> Result<&mut dyn toml_edit::TableLike, Failure> {
        let shown = self.path.display().to_string();
        let users = self
            .document
            .get_mut("users")
            .and_then(Item::as_table_like_mut);
        let user = users.and_then(|users| users.get_mut(name));
        user.and_then(Item::as_table_like_mut).ok_or_else(|| {
            Failure::usage(format!("there is no user '{}' in {shown}", one_line(name)))
        })
    }
}

const HEADER: &str = "\
# The users of onrush. Edit this file by hand or with onrush user, then send SIGHUP to the server.
# Clients that do not log in have the rights of the table [anonymous], such as:
#   [anonymous]
#   rights = { \"/pub\" = [\"read\", \"list\"] }

";

/// The rules of `--rights`, as prefixes and rights.
fn rules(given: &[String]) -> Result<Vec<(String, Rights)>, Failure> {
    let mut rules = Vec::new();
    let mut checked = PathRights::default();
    for text in given {
        let (prefix, rights) = text.rsplit_once('=').unwrap_or(("/", text));
        let wrong =
            |error: String| Failure::usage(format!("--rights '{}': {error}", one_line(text)));
        let rights = rights.parse().map_err(wrong)?;
        if checked.has_rule(prefix) {
            return Err(wrong("this path is given twice".to_owned()));
        }
        checked.set(prefix, rights).map_err(wrong)?;
        rules.push((prefix.to_owned(), rights));
    }
    if rules.is_empty() {
        rules.push(("/".to_owned(), Rights::ALL));
    }
    Ok(rules)
}

/// 256 random bits in base64url.
fn random() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Failure::run("the system has no random numbers"))?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn hash_password(name: &str) -> Result<String, Failure> {
    let password = terminal::read_password(name)?;
    let hash = PasswordHash::of(&password).map_err(Failure::usage)?;
    Ok(hash.to_string())
}

fn add(
    user: &UserArguments,
    rights: &[(String, Rights)],
    certificates: &[String],
    no_password: bool,
) -> Result<(), Failure> {
    check_name(&user.name).map_err(Failure::usage)?;
    let path = &user.file.auth_file;
    if Editing::open(path, true)?.user(&user.name).is_ok() {
        let name = &user.name;
        return Err(Failure::usage(format!(
            "the user '{name}' exists already; onrush user passwd changes the password"
        )));
    }
    let mut table = Table::new();
    // The file is not locked while a person types.
    if !no_password {
        table["password"] = toml_edit::value(hash_password(&user.name)?);
    }
    if !certificates.is_empty() {
        table["certificates"] = toml_edit::value(Array::from_iter(certificates));
    }
    table["signing-key"] = toml_edit::value(random()?);
    let mut rules = InlineTable::new();
    for (prefix, rights) in rights {
        let names = match *rights {
            Rights::ALL => "all".to_owned(),
            Rights::NONE => String::new(),
            some => some.to_string(),
        };
        let names = names.split(',').filter(|name| !name.is_empty());
        rules.insert(prefix, Value::Array(Array::from_iter(names)));
    }
    table["rights"] = toml_edit::value(rules);
    let mut editing = Editing::open(path, true)?;
    let users = editing.document.entry("users").or_insert_with(|| {
        let mut users = Table::new();
        users.set_implicit(true);
        Item::Table(users)
    });
    let users = users.as_table_like_mut();
    let users = users.ok_or_else(|| Failure::usage("users is not a table in the file"))?;
    users.insert(&user.name, Item::Table(table));
    editing.save()
}

fn remove(user: &UserArguments) -> Result<(), Failure> {
    let mut editing = Editing::open(&user.file.auth_file, false)?;
    editing.user(&user.name)?;
    if let Some(users) = editing
        .document
        .get_mut("users")
        .and_then(Item::as_table_like_mut)
    {
        users.remove(&user.name);
    }
    editing.save()
}

fn list(path: &Path) -> Result<(), Failure> {
    let mut users = Users::read(path).map_err(|error| Failure::usage(one_line(&error)))?;
    let mut out = io::stdout().lock();
    let mut show = |name: &str, logins: &str, rights: &PathRights| {
        let rights: Vec<String> = rights
            .rules()
            .map(|(at, rights)| format!("{at}={rights}"))
            .collect();
        let rights = if rights.is_empty() {
            "none".to_owned()
        } else {
            rights.join(" ")
        };
        let _ = writeln!(out, "{}\t{logins}\t{}", one_line(name), one_line(&rights));
    };
    for user in users.all() {
        show(user.name(), &user.logins(), user.rights());
    }
    show("(anonymous)", "-", users.anonymous_rights());
    Ok(())
}

fn change_password(user: &UserArguments) -> Result<(), Failure> {
    Editing::open(&user.file.auth_file, false)?.user(&user.name)?;
    let hash = hash_password(&user.name)?;
    let mut editing = Editing::open(&user.file.auth_file, false)?;
    let table = editing.user(&user.name)?;
    table.insert("password", toml_edit::value(hash));
    table.insert("signing-key", toml_edit::value(random()?));
    editing.save()
}

fn add_token(user: &UserArguments, name: &str) -> Result<(), Failure> {
    let mut editing = Editing::open(&user.file.auth_file, false)?;
    let table = editing.user(&user.name)?;
    if position(table, name).is_some() {
        return Err(Failure::usage(format!(
            "the user has a token '{}' already; --name gives another name",
            one_line(name)
        )));
    }
    // The prefix helps programs that search for secrets in published files.
    let token = format!("onrush_{}", random()?);
    let mut entry = InlineTable::new();
    entry.insert("name", name.into());
    entry.insert("sha256", token_hash(&token).into());
    let tokens = table
        .entry("tokens")
        .or_insert(toml_edit::value(Array::new()));
    match tokens {
        Item::Value(Value::Array(tokens)) => tokens.push(entry),
        Item::ArrayOfTables(tokens) => tokens.push(entry.into_table()),
        _ => return Err(Failure::usage("tokens is not an array in the file")),
    }
    editing.save()?;
    println!("{token}");
    Ok(())
}

/// The position of a token in the array of a user.
fn position(table: &mut dyn toml_edit::TableLike, name: &str) -> Option<usize> {
    let has_name = |found: Option<&str>| found == Some(name);
    match table.get("tokens")? {
        Item::Value(Value::Array(tokens)) => tokens.iter().position(|token| {
            let token = token.as_inline_table();
            has_name(token.and_then(|token| token.get("name")?.as_str()))
        }),
        Item::ArrayOfTables(tokens) => tokens
            .iter()
            .position(|token| has_name(token.get("name").and_then(Item::as_str))),
        _ => None,
    }
}

fn remove_token(user: &UserArguments, name: &str) -> Result<(), Failure> {
    let mut editing = Editing::open(&user.file.auth_file, false)?;
    let table = editing.user(&user.name)?;
    let at = position(table, name)
        .ok_or_else(|| Failure::usage(format!("the user has no token '{}'", one_line(name))))?;
    match table.get_mut("tokens") {
        Some(Item::Value(Value::Array(tokens))) => drop(tokens.remove(at)),
        Some(Item::ArrayOfTables(tokens)) => drop(tokens.remove(at)),
        _ => {}
    }
    editing.save()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_consistent() {
        Arguments::command().debug_assert();
    }
}
