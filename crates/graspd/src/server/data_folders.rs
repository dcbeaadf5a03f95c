//! Checks that the event store and the git data folder belong together.
//!
//! The store has a random id, and the git folder has a file with the same id. With the wrong git folder the server would
//! treat all repositories as lost. The writer checks that the folder is not empty, once it knows the repositories.

use anyhow::{Result, bail};
use grasp_core::nostr::hex;
use grasp_git::layout::Layout;
use grasp_store::Store;
use tracing::warn;

use crate::config::Config;

/// Compares the ids of store and git folder. A git folder without an id, which is new or of an earlier version, gets that
/// of the store.
///
/// # Errors
/// Fails if the folder belongs to another store, or if it has repositories and the store is empty.
pub(super) fn check_ids(store: &Store, layout: &Layout, config: &Config) -> Result<()> {
    let id = hex::encode(&store.id());
    let (git, relay) = (config.git_data_path.display(), config.relay_data_path.display());
    let advice = "Set NGIT_RELAY_DATA_PATH and NGIT_GIT_DATA_PATH to the folders of one server, and mount their disks. \
                  Otherwise see \"When data is lost\" in docs/how-to.md";
    match layout.store_id()? {
        Some(found) if found == id => Ok(()),
        Some(found) => bail!(
            "the git data folder {git} belongs to another event store (id {found}, in its file store-id) than the one in \
             {relay} (id {id}). No event or repository was changed. {advice}"
        ),
        None if layout.has_repos() && store.served_count()? + store.held_count()? == 0 => bail!(
            "the git data folder {git} has repositories, but the event store in {relay} is empty. No repository was \
             changed. {advice}"
        ),
        None => {
            if let Err(error) = layout.set_store_id(&id) {
                warn!(target: "admin", %error, "cannot write the id of the store to the git data folder");
            }
            Ok(())
        }
    }
}
