//! The formats in which a folder can be downloaded.

/// A format of archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Format {
    Tar,
    /// A tar, compressed with Zstandard (RFC 8878).
    TarZst,
    /// Not compressed.
    Zip,
}

impl Format {
    /// All formats. The page offers the first one first.
    pub(in crate::files) const ALL: [Format; 3] = [Format::Zip, Format::Tar, Format::TarZst];

    /// The format with this name in a query; `None` if there is none.
    pub(in crate::files) fn parse(name: &str) -> Option<Format> {
        Format::ALL
            .into_iter()
            .find(|format| format.extension() == name)
    }

    /// The extension of file names, which is also the name in a query.
    pub(in crate::files) fn extension(self) -> &'static str {
        match self {
            Format::Tar => "tar",
            Format::TarZst => "tar.zst",
            Format::Zip => "zip",
        }
    }

    pub(in crate::files) fn media_type(self) -> &'static str {
        match self {
            Format::Tar => "application/x-tar",
            Format::TarZst => "application/zstd",
            Format::Zip => "application/zip",
        }
    }
}
