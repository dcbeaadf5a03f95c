//! Reads everything in a store once, to find damaged pages.
//!
//! LMDB has no checksums and trusts its pages: reading a damaged one can end the process. Therefore a check runs in a
//! process of its own, whose end is the result.

use std::path::Path;

use crate::error::{Result, StoreError};
use crate::schema::{MAX_TABLES, Tables};
use crate::snapshot::open_env_read_only;

/// Rows between two reports of progress. Reading them takes seconds at most.
const PROGRESS_ROWS: u64 = 100_000;

impl super::Store {
    /// Reads all rows of a store that no process uses, and compares their number with what each table declares. Passes
    /// the name of each table to `on_table` before it is read, and again from time to time. Returns the number of rows.
    ///
    /// # Errors
    /// Fails if LMDB detects damage, or if a table has another number of rows. It may also end the process.
    pub fn check_rows(path: &Path, mut on_table: impl FnMut(&'static str)) -> Result<u64> {
        on_table("(list of tables)");
        let env = open_env_read_only(path, MAX_TABLES)?;
        let txn = env.read_txn()?;
        let tables = match Tables::open_existing(&env, &txn) {
            // The store of an earlier version gets its missing tables when it is opened for writing.
            Err(StoreError::MissingTable(_)) => return Ok(0),
            tables => tables?.1,
        };
        let mut total = 0;
        for (name, table) in tables.iter() {
            on_table(name);
            let declared = table.len(&txn)?;
            let mut rows = 0;
            for row in table.iter(&txn)? {
                let (key, value) = row?;
                // Large values have pages of their own, which are read only here.
                std::hint::black_box(key.iter().chain(value).fold(0_u8, |sum, byte| sum ^ byte));
                rows += 1;
                if rows % PROGRESS_ROWS == 0 {
                    on_table(name);
                }
                if rows > declared {
                    return Err(StoreError::Damaged("a table has more rows than it declares"));
                }
            }
            if rows < declared {
                return Err(StoreError::Damaged("a table has fewer rows than it declares"));
            }
            total += rows;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::admission::io::StoreWrite;
    use grasp_sim::store_contract::draft;
    use tempfile::TempDir;

    use crate::{Store, StoreOptions};

    #[test]
    fn rows_of_an_intact_store_are_counted() {
        let folder = TempDir::new().expect("temporary folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut transaction = store.begin().expect("begins");
        for nth in 0..500 {
            transaction.write(&StoreWrite::Put(draft(1, 1, nth, &[]))).expect("writes");
        }
        transaction.commit().expect("commits");
        let rows = store.snapshot().expect("snapshot opens").counts().expect("counts").rows;
        drop(store);
        let mut tables = 0;
        let read = Store::check_rows(folder.path(), |_| tables += 1).expect("intact");
        assert_eq!(read, rows);
        assert!(tables > 20, "{tables} tables");
    }
}
