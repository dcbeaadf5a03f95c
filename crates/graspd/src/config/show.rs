//! Output of `graspd config`: the effective settings, and the reference of all settings (docs/settings.md).

use std::fmt::Write;

use serde_json::json;

use super::declaration::{SETTINGS, SettingInfo};
use super::problem::SettingOrigin;
use super::{Config, EffectiveSetting};

/// Returns the effective settings and where each value came from, as a table or as JSON. Secrets are hidden.
pub(crate) fn show(config: &Config, as_json: bool) -> String {
    // Values in JSON are texts, as in an environment variable, so that all settings have the same format.
    if as_json {
        return format!("{:#}\n", json!({ "settings": config.effective }));
    }
    effective_table(
        config.effective.iter().map(|EffectiveSetting { name, value, origin, .. }| (*name, value.as_str(), origin)),
    )
}

/// Returns a table of settings: name, value and where the value came from.
pub(crate) fn effective_table<'a>(
    effective: impl IntoIterator<Item = (&'a str, &'a str, &'a SettingOrigin)>,
) -> String {
    let mut rows = vec![["SETTING".to_owned(), "VALUE".to_owned(), "SOURCE".to_owned()]];
    for (name, value, origin) in effective {
        let value = value.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
        rows.push([name.to_owned(), value, origin.to_string()]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, values) = (width(0), width(1));
    let mut text = String::new();
    for [name, value, source] in &rows {
        let _ = writeln!(text, "{name:names$}  {value:values$}  {source}");
    }
    text
}

/// Returns the reference of all settings, in Markdown.
pub(crate) fn reference() -> String {
    let mut text = include_str!("reference.md").to_owned();
    let mut section = "";
    for setting in SETTINGS.iter() {
        if setting.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = setting.section;
            let _ = writeln!(text, "{gap}## {section}\n\n| Variable | Flag | Key | Default | Meaning |");
            let _ = writeln!(text, "|---|---|---|---|---|");
        }
        let _ = writeln!(text, "{}", reference_row(setting));
    }
    text
}

fn reference_row(setting: &SettingInfo) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let flag = match setting.flag() {
        Some(flag) => format!("`--{flag}`"),
        None => "none".to_owned(),
    };
    let default = match setting.default {
        "" => "none".to_owned(),
        text if setting.is_derived => text.to_owned(),
        text => format!("`{text}`"),
    };
    let allowed = setting.allowed.as_ref().map(|allowed| format!(" Allowed: {allowed}.")).unwrap_or_default();
    let meaning = format!("{}{allowed}", setting.help);
    format!("| `{}` | {flag} | `{}` | {} | {} |", setting.variable(), setting.key(), cell(&default), cell(&meaning))
}

#[cfg(test)]
mod tests {
    use super::super::resolve::resolve;
    use super::super::sources::tests::gather;
    use super::*;

    const KEY: &str = "0000000000000000000000000000000000000000000000000000000000000001";

    fn config() -> Config {
        let files =
            [(".env", "NGIT_MAX_CONNECTIONS=7"), ("graspd.toml", "relay_description = \"It's \\\"two\\\"\\nlines\"")];
        let sources = gather(&[("DOMAIN", "Code.Example")], &[("NGIT_RELAY_OWNER_NSEC", KEY)], &files);
        resolve(&sources).expect("correct").config
    }

    #[test]
    fn table_shows_values_and_sources() {
        let text = show(&config(), false);
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(line("SETTING"), ["SETTING", "VALUE", "SOURCE"]);
        assert_eq!(line("DOMAIN"), ["DOMAIN", "code.example", "flag"]);
        assert_eq!(line("RELAY_NAME"), ["RELAY_NAME", "code.example grasp relay", "default"]);
        assert_eq!(line("MAX_CONNECTIONS"), ["MAX_CONNECTIONS", "7", ".env line 1"]);
        assert_eq!(line("RELAY_DESCRIPTION"), ["RELAY_DESCRIPTION", "It's \"two\"\\nlines", "graspd.toml"]);
        assert_eq!(line("GIT_DATA_PATH"), ["GIT_DATA_PATH", "/here/data/git", "default"]);
        assert_eq!(line("RELAY_OWNER_NSEC"), ["RELAY_OWNER_NSEC", "(hidden)", "environment"]);
        assert_eq!(text.lines().count(), SETTINGS.len() + 1);
    }

    #[test]
    fn json_shows_values_and_sources() {
        let value: serde_json::Value = serde_json::from_str(&show(&config(), true)).expect("JSON");
        let settings = value["settings"].as_array().expect("a list");
        assert_eq!(settings.len(), SETTINGS.len());
        let find = |name: &str| settings.iter().find(|setting| setting["name"] == name).expect("listed");
        let expected = json!({"name":"MAX_CONNECTIONS","value":"7","source":"dotenv","path":".env","line":1});
        assert_eq!(*find("MAX_CONNECTIONS"), expected);
        assert_eq!(find("DOMAIN")["source"], "flag");
    }

    #[test]
    fn secrets_are_never_shown() {
        let config = config();
        for text in [show(&config, false), show(&config, true), format!("{config:?}"), format!("{config:#?}")] {
            assert!(!text.contains(KEY), "{text}");
        }
        assert_eq!(config.owner_secret.expect("given").reveal(), KEY);
    }

    #[test]
    fn reference_lists_every_setting_once() {
        let text = reference();
        for setting in SETTINGS.iter() {
            let rows = text.lines().filter(|line| line.starts_with(&format!("| `{}` |", setting.variable())));
            let rows: Vec<_> = rows.collect();
            assert_eq!(rows.len(), 1, "{}", setting.name);
            assert_eq!(rows[0].replace("\\|", "").matches('|').count(), 6, "{}", rows[0]);
        }
        assert!(text.contains("Allowed: 1 to 1000000."), "{text}");
        assert!(!text.contains("--relay-owner-nsec"));
    }
}
