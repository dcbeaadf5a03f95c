//! How much may be stored: the marks of the disk budget, and what one key or one repository may take of it.

use std::ops::Add;

/// How full the disk budget is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Mark {
    /// There is room.
    #[default]
    Free,
    /// What is here may grow; no new repository is taken.
    Soft,
    /// Nothing that grows is taken. What makes things go is.
    Hard,
}

/// The disk budget, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Budget {
    /// From here on nothing that grows is taken.
    pub hard: u64,
    /// From here on no new repository is taken.
    pub soft: u64,
}

impl Budget {
    /// A budget whose soft mark is at a percentage of it.
    #[must_use]
    pub fn new(bytes: u64, soft_percent: u64) -> Self {
        Self { hard: bytes, soft: bytes / 100 * soft_percent.min(100) }
    }

    /// Which mark has been reached with so many bytes.
    #[must_use]
    pub fn mark(&self, used: u64) -> Mark {
        if used >= self.hard {
            Mark::Hard
        } else if used >= self.soft {
            Mark::Soft
        } else {
            Mark::Free
        }
    }
}

/// What one key and one repository may take. `None` has no bound of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quotas {
    /// Repositories of one key, served and waiting.
    pub repositories_per_key: Option<u64>,
    /// Bytes of git data of one repository.
    pub bytes_per_repository: Option<u64>,
    /// Bytes of git data of all repositories of one key.
    pub bytes_per_key: Option<u64>,
}

/// Git data that is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Weight {
    /// Bytes of one repository.
    pub repository: u64,
    /// Bytes of all repositories of its owner.
    pub key: u64,
}

impl Add for Weight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { repository: self.repository + other.repository, key: self.key + other.key }
    }
}

/// For whose sake something comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// Those who speak for the repository.
    Maintainers,
    /// Anybody: a pull request.
    Others,
}

/// A quota that is used up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Quota {
    /// One repository's, of so many bytes.
    Repository(u64),
    /// One key's, of so many bytes.
    Key(u64),
}

impl Quotas {
    /// Whether any of them is about bytes: then repositories must be weighed.
    #[must_use]
    pub fn weigh(&self) -> bool {
        self.bytes_per_repository.is_some() || self.bytes_per_key.is_some()
    }

    /// How many bytes may be added, and which quota says so. `None` if no quota does. Strangers may fill half of a quota,
    /// so that they cannot lock out those whose it is.
    #[must_use]
    pub fn left(&self, weight: Weight, whose: Whose) -> Option<(u64, Quota)> {
        let share = if whose == Whose::Others { 2 } else { 1 };
        let left = |most: Option<u64>, used: u64| most.map(|most| ((most / share).saturating_sub(used), most / share));
        let repository =
            left(self.bytes_per_repository, weight.repository).map(|(left, most)| (left, Quota::Repository(most)));
        let key = left(self.bytes_per_key, weight.key).map(|(left, most)| (left, Quota::Key(most)));
        repository.into_iter().chain(key).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_reached_with_the_last_byte() {
        let budget = Budget::new(1_000, 90);
        for (used, mark) in
            [(0, Mark::Free), (899, Mark::Free), (900, Mark::Soft), (999, Mark::Soft), (1_000, Mark::Hard)]
        {
            assert_eq!(budget.mark(used), mark, "{used}");
        }
        assert_eq!(Budget::new(0, 90).mark(0), Mark::Hard, "an empty budget has no room");
        assert_eq!(Budget::new(u64::MAX, 200).mark(5), Mark::Free, "a percentage is no multiple");
    }

    #[test]
    fn the_smaller_quota_decides() {
        let quotas = Quotas { bytes_per_repository: Some(100), bytes_per_key: Some(1_000), ..Quotas::default() };
        let weight = |repository, key| Weight { repository, key };
        let left = |repository, key| quotas.left(weight(repository, key), Whose::Maintainers);
        assert_eq!(left(30, 40), Some((70, Quota::Repository(100))));
        assert_eq!(left(30, 950), Some((50, Quota::Key(1_000))));
        assert_eq!(left(130, 130), Some((0, Quota::Repository(100))));
        assert_eq!(Quotas::default().left(weight(5, 5), Whose::Maintainers), None);
        assert_eq!(quotas.left(weight(30, 40), Whose::Others), Some((20, Quota::Repository(50))));
        assert_eq!(quotas.left(weight(60, 60), Whose::Others), Some((0, Quota::Repository(50))));
        assert!(quotas.weigh() && !Quotas::default().weigh());
    }
}
