//! Output of `graspd config`: the effective settings, and the reference of all settings (docs/settings.md).

use std::fmt::Write;

use serde_json::json;

use super::problem::SettingOrigin;
use super::settings::{DefaultValue, SETTINGS, Setting};
use super::{Config, EffectiveSetting};

/// Returns the effective settings and where each value came from, as a table or as JSON. Secrets are hidden.
pub(crate) fn show(config: &Config, as_json: bool) -> String {
    if as_json { json(&config.effective) } else { table(&config.effective) }
}

fn table(effective: &[EffectiveSetting]) -> String {
    let mut rows = vec![["SETTING".to_owned(), "VALUE".to_owned(), "SOURCE".to_owned()]];
    for EffectiveSetting { name, value, origin } in effective {
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

/// Values are texts, as in an environment variable, so that all settings have the same format.
fn json(effective: &[EffectiveSetting]) -> String {
    let settings: Vec<_> = effective
        .iter()
        .map(|EffectiveSetting { name, value, origin }| {
            let mut setting = json!({ "name": name, "value": value, "source": origin.label() });
            match origin {
                SettingOrigin::DotEnv { path, line } => {
                    setting["path"] = json!(path.display().to_string());
                    setting["line"] = json!(line);
                }
                SettingOrigin::File(path) | SettingOrigin::Credential(path) => {
                    setting["path"] = json!(path.display().to_string());
                }
                SettingOrigin::Flag | SettingOrigin::Environment | SettingOrigin::Default => {}
            }
            setting
        })
        .collect();
    format!("{:#}\n", json!({ "settings": settings }))
}

/// Beginning of the reference.
const INTRODUCTION: &str = "\
# Settings

This page is generated from the code by `graspd config --reference`.

Each setting can be given in four ways. The first one in this list that has a value is used:

1. a flag: `--bind-address 127.0.0.1:7334`
2. an environment variable: `NGIT_BIND_ADDRESS=127.0.0.1:7334`
3. the file `.env` in the current folder, with lines such as `NGIT_BIND_ADDRESS=127.0.0.1:7334`
4. a TOML file, with lines such as `bind_address = \"127.0.0.1:7334\"`. Its path is given by `--config` or
   `NGIT_CONFIG`; without them it is `graspd.toml` in the current folder, if that exists.

If no source has a value, the default is used. An empty variable counts as not set. Secrets have no flag, because other
users of the machine can read the arguments of a process; they can also be systemd credentials that have the name of
their key.

`graspd config` shows the effective settings and where each value came from. If settings are invalid, graspd lists all
errors and exits with status 2. `graspd reload` applies changed settings to the running server, and names those that
need a restart.

";

/// Returns the reference of all settings, in Markdown.
pub(crate) fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
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
        DefaultValue::Fixed("") => "none".to_owned(),
        DefaultValue::Fixed(text) => format!("`{text}`"),
        DefaultValue::Derived(text) => (*text).to_owned(),
    };
    let allowed = setting.kind.allowed().map(|allowed| format!(" Allowed: {allowed}.")).unwrap_or_default();
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
