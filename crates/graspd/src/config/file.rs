//! The TOML file: one key per setting, at the top level.

use std::path::Path;

use super::declaration::SETTINGS;
use super::problem::{ConfigError, quote};
use super::unknown_names::{UNSUPPORTED, nearest_setting, unsupported_restriction};

/// Returns the settings of a TOML file, as text. An unknown key is an error, unlike an unknown variable, because only
/// this program uses the file.
pub(crate) fn parse(path: &Path, text: &str, errors: &mut Vec<ConfigError>) -> Vec<(&'static str, String)> {
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => {
            // The display of the error would quote the line, which can contain a secret.
            let line = error.span().map(|span| format!(" line {}", 1 + text[..span.start].matches('\n').count()));
            let location = format!("{}{}", path.display(), line.unwrap_or_default());
            errors.push(ConfigError::new(location, format!("is not valid TOML: {}", error.message())));
            return Vec::new();
        }
    };
    let mut settings = Vec::new();
    for (key, value) in &table {
        match setting(key, value) {
            Ok(setting) => settings.push(setting),
            Err(message) => {
                let location = format!("{} ({})", quote(key).trim_matches('`'), path.display());
                errors.push(ConfigError::new(location, message));
            }
        }
    }
    settings
}

/// Returns the setting of a key, with its value as text.
fn setting(key: &str, value: &toml::Value) -> Result<(&'static str, String), String> {
    let known = SETTINGS.iter().find(|setting| setting.key() == key);
    let Some(setting) = known else {
        let name = key.to_ascii_uppercase();
        if let Some(error) = unsupported_restriction(&name, &text(value).unwrap_or_default()) {
            return Err(error.to_owned());
        }
        if UNSUPPORTED.contains(&name.as_str()) {
            return Err("is not used by this version of graspd".to_owned());
        }
        return Err(match (nearest_setting(key), value) {
            (Some(near), _) => format!("is not a setting; did you mean `{}`?", near.key()),
            (None, toml::Value::Table(_)) => "is a table; settings must be at the top level of the file".to_owned(),
            (None, _) => "is not a setting; `graspd config --reference` lists them all".to_owned(),
        });
    };
    match text(value) {
        Some(text) => Ok((setting.name, text)),
        None => Err("must be a text, a number, true, false or a list of texts".to_owned()),
    }
}

/// Returns the text that the value would have in an environment variable.
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

    fn parse(text: &str) -> (Vec<(&'static str, String)>, Vec<String>) {
        let mut errors = Vec::new();
        let settings = super::parse(Path::new("graspd.toml"), text, &mut errors);
        (settings, errors.iter().map(ConfigError::to_string).collect())
    }

    #[test]
    fn toml_values_are_converted_to_text() {
        let (settings, errors) = parse(
            "domain = 'code.example'\nmax_connections = 7\ntrusted_proxy_cidrs = ['10.0.0.0/8', '::1']\n\
             relay_description = '''\nTwo\nlines'''\n",
        );
        assert_eq!(errors, [""; 0]);
        let entries: Vec<_> = settings.iter().map(|(name, text)| (*name, text.as_str())).collect();
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
        let (_, errors) = parse(
            "NGIT_DOMAIN = 'a'\nbind_adress = 'b'\ncolour = 'red'\nmax_connections = 1.5\nprivate_mode = true\n\
             [service]\nx = 1\n",
        );
        assert_eq!(
            errors,
            [
                "NGIT_DOMAIN (graspd.toml): is not a setting; did you mean `domain`?",
                "bind_adress (graspd.toml): is not a setting; did you mean `bind_address`?",
                "colour (graspd.toml): is not a setting; `graspd config --reference` lists them all",
                "max_connections (graspd.toml): must be a text, a number, true, false or a list of texts",
                "private_mode (graspd.toml): restricts who may read this service, which graspd does not support: everything \
                 would be public. Remove this setting only if that is intended",
                "service (graspd.toml): is a table; settings must be at the top level of the file",
            ]
        );
    }

    #[test]
    fn toml_syntax_error_does_not_quote_the_file() {
        for text in ["a = 1\nrelay_owner_nsec = nsec1hush\n", "a = 1\nrelay_owner_nsec = 'nsec1hush\n"] {
            let (_, errors) = parse(text);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("graspd.toml line 2: is not valid TOML: "), "{errors:?}");
            assert!(!errors[0].contains("hush"), "{errors:?}");
        }
    }
}
