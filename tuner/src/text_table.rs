//! Tables of text.

/// The lines of a table: columns padded to their widest cell, numbers to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let format = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, &width) in cells.zip(&widths) {
            let number = cell.starts_with(|c: char| c.is_ascii_digit()) && cell.parse::<f64>().is_ok();
            // A format's width has 16 bits and panics above.
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) = if number { (padding.as_str(), "") } else { ("", padding.as_str()) };
            line.extend([before, cell, after, "  "]);
        }
        line.trim_end().to_owned()
    };
    let head = format(&mut header.iter().copied());
    std::iter::once(head).chain(rows.iter().map(|row| format(&mut row.iter().map(String::as_str)))).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn a_cell_of_more_than_65535_characters_is_written() {
        let long = "n".repeat(70_000);
        let lines = table(
            &["name", "us"],
            &[vec![long.clone(), "1".to_owned()], vec!["a".to_owned(), "2".to_owned()]],
        );
        assert!(lines[1].starts_with(&long) && lines[2].len() == lines[1].len());
    }

    #[test]
    fn columns_fit_their_cells_and_numbers_are_to_the_right() {
        let rows =
            [["a", "9.5", "-"], ["long name", "120.25", "µ"]].map(|row| row.map(str::to_owned).to_vec());
        let lines = table(&["name", "us", "sign"], &rows);
        assert_eq!(lines, ["name       us      sign", "a             9.5  -", "long name  120.25  µ"]);
    }
}
