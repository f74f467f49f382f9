//! Results on standard output: aligned tables for people, stable JSON for programs.

use std::borrow::Cow;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// How a result is printed: in aligned columns that may change between versions, or as one JSON
/// document to which fields are only ever added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    Json,
}

/// `-o/--output` of the commands that list, describe or report.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// How to print the result
    #[arg(short = 'o', long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: OutputFormat,
}

/// How a column lines up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows under a heading, printed without lines so that `awk` and people both read them.
pub struct Grid {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new(columns: &[(&'static str, Align)]) -> Grid {
        Grid {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has one cell for each column. What a terminal would obey is escaped.
    pub fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let cells = cells.into_iter().map(|cell| match clean(&cell) {
            Cow::Borrowed(_) => cell,
            Cow::Owned(escaped) => escaped,
        });
        self.rows.push(cells.collect());
    }

    /// The table as text, each line without trailing blanks, with a final newline.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.columns.iter().map(|(name, _)| *name));
        for row in &self.rows {
            table.add_row(row);
        }
        for (index, (_, align)) in self.columns.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2));
                if *align == Align::Right {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text from elsewhere as a person may see it: names of groups, members and clients hold whatever
/// somebody sent, and what a terminal would obey, or would not show, is escaped.
pub fn clean(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable)
}

/// As [`clean`], for text of several lines.
pub fn clean_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unprintable(c))
}

/// Control characters, and those that change the direction of text or have no width.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// Prints text to standard output; a closed pipe is an error of kind `BrokenPipe`.
///
/// # Errors
/// Those of the write.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints one JSON document, indented, with a final newline.
///
/// # Errors
/// Those of the write.
pub fn print_json<T: Serialize>(value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    text.push('\n');
    print(&text)
}

/// `1.2 kB`, `34.0 MB`: powers of ten, as network and disk people count.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `1,234,567`.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 record`, `2 records`, `0 records`.
pub fn plural(count: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        show_count(count),
        if count == 1 { one } else { many }
    )
}

/// `1.2 s, 83,000/s`: how long it took, and how fast that was.
pub fn show_duration_rate(count: u64, elapsed: std::time::Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let shown = super::time::show_duration(elapsed);
    if seconds <= 0.0 || count < 2 {
        return shown;
    }
    format!("{shown}, {}/s", show_count((count as f64 / seconds) as u64))
}

/// `1,2,3`, or a dash for nothing.
pub fn show_ids<T: std::fmt::Display>(ids: &[T]) -> String {
    if ids.is_empty() {
        return "-".to_owned();
    }
    ids.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_lines_up_without_trailing_blanks() {
        let mut grid = Grid::new(&[("TOPIC", Align::Left), ("PARTITIONS", Align::Right)]);
        grid.row(["orders".to_owned(), "12".to_owned()]);
        grid.row(["a-much-longer-name".to_owned(), "3".to_owned()]);
        assert_eq!(
            grid.render(),
            "TOPIC               PARTITIONS\norders                      12\na-much-longer-name           3\n"
        );
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_in_every_table() {
        let mut grid = Grid::new(&[("GROUP", Align::Left), ("STATE", Align::Left)]);
        let hostile = "a\u{1b}[2Jb\r\nc\td\u{9b}1m\u{202e}";
        grid.row([hostile.to_owned(), "Größe ✓".to_owned()]);
        let row = r"a\u{1b}[2Jb\r\nc\td\u{9b}1m\u{202e}  Größe ✓";
        assert_eq!(grid.render().lines().nth(1), Some(row));
        assert_eq!(grid.render().lines().count(), 2);
        assert_eq!(clean_lines("a\nb\u{7}"), "a\nb\\u{7}");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(show_count(0), "0");
        assert_eq!(show_count(999), "999");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_bytes(999), "999 B");
        assert_eq!(show_bytes(34_000_000), "34.0 MB");
        assert_eq!(plural(1, "record", "records"), "1 record");
        assert_eq!(show_ids::<i32>(&[]), "-");
        assert_eq!(show_ids(&[1, 2]), "1,2");
    }
}
