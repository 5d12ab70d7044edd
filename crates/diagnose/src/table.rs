//! Tables of text.

/// Formats rows under headings, with the necessary width for each column.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(ToString::to_string).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(rows).collect();
    let width = |at: usize| all.iter().map(|row| row.get(at).map_or(0, |cell| cell.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    all.iter().map(line).collect()
}

/// A duration in at most two units.
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

/// The text, or a dash if it is empty.
pub fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
