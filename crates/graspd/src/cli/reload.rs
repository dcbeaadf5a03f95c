//! `graspd reload`: makes the server read its settings again.

use clap::Args;

use super::{CommandContext, CommandError, print_json, print_line};
use crate::admin::api::{Nothing, RELOAD};
use crate::text_format::terminal_safe;

/// Make the server read its settings again: moderation lists, limits, log level and others
///
/// Makes the server read its settings again from the same sources as at its start: its TOML file, .env in its folder,
/// and moderation lists in files. Flags and environment variables are those of the start. Settings that can change
/// without a restart take effect at once; the others are listed. If a setting is invalid, nothing changes.
///
/// SIGHUP does the same, and logs the result.
#[derive(Args)]
#[command(after_long_help = "Example:\n  \
    echo 'log_level = \"debug\"' >> graspd.toml && graspd reload")]
pub(super) struct ReloadArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl ReloadArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let report = context.call(RELOAD, &Nothing {})?;
        if self.json {
            return print_json(&report);
        }
        for setting in &report.changed {
            print_line(terminal_safe(&format!("{}: {} -> {}", setting.name, setting.from, setting.to)))?;
        }
        if report.lists_changed {
            let banned = report.banned;
            print_line(format!("The moderation lists have changed; {banned} hosted repositories are now banned."))?;
        }
        for warning in &report.warnings {
            print_line(terminal_safe(&format!("warning: {warning}")))?;
        }
        if !report.restart.is_empty() {
            print_line(format!("These settings need a restart: {}.", report.restart.join(", ")))?;
        } else if report.changed.is_empty() && !report.lists_changed {
            print_line("No setting has changed.")?;
            if !report.fixed_by_environment.is_empty() {
                let fixed = report.fixed_by_environment.join(", ");
                print_line(format!("These settings are environment variables and need a restart to change: {fixed}."))?;
            }
        }
        Ok(())
    }
}
