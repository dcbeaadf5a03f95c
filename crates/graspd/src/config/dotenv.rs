//! The `.env` file.
//!
//! It is often shared with other tools, so only lines that set a variable of this program are read. `$NAME` is not
//! expanded, and a value cannot continue on the next line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::problem::{ConfigError, SettingOrigin};
use super::settings::PREFIX;

/// The variables of a `.env` file. They can contain secrets, so there is no `Debug`.
pub(crate) struct DotEnv {
    /// Path of the file as messages show it.
    pub(crate) path: PathBuf,
    /// Variable to value and line number. The last assignment of a variable counts.
    pub(crate) entries: BTreeMap<String, (String, usize)>,
}

impl DotEnv {
    /// Parses a file. Errors do not quote the line, because it can contain a secret.
    pub(crate) fn parse(path: PathBuf, text: &str, errors: &mut Vec<ConfigError>) -> Self {
        let mut entries = BTreeMap::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let line = line.trim();
            let assignment = match line.strip_prefix("export") {
                Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
                _ => line,
            };
            if !assignment.starts_with(PREFIX) {
                continue;
            }
            let origin = SettingOrigin::DotEnv { path: path.clone(), line: number };
            let Some((name, rest)) = assignment.split_once('=') else {
                errors.push(ConfigError::new(origin.to_string(), "has no `=` after the name of the variable"));
                continue;
            };
            let name = name.trim_end();
            match value(rest.trim_start()) {
                Ok(value) => {
                    entries.insert(name.to_owned(), (value, number));
                }
                Err(message) => errors.push(ConfigError::new(format!("{name} ({origin})"), message)),
            }
        }
        DotEnv { path, entries }
    }
}

/// Returns the value at the start of `text`, without a comment after it.
fn value(text: &str) -> Result<String, &'static str> {
    let mut characters = text.chars();
    match characters.next() {
        Some(quote @ ('"' | '\'')) => {
            let (value, rest) = quoted(characters.as_str(), quote)?;
            let rest = rest.trim_start();
            if rest.is_empty() || rest.starts_with('#') { Ok(value) } else { Err("has text after the closing quote") }
        }
        Some('#') | None => Ok(String::new()),
        Some(_) => {
            let end = text.match_indices('#').find(|(at, _)| text[..*at].ends_with([' ', '\t'])).map(|(at, _)| at);
            Ok(text[..end.unwrap_or(text.len())].trim_end().to_owned())
        }
    }
}

/// Returns the text up to the closing quote, and what follows it. Escapes are allowed in double quotes only.
fn quoted(text: &str, quote: char) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            _ if character == quote => return Ok((value, characters.as_str())),
            '\\' if quote == '"' => match characters.next() {
                Some('n') => value.push('\n'),
                Some('r') => value.push('\r'),
                Some('t') => value.push('\t'),
                Some(escaped @ ('"' | '\\' | '$' | '`')) => value.push(escaped),
                Some(other) => value.extend(['\\', other]),
                None => break,
            },
            _ => value.push(character),
        }
    }
    Err("has a quote that is not closed on the same line")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (DotEnv, Vec<ConfigError>) {
        let mut errors = Vec::new();
        (DotEnv::parse(PathBuf::from(".env"), text, &mut errors), errors)
    }

    #[test]
    fn assignments_are_parsed() {
        for (line, expected) in [
            ("NGIT_X=plain", "plain"),
            ("NGIT_X=two words", "two words"),
            ("  NGIT_X  =  spaced  ", "spaced"),
            ("export NGIT_X=exported", "exported"),
            ("export\tNGIT_X=exported", "exported"),
            ("NGIT_X=value # comment", "value"),
            ("NGIT_X=va#lue", "va#lue"),
            ("NGIT_X=#nothing", ""),
            ("NGIT_X= # nothing", ""),
            ("NGIT_X=", ""),
            ("NGIT_X=a=b", "a=b"),
            ("NGIT_X=$HOME", "$HOME"),
            ("NGIT_X='single # \\n $HOME'", "single # \\n $HOME"),
            (r#"NGIT_X=" kept \" \\ \n\t\q" # comment"#, " kept \" \\ \n\t\\q"),
            ("NGIT_X=\"\"", ""),
            ("NGIT_X=it's", "it's"),
        ] {
            let (file, errors) = parse(line);
            assert_eq!(errors, [], "{line}");
            assert_eq!(file.entries["NGIT_X"], (expected.to_owned(), 1), "{line}");
        }
    }

    #[test]
    fn lines_of_other_tools_are_ignored() {
        let (file, errors) = parse(
            "# NGIT_A=1\n\nOTHER='open\nexported NGIT_B=2\r\n-----BEGIN-----\n\u{a0}\nNGIT_C=3\r\nNGIT_C=\"4\"\r\n",
        );
        assert_eq!(errors, []);
        assert_eq!(file.entries.into_iter().collect::<Vec<_>>(), [("NGIT_C".to_owned(), ("4".to_owned(), 8))]);
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        assert_eq!(parse("\u{feff}NGIT_A=1").0.entries["NGIT_A"].0, "1");
    }

    #[test]
    fn broken_lines_are_reported_without_their_text() {
        let (file, errors) = parse("NGIT_A\nNGIT_B='hush\nNGIT_C=\"hush\\\nNGIT_D=\"a\"hush\n");
        assert!(file.entries.is_empty());
        let shown: Vec<String> = errors.iter().map(ConfigError::to_string).collect();
        assert_eq!(
            shown,
            [
                ".env line 1: has no `=` after the name of the variable",
                "NGIT_B (.env line 2): has a quote that is not closed on the same line",
                "NGIT_C (.env line 3): has a quote that is not closed on the same line",
                "NGIT_D (.env line 4): has text after the closing quote",
            ]
        );
    }
}
