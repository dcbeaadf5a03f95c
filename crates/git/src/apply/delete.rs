//! Removes a site.

use std::fs;
use std::io::ErrorKind;

use grasp_core::repo::RepoPath;

use super::alternates::Readable;
use super::{Doing, Keeper, Problem};
use crate::crash_point;
use crate::layout::sync_folder;
use crate::refs::Refs;

impl Keeper {
    /// Removes a site after everybody who reads its pool has copied what its own refs need.
    pub(super) fn retire(
        &self,
        repo_path: &RepoPath,
        readers: &[(RepoPath, Vec<RepoPath>)],
        changed: &mut Vec<(RepoPath, Refs)>,
    ) -> Result<(), Problem> {
        let folder = self.layout.repo_dir(repo_path);
        for (reader, alternates) in readers.iter().filter(|(reader, _)| reader != repo_path) {
            let place = self.layout.repo_dir(reader);
            if Readable::read(&place).doing("read which pools are lent")?.has(&self.layout, repo_path) {
                let alternates: Vec<RepoPath> =
                    alternates.iter().filter(|lender| *lender != repo_path).cloned().collect();
                self.lend(&place, &Readable::wanted(&self.layout, reader, &alternates))?;
            }
        }
        crash_point::point("retire.copied");
        let Some(owner) = folder.parent().filter(|owner| owner.is_dir()) else { return Ok(()) };
        if folder.exists() {
            self.layout.discard(&folder).doing("remove a repository")?;
            self.layout.note_pruning();
            changed.push((repo_path.clone(), Refs::default()));
        }
        let room = owner.parent().unwrap_or(owner);
        let removed = sync_folder(owner).and_then(|()| fs::remove_dir(owner)).and_then(|()| sync_folder(room));
        match removed {
            // It has other repositories, or the end of another one has just removed it.
            Err(problem) if matches!(problem.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
            result => result.doing("remove a repository")?,
        }
        crash_point::point("retire.gone");
        Ok(())
    }
}
