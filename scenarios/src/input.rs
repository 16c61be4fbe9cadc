//! Reading files that someone else wrote: regular files only, and never more than a limit.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Most bytes of a scenario file.
const MAX_SCENARIO_BYTES: u64 = 1 << 20;
/// Deepest nesting of brackets and of indentation in a scenario file. A mix has at most 64 levels, each a list in a map.
const MAX_NESTING: usize = 160;
/// Most bytes of a line of a trace: a request of 2^27 tokens names 262 144 blocks of up to 20 digits.
const MAX_LINE_BYTES: u64 = 8 << 20;

/// Opens a regular file. A pipe would block, a device such as `/dev/zero` never ends.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: opening a pipe waits for its writer.
    let metadata = std::fs::metadata(path)?;
    if metadata.is_file() {
        return File::open(path);
    }
    let kind = if metadata.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
    Err(invalid(format!("it is {kind}; name a regular file (write the data to one first)")))
}

/// Reads the text of a scenario; a byte order mark in front is dropped.
pub(crate) fn read_scenario(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(MAX_SCENARIO_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SCENARIO_BYTES {
        let message = format!("it has more than {MAX_SCENARIO_BYTES} bytes; split it into several scenarios");
        return Err(invalid(message));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        invalid(format!("line {line} is not UTF-8; save it as UTF-8"))
    })?;
    Ok(without_mark(&text).to_owned())
}

/// The text without a byte order mark.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The first line, from 1, that nests deeper than a scenario can. YAML parsers need quadratic time for deep nesting.
pub(crate) fn too_deep(text: &str) -> Option<(usize, String)> {
    let mut depth = 0usize;
    for (index, line) in text.lines().enumerate() {
        // Brackets in comments and quoted text count as well: an opening without its end is rare there, 160 of them are no text.
        let dashes = line
            .split(' ')
            .take_while(|word| matches!(*word, "" | "-" | "?"))
            .filter(|word| !word.is_empty());
        if dashes.count() > MAX_NESTING {
            return Some((index + 1, format!("more than {MAX_NESTING} nested lists in a line")));
        }
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_NESTING {
                return Some((index + 1, format!("more than {MAX_NESTING} nested `[` and `{{`")));
            }
        }
    }
    None
}

/// Reads the next line of a trace into `line`, without its end. `false` at the end of the file.
pub(crate) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = reader.take(MAX_LINE_BYTES + 1).read_until(b'\n', line)?;
    if read as u64 > MAX_LINE_BYTES {
        return Err(invalid(format!(
            "a line has more than {MAX_LINE_BYTES} bytes; a trace has one request a line"
        )));
    }
    Ok(read > 0)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
