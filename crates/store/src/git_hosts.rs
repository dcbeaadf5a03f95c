//! What the hunt knows of git servers, as rows: `hash of host and port 16 → JSON`.

use grasp_core::fetch::io::HostRow;

use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Writes down what is known of a git server. An older row of it is replaced.
    pub fn put_git_host(&mut self, row: &HostRow) -> Result<()> {
        let text = serde_json::to_vec(row).map_err(|_| StoreError::Damaged("a git server's row cannot be written"))?;
        let key = self.store.digest.relay(&row.authority);
        Ok(self.store.tables.hosts.put(&mut self.txn, &key, &text)?)
    }

    /// Forgets a git server.
    pub fn delete_git_host(&mut self, authority: &str) -> Result<()> {
        let key = self.store.digest.relay(authority);
        self.store.tables.hosts.delete(&mut self.txn, &key)?;
        Ok(())
    }
}

impl Store {
    /// Tells what was known of git servers. Gives how many rows could not be read.
    pub fn load_git_hosts(&self, mut tell: impl FnMut(HostRow)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for row in self.tables.hosts.iter(&txn)? {
            let (key, text) = row?;
            match serde_json::from_slice::<HostRow>(text) {
                // One that is not of the server under whose key it stands could never be forgotten.
                Ok(host) if self.digest.relay(&host.authority) == key => tell(host),
                _ => unreadable += 1,
            }
        }
        Ok(unreadable)
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
    fn the_newest_row_of_a_host_is_told_and_forgotten_ones_are_not() {
        let folder = TempDir::new().expect("a folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.begin().expect("begins");
        for row in [row("a.example", 1), row("b.example:8080", 2), row("a.example", 3), row("c.example", 4)] {
            txn.put_git_host(&row).expect("writes");
        }
        txn.delete_git_host("c.example").expect("forgets");
        txn.delete_git_host("never.example").expect("forgets");
        txn.commit().expect("commits");
        let mut txn = store.env.write_txn().expect("begins");
        store.tables.hosts.put(&mut txn, b"other", b"{}").expect("writes");
        txn.commit().expect("commits");
        let mut told = Vec::new();
        assert_eq!(store.load_git_hosts(|host| told.push(host)).expect("reads"), 1);
        told.sort_by(|a, b| a.authority.cmp(&b.authority));
        assert_eq!(told, [row("a.example", 3), row("b.example:8080", 2)]);
    }
}
