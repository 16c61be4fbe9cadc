//! Batches of several tenants: system prompts, each with requests of its own, and requests that share nothing, as a server of many has them.
//!
//! Every number is drawn from a range, by a generator that is seeded with the scenario's seed and the batch's number: a batch is the same
//! however many there are.

use crate::{Layout, LayoutRequest};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// What is drawn, and from where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantsKeys {
    /// How many batches are drawn.
    pub(crate) batches: u32,
    /// System prompts of a batch.
    #[serde(default = "prompts")]
    pub(crate) prompts: Range,
    /// Tokens of a prompt, rounded up to whole pages.
    #[serde(default = "prompt_tokens")]
    pub(crate) prompt_tokens: Range,
    /// Requests of a prompt.
    #[serde(default = "requests")]
    pub(crate) requests: Range,
    /// Documents of a prompt: what requests of it go on with, each of several requests.
    #[serde(default = "documents")]
    pub(crate) documents: Range,
    /// Tokens of a document, rounded up to whole pages.
    #[serde(default = "document_tokens")]
    pub(crate) document_tokens: Range,
    /// Tokens that a request has for itself.
    #[serde(default = "own_tokens")]
    pub(crate) own_tokens: Range,
    /// Requests that share nothing.
    #[serde(default = "lone")]
    pub(crate) lone: Range,
    /// Tokens of such a request.
    #[serde(default = "own_tokens")]
    pub(crate) lone_tokens: Range,
}

/// Whole numbers from `min` to `max`: all of them as likely, or, with `log`, their orders of magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    pub(crate) min: u32,
    pub(crate) max: u32,
    #[serde(default)]
    pub(crate) log: bool,
}

const fn range(min: u32, max: u32, log: bool) -> Range {
    Range { min, max, log }
}

fn prompts() -> Range {
    range(2, 8, false)
}

fn prompt_tokens() -> Range {
    range(256, 8192, true)
}

fn requests() -> Range {
    range(1, 48, true)
}

fn documents() -> Range {
    range(0, 0, false)
}

fn document_tokens() -> Range {
    range(256, 4096, true)
}

fn own_tokens() -> Range {
    range(17, 2500, false)
}

fn lone() -> Range {
    range(0, 20, false)
}

/// Most batches of a scenario.
const MOST_BATCHES: u32 = 4096;
/// Most requests that a batch may have, and most tokens of a node.
const MOST_REQUESTS: u64 = 1 << 16;
const MOST_TOKENS: u32 = 1 << 24;

impl Range {
    fn check(&self, name: &'static str, least: u32, most: u32) -> Result<(), (&'static str, String)> {
        let Self { min, max, log } = *self;
        if min > max {
            return Err((name, format!("`{name}`: min {min} is more than max {max}")));
        }
        if min < least || max > most {
            return Err((name, format!("`{name}`: {min} to {max} must be within {least} and {most}")));
        }
        if log && min == 0 {
            return Err((name, format!("`{name}`: with `log: true`, min must be at least 1")));
        }
        Ok(())
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> u32 {
        if !self.log || self.min == self.max {
            return rng.random_range(self.min..=self.max);
        }
        let (low, high) = (f64::from(self.min).ln(), (f64::from(self.max) + 1.0).ln());
        (rng.random_range(low..high).exp() as u32).clamp(self.min, self.max)
    }
}

impl TenantsKeys {
    /// Says which key is wrong, and what is right.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=MOST_BATCHES).contains(&self.batches) {
            let message = format!("`batches`: {} must be from 1 to {MOST_BATCHES}", self.batches);
            return Err(("batches", message));
        }
        self.prompts.check("prompts", 0, 1 << 12)?;
        self.requests.check("requests", 1, 1 << 16)?;
        self.documents.check("documents", 0, 1 << 10)?;
        self.lone.check("lone", 0, 1 << 16)?;
        for (name, tokens) in [
            ("prompt_tokens", &self.prompt_tokens),
            ("document_tokens", &self.document_tokens),
            ("own_tokens", &self.own_tokens),
            ("lone_tokens", &self.lone_tokens),
        ] {
            tokens.check(name, 1, MOST_TOKENS)?;
        }
        if self.prompts.min == 0 && self.lone.min == 0 {
            return Err((
                "prompts",
                "`prompts` and `lone`: one of them needs a min of at least 1".to_owned(),
            ));
        }
        let most = u64::from(self.prompts.max) * u64::from(self.requests.max) + u64::from(self.lone.max);
        if most > MOST_REQUESTS {
            let message = format!("`requests`: up to {most} requests a batch are more than {MOST_REQUESTS}");
            return Err(("requests", message));
        }
        Ok(())
    }

    /// The batch with this number.
    pub(crate) fn layout(&self, seed: u64, number: u32, page_size: u32) -> Layout {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&number.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        let pages = |tokens: u32| tokens.next_multiple_of(page_size.max(1));
        let mut layout = Layout::default();
        for _ in 0..self.prompts.draw(&mut rng) {
            let prompt = layout.push(None, pages(self.prompt_tokens.draw(&mut rng)));
            let documents: Vec<u32> = (0..self.documents.draw(&mut rng))
                .map(|_| layout.push(Some(prompt), pages(self.document_tokens.draw(&mut rng))))
                .collect();
            for _ in 0..self.requests.draw(&mut rng) {
                // As likely as one of the documents is none.
                let document = rng.random_range(0..=documents.len());
                let parent = documents.get(document).copied().unwrap_or(prompt);
                let tokens = self.own_tokens.draw(&mut rng);
                let node = layout.push(Some(parent), tokens);
                layout.requests.push(LayoutRequest { node, tokens });
            }
        }
        for _ in 0..self.lone.draw(&mut rng) {
            let tokens = self.lone_tokens.draw(&mut rng);
            let node = layout.push(None, tokens);
            layout.requests.push(LayoutRequest { node, tokens });
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;
    use proptest::prelude::*;

    fn scenario(keys: &str) -> Result<Scenario, String> {
        let text =
            format!("name: t\nseed: 3\nheads: [[32, 8], [8, 1]]\npage_sizes: [16, 32]\ntenants:\n{keys}");
        Scenario::parse(&text, "t.yaml").map_err(|error| error.to_string())
    }

    #[test]
    fn head_configurations_and_page_sizes_take_turns() {
        let specs = scenario("  batches: 8\n").unwrap().batches().unwrap();
        let names: Vec<&str> = specs.iter().map(|spec| spec.name()).collect();
        assert_eq!(names[..3], ["t/t000/32x8/p16", "t/t001/8x1/p16", "t/t002/32x8/p32"]);
        assert_eq!((names.len(), names[7]), (8, "t/t007/8x1/p32"));
        assert_eq!(specs[5].variant(), "t005");
    }

    #[test]
    fn a_batch_does_not_depend_on_how_many_there_are() {
        let built = |count: u32| {
            let specs = scenario(&format!("  batches: {count}\n")).unwrap().batches().unwrap();
            specs.iter().map(|spec| spec.build().unwrap()).collect::<Vec<_>>()
        };
        let (few, many) = (built(3), built(7));
        for (few, many) in few.iter().zip(&many) {
            assert_eq!((&few.page_table, &few.seq_lens), (&many.page_table, &many.seq_lens));
        }
        assert_ne!(many[0].seq_lens, many[4].seq_lens, "the same heads, another batch");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (keys, expected) in [
            ("  batches: 0\n", "t.yaml:6: `batches`: 0 must be from 1 to 4096"),
            (
                "  batches: 1\n  requests: {min: 9, max: 8}\n",
                "t.yaml:7: `requests`: min 9 is more than max 8",
            ),
            (
                "  batches: 1\n  own_tokens: {min: 0, max: 8}\n",
                "t.yaml:7: `own_tokens`: 0 to 8 must be within 1",
            ),
            (
                "  batches: 1\n  lone: {min: 0, max: 8, log: true}\n",
                "t.yaml:7: `lone`: with `log: true`, min",
            ),
            ("  batches: 1\n  prompts: {min: 0, max: 8}\n", "t.yaml:7: `prompts` and `lone`: one of them"),
            (
                "  batches: 1\n  prompts: {min: 9, max: 4000}\n  requests: {min: 9, max: 4000}\n",
                "are more than 65536",
            ),
            ("  batches: 1\n  promts: {min: 1, max: 2}\n", "did you mean `prompts`"),
        ] {
            let error = scenario(keys).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn batches_are_within_their_ranges(seed: u64, number in 0u32..1000, page_size in prop::sample::select(vec![1u32, 16, 48])) {
            let keys: TenantsKeys = serde_yaml::from_str("{batches: 1, documents: {min: 0, max: 3}}").unwrap();
            keys.check().unwrap();
            let layout = keys.layout(seed, number, page_size);
            prop_assert_eq!(&layout, &keys.layout(seed, number, page_size));
            prop_assert_eq!(layout.check(page_size), Ok(()));
            prop_assert!((2..=8 * 48 + 20).contains(&layout.requests.len()));
            for request in &layout.requests {
                prop_assert!((17..=2500).contains(&request.tokens));
            }
            let shared = layout.nodes.iter().filter(|node| node.parent.is_none() && node.tokens >= 256);
            prop_assert!(shared.count() >= 2);
        }

        #[test]
        fn a_range_is_drawn_from_its_ends_too(min in 1u32..20, more in 0u32..5, log: bool, seed: u64) {
            let range = Range { min, max: min + more, log };
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let drawn: std::collections::BTreeSet<u32> = (0..2000).map(|_| range.draw(&mut rng)).collect();
            prop_assert_eq!(drawn, (min..=min + more).collect());
        }
    }
}
