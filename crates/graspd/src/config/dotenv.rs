//! The `.env` file.
//!
//! It is often shared with other tools, so only lines that set a variable of this program are read. `$NAME` is not
//! expanded, and a value cannot continue on the next line. The dotenvy crate would expand `$` in tokens, reject the lines
//! of other tools and values with spaces, let an open quote take the lines after it, and quote the line in its errors.

use std::collections::BTreeMap;
use std::path::Path;

use super::declaration::PREFIX;
use super::problem::{ConfigError, SettingOrigin};

/// Returns the variables of this program: name to value and origin. The last assignment of a variable counts. Errors do
/// not quote the line, because it can contain a secret.
pub(crate) fn parse(
    path: &Path,
    text: &str,
    errors: &mut Vec<ConfigError>,
) -> BTreeMap<String, (String, SettingOrigin)> {
    let mut variables = BTreeMap::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let assignment = match line.strip_prefix("export") {
            Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
            _ => line,
        };
        if !assignment.starts_with(PREFIX) {
            continue;
        }
        let origin = SettingOrigin::DotEnv { path: path.display().to_string(), line: index + 1 };
        let Some((name, rest)) = assignment.split_once('=') else {
            errors.push(ConfigError::new(origin.to_string(), "has no `=` after the name of the variable"));
            continue;
        };
        let name = name.trim_end();
        match value(rest.trim_start()) {
            Ok(value) => drop(variables.insert(name.to_owned(), (value, origin))),
            Err(message) => errors.push(ConfigError::new(format!("{name} ({origin})"), message)),
        }
    }
    variables
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

    /// Returns the variables with their values and line numbers.
    fn parse(text: &str) -> (BTreeMap<String, (String, usize)>, Vec<ConfigError>) {
        let mut errors = Vec::new();
        let variables = super::parse(Path::new(".env"), text, &mut errors).into_iter();
        let with_line = variables.map(|(name, (value, origin))| match origin {
            SettingOrigin::DotEnv { line, .. } => (name, (value, line)),
            other => panic!("{other}"),
        });
        (with_line.collect(), errors)
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
            let (variables, errors) = parse(line);
            assert_eq!(errors, [], "{line}");
            assert_eq!(variables["NGIT_X"], (expected.to_owned(), 1), "{line}");
        }
    }

    #[test]
    fn lines_of_other_tools_are_ignored() {
        let (variables, errors) = parse(
            "# NGIT_A=1\n\nOTHER='open\nexported NGIT_B=2\r\n-----BEGIN-----\n\u{a0}\nNGIT_C=3\r\nNGIT_C=\"4\"\r\n",
        );
        assert_eq!(errors, []);
        assert_eq!(variables.into_iter().collect::<Vec<_>>(), [("NGIT_C".to_owned(), ("4".to_owned(), 8))]);
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        assert_eq!(parse("\u{feff}NGIT_A=1").0["NGIT_A"].0, "1");
    }

    #[test]
    fn broken_lines_are_reported_without_their_text() {
        let (variables, errors) = parse("NGIT_A\nNGIT_B='hush\nNGIT_C=\"hush\\\nNGIT_D=\"a\"hush\n");
        assert!(variables.is_empty());
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
