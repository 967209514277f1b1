//! `onrush sweep`: lists and removes what uploads that never ended have left in a bucket.

use super::parse;
use crate::options::units::Time;
use crate::process::failure::{Failure, one_line};
use clap::{CommandFactory, Parser};
use onrush_files::UPLOAD_RECORDS;
use onrush_proto::date::utc;
use onrush_remote::{Check, Location, Options, RemoteStore};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::SystemTime;

/// What uploads that continue have left is old after so many times the age.
const KEPT_AGES: u32 = 2;

/// List the uploads to a bucket that were begun and not completed, and remove them
///
/// A server that is killed leaves the parts of uploads that were in progress. An upload that
/// another server is receiving now is in the list, too: do not remove young ones. What belongs to
/// an upload that continues is in the list if no byte of it has arrived for twice the time.
#[derive(Debug, Parser)]
#[command(name = "onrush sweep")]
struct Arguments {
    /// The bucket, as s3://BUCKET/PREFIX
    location: String,

    /// Only uploads that began before this time. At least --unfinished-age of the servers
    #[arg(long, value_name = "TIME", default_value = "24h")]
    older_than: Time,

    /// Remove them
    #[arg(long)]
    delete: bool,
}

/// The definition of its command line.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// The command `onrush sweep`. `words` begin with `sweep`.
pub(crate) fn main(words: &[OsString]) -> Result<(), Failure> {
    let Some(arguments) = parse::parse::<Arguments>(words, "onrush sweep")? else {
        return Ok(());
    };
    let location: Location = (arguments.location.parse())
        .map_err(|error| Failure::usage(format!("{}: {error}", arguments.location)))?;
    let store = RemoteStore::from_env(location.clone(), Options::default())
        .map_err(|error| Failure::run(format!("{location}: {error}")))?;
    if let Check::Unreachable(reason) | Check::Refuses(reason) = store.check() {
        return Err(Failure::run(format!("{}: {reason}", store.name())));
    }
    let fail = |error| Failure::run(format!("{}: {error}", store.name()));
    let (now, age) = (SystemTime::now(), arguments.older_than.duration());
    // A session that continues an upload prolongs its life by at most half of the age, and writes a
    // new state at the latest when it ends. So after twice the age no server uses it any more.
    let (before, kept_before) = (now - age, now - age * KEPT_AGES);
    let mut out = io::stdout().lock();
    let (mut found, mut young) = (0, 0);
    // The multipart uploads that continue.
    let mut in_use = HashSet::new();
    let folders = [UPLOAD_RECORDS]
        .into_iter()
        .chain(RemoteStore::KEPT_FOLDERS);
    for folder in folders {
        for object in store.kept_objects(folder).map_err(fail)? {
            if object.modified > kept_before {
                young += 1;
                in_use.extend(object.upload().map(str::to_owned));
                continue;
            }
            if arguments.delete {
                store.remove_kept(&object).map_err(fail)?;
            }
            let _ = writeln!(out, "{} {}", utc(object.modified), one_line(&object.key()));
            found += 1;
        }
    }
    for list in store.unfinished_uploads() {
        for upload in list.map_err(fail)? {
            if upload.begun > before || in_use.contains(&upload.name()) {
                young += 1;
                continue;
            }
            if arguments.delete {
                store.abort_upload(&upload).map_err(fail)?;
            }
            let _ = writeln!(out, "{} {}", utc(upload.begun), one_line(&upload.key));
            found += 1;
        }
    }
    let _ = match (found, arguments.delete) {
        (0, _) => writeln!(out, "nothing to remove; {young} younger"),
        (_, true) => writeln!(out, "{found} removed; {young} younger"),
        (_, false) => writeln!(out, "{found} found, --delete removes them; {young} younger"),
    };
    Ok(())
}
