//! Frames on a pipe: a little-endian u32 that counts bytes, then the bytes. Malformed ones are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};

/// A longer message than any in use: a length beyond it is no length, but something else that was written to the pipe.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Numbers that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;

fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

fn write_length(output: &mut dyn Write, bytes: usize) -> io::Result<()> {
    let length = u32::try_from(bytes).map_err(|_| invalid(format!("{bytes} bytes do not fit one frame")))?;
    output.write_all(&length.to_le_bytes())
}

/// The next frame's length; `None` if the pipe ended before it.
fn read_length(input: &mut dyn Read) -> io::Result<Option<usize>> {
    let mut length = [0; 4];
    let mut filled = 0;
    while filled < length.len() {
        match input.read(&mut length[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(u32::from_le_bytes(length) as usize))
}

/// Sends a message.
pub(super) fn send(output: &mut dyn Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(invalid(format!("a message of {} MB is too long", text.len() >> 20)));
    }
    write_length(output, text.len())?;
    output.write_all(&text)?;
    output.flush()
}

/// Waits for a message; `None` if the pipe ended between two.
pub(super) fn receive<T: DeserializeOwned>(input: &mut dyn Read) -> io::Result<Option<T>> {
    let Some(length) = read_length(input)? else { return Ok(None) };
    if length > MAX_MESSAGE_BYTES {
        return Err(invalid(format!("a message cannot have {length} bytes")));
    }
    let mut text = Vec::new();
    if input.take(length as u64).read_to_end(&mut text)? < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// The frame of a page table and lengths, ready to be written.
pub(super) fn numbers(page_table: &[i32], seq_lens: &[u32]) -> io::Result<Vec<u8>> {
    let bytes = 4 * (page_table.len() + seq_lens.len());
    let mut frame = Vec::with_capacity(4 + bytes);
    write_length(&mut frame, bytes)?;
    frame.extend(page_table.iter().flat_map(|entry| entry.to_le_bytes()));
    frame.extend(seq_lens.iter().flat_map(|len| len.to_le_bytes()));
    Ok(frame)
}

/// Reads the frame of a page table: entries, then lengths.
pub(super) fn read_numbers(
    input: &mut dyn Read,
    entries: usize,
    requests: usize,
) -> io::Result<(Vec<i32>, Vec<u32>)> {
    let found = read_length(input)?.ok_or(ErrorKind::UnexpectedEof)?;
    let expected = entries.checked_add(requests).and_then(|count| count.checked_mul(4));
    if expected != Some(found) {
        return Err(invalid(format!("{found} bytes for {entries} entries and {requests} lengths")));
    }
    let page_table = read_array(input, entries, i32::from_le_bytes)?;
    Ok((page_table, read_array(input, requests, u32::from_le_bytes)?))
}

fn read_array<T>(input: &mut dyn Read, count: usize, decode: fn([u8; 4]) -> T) -> io::Result<Vec<T>> {
    // Grows with what really comes: a wrong count must not take the memory.
    let mut array = Vec::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    while array.len() < count {
        let bytes = CHUNK_BYTES.min(4 * (count - array.len()));
        input.read_exact(&mut buffer[..bytes])?;
        let (words, _) = buffer[..bytes].as_chunks::<4>();
        array.extend(words.iter().map(|&word| decode(word)));
    }
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_numbers_survive_and_the_end_is_told_from_a_cut() {
        let mut pipe = Vec::new();
        send(&mut pipe, &vec!["a", "b"]).unwrap();
        let table: Vec<i32> = (-5..40_000).collect();
        pipe.extend(numbers(&table, &[1, u32::MAX]).unwrap());
        let mut input = pipe.as_slice();
        assert_eq!(receive::<Vec<String>>(&mut input).unwrap().unwrap(), ["a", "b"]);
        assert_eq!(read_numbers(&mut input, table.len(), 2).unwrap(), (table, vec![1, u32::MAX]));
        assert!(receive::<Vec<String>>(&mut input).unwrap().is_none());

        for cut in [2, 5] {
            let error = receive::<Vec<String>>(&mut &pipe[..cut]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{cut}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut text = b"hello, world".as_slice();
        assert_eq!(receive::<Vec<String>>(&mut text).unwrap_err().kind(), ErrorKind::InvalidData);
        let mut short = numbers(&[1, 2], &[3]).unwrap();
        assert!(read_numbers(&mut short.as_slice(), 3, 1).is_err());
        assert!(read_numbers(&mut short.as_slice(), usize::MAX, 1).is_err());
        short.truncate(9);
        assert!(read_numbers(&mut short.as_slice(), 2, 1).is_err());
    }
}
