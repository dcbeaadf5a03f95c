//! Errors in settings, and the origin of each value.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::declaration::SettingInfo;

/// Where an effective value came from, strongest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "lowercase")]
pub(crate) enum SettingOrigin {
    /// The command line.
    Flag,
    /// The environment of the process.
    Environment,
    /// A `.env` file.
    DotEnv { path: String, line: usize },
    /// The TOML file.
    File { path: String },
    /// A file in the folder of systemd credentials.
    Credential { path: String },
    /// The setting is given nowhere.
    Default,
}

impl SettingOrigin {
    /// Returns the setting in the spelling of this source, with the file and line, so that the operator can find it.
    pub(crate) fn location(&self, setting: &SettingInfo) -> String {
        match self {
            SettingOrigin::Flag => format!("--{}", setting.flag().unwrap_or_default()),
            SettingOrigin::Environment | SettingOrigin::DotEnv { .. } => {
                format!("{} ({self})", setting.variable())
            }
            SettingOrigin::File { .. } => format!("{} ({self})", setting.key()),
            SettingOrigin::Credential { .. } | SettingOrigin::Default => format!("{} ({self})", setting.name),
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::DotEnv { path, line } => write!(f, "{path} line {line}"),
            SettingOrigin::File { path } => f.write_str(path),
            SettingOrigin::Credential { path } => write!(f, "credential {path}"),
            SettingOrigin::Flag => f.write_str("flag"),
            SettingOrigin::Environment => f.write_str("environment"),
            SettingOrigin::Default => f.write_str("default"),
        }
    }
}

/// One error in the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub(crate) struct ConfigError {
    /// The setting or file, in the spelling that the operator used.
    pub(crate) location: String,
    /// What is wrong, and which values are valid.
    pub(crate) message: String,
}

impl ConfigError {
    pub(crate) fn new(location: impl Into<String>, message: impl Into<String>) -> Self {
        ConfigError { location: location.into(), message: message.into() }
    }
}

/// All errors in the settings. They are reported together, so that the operator can fix them in one go.
#[derive(Debug, thiserror::Error)]
pub(crate) struct ConfigErrors(pub(crate) Vec<ConfigError>);

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

/// Quotes a value for a message: shortened, and with control characters escaped.
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
    fn quoted_values_are_bounded_and_escaped() {
        assert_eq!(quote("a\u{1b}[2J\n"), "`a\\u{1b}[2J\\n`");
        assert_eq!(quote(&"x".repeat(100)), format!("`{}…`", "x".repeat(60)));
    }

    #[test]
    fn errors_are_listed_one_per_line() {
        let errors = ConfigErrors(vec![ConfigError::new("--a", "is bad"), ConfigError::new("NGIT_B", "is worse")]);
        assert_eq!(errors.to_string(), "the settings have 2 errors:\n  --a: is bad\n  NGIT_B: is worse");
    }
}
