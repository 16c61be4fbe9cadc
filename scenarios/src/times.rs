//! The seconds of a trace at which batches are taken.

use crate::file::Seconds;
use serde::de::{
    Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer, value::SeqAccessDeserializer,
};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Most seconds of a range.
const MAX_TIMES: f64 = 1024.0;

/// A list of seconds, or a range of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Times {
    /// Each under all layouts; requests decode at all of them.
    List(Vec<Seconds>),
    /// Each under one layout in turn; those without a decoding request are left out.
    Range(TimeRange),
}

/// From one second to another, both included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeRange {
    from: Seconds,
    to: Seconds,
    every: Seconds,
}

impl TimeRange {
    fn checked(self) -> Result<Self, String> {
        let (from, to, every) = (self.from.0, self.to.0, self.every.0);
        // Times are told apart by milliseconds.
        if every < 1e-3 {
            return Err(format!("`every` {every} s must be at least 0.001 s"));
        }
        if from > to {
            return Err(format!("`from` {from} s must be at most `to` {to} s"));
        }
        if (to - from) / every >= MAX_TIMES {
            return Err(format!(
                "from {from} s to {to} s every {every} s are more than {MAX_TIMES} times; use a larger `every`"
            ));
        }
        Ok(self)
    }
}

impl Times {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Times::List(list) => list.len(),
            // What is lost in rounding must not cost the last one.
            Times::Range(range) => ((range.to.0 - range.from.0) / range.every.0 + 1e-6) as usize + 1,
        }
    }

    /// The seconds; those of a range in whole milliseconds.
    pub(crate) fn seconds(&self) -> Vec<f64> {
        match self {
            Times::List(list) => list.iter().map(|seconds| seconds.0).collect(),
            Times::Range(range) => {
                let second = |index: usize| range.from.0 + index as f64 * range.every.0;
                (0..self.count()).map(|index| (second(index) * 1e3).round() / 1e3).collect()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Checks a range while it is read, so that an error knows its key and line.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Times;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of seconds or `{{from: .., to: .., every: ..}}`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Times, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Times::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Times, A::Error> {
        let range = TimeRange::deserialize(MapAccessDeserializer::new(map))?;
        range.checked().map(Times::Range).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crate::{BatchSpec, Scenario};

    const GOOD: &str = "name: t\nheads: [[8, 2], [4, 4]]\npage_sizes: [16, 32]\ntrace:\n  generate: {requests: 40, requests_per_second: 2.0, turn_tokens: 900, output_tokens: 200, follow_ups: 0.5}\n  max_batch: 8\n  tokens_per_second: 20\n  prefill_tokens_per_second: 10000\n  at: {from: 10, to: 10.5, every: 0.1}\n";

    fn names(at: &str) -> Result<Vec<String>, String> {
        let text = GOOD.replace("{from: 10, to: 10.5, every: 0.1}", at);
        let scenario = Scenario::parse(&text, "test.yaml").map_err(|error| error.to_string())?;
        let specs = scenario.batches().map_err(|error| error.to_string())?;
        Ok(specs.iter().map(|spec: &BatchSpec| spec.name().to_owned()).collect())
    }

    #[test]
    fn lists_take_all_layouts_and_ranges_one_in_turn() {
        assert_eq!(names("[10, 10.5]").unwrap().len(), 2 * 4);
        let expected = [
            "t/at-10s/8x2/p16",
            "t/at-10.1s/4x4/p32",
            "t/at-10.2s/8x2/p32",
            "t/at-10.3s/4x4/p16",
            "t/at-10.4s/8x2/p16",
            "t/at-10.5s/4x4/p32",
        ];
        assert_eq!(names("{from: 10, to: 10.5, every: 0.1}").unwrap(), expected);
        assert_eq!(names("{from: 10, to: 10, every: 1}").unwrap(), ["t/at-10s/8x2/p16"]);
    }

    #[test]
    fn a_range_leaves_out_when_nobody_decodes_and_a_list_does_not() {
        let found = names("{from: 0, to: 200, every: 10}").unwrap();
        assert!((2..20).contains(&found.len()), "{found:?}");
        assert_eq!(found[0], "t/at-10s/8x2/p16", "the first time is idle and takes no turn");
        assert!(names("[0, 10]").unwrap_err().contains("decodes at 0 s"));
        assert!(names("{from: 5000, to: 6000, every: 10}").unwrap_err().contains("decodes at 5000 s"));
    }

    #[test]
    fn errors_name_line_and_key() {
        for (at, expected) in [
            ("[]", "trace.at: the list must not be empty"),
            ("[-1]", "must be from 0 to 1e9"),
            ("12", "a list of seconds or `{from: .., to: .., every: ..}`"),
            ("{from: 9, to: 3, every: 1}", "`from` 9 s must be at most `to` 3 s"),
            ("{from: 0, to: 3, every: 0}", "at least 0.001 s"),
            ("{from: 0, to: 1e6, every: 1}", "more than 1024 times"),
            ("{from: 0, to: 3, step: 1}", "unknown field `step`"),
            ("{from: 0, too: 3, every: 1}", "did you mean `to`?"),
            ("{from: 0, to: 3}", "missing field `every`"),
        ] {
            let error = names(at).unwrap_err();
            assert!(error.contains("test.yaml:9:") && error.contains(expected), "{at}: {error}");
        }
    }
}
