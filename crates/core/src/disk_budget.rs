//! The disk budget and its levels, and the quotas of one key and one repository.

use std::ops::Add;

/// How far the disk budget is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum DiskLevel {
    /// Everything is accepted.
    #[default]
    Free,
    /// Existing repositories may grow; new repositories are rejected.
    Soft,
    /// Nothing that takes disk space is accepted. Events that remove something still are.
    Hard,
}

/// The disk budget, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskBudget {
    /// Usage from which on nothing that takes disk space is accepted.
    pub hard_bytes: u64,
    /// Usage from which on new repositories are rejected.
    pub soft_bytes: u64,
}

impl DiskBudget {
    /// Creates a budget of `bytes` with its soft limit at `soft_percent` of it.
    #[must_use]
    pub fn new(bytes: u64, soft_percent: u64) -> Self {
        Self { hard_bytes: bytes, soft_bytes: bytes / 100 * soft_percent.min(100) }
    }

    /// Returns the level that is reached with `used_bytes`.
    #[must_use]
    pub fn level(&self, used_bytes: u64) -> DiskLevel {
        if used_bytes >= self.hard_bytes {
            DiskLevel::Hard
        } else if used_bytes >= self.soft_bytes {
            DiskLevel::Soft
        } else {
            DiskLevel::Free
        }
    }
}

/// What one key and one repository may use. `None` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quotas {
    /// Repositories of one key, served and held.
    pub repositories_per_key: Option<u64>,
    /// Bytes of git data of one repository.
    pub bytes_per_repository: Option<u64>,
    /// Bytes of git data of all repositories of one key.
    pub bytes_per_key: Option<u64>,
}

/// Git data that is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GitUsage {
    /// Bytes of one repository.
    pub repository_bytes: u64,
    /// Bytes of all repositories of its owner.
    pub owner_bytes: u64,
}

impl Add for GitUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            repository_bytes: self.repository_bytes + other.repository_bytes,
            owner_bytes: self.owner_bytes + other.owner_bytes,
        }
    }
}

/// For whom git data is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaUser {
    /// The maintainers of the repository.
    Maintainers,
    /// Any other client, for a pull request.
    Others,
}

/// A quota, with its size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Quota {
    /// The quota of one repository.
    Repository(u64),
    /// The quota of one key.
    Key(u64),
}

impl Quotas {
    /// Returns whether a quota limits bytes; the size of repositories must then be known.
    #[must_use]
    pub fn has_byte_quotas(&self) -> bool {
        self.bytes_per_repository.is_some() || self.bytes_per_key.is_some()
    }

    /// Returns how many bytes may be added and which quota limits them, or `None` if no quota applies. Clients that are
    /// not maintainers may fill half of a quota, so that they cannot lock out the maintainers.
    #[must_use]
    pub fn remaining(&self, usage: GitUsage, user: QuotaUser) -> Option<(u64, Quota)> {
        let share = if user == QuotaUser::Others { 2 } else { 1 };
        let left = |most: Option<u64>, used_bytes: u64| {
            most.map(|most| ((most / share).saturating_sub(used_bytes), most / share))
        };
        let repository =
            left(self.bytes_per_repository, usage.repository_bytes).map(|(left, most)| (left, Quota::Repository(most)));
        let key = left(self.bytes_per_key, usage.owner_bytes).map(|(left, most)| (left, Quota::Key(most)));
        repository.into_iter().chain(key).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_reached_with_its_last_byte() {
        let budget = DiskBudget::new(1_000, 90);
        for (used_bytes, level) in [
            (0, DiskLevel::Free),
            (899, DiskLevel::Free),
            (900, DiskLevel::Soft),
            (999, DiskLevel::Soft),
            (1_000, DiskLevel::Hard),
        ] {
            assert_eq!(budget.level(used_bytes), level, "{used_bytes}");
        }
        assert_eq!(DiskBudget::new(0, 90).level(0), DiskLevel::Hard, "an empty budget is used up");
        assert_eq!(DiskBudget::new(u64::MAX, 200).level(5), DiskLevel::Free, "percentages above 100 count as 100");
    }

    #[test]
    fn the_quota_with_less_left_decides() {
        let quotas = Quotas { bytes_per_repository: Some(100), bytes_per_key: Some(1_000), ..Quotas::default() };
        let usage = |repository_bytes, owner_bytes| GitUsage { repository_bytes, owner_bytes };
        let left = |repository, key| quotas.remaining(usage(repository, key), QuotaUser::Maintainers);
        assert_eq!(left(30, 40), Some((70, Quota::Repository(100))));
        assert_eq!(left(30, 950), Some((50, Quota::Key(1_000))));
        assert_eq!(left(130, 130), Some((0, Quota::Repository(100))));
        assert_eq!(Quotas::default().remaining(usage(5, 5), QuotaUser::Maintainers), None);
        assert_eq!(quotas.remaining(usage(30, 40), QuotaUser::Others), Some((20, Quota::Repository(50))));
        assert_eq!(quotas.remaining(usage(60, 60), QuotaUser::Others), Some((0, Quota::Repository(50))));
        assert!(quotas.has_byte_quotas() && !Quotas::default().has_byte_quotas());
    }
}
