//! Removes a repository.

use std::fs;
use std::io::ErrorKind;

use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use super::alternates::Alternates;
use crate::action_error::{ActionContext, ActionError};
use crate::crash_point;
use crate::files::sync_folder;
use crate::refs::Refs;

impl GitJobRunner {
    /// Removes a repository after every repository that reads its pool has copied what its own refs need from it.
    pub(super) fn delete(
        &self,
        repo_path: &RepoPath,
        readers: &[(RepoPath, Vec<RepoPath>)],
        changed: &mut Vec<(RepoPath, Refs)>,
    ) -> Result<(), ActionError> {
        let folder = self.layout.repo_dir(repo_path);
        for (reader, alternates) in readers.iter().filter(|(reader, _)| reader != repo_path) {
            let reader_folder = self.layout.repo_dir(reader);
            if Alternates::read(&reader_folder).context("read alternates")?.has(&self.layout, repo_path) {
                let alternates: Vec<RepoPath> =
                    alternates.iter().filter(|alternate| *alternate != repo_path).cloned().collect();
                self.set_alternates(&reader_folder, &Alternates::for_repo(&self.layout, reader, &alternates))?;
            }
        }
        crash_point::point("delete.copied");
        let Some(owner) = folder.parent().filter(|owner| owner.is_dir()) else { return Ok(()) };
        if folder.exists() {
            self.layout.move_to_trash(&folder).context("remove a repository")?;
            self.layout.record_prune();
            changed.push((repo_path.clone(), Refs::default()));
        }
        let parent = owner.parent().unwrap_or(owner);
        let removed = sync_folder(owner).and_then(|()| fs::remove_dir(owner)).and_then(|()| sync_folder(parent));
        match removed {
            // The owner has other repositories, or the removal of another one has just removed the folder.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
            result => result.context("remove a repository")?,
        }
        crash_point::point("delete.gone");
        Ok(())
    }
}
