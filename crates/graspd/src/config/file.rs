//! Reading the TOML file: one key per setting at the top level.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::problem::{Problem, quote};
use super::settings::SETTINGS;
use super::suggest;
use super::unknown_variables::NOT_USED_YET;

/// The settings of a TOML file. It may hold secrets, so it has no `Debug`.
pub(crate) struct File {
    /// The file, as it is named to people.
    pub(crate) path: PathBuf,
    /// Setting name to the text of its value.
    pub(crate) entries: BTreeMap<&'static str, String>,
}

impl File {
    /// Reads the text of a file. Unlike an unknown variable, an unknown key is an error: the file is ours alone.
    pub(crate) fn parse(path: PathBuf, text: &str, problems: &mut Vec<Problem>) -> Self {
        let mut entries = BTreeMap::new();
        match text.parse::<toml::Table>() {
            Ok(table) => {
                for (key, value) in &table {
                    let place = format!("{} ({})", quote(key).trim_matches('`'), path.display());
                    match setting(key, value) {
                        Ok((name, text)) => {
                            entries.insert(name, text);
                        }
                        Err(message) => problems.push(Problem::new(place, message)),
                    }
                }
            }
            Err(error) => {
                // The error's own display would quote the line, which may hold a secret.
                let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
                let place = match line {
                    Some(line) => format!("{} line {line}", path.display()),
                    None => path.display().to_string(),
                };
                problems.push(Problem::new(place, format!("is not valid TOML: {}", error.message())));
            }
        }
        File { path, entries }
    }
}

/// The setting that a key names, with its value as text.
fn setting(key: &str, value: &toml::Value) -> Result<(&'static str, String), String> {
    let known = SETTINGS.iter().find(|setting| setting.key() == key);
    let Some(setting) = known else {
        if NOT_USED_YET.contains(&key.to_ascii_uppercase().as_str()) {
            return Err("is not used by this version of graspd".to_owned());
        }
        return Err(match (suggest::nearest(key), value) {
            (Some(near), _) => format!("is not a setting; did you mean `{}`?", near.key()),
            (None, toml::Value::Table(_)) => "is a table; settings stand at the top level of the file".to_owned(),
            (None, _) => "is not a setting; `graspd config --reference` lists them all".to_owned(),
        });
    };
    match text(value) {
        Some(text) => Ok((setting.name, text)),
        None => Err("has to be a text, a number or a list of texts".to_owned()),
    }
}

/// The text that the same value would have in a variable.
fn text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Array(items) => {
            let texts: Option<Vec<_>> = items.iter().map(|item| item.as_str()).collect();
            texts.map(|texts| texts.join(","))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (File, Vec<String>) {
        let mut problems = Vec::new();
        let file = File::parse(PathBuf::from("graspd.toml"), text, &mut problems);
        (file, problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn values_become_text() {
        let (file, problems) = parse(
            "domain = 'code.example'\nmax_connections = 7\ntrusted_proxy_cidrs = ['10.0.0.0/8', '::1']\n\
             relay_description = '''\nTwo\nlines'''\n",
        );
        assert_eq!(problems, [""; 0]);
        let entries: Vec<_> = file.entries.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(
            entries,
            [
                ("DOMAIN", "code.example"),
                ("MAX_CONNECTIONS", "7"),
                ("RELAY_DESCRIPTION", "Two\nlines"),
                ("TRUSTED_PROXY_CIDRS", "10.0.0.0/8,::1"),
            ]
        );
    }

    #[test]
    fn unknown_keys_are_errors_with_a_suggestion() {
        let (_, problems) = parse(
            "NGIT_DOMAIN = 'a'\nbind_adress = 'b'\ncolour = 'red'\nmax_connections = 1.5\nprivate_mode = true\n\
             [service]\nx = 1\n",
        );
        assert_eq!(
            problems,
            [
                "NGIT_DOMAIN (graspd.toml): is not a setting; did you mean `domain`?",
                "bind_adress (graspd.toml): is not a setting; did you mean `bind_address`?",
                "colour (graspd.toml): is not a setting; `graspd config --reference` lists them all",
                "max_connections (graspd.toml): has to be a text, a number or a list of texts",
                "private_mode (graspd.toml): is not used by this version of graspd",
                "service (graspd.toml): is a table; settings stand at the top level of the file",
            ]
        );
    }

    #[test]
    fn a_broken_file_is_reported_without_its_text() {
        for text in ["a = 1\nrelay_owner_nsec = nsec1hush\n", "a = 1\nrelay_owner_nsec = 'nsec1hush\n"] {
            let (_, problems) = parse(text);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with("graspd.toml line 2: is not valid TOML: "), "{problems:?}");
            assert!(!problems[0].contains("hush"), "{problems:?}");
        }
    }
}
