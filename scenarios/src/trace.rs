//! Traces of requests in the form published with Mooncake: JSON lines, one request each.

use crate::input;
use crate::words::in_words;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Tokens that one hash id stands for.
pub const BLOCK_TOKENS: u32 = 512;

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// When it arrived, in ms.
    pub timestamp: u64,
    /// Tokens of its prompt.
    pub input_length: u32,
    /// Tokens that were generated for it.
    pub output_length: u32,
    /// One id a block of [`BLOCK_TOKENS`] of its prompt, the last block may be part of one. Equal id, equal prefix.
    pub hash_ids: Vec<u64>,
}

/// Most bytes of a trace once it is decompressed; Mooncake's published ones have below 10 MB.
const MAX_BYTES: u64 = 256 << 20;

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The operating system refused, or the compressed data ends early.
    #[error("trace {path}: cannot {action}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// `read` or `write`.
        action: &'static str,
        /// What the system or the decompressor said.
        cause: io::Error,
    },
    /// A line is no request.
    #[error(
        "trace {path}, line {line}: {message}; a line looks like \
         {{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 50, \"hash_ids\": [0, 1]}}"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// There are no requests.
    #[error("trace {path}: there is no request in it")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// No request decodes at a time that a batch is wanted for.
    #[error(
        "no request of the trace decodes at {at} s; requests decode from {from:.1} s to {to:.1} s: choose a time in between"
    )]
    Idle {
        /// The time in s.
        at: String,
        /// When the first one begins, in s.
        from: f64,
        /// When the last one ends, in s.
        to: f64,
    },
}

/// Requests in the order of their arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<TraceRequest>,
}

impl Trace {
    /// Reads JSON lines; gzip if the name ends with `.gz`. Empty lines are skipped, unknown fields ignored.
    ///
    /// # Errors
    /// The file cannot be read, is cut off, or a line is no request.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let io = |cause| TraceError::Io { path: path.to_owned(), action: "read", cause };
        let file = input::open_regular(path).map_err(io)?;
        let reader: Box<dyn io::Read> =
            if is_gzip(path) { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let mut requests = Vec::new();
        let mut reader = BufReader::new(reader.take(MAX_BYTES + 1));
        let (mut line, mut bytes) = (Vec::new(), 0);
        for number in 1.. {
            let error = |message| TraceError::Line { path: path.to_owned(), line: number, message };
            match input::read_line(&mut reader, &mut line) {
                Ok(true) => bytes += line.len() as u64,
                Ok(false) => break,
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                    return Err(error(cause.to_string()));
                }
                Err(cause) => return Err(io(cause)),
            }
            if bytes > MAX_BYTES {
                return Err(error(format!("the trace has more than {MAX_BYTES} bytes; cut it into parts")));
            }
            let text = std::str::from_utf8(&line).map_err(|_| error("the line is not UTF-8".to_owned()))?;
            let text = input::without_mark(text).trim();
            if text.is_empty() {
                continue;
            }
            let request: TraceRequest =
                serde_json::from_str(text).map_err(|cause| error(json_message(&cause)))?;
            check(&request).map_err(error)?;
            requests.push(request);
        }
        if requests.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        requests.sort_by_key(|request| request.timestamp);
        Ok(Self { requests })
    }

    /// Writes JSON lines; gzip if the name ends with `.gz`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let io = |cause| TraceError::Io { path: path.to_owned(), action: "write", cause };
        let file = File::create(path).map_err(io)?;
        if is_gzip(path) {
            let mut encoder = GzEncoder::new(file, Compression::default());
            self.write_lines(&mut encoder).map_err(io)?;
            encoder.finish().map_err(io)?;
        } else {
            let mut file = io::BufWriter::new(file);
            self.write_lines(&mut file).map_err(io)?;
            file.flush().map_err(io)?;
        }
        Ok(())
    }

    fn write_lines(&self, out: &mut impl Write) -> io::Result<()> {
        for request in &self.requests {
            serde_json::to_writer(&mut *out, request)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// The requests in the order of their arrival.
    pub fn requests(&self) -> &[TraceRequest] {
        &self.requests
    }

    /// The part of all blocks that an earlier request had already.
    pub fn repeated_blocks(&self) -> f64 {
        let mut seen = std::collections::HashSet::new();
        let (mut blocks, mut repeats) = (0u64, 0u64);
        for id in self.requests.iter().flat_map(|request| &request.hash_ids) {
            blocks += 1;
            repeats += u64::from(!seen.insert(*id));
        }
        repeats as f64 / blocks.max(1) as f64
    }
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

fn check(request: &TraceRequest) -> Result<(), String> {
    if request.input_length == 0 {
        return Err("`input_length` must be at least 1".to_owned());
    }
    if request.input_length > 1 << 27 || request.output_length > 1 << 27 {
        return Err("a length of more than 2^27 tokens is no request".to_owned());
    }
    let blocks = request.input_length.div_ceil(BLOCK_TOKENS) as usize;
    if request.hash_ids.len() != blocks {
        return Err(format!(
            "`input_length` {} has {blocks} blocks of {BLOCK_TOKENS} tokens, `hash_ids` names {}",
            request.input_length,
            request.hash_ids.len()
        ));
    }
    Ok(())
}

/// What is wrong with a line, in words: its only line needs no number.
fn json_message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = in_words(message.split(" at line ").next().unwrap_or(&message));
    if error.column() == 0 { message } else { format!("column {}: {message}", error.column()) }
}

/// Makes traces like conversations with an assistant: everyone shares the first block (the system prompt), and a follow-up
/// repeats the blocks of the conversation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// How many requests.
    pub requests: u32,
    /// Arrivals per second, at random times.
    pub requests_per_second: f64,
    /// Mean tokens that a turn adds to the prompt.
    pub turn_tokens: u32,
    /// Mean tokens generated.
    pub output_tokens: u32,
    /// Part of the requests that go on with an earlier conversation.
    pub follow_ups: f64,
}

/// Most blocks that the requests of a generated trace name: 128 MiB.
const MAX_BLOCKS: u64 = 1 << 24;

/// Longest prompt that is generated.
const LONGEST_PROMPT: u32 = 128 * 1024;

impl Generator {
    /// Says which key is wrong and why, in words.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let whole = |key: &'static str, value: u32, most: u32| {
            let good = (1..=most).contains(&value);
            good.then_some(()).ok_or_else(|| (key, format!("{value} must be from 1 to {most}")))
        };
        whole("requests", self.requests, 1 << 20)?;
        whole("turn_tokens", self.turn_tokens, LONGEST_PROMPT)?;
        whole("output_tokens", self.output_tokens, LONGEST_PROMPT)?;
        if !(self.requests_per_second > 0.0 && self.requests_per_second <= 1e6) {
            let message = format!("{} must be above 0 and at most 1000000", self.requests_per_second);
            return Err(("requests_per_second", message));
        }
        if !(0.0..=1.0).contains(&self.follow_ups) {
            return Err(("follow_ups", format!("{} must be from 0 to 1", self.follow_ups)));
        }
        // A conversation has 1 / (1 - follow_ups) turns on average, and ends at twice the longest prompt.
        let mean = f64::from(self.turn_tokens) / (1.0 - self.follow_ups);
        let blocks = mean.min(f64::from(2 * LONGEST_PROMPT)) / f64::from(BLOCK_TOKENS) + 2.0;
        let blocks = (f64::from(self.requests) * blocks) as u64;
        if blocks > MAX_BLOCKS {
            let message = format!(
                "{} requests of these lengths name about {blocks} blocks, at most {MAX_BLOCKS} are allowed; \
                 lower `requests`, `turn_tokens` or `follow_ups`",
                self.requests
            );
            return Err(("requests", message));
        }
        Ok(())
    }

    /// The trace of a seed. The same numbers and seed give the same trace.
    pub fn generate(&self, seed: u64) -> Trace {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Lengths and gaps of a Poisson process: many short ones, few long ones.
        let exponential =
            |rng: &mut ChaCha8Rng, mean: f64| -mean * (1.0 - rng.random_range(0.0..1.0f64)).ln();
        let mut now_ms = 0.0;
        let mut next_id = 1;
        let mut requests: Vec<TraceRequest> = Vec::with_capacity(self.requests as usize);
        for _ in 0..self.requests {
            let mut prefix = (0, vec![0]);
            if !requests.is_empty() && rng.random_bool(self.follow_ups) {
                let earlier = &requests[rng.random_range(0..requests.len())];
                let full = (earlier.input_length / BLOCK_TOKENS) as usize;
                if full > 0 && earlier.input_length < LONGEST_PROMPT {
                    prefix = (earlier.input_length, earlier.hash_ids[..full].to_vec());
                }
            }
            let (said, mut hash_ids) = prefix;
            let turn = exponential(&mut rng, f64::from(self.turn_tokens))
                .clamp(1.0, f64::from(LONGEST_PROMPT)) as u32;
            // At least the system prompt and one token.
            let input_length = (said + turn).max(BLOCK_TOKENS + 1);
            while (hash_ids.len() as u32) < input_length.div_ceil(BLOCK_TOKENS) {
                hash_ids.push(next_id);
                next_id += 1;
            }
            let output_length =
                exponential(&mut rng, f64::from(self.output_tokens)).clamp(1.0, f64::from(LONGEST_PROMPT));
            requests.push(TraceRequest {
                timestamp: now_ms as u64,
                input_length,
                output_length: output_length as u32,
                hash_ids,
            });
            now_ms += exponential(&mut rng, 1e3 / self.requests_per_second);
        }
        Trace { requests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATOR: Generator = Generator {
        requests: 300,
        requests_per_second: 3.0,
        turn_tokens: 4000,
        output_tokens: 300,
        follow_ups: 0.4,
    };

    fn written(name: &str, text: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn what_is_generated_is_written_and_read_back() {
        let trace = GENERATOR.generate(1);
        let folder = tempfile::tempdir().unwrap();
        for name in ["t.jsonl", "t.jsonl.gz"] {
            let path = folder.path().join(name);
            trace.write(&path).unwrap();
            assert_eq!(Trace::read(&path).unwrap(), trace);
        }
    }

    #[test]
    fn conversations_share_the_system_prompt_and_repeat_blocks() {
        let trace = GENERATOR.generate(1);
        assert!(trace.requests().iter().all(|request| request.hash_ids[0] == 0 && check(request).is_ok()));
        let repeats = trace.repeated_blocks();
        assert!((0.25..0.6).contains(&repeats), "{repeats}");
        assert_eq!(trace, GENERATOR.generate(1));
        assert_ne!(trace, GENERATOR.generate(2));
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;
        for (bad, message) in [
            ("{", "EOF"),
            (r#"{"timestamp": 0}"#, "missing field `input_length`"),
            (
                r#"{"timestamp": -1, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#,
                "column 16: expected a whole number of at least 0, found -1",
            ),
            (r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0]}"#, "has 2 blocks"),
            (r#"{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}"#, "at least 1"),
        ] {
            let (_folder, path) = written("bad.jsonl", format!("{good}\n\n{bad}\n").as_bytes());
            let error = Trace::read(&path).unwrap_err().to_string();
            assert!(error.contains("bad.jsonl, line 3") && error.contains(message), "{error}");
        }
    }

    #[test]
    fn an_empty_a_missing_and_a_cut_off_trace_are_clear_errors() {
        let (_folder, path) = written("empty.jsonl", b"\n");
        assert!(matches!(Trace::read(&path), Err(TraceError::Empty { .. })));
        assert!(matches!(Trace::read(Path::new("no.jsonl")), Err(TraceError::Io { .. })));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.jsonl.gz");
        GENERATOR.generate(1).write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(matches!(Trace::read(&path), Err(TraceError::Io { .. } | TraceError::Line { .. })));
    }
}
