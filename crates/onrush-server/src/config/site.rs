//! The options that need a web site.

use crate::options::Options;
use crate::process::failure::Failure;
use onrush_files::RuleFiles;

/// The files with rules of a site. Refuses options without `--site`.
pub(super) fn rules(options: &Options) -> Result<RuleFiles, Failure> {
    let needing = [
        ("spa", options.spa == Some(true)),
        ("redirects", options.redirects.is_some()),
        ("headers", options.headers.is_some()),
    ];
    if let Some((name, _)) = needing.iter().find(|(_, is_given)| *is_given)
        && options.site != Some(true)
    {
        return Err(Failure::usage(format!("--{name} needs --site")));
    }
    Ok(RuleFiles {
        redirects: options.redirects.clone().map(|file| file.0),
        headers: options.headers.clone().map(|file| file.0),
    })
}
