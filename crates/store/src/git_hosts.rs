//! Rows of git servers, kept for fetch: `hash of host and port 16 → JSON`.

use grasp_core::fetch::io::HostRow;

use crate::error::Result;
use crate::store::Store;
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Stores the row of a git server. Replaces an older one.
    pub fn put_git_host(&mut self, row: &HostRow) -> Result<()> {
        self.put_json(self.store.tables.git_hosts, &row.authority, row)
    }

    /// Deletes the row of a git server.
    pub fn delete_git_host(&mut self, authority: &str) -> Result<()> {
        self.delete_json(self.store.tables.git_hosts, authority)
    }
}

impl Store {
    /// Passes the stored rows of all git servers to `on_row`. Returns the number of unreadable rows.
    pub fn load_git_hosts(&self, on_row: impl FnMut(HostRow)) -> Result<u64> {
        self.load_json(self.tables.git_hosts, |host: &HostRow| &host.authority, on_row)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::time::Timestamp;
    use tempfile::TempDir;

    use super::*;
    use crate::store::StoreOptions;

    fn row(authority: &str, hits: u32) -> HostRow {
        let asked = vec![Timestamp(7), Timestamp(8)];
        HostRow { authority: authority.to_owned(), asked, quiet_until: Timestamp(9), hits, misses: 1 }
    }

    #[test]
    fn latest_git_host_rows_are_loaded() {
        let folder = TempDir::new().expect("temporary folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.begin().expect("begins");
        for row in [row("a.example", 1), row("b.example:8080", 2), row("a.example", 3), row("c.example", 4)] {
            txn.put_git_host(&row).expect("writes");
        }
        txn.delete_git_host("c.example").expect("forgets");
        txn.delete_git_host("never.example").expect("forgets");
        txn.commit().expect("commits");
        let mut txn = store.env.write_txn().expect("begins");
        store.tables.git_hosts.put(&mut txn, b"other", b"{}").expect("writes");
        txn.commit().expect("commits");
        let mut loaded = Vec::new();
        assert_eq!(store.load_git_hosts(|host| loaded.push(host)).expect("reads"), 1);
        loaded.sort_by(|a, b| a.authority.cmp(&b.authority));
        assert_eq!(loaded, [row("a.example", 3), row("b.example:8080", 2)]);
    }
}
