//! Columns for people.

/// Rows below their headings; each column as wide as it has to be, and a dash in an empty cell.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(ToString::to_string).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(rows).collect();
    let width = |at: usize| all.iter().map(|row| row.get(at).map_or(0, |cell| cell.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let shown = |cell: &str, width: usize| format!("{:width$}", if cell.is_empty() { "-" } else { cell });
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| shown(cell, *width)).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    all.iter().map(line).collect()
}

/// How long ago, in two units at most: what people compare at a glance.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..=119 => format!("{seconds}s"),
        120..=3599 => format!("{minutes}m{}s", seconds % 60),
        3600..=172_799 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}
