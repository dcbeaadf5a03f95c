//! `graspd config --effective`: shows the settings of the running server.

use serde_json::json;

use super::{CommandContext, CommandError, print_line};
use crate::admin::api::{Nothing, SETTINGS};
use crate::config::effective_table;
use crate::text_format::terminal_safe;

/// Prints the settings of the running server in the format of `graspd config`, and to standard error which server it is.
pub(super) fn show(context: &CommandContext<'_>, as_json: bool) -> Result<(), CommandError> {
    let settings = context.call(SETTINGS, &Nothing {})?.settings;
    if let Some(socket) = context.client()?.socket() {
        eprintln!("graspd: settings of the server at {}", socket.display());
    }
    if as_json {
        return print_line(format!("{:#}", json!({ "settings": settings })));
    }
    let rows = settings.iter().map(|setting| (setting.name.as_str(), setting.value.as_str(), &setting.origin));
    let lines: Vec<String> = effective_table(rows).lines().map(terminal_safe).collect();
    print_line(lines.join("\n"))
}
