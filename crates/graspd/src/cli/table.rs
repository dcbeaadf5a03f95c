//! Tables with aligned columns for the terminal.

use std::fmt;

use crate::text_format::terminal_safe;

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// A column: its heading and its alignment.
pub(crate) type Column = (&'static str, Align);

/// A table with a line of headings. `Display` aligns the columns.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns and no rows.
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. Control characters in the cells are replaced.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| terminal_safe(cell)).collect());
    }

    /// Returns whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |(nth, (heading, _)): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count());
            cells.chain([heading.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
        for (nth, row) in std::iter::once(&headings).chain(&self.rows).enumerate() {
            if nth > 0 {
                f.write_str("\n")?;
            }
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let gap = if line.is_empty() { "" } else { "  " };
                line += gap;
                line += &match align {
                    Align::Left => format!("{cell:width$}"),
                    Align::Right => format!("{cell:>width$}"),
                };
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("NAME", Align::Left), ("REPOS", Align::Right), ("WHY", Align::Left)]);
        assert!(table.is_empty());
        table.row(["wss://a.example".to_owned(), "7".to_owned(), String::new()]);
        table.row(["b".to_owned(), "1234567".to_owned(), "no connection".to_owned()]);
        let expected =
            "NAME               REPOS  WHY\nwss://a.example        7\nb                1234567  no connection";
        assert_eq!(table.to_string(), expected);
    }
}
