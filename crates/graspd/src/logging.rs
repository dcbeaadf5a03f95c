//! The log of the server: text or JSON lines on standard error.
//!
//! Every line has one of the [`TARGETS`], so that an operator can filter by feature without knowing module paths. The level
//! applies to these targets; libraries log warnings and errors only, unless a directive names them.
//!
//! Called once by `main`, and by `graspd reload` to change the level.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::LogFormat;

/// Targets of log lines: one per feature.
pub(crate) const TARGETS: [&str; 8] = ["sync", "git", "relay", "writer", "http", "fetch", "admin", "store"];

/// Changes the level of a running log.
pub(crate) type SetLevel = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Starts the log. The returned function changes its level.
pub(crate) fn start(format: LogFormat, level: &str) -> SetLevel {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = match format {
        LogFormat::Text => fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => fmt::layer().json().with_writer(std::io::stderr).boxed(),
    };
    Registry::default().with(filter).with(lines).init();
    Box::new(move |level| handle.reload(self::filter(level)).map_err(|problem| problem.to_string()))
}

/// Builds the filter of a level (`debug`), or of a level with directives (`info,sync=debug,hyper=trace`).
fn filter(level: &str) -> EnvFilter {
    EnvFilter::new(directives(level))
}

/// Expands a level to one directive per target, so that it does not apply to libraries. Other directives stay as they are.
fn directives(text: &str) -> String {
    let mut directives = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let is_level = !part.contains('=') && part.parse::<tracing::level_filters::LevelFilter>().is_ok();
        if !is_level {
            directives.push(part.to_owned());
            continue;
        }
        let is_quieter_than_warnings = matches!(part.to_ascii_lowercase().as_str(), "off" | "error");
        directives.push(if is_quieter_than_warnings { part.to_owned() } else { "warn".to_owned() });
        directives.extend(TARGETS.iter().map(|target| format!("{target}={part}")));
    }
    directives.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_applies_to_the_targets_of_the_server_only() {
        let expanded = directives("debug");
        assert!(expanded.starts_with("warn,sync=debug,git=debug,"), "{expanded}");
        assert_eq!(expanded.split(',').count(), 1 + TARGETS.len());
        assert!(directives("off").starts_with("off,sync=off,"));
    }

    #[test]
    fn directives_are_kept() {
        assert!(directives("info,sync=trace, hyper=debug").ends_with("store=info,sync=trace,hyper=debug"));
        assert_eq!(directives("sync=debug"), "sync=debug");
    }
}
