//! What is wrong with the settings, and where each value came from.

use std::fmt;
use std::path::PathBuf;

use super::settings::Setting;

/// Where an effective value came from, strongest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Flag,
    /// The environment of the process.
    Environment,
    /// A `.env` file.
    DotEnv { path: PathBuf, line: usize },
    /// The TOML file.
    File(PathBuf),
    /// A file that systemd put into the credentials folder.
    Credential(PathBuf),
    /// Nobody set it.
    Default,
}

impl Origin {
    /// The setting as its author wrote it, so that the person finds the spot.
    pub(crate) fn place(&self, setting: &Setting) -> String {
        match self {
            Origin::Flag => format!("--{}", setting.flag().unwrap_or(setting.name)),
            Origin::Environment | Origin::DotEnv { .. } => {
                format!("{} ({self})", setting.variable())
            }
            Origin::File(_) => format!("{} ({self})", setting.key()),
            Origin::Credential(_) | Origin::Default => format!("{} ({self})", setting.name),
        }
    }

    /// One word for machines.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Origin::Flag => "flag",
            Origin::Environment => "environment",
            Origin::DotEnv { .. } => "dotenv",
            Origin::File(_) => "file",
            Origin::Credential(_) => "credential",
            Origin::Default => "default",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::DotEnv { path, line } => write!(f, "{} line {line}", path.display()),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Credential(path) => write!(f, "credential {}", path.display()),
            Origin::Flag | Origin::Environment | Origin::Default => f.write_str(self.word()),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The setting or file, named as the person knows it.
    pub(crate) place: String,
    /// What is wrong with it, and what would be right.
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Everything that is wrong, so that one attempt is enough to repair it.
#[derive(Debug, thiserror::Error)]
pub(crate) struct ConfigErrors(pub(crate) Vec<Problem>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the settings have one error:")?,
            count => write!(f, "the settings have {count} errors:")?,
        }
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

/// A value inside a message: bounded, and without characters that could disturb a terminal.
pub(crate) fn quote(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_values_are_bounded_and_harmless() {
        assert_eq!(quote("a\u{1b}[2J\n"), "`a\\u{1b}[2J\\n`");
        assert_eq!(quote(&"x".repeat(100)), format!("`{}…`", "x".repeat(60)));
    }

    #[test]
    fn errors_are_listed_one_per_line() {
        let errors = ConfigErrors(vec![Problem::new("--a", "is bad"), Problem::new("NGIT_B", "is worse")]);
        assert_eq!(errors.to_string(), "the settings have 2 errors:\n  --a: is bad\n  NGIT_B: is worse");
    }
}
