//! `graspd man`: manual pages, one per command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{CommandError, absolute_path_value, print_line};

/// Exit statuses, as the page of `graspd` lists them.
const EXIT_STATUSES: [(&str, &str); 4] = [
    ("0", "The command succeeded, or the server was stopped."),
    ("1", "The command or the server failed."),
    ("2", "The arguments or the settings are wrong."),
    ("3", "The command needs a running server and found none."),
];

/// Print the manual page
///
/// Prints the manual page of graspd, or writes the pages of graspd and of each of its commands into a folder. The
/// Debian package installs them all.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd man | man -l -                            read the page\n  \
    graspd man --all /usr/local/share/man/man1       install graspd.1, graspd-status.1 and so on")]
pub(super) struct ManArgs {
    /// Write one page per command into this folder, which is created if needed
    #[arg(long, value_name = "DIR", value_parser = absolute_path_value())]
    all: Option<PathBuf>,
}

impl ManArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let whole = built();
        let Some(folder) = self.all else {
            let failed = |error| CommandError::Failed(format!("cannot render the manual page: {error}"));
            return print_line(page(&whole).map_err(failed)?.trim_end());
        };
        fs::create_dir_all(&folder).and_then(|()| write_pages(&whole, &folder)).map_err(|error| {
            CommandError::Failed(format!("cannot write manual pages to {}: {error}", folder.display()))
        })
    }
}

/// Returns the whole command line, with everything filled in that clap derives.
fn built() -> Command {
    let mut whole = super::command()
        .override_usage("graspd [OPTIONS] [COMMAND]")
        .subcommand_help_heading("COMMANDS")
        .disable_help_subcommand(true);
    whole.build();
    whole
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::write(folder.join(format!("{}.1", name(command))), page(command)?)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder)?;
    }
    Ok(())
}

/// Returns the name of a page, such as `graspd-relays-retry`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Renders the page of a built command.
fn page(command: &Command) -> io::Result<String> {
    let is_root = command.get_name() == "graspd";
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        // No date, so that equal sources give equal pages. An empty text would be left out and shift the fields after it.
        .date("\"\"")
        .source(concat!("graspd ", env!("CARGO_PKG_VERSION")))
        .manual("graspd manual");
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut bytes)?;
    }
    man.render_options_section(&mut bytes)?;
    let mut roff = Roff::new();
    if let Some(text) = command.get_after_long_help() {
        render_after_help(&mut roff, &text.to_string());
    }
    if is_root {
        roff.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in EXIT_STATUSES {
            roff.control("TP", []).text([roman(status)]).text([roman(meaning)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(if is_root { "git(1)" } else { "graspd(1)" })]);
    roff.to_writer(&mut bytes)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Renders the text after the options.
///
/// An unindented line that ends in a colon is the heading of a section. Indented lines are examples and keep their line
/// breaks, other lines are filled.
fn render_after_help(roff: &mut Roff, text: &str) {
    let mut has_section = false;
    let mut is_verbatim = false;
    for line in text.lines() {
        let is_indented = line.starts_with(' ');
        if is_verbatim && !is_indented {
            roff.control("fi", []);
            is_verbatim = false;
        }
        let heading = line.strip_suffix(':').filter(|heading| !is_indented && !heading.contains(['.', ',']));
        if heading.is_some() || !has_section {
            roff.control("SH", [heading.unwrap_or("NOTES").to_uppercase().as_str()]);
            has_section = true;
            if heading.is_some() {
                continue;
            }
        }
        if line.is_empty() {
            roff.control("PP", []);
            continue;
        }
        if is_indented && !is_verbatim {
            roff.control("nf", []);
            is_verbatim = true;
        }
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    if is_verbatim {
        roff.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_the_program_names_every_command_and_that_of_settings_every_setting() {
        // Hyphens are escaped in roff.
        let page = page(&built()).expect("a page").replace('\\', "");
        for command in super::super::command().get_subcommands() {
            let entry = format!("graspd-{}(1)", command.get_name());
            assert_eq!(page.contains(&entry), !command.is_hide_set(), "{entry}");
        }
        for expected in [".TH GRASPD 1 \"\" \"graspd ", "[OPTIONS] [COMMAND]", ".SH EXAMPLES", ".SH \"EXIT STATUS\""] {
            assert!(page.contains(expected), "{expected} is missing: {page}");
        }
        let whole = built();
        let settings = whole.find_subcommand("settings").expect("declared");
        let page = super::page(settings).expect("a page").replace('\\', "");
        assert!(page.contains("--bind-address") && page.contains("NGIT_BIND_ADDRESS"), "{page}");
    }

    #[test]
    fn text_after_the_options_becomes_sections() {
        let mut roff = Roff::new();
        render_after_help(&mut roff, "First.\n\nExamples:\n  graspd a\n    .b\nLast.");
        let text = roff.render();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with(".SH")).collect();
        let expected = [".SH NOTES", "First.", ".PP", ".SH EXAMPLES", ".nf", "graspd a", "  .b", ".fi", "Last."];
        assert_eq!(lines, expected);
    }
}
