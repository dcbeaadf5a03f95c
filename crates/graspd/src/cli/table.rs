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

/// A column of a list: its heading, its alignment, and the text of a cell.
pub(crate) struct Column<Item> {
    heading: &'static str,
    align: Align,
    cell: fn(&Item) -> String,
}

impl<Item> Column<Item> {
    /// A column with text.
    pub(crate) const fn text(heading: &'static str, cell: fn(&Item) -> String) -> Self {
        Self { heading, align: Align::Left, cell }
    }

    /// A column with numbers.
    pub(crate) const fn number(heading: &'static str, cell: fn(&Item) -> String) -> Self {
        Self { heading, align: Align::Right, cell }
    }
}

/// A table. `Display` aligns the columns, and prints a line of headings unless all of them are empty.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns and no rows.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Returns a table of a list.
    pub(crate) fn of_items<Item>(columns: &[Column<Item>], items: &[Item]) -> Self {
        let mut table = Self::new(&columns.iter().map(|column| (column.heading, column.align)).collect::<Vec<_>>());
        items.iter().for_each(|item| table.row(columns.iter().map(|column| (column.cell)(item))));
        table
    }

    /// Returns a table for names and values, without headings.
    pub(crate) fn of_facts() -> Self {
        Self::new(&[("", Align::Left), ("", Align::Left)])
    }

    /// Adds a row. Control characters in the cells are replaced.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| terminal_safe(&cell)).collect());
    }

    /// Adds a row with a name and a value.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.row([name.to_owned(), value.into()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
        let has_headings = headings.iter().any(|heading| !heading.is_empty());
        let rows = || has_headings.then_some(&headings).into_iter().chain(&self.rows);
        let width =
            |nth: usize| rows().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (nth, row) in rows().enumerate() {
            let mut line = String::new();
            for (((cell, width), (_, align)), gap) in
                row.iter().zip(&widths).zip(&self.columns).zip(std::iter::once("").chain(std::iter::repeat("  ")))
            {
                line += gap;
                line += &match align {
                    Align::Left => format!("{cell:width$}"),
                    Align::Right => format!("{cell:>width$}"),
                };
            }
            write!(f, "{}{}", if nth > 0 { "\n" } else { "" }, line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let columns: [Column<(&str, u64, &str)>; 3] = [
            Column::text("NAME", |item| item.0.to_owned()),
            Column::number("REPOS", |item| item.1.to_string()),
            Column::text("WHY", |item| item.2.to_owned()),
        ];
        let table = Table::of_items(&columns, &[("wss://a.example", 7, ""), ("b", 1_234_567, "no connection")]);
        let expected =
            "NAME               REPOS  WHY\nwss://a.example        7\nb                1234567  no connection";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn facts_have_no_headings() {
        let mut facts = Table::of_facts();
        facts.fact("files", "2");
        facts.fact("  of these", "1");
        assert_eq!(facts.to_string(), "files       2\n  of these  1");
    }
}
