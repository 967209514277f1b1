//! How an option is defined: the macro `options!`, and what it says of each.

/// What is known of an option without its value.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) effect: Effect,
    /// A value in the configuration file that is not the default.
    #[cfg(test)]
    pub(crate) example: &'static str,
    /// Lines of the configuration file that the option needs.
    #[cfg(test)]
    pub(crate) companions: &'static str,
    /// Its default is in its definition.
    #[cfg(test)]
    pub(crate) has_default: bool,
}

/// When the change of an option applies to the running server: on SIGHUP, or only after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// On SIGHUP.
    AtOnce,
    /// After a restart. docs/service.md gives the reason.
    Restart,
    /// On SIGHUP, if there is a build cache before and after.
    OfCache,
    /// On SIGHUP, if there is an edge before and after.
    OfEdge,
    /// On SIGHUP, if there is HTTPS before and after.
    OfTls,
    /// On SIGHUP, if there is HTTPS before and after, and its certificates are not ordered.
    OfCertificates,
}

/// Generates [`Options`] from a list of groups. A group is a heading of `--help` and its options.
/// An option is one of:
///
/// - `positional NAME: TYPE`: the argument without a flag;
/// - `value NAME: TYPE = "PLACEHOLDER"`: a flag with a value;
/// - `list NAME: TYPE = "PLACEHOLDER"`: a flag with values, separated by commas or given by
///   repeating the flag;
/// - `switch NAME`: a flag that is true or false, and true without a value;
/// - `optional NAME: TYPE = "PLACEHOLDER"`: a flag whose value may be omitted, which means `true`;
/// - `table NAME: TYPE`: a table of the configuration file only, since flags and variables have no
///   form for pairs. `toml_values::types` reads it.
///
/// Then follows where the value goes. `or DEFAULT` after a `value` or `switch` generates a method
/// `NAME` of [`Options`], which the code that uses the option calls; the compiler reports one that
/// nothing calls. `=> files.FIELD` writes the value, if it is set, to that field of
/// [`onrush_files::FilesOptions`]. Other values are for `config`.
///
/// Then follow the [`Effect`] of a change, a value for tests as the configuration file has it, and
/// the lines that this value needs. An option `some_name` has the flag `--some-name`, the variable
/// `ONRUSH_SOME_NAME` and the key `some-name`. Its documentation is the help text.
///
/// The rules without a name read the next kind of an option, and `@option` reads what follows it.
/// They collect the fields of [`Options`], and what is known of each.
macro_rules! options {
    ($($heading:literal { $($entries:tt)* })*) => {
        options!(@ [] [] $($heading { $($entries)* })*);
    };
    // The end of the list.
    (@ [$($fields:tt)*] [$({
        $name:ident $effect:ident $example:literal [$($others:literal)?]
        [$($field:ident $(. $inner:ident)*)?] [$($type:ty = $default:expr)?]
    })*]) => {
        /// The options of one source: the command line with the environment, or the file. `None`:
        /// the source does not set the option.
        #[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Eq)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub(crate) struct Options {
            $($fields)*
            /// The file that options were read from.
            #[arg(skip)]
            #[serde(skip)]
            pub(crate) config: Option<ConfigFile>,
        }

        impl Options {
            /// All options, in the order of `--help`.
            pub(crate) const ALL: &'static [Definition] = &[$(Definition {
                name: stringify!($name),
                effect: Effect::$effect,
                #[cfg(test)]
                example: $example,
                #[cfg(test)]
                companions: concat!($($others)?),
                #[cfg(test)]
                has_default: !stringify!($($default)?).is_empty(),
            }),*];

            $($(
                /// The value, or the default.
                pub(crate) fn $name(&self) -> $type {
                    self.$name.unwrap_or($default)
                }
            )?)*

            /// The options that differ.
            pub(crate) fn differences(&self, other: &Options) -> Vec<&'static Definition> {
                let differs = [$(self.$name != other.$name),*];
                let all = Options::ALL.iter().zip(differs);
                all.filter_map(|(option, differs)| differs.then_some(option)).collect()
            }

            /// Merges two sources. `self` takes precedence.
            pub(crate) fn or(self, other: Options) -> Options {
                Options {
                    $($name: self.$name.or(other.$name),)*
                    config: self.config.or(other.config),
                }
            }

            /// Writes the options whose definition names a field of `files` there, if they are set.
            pub(crate) fn set_fields(&self, files: &mut FilesOptions) {
                $($(if let Some(value) = &self.$name {
                    files.$field$(.$inner)* = value.clone().into();
                })?)*
            }

            /// The paths that the options name, besides the served folder, each with its option.
            /// An option is one of these by the type of its value.
            pub(crate) fn files(&self) -> Vec<(&'static str, &Path)> {
                let mut files = Vec::new();
                $(files.extend(paths(&self.$name).map(|path| (stringify!($name), path)));)*
                files.retain(|(name, _)| *name != "dir");
                files
            }
        }
    };
    // The end of a group.
    (@ $fields:tt $known:tt $heading:literal {} $($rest:tt)*) => {
        options!(@ $fields $known $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* positional $name:ident: $type:ty, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])* #[arg(help_heading = $heading)]]
            $name: [$type] [] [] $($more)*
        } $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* value $name:ident: $type:ty = $placeholder:literal
        $(or $default:expr)? $(=> files.$to:ident $(. $inner:ident)*)?, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])*
            #[arg(long, help_heading = $heading, value_name = $placeholder)]
            #[arg(allow_negative_numbers = true)]]
            $name: [$type] [$($type = $default)?] [$($to $(. $inner)*)?] $($more)*
        } $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* list $name:ident: $type:ty = $placeholder:literal, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])*
            #[arg(long, help_heading = $heading, value_name = $placeholder)]
            #[arg(value_delimiter = ',', hide_possible_values = true)]
            #[serde(deserialize_with = "list")]]
            $name: [Vec<$type>] [] [] $($more)*
        } $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* optional $name:ident: $type:ty = $placeholder:literal, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])*
            #[arg(long, help_heading = $heading, value_name = $placeholder)]
            #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]]
            $name: [$type] [] [] $($more)*
        } $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* table $name:ident: $type:ty
        $(=> files.$to:ident $(. $inner:ident)*)?, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])*
            #[arg(skip)]
            #[serde(deserialize_with = "types")]]
            $name: [$type] [] [$($to $(. $inner)*)?] $($more)*
        } $($rest)*);
    };
    (@ $fields:tt $known:tt $heading:literal {
        $(#[$($about:tt)*])* switch $name:ident
        $(or $default:expr)? $(=> files.$to:ident $(. $inner:ident)*)?, $($more:tt)*
    } $($rest:tt)*) => {
        options!(@option $fields $known $heading {
            [$(#[$($about)*])*
            #[arg(long, help_heading = $heading, value_name = "BOOL")]
            #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
            #[arg(value_parser = bool_value)]
            #[serde(deserialize_with = "boolish")]]
            $name: [bool] [$(bool = $default)?] [$($to $(. $inner)*)?] $($more)*
        } $($rest)*);
    };
    (@option [$($fields:tt)*] [$($known:tt)*] $heading:literal {
        [$($attributes:tt)*] $name:ident: [$($type:tt)*] $default:tt $to:tt
        $effect:ident, $example:literal $(with $others:literal)?; $($more:tt)*
    } $($rest:tt)*) => {
        options!(@ [
            $($fields)* $($attributes)* pub(crate) $name: Option<$($type)*>,
        ] [
            $($known)* {$name $effect $example [$($others)?] $to $default}
        ] $heading { $($more)* } $($rest)*);
    };
}
