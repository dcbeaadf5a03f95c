//! Results of checks, and their output.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// The check passed.
    Ok,
    /// It works, but can be improved.
    Warning,
    /// It does not work.
    Error,
    /// It cannot be checked from here.
    Note,
}

impl Severity {
    fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✓",
            Self::Warning => "!",
            Self::Error => "✗",
            Self::Note => "·",
        }
    }
}

/// Result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    /// Name of the check.
    check: &'static str,
    #[serde(rename = "level")]
    severity: Severity,
    /// What was found.
    #[serde(rename = "says")]
    text: String,
    /// How to fix it.
    fix: Option<String>,
}

/// Results of all checks.
#[derive(Default, Debug)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, Severity::Ok, text.into(), None);
    }

    pub(super) fn warning(&mut self, check: &'static str, text: impl Into<String>, fix: impl Into<String>) {
        self.add(check, Severity::Warning, text.into(), Some(fix.into()));
    }

    pub(super) fn error(&mut self, check: &'static str, text: impl Into<String>, fix: impl Into<String>) {
        self.add(check, Severity::Error, text.into(), Some(fix.into()));
    }

    pub(super) fn note(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, Severity::Note, text.into(), None);
    }

    fn add(&mut self, check: &'static str, severity: Severity, text: String, fix: Option<String>) {
        self.0.push(Finding { check, severity, text, fix });
    }

    /// Returns the number of errors.
    pub(super) fn error_count(&self) -> usize {
        self.0.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// Returns whether one of these checks has a warning or an error.
    pub(super) fn has_problem_in(&self, checks: &[&str]) -> bool {
        let is_problem = |finding: &&Finding| matches!(finding.severity, Severity::Error | Severity::Warning);
        self.0.iter().filter(is_problem).any(|finding| checks.contains(&finding.check))
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (nth, Finding { check, severity, text, fix }) in self.0.iter().enumerate() {
            if nth > 0 {
                writeln!(f)?;
            }
            write!(f, "{} {check:<10} {text}", severity.sign())?;
            for line in fix.iter().flat_map(|fix| fix.lines()) {
                write!(f, "\n               {line}")?;
            }
        }
        Ok(())
    }
}
