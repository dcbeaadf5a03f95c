//! What a check has found, and how it is told.

use serde_json::{Value, json};

/// How it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// As it should be.
    Fine,
    /// It works, and could be better.
    Odd,
    /// It does not work.
    Wrong,
    /// Something that cannot be found out from here.
    Advice,
}

impl Level {
    fn sign(self) -> &'static str {
        match self {
            Self::Fine => "✓",
            Self::Odd => "!",
            Self::Wrong => "✗",
            Self::Advice => "·",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Odd => "odd",
            Self::Wrong => "wrong",
            Self::Advice => "advice",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    /// What was looked at, in a word.
    pub(super) check: &'static str,
    pub(super) level: Level,
    /// How it is.
    pub(super) says: String,
    /// What to do about it.
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn to_json(&self) -> Value {
        let Self { check, level, says, fix } = self;
        json!({ "check": check, "level": level.word(), "says": says, "fix": fix })
    }
}

/// Everything that was found.
#[derive(Default, Debug)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn fine(&mut self, check: &'static str, says: impl Into<String>) {
        self.add(check, Level::Fine, says.into(), None);
    }

    pub(super) fn odd(&mut self, check: &'static str, says: impl Into<String>, fix: impl Into<String>) {
        self.add(check, Level::Odd, says.into(), Some(fix.into()));
    }

    pub(super) fn wrong(&mut self, check: &'static str, says: impl Into<String>, fix: impl Into<String>) {
        self.add(check, Level::Wrong, says.into(), Some(fix.into()));
    }

    pub(super) fn advice(&mut self, check: &'static str, says: impl Into<String>) {
        self.add(check, Level::Advice, says.into(), None);
    }

    fn add(&mut self, check: &'static str, level: Level, says: String, fix: Option<String>) {
        self.0.push(Finding { check, level, says, fix });
    }

    /// How many things are wrong.
    pub(super) fn wrongs(&self) -> usize {
        self.0.iter().filter(|finding| finding.level == Level::Wrong).count()
    }

    /// Whether one of these is wrong or odd.
    pub(super) fn complains_about(&self, checks: &[&str]) -> bool {
        let loud = |finding: &&Finding| matches!(finding.level, Level::Wrong | Level::Odd);
        self.0.iter().filter(loud).any(|finding| checks.contains(&finding.check))
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (nth, Finding { check, level, says, fix }) in self.0.iter().enumerate() {
            if nth > 0 {
                writeln!(f)?;
            }
            write!(f, "{} {check:<10} {says}", level.sign())?;
            for line in fix.iter().flat_map(|fix| fix.lines()) {
                write!(f, "\n               {line}")?;
            }
        }
        Ok(())
    }
}
