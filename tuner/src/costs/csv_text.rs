//! CSV as RFC 4180 has it: commas, cells in quotes where they hold commas, quotes or line breaks.

use std::borrow::Cow;

/// A record, and the line of the text that it begins on, from 1.
pub(super) type Record<'a> = (usize, Vec<Cow<'a, str>>);

/// What is no CSV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoCsv {
    pub(super) line: usize,
    pub(super) detail: &'static str,
}

/// All records. Empty lines are none; blanks around a cell without quotes are not part of it.
pub(super) fn records(text: &str) -> Result<Vec<Record<'_>>, NoCsv> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut records, mut line) = (Vec::new(), 1);
    while !rest.is_empty() {
        let (first_line, mut cells) = (line, Vec::new());
        loop {
            let (cell, after) = cell(rest, &mut line)?;
            cells.push(cell);
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None => {
                    rest = after
                        .strip_prefix("\r\n")
                        .or_else(|| after.strip_prefix(['\n', '\r']))
                        .unwrap_or(after);
                    line += 1;
                    break;
                }
            }
        }
        if !matches!(&cells[..], [only] if only.is_empty()) {
            records.push((first_line, cells));
        }
    }
    Ok(records)
}

/// The names in a list such as `a,"b,c"`.
pub(super) fn names(list: &str) -> Result<Vec<String>, NoCsv> {
    let records = records(list)?;
    Ok(records.into_iter().flat_map(|(_, cells)| cells).map(Cow::into_owned).collect())
}

/// The next cell, and what is behind it: a comma, the end of a line, or nothing.
fn cell<'a>(text: &'a str, line: &mut usize) -> Result<(Cow<'a, str>, &'a str), NoCsv> {
    const ENDS: [char; 3] = [',', '\n', '\r'];
    let Some(quoted) = text.trim_start_matches([' ', '\t']).strip_prefix('"') else {
        let end = text.find(ENDS).unwrap_or(text.len());
        return Ok((Cow::Borrowed(text[..end].trim()), &text[end..]));
    };
    let begin = *line;
    let mut cell = String::new();
    let mut rest = quoted;
    loop {
        let Some(end) = rest.find('"') else {
            return Err(NoCsv { line: begin, detail: "a quote is not closed" });
        };
        cell += &rest[..end];
        *line += rest[..end].matches('\n').count();
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                cell.push('"');
                rest = more;
            }
            None => break,
        }
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    if rest.is_empty() || rest.starts_with(ENDS) {
        Ok((Cow::Owned(cell), rest))
    } else {
        Err(NoCsv { line: *line, detail: "there is text behind a closing quote" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Vec<String>)> {
        let owned = |(line, cells): Record<'_>| (line, cells.into_iter().map(Cow::into_owned).collect());
        records(text).unwrap().into_iter().map(owned).collect()
    }

    #[test]
    fn records_have_the_line_that_they_begin_on() {
        let text = "\u{feff}a, b ,\"c \"\"d\"\",\ne\"\r\n1,,\n\n2,\"3\",4";
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        assert_eq!(
            read(text),
            [(1, row(["a", "b", "c \"d\",\ne"])), (3, row(["1", "", ""])), (5, row(["2", "3", "4"]))]
        );
    }

    #[test]
    fn broken_quotes_are_refused_with_their_line() {
        assert_eq!(records("a\nb\n\"c\nd"), Err(NoCsv { line: 3, detail: "a quote is not closed" }));
        let behind = Err(NoCsv { line: 2, detail: "there is text behind a closing quote" });
        assert_eq!(records("a\n\"b\"c\n"), behind);
    }

    #[test]
    fn names_may_hold_commas_in_quotes() {
        assert_eq!(names("rows,\"kv,len\"").unwrap(), ["rows", "kv,len"]);
    }
}
