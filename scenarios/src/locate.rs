//! Where a key or an element of a list stands in a YAML text.
//!
//! Parsers forget where values stood once they are read, and say where the map began that an error was in.

/// A step from a value into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The value of a key.
    Key(String),
    /// An element of a list.
    Index(usize),
}

/// The way as people write it: `mix[0].tokens`.
pub(crate) fn written(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text += key,
            Step::Key(key) => text.extend([".", key]),
            Step::Index(index) => text += &format!("[{index}]"),
        }
    }
    text
}

/// A message behind the way to what it is about.
pub(crate) fn behind(path: &[Step], message: &str) -> String {
    if path.is_empty() { message.to_owned() } else { format!("{}: {message}", written(path)) }
}

/// The way to a key of the file, or of a map in it.
pub(crate) fn keys(keys: &[&str]) -> Vec<Step> {
    keys.iter().map(|&key| Step::Key(key.to_owned())).collect()
}

/// The line, from 1, of what `path` leads to, or of the last of its steps that can be found.
///
/// `occurrence` counts those of the last key in its map, from 0: keys that are given twice.
pub(crate) fn line_of(text: &str, path: &[Step], occurrence: usize) -> usize {
    let mut at = Place { start: 0, column: 0 };
    let mut line = 1;
    for (number, step) in path.iter().enumerate() {
        let skip = if number + 1 == path.len() { occurrence } else { 0 };
        let Some((key, value)) = at.enter(text, step, skip) else { break };
        line = 1 + text[..key].matches('\n').count();
        at = value;
    }
    line
}

/// Where a value begins, and the first column that is inside it.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    column: usize,
}

impl Place {
    /// Where the key or the element begins, and its value.
    fn enter(self, text: &str, step: &Step, skip: usize) -> Option<(usize, Self)> {
        let start = self.start + blank(&text[self.start..]);
        match text[start..].chars().next()? {
            '{' | '[' => in_flow(text, start, step, skip),
            _ => in_block(text, start, self.column, step, skip),
        }
    }
}

/// Bytes of white space, comments and markers of documents.
fn blank(text: &str) -> usize {
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start();
        rest = match trimmed {
            _ if trimmed.starts_with('#') => trimmed.find('\n').map_or("", |end| &trimmed[end..]),
            _ if trimmed.starts_with("---") => &trimmed[3..],
            _ => return text.len() - trimmed.len(),
        };
    }
}

/// The text behind `key:`, with or without quotes around the key.
fn behind_key<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let rest = match quote {
        Some(quote) => text[1..].strip_prefix(key)?.strip_prefix(quote)?,
        None => text.strip_prefix(key)?,
    };
    rest.trim_start_matches(' ').strip_prefix(':')
}

fn in_flow(text: &str, start: usize, step: &Step, mut skip: usize) -> Option<(usize, Place)> {
    let (mut depth, mut element, mut quote, mut fresh) = (0usize, 0usize, None, false);
    for (offset, c) in text[start..].char_indices() {
        let at = start + offset;
        if fresh && !c.is_whitespace() {
            fresh = false;
            let behind = match step {
                Step::Key(key) => behind_key(&text[at..], key),
                Step::Index(index) => (element == *index && c != ']').then(|| &text[at..]),
            };
            if let Some(behind) = behind {
                if skip == 0 {
                    return Some((at, Place { start: text.len() - behind.len(), column: 0 }));
                }
                skip -= 1;
            }
        }
        match (quote, c) {
            (Some(open), _) => quote = Some(open).filter(|_| c != open),
            (None, '"' | '\'') => quote = Some(c),
            (None, '{' | '[') => {
                depth += 1;
                fresh = depth == 1;
            }
            (None, '}' | ']') if depth == 1 => return None,
            (None, '}' | ']') => depth -= 1,
            (None, ',') if depth == 1 => (element, fresh) = (element + 1, true),
            _ => {}
        }
    }
    None
}

fn in_block(text: &str, start: usize, least: usize, step: &Step, mut skip: usize) -> Option<(usize, Place)> {
    let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
    let column = start - line_start;
    if column < least {
        // Nothing is inside: this is the next value of something above.
        return None;
    }
    let (mut at, mut element) = (start, 0);
    loop {
        let here = &text[at..];
        let found = match step {
            Step::Key(key) => behind_key(here, key).map(|behind| (text.len() - behind.len(), column + 1)),
            Step::Index(index) => match here.strip_prefix('-') {
                Some(behind) => {
                    element += 1;
                    (element == index + 1).then_some((text.len() - behind.len(), column + 1))
                }
                None => return None,
            },
        };
        if let Some((behind, inside)) = found {
            if skip == 0 {
                // A list may stand right below its key, no deeper.
                let next = behind + blank(&text[behind..]);
                let list_below = matches!(step, Step::Key(_)) && text[next..].starts_with("- ");
                let inside = if list_below { column } else { inside };
                return Some((at, Place { start: behind, column: inside }));
            }
            skip -= 1;
        }
        // The next line of this map or list.
        loop {
            let end = at + text[at..].find('\n')? + 1;
            let next = end + blank(&text[end..]);
            if next >= text.len() {
                return None;
            }
            let indent = next - text[..next].rfind('\n').map_or(0, |end| end + 1);
            at = next;
            if indent < column {
                return None;
            }
            if indent == column {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a\nname: t # b\nmix:\n- tokens: 1\n  children:\n    - tokens: 2\n    # c\n    - {tokens: 3, x: [4,\n      5]}\n- \"tokens\": 6\n  repeat: 7\n  repeat: 8\ntrace: {file: 'a, b: c', at: [1,\n  2]}\nseed: 9\n";

    fn line(path: &str, occurrence: usize) -> usize {
        let step = |step: &str| step.parse().map_or_else(|_| Step::Key(step.to_owned()), Step::Index);
        line_of(TEXT, &path.split('.').map(step).collect::<Vec<_>>(), occurrence)
    }

    #[test]
    fn keys_and_elements_are_found_in_blocks_and_in_flow() {
        for (path, expected) in [
            ("name", 2),
            ("mix", 3),
            ("mix.0", 4),
            ("mix.0.tokens", 4),
            ("mix.0.children", 5),
            ("mix.0.children.0.tokens", 6),
            ("mix.0.children.1.tokens", 8),
            ("mix.0.children.1.x.0", 8),
            ("mix.0.children.1.x.1", 9),
            ("mix.1.tokens", 10),
            ("mix.1.repeat", 11),
            ("trace.file", 13),
            ("trace.at.1", 14),
            ("seed", 15),
        ] {
            assert_eq!(line(path, 0), expected, "{path}");
        }
        assert_eq!(line("mix.1.repeat", 1), 12, "the second of two");
    }

    #[test]
    fn what_is_not_there_is_where_its_map_is() {
        for (path, expected) in [("mix.1.children", 10), ("mix.7.tokens", 3), ("trace.b", 13), ("other", 1)] {
            assert_eq!(line(path, 0), expected, "{path}");
        }
        assert_eq!(line_of("", &[Step::Key("a".to_owned())], 0), 1);
    }
}
