//! Showing settings to people: the effective ones, and the reference of all.

use std::fmt::Write;

use serde_json::json;

use super::problem::Origin;
use super::settings::{Fallback, SETTINGS, Setting};
use super::{Config, Effective};

/// The effective settings and where each came from, as a table or as JSON. Secrets are hidden in both.
pub(crate) fn show(config: &Config, as_json: bool) -> String {
    if as_json { json(&config.effective) } else { table(&config.effective) }
}

fn table(effective: &[Effective]) -> String {
    let mut rows = vec![["SETTING".to_owned(), "VALUE".to_owned(), "SOURCE".to_owned()]];
    for Effective { name, value, origin } in effective {
        let value = value.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
        rows.push([(*name).to_owned(), value, origin.to_string()]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, values) = (width(0), width(1));
    let mut text = String::new();
    for [name, value, source] in &rows {
        let _ = writeln!(text, "{name:names$}  {value:values$}  {source}");
    }
    text
}

/// Values are texts, as a variable would hold them, so that every setting reads the same way.
fn json(effective: &[Effective]) -> String {
    let settings: Vec<_> = effective
        .iter()
        .map(|Effective { name, value, origin }| {
            let mut setting = json!({ "name": name, "value": value, "source": origin.word() });
            match origin {
                Origin::DotEnv { path, line } => {
                    setting["path"] = json!(path.display().to_string());
                    setting["line"] = json!(line);
                }
                Origin::File(path) | Origin::Credential(path) => {
                    setting["path"] = json!(path.display().to_string());
                }
                Origin::Flag | Origin::Environment | Origin::Default => {}
            }
            setting
        })
        .collect();
    format!("{:#}\n", json!({ "settings": settings }))
}

/// The reference of all settings, in Markdown.
pub(crate) fn reference() -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in SETTINGS {
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

fn reference_row(setting: &Setting) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let flag = match setting.flag() {
        Some(flag) => format!("`--{flag}`"),
        None => "none".to_owned(),
    };
    let default = match &setting.default {
        Fallback::Value("") => "none".to_owned(),
        Fallback::Value(text) => format!("`{text}`"),
        Fallback::Derived(text) => (*text).to_owned(),
    };
    let allowed = setting.shape.allowed().map(|allowed| format!(" Allowed: {allowed}.")).unwrap_or_default();
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
    fn the_table_names_values_and_sources() {
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
    fn json_names_values_and_sources() {
        let value: serde_json::Value = serde_json::from_str(&show(&config(), true)).expect("JSON");
        let settings = value["settings"].as_array().expect("a list");
        assert_eq!(settings.len(), SETTINGS.len());
        let find = |name: &str| settings.iter().find(|setting| setting["name"] == name).expect("listed");
        let expected = json!({"name":"MAX_CONNECTIONS","value":"7","source":"dotenv","path":".env","line":1});
        assert_eq!(*find("MAX_CONNECTIONS"), expected);
        assert_eq!(find("DOMAIN")["source"], "flag");
    }

    #[test]
    fn secrets_are_nowhere() {
        let config = config();
        for text in [show(&config, false), show(&config, true), format!("{config:?}"), format!("{config:#?}")] {
            assert!(!text.contains(KEY), "{text}");
        }
        assert_eq!(config.owner_secret.expect("given").reveal(), KEY);
    }

    #[test]
    fn the_reference_lists_every_setting_once() {
        let text = reference();
        for setting in SETTINGS {
            let rows = text.lines().filter(|line| line.starts_with(&format!("| `{}` |", setting.variable())));
            let rows: Vec<_> = rows.collect();
            assert_eq!(rows.len(), 1, "{}", setting.name);
            assert_eq!(rows[0].replace("\\|", "").matches('|').count(), 6, "{}", rows[0]);
        }
        assert!(text.contains("Allowed: 1 to 1000000."), "{text}");
        assert!(!text.contains("--relay-owner-nsec"));
    }
}
