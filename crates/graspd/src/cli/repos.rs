//! `graspd repos`: lists the hosted repositories.

use clap::Args;

use super::table::Column;
use super::{CommandContext, CommandError};
use crate::admin::api::{REPOS, RepoItem, ReposRequest};
use crate::text_format::{bytes, count};

/// List the hosted repositories, with their state and what is missing
///
/// Lists the hosted repositories. Columns: OWNER and NAME; STATE; REFS; SIZE of the objects that the repository is charged for; RELAYS
/// that have the same state / that the repository lists; HELD, events that wait for git data.
///
/// The state is `current` if the newest repository state is served, `behind` if a newer one waits for git data,
/// `waiting` if the announcement waits for git data, `empty` if nothing has been pushed yet, and `degraded` if objects
/// are damaged or missing (see `graspd repair`). The exit status is 1 if no repository has the given name or owner.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd repos                    all repositories\n  \
    graspd repos --missing          repositories that wait for git data\n  \
    graspd repos --owner npub1…     repositories of one owner\n  \
    graspd repos ngit --json        repositories with the name ngit, as JSON")]
pub(super) struct ReposArgs {
    /// Only repositories of this name, or the repository of this path
    name: Option<String>,
    /// Only repositories of this owner
    #[arg(long, value_name = "NPUB")]
    owner: Option<String>,
    /// Only repositories with events that wait for git data
    #[arg(long)]
    missing: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

const COLUMNS: &[Column<RepoItem>] = &[
    Column::text("OWNER", |repo| repo.owner.clone()),
    Column::text("NAME", |repo| repo.name.clone()),
    Column::text("STATE", |repo| repo.state.clone()),
    Column::number("REFS", |repo| repo.refs.map_or("?".to_owned(), |refs| count(refs as u64))),
    Column::number("SIZE", |repo| repo.bytes.map_or("?".to_owned(), bytes)),
    Column::number("RELAYS", |repo| {
        repo.relays.as_ref().map_or("-".to_owned(), |relays| format!("{}/{}", relays.complete, relays.named))
    }),
    Column::number("HELD", |repo| count(repo.held as u64)),
];

impl ReposArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let request = ReposRequest { name: self.name, owner: self.owner, missing: self.missing };
        if context.print_list(REPOS, &request, self.json, COLUMNS, "No repository matches.")?
            || (request.name.is_none() && request.owner.is_none())
        {
            return Ok(());
        }
        // With --missing, the repositories of this name or owner may have everything.
        let request = ReposRequest { missing: false, ..request };
        match self.missing && context.call(REPOS, &request)?.repositories > 0 {
            true => Ok(()),
            false => Err(CommandError::Failed("no repository has this name or owner".to_owned())),
        }
    }
}
