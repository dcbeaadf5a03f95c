//! Result table on standard error: measured values and targets.

use std::fmt;
use std::io::{Write, stderr};

use anyhow::Result;

/// One row of the table.
#[derive(Debug, Clone)]
pub(crate) struct ResultRow {
    what: String,
    value: f64,
    /// Maximum, if there is a target.
    most: Option<f64>,
}

impl ResultRow {
    /// Creates a row without a target.
    pub(crate) fn new(what: impl Into<String>, value: f64) -> Self {
        Self { what: what.into(), value, most: None }
    }

    /// Returns the same row with a maximum.
    pub(crate) fn at_most(self, most: f64) -> Self {
        Self { most: Some(most), ..self }
    }
}

impl fmt::Display for ResultRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, most } = self;
        let (aim, verdict) = match most {
            Some(most) => (format!("<= {most}"), if value <= most { "met" } else { "MISSED" }),
            None => (String::new(), ""),
        };
        write!(formatter, "{what:<52} {value:>14.3} {aim:>10} {verdict}")
    }
}

/// Prints the table.
pub(crate) fn print(rows: &[ResultRow]) -> Result<()> {
    let mut table = stderr().lock();
    writeln!(table)?;
    for row in rows {
        writeln!(table, "{row}")?;
    }
    Ok(())
}

/// Prints a line during a run.
pub(crate) fn print_progress(text: &str) {
    // A closed standard error must not end the run.
    let _ = writeln!(stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_whether_the_target_is_met() {
        let line = |row: ResultRow| row.to_string().split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(line(ResultRow::new("cold s", 20.0).at_most(20.0)), "cold s 20.000 <= 20 met");
        assert_eq!(line(ResultRow::new("cold s", 20.1).at_most(20.0)), "cold s 20.100 <= 20 MISSED");
        assert_eq!(line(ResultRow::new("cold s", 20.1)), "cold s 20.100");
    }
}
