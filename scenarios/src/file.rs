//! The keys of a scenario file, as strictly as they can be read.

use crate::locate::{self, Step};
use crate::tenants::TenantsKeys;
use crate::times::Times;
use crate::words::in_words;
use crate::{Generator, ScenarioError, Tree, Use};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tilewright_heuristics::Dtype;

/// A scenario file. Exactly one of `trees`, `mix`, `tenants`, `trace` and `packs` says what its batches are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) name: Name,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) seed: u64,
    /// Not part of the content's hash: the batches are the same whatever they are for.
    #[serde(default, rename = "use", skip_serializing)]
    pub(crate) purpose: Use,
    /// Not part of the content's hash either: the batches are the same whatever they are measured under.
    #[serde(default, skip_serializing)]
    pub(crate) invariant: bool,
    #[serde(default = "default_heads")]
    pub(crate) heads: Vec<Heads>,
    #[serde(default = "default_head_dims")]
    pub(crate) head_dims: Vec<HeadDim>,
    #[serde(default = "default_dtypes")]
    pub(crate) dtypes: Vec<DtypeName>,
    #[serde(default = "default_page_sizes")]
    pub(crate) page_sizes: Vec<PageSize>,
    pub(crate) trees: Option<Vec<Tree>>,
    pub(crate) mix: Option<Vec<MixNode>>,
    /// Left out of the content's hash where it is not given: files from before it was known keep their hashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenants: Option<TenantsKeys>,
    pub(crate) trace: Option<TraceKeys>,
    pub(crate) packs: Option<PacksKeys>,
}

/// A node of a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MixNode {
    pub(crate) tokens: Count,
    #[serde(default = "one")]
    pub(crate) repeat: Count,
    /// Requests that end with the node's last token; by default one if nothing else ends in it or goes on from it.
    pub(crate) requests: Option<u32>,
    /// Requests that end inside: after how many of its tokens.
    #[serde(default)]
    pub(crate) ends_inside: Vec<Count>,
    #[serde(default)]
    pub(crate) children: Vec<MixNode>,
}

/// A trace and how it is replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceKeys {
    /// JSON lines, relative to the scenario's file.
    pub(crate) file: Option<String>,
    pub(crate) generate: Option<Generator>,
    pub(crate) max_batch: Count,
    pub(crate) tokens_per_second: Rate,
    pub(crate) prefill_tokens_per_second: Rate,
    /// Seconds at which a batch is taken.
    pub(crate) at: Times,
}

/// A sweep of pack shapes: every combination of the lists, and single points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PacksKeys {
    #[serde(default)]
    pub(crate) rows: Vec<Count>,
    #[serde(default)]
    pub(crate) kv_len: Vec<Count>,
    #[serde(default)]
    pub(crate) packs: Vec<Count>,
    /// Tokens that each request has for itself behind the shared ones; none by default.
    #[serde(default)]
    pub(crate) own: Vec<u32>,
    /// Combinations with more tokens over all packs are left out.
    pub(crate) max_tokens: Option<Count>,
    /// Combinations with more rows x tokens over all packs are left out: what a sample costs to compute.
    pub(crate) max_row_tokens: Option<Count>,
    #[serde(default)]
    pub(crate) points: Vec<PackPoint>,
}

/// One pack shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackPoint {
    pub(crate) rows: Count,
    pub(crate) kv_len: Count,
    pub(crate) packs: Count,
    #[serde(default)]
    pub(crate) own: u32,
}

/// Declares a value that is checked while it is read, so that an error knows its line.
macro_rules! checked {
    ($(#[$meta:meta])* $name:ident: $raw:ty as $inner:ty, |$value:ident| $check:expr) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(try_from = "Raw", into = "Raw")]
        pub(crate) struct $name(pub(crate) $inner);

        const _: () = {
            impl TryFrom<Raw> for $name {
                type Error = String;

                fn try_from(raw: Raw) -> Result<Self, String> {
                    let $value = raw.0;
                    $check.map(Self)
                }
            }

            impl From<$name> for Raw {
                fn from(checked: $name) -> Self {
                    Raw(checked.0.into())
                }
            }
        };
    };
}

mod name {
    use super::*;
    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Raw(String);
    checked!(
        /// A name that can stand in a path.
        Name: String as String, |value| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !value.is_empty() && value.len() <= 64 && value.chars().all(allowed) {
                Ok(value)
            } else {
                Err(format!("`{value}` must be 1 to 64 letters, digits, `-`, `_` or `.`"))
            }
        }
    );
}

mod dtype {
    use super::*;
    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Raw(String);
    checked!(
        /// An element type by its name.
        DtypeName: String as String, |value| match value.parse::<Dtype>() {
            Ok(_) => Ok(value),
            Err(error) => Err(format!("{error}{}", nearest(&value, Dtype::ALL.iter().map(|dtype| dtype.name())))),
        }
    );
}

mod numbers {
    use super::*;
    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Raw(f64);
    checked!(
        /// A rate a second.
        Rate: f64 as f64, |value| {
            let good = value > 0.0 && value <= 1e9;
            if good { Ok(value) } else { Err(format!("{value} must be above 0 and at most 1e9")) }
        }
    );
    checked!(
        /// A time in seconds.
        Seconds: f64 as f64, |value| {
            let good = (0.0..=1e9).contains(&value);
            if good { Ok(value) } else { Err(format!("{value} must be from 0 to 1e9")) }
        }
    );
}

mod counts {
    use super::*;
    #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
    struct Raw(u32);
    checked!(
        /// A count of at least 1 and at most 2^27.
        #[derive(Copy, Eq)]
        Count: u32 as u32, |value| {
            if (1..=1 << 27).contains(&value) { Ok(value) } else { Err(format!("{value} must be from 1 to 2^27")) }
        }
    );
    checked!(
        /// Elements of one head's vector.
        #[derive(Copy, Eq)]
        HeadDim: u32 as u32, |value| {
            if [64, 96, 128, 192, 256, 512].contains(&value) { Ok(value) } else { Err(format!("{value} must be 64, 96, 128, 192, 256 or 512")) }
        }
    );
    checked!(
        /// Tokens of a page.
        #[derive(Copy, Eq)]
        PageSize: u32 as u32, |value| {
            if (1..=4096).contains(&value) { Ok(value) } else { Err(format!("{value} must be from 1 to 4096")) }
        }
    );
}

mod heads {
    use super::*;
    #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
    struct Raw((u32, u32));
    checked!(
        /// Query heads and KV heads.
        #[derive(Copy, Eq)]
        Heads: (u32, u32) as (u32, u32), |value| {
            let (q, kv) = value;
            if kv == 0 || q == 0 || q > 1024 {
                Err(format!("[{q}, {kv}]: counts must be from 1 to 1024"))
            } else if !q.is_multiple_of(kv) {
                Err(format!("[{q}, {kv}]: query heads must be a multiple of KV heads"))
            } else {
                Ok(value)
            }
        }
    );
}

pub(crate) use counts::{Count, HeadDim, PageSize};
pub(crate) use dtype::DtypeName;
pub(crate) use heads::Heads;
pub(crate) use name::Name;
pub(crate) use numbers::{Rate, Seconds};

impl DtypeName {
    pub(crate) fn dtype(&self) -> Dtype {
        self.0.parse().expect("checked when it was read")
    }
}

fn one() -> Count {
    Count(1)
}

fn default_heads() -> Vec<Heads> {
    vec![Heads((32, 8))]
}

fn default_head_dims() -> Vec<HeadDim> {
    vec![HeadDim(128)]
}

fn default_dtypes() -> Vec<DtypeName> {
    vec![DtypeName("f16".to_owned())]
}

fn default_page_sizes() -> Vec<PageSize> {
    vec![PageSize(32)]
}

/// `; did you mean ...?`, if something is near.
fn nearest<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|known| (strsim::damerau_levenshtein(found, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len().max(found.len()) / 3)
        .min()
        .map_or(String::new(), |(_, known)| format!("; did you mean `{known}`?"))
}

/// Reads the keys of a scenario file.
pub(crate) fn parse(text: &str, path: &Path) -> Result<File, ScenarioError> {
    serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| {
        let mut steps = steps(error.path());
        let error = error.into_inner();
        let line = error.location().map_or(1, |location| location.line());
        let message = error.to_string();
        // The line stands in front already, and so does the key, which the parser names as far as it knows it.
        let message = message.split(" at line ").next().unwrap_or(&message);
        let known = (0..=steps.len()).rev().map(|len| format!("{}: ", locate::written(&steps[..len])));
        let message = known.filter_map(|known| message.strip_prefix(&known)).next().unwrap_or(message);
        let named = |start: &str| message.strip_prefix(start).and_then(|rest| rest.split('`').next());
        let duplicate = named("duplicate field `");
        let line = if let Some(key) = duplicate.or(named("unknown field `")) {
            // The message names the key itself.
            steps.pop_if(|last| *last == Step::Key(key.to_owned()));
            let of_key = [&steps[..], &locate::keys(&[key])].concat();
            locate::line_of(text, &of_key, usize::from(duplicate.is_some()))
        } else {
            // Where the text is no YAML, there are no steps.
            line.max(locate::line_of(text, &steps, 0))
        };
        let hint = hint(message);
        let message = locate::behind(&steps, &in_words(message));
        ScenarioError::Invalid { path: path.to_owned(), line, message, hint }
    })
}

/// The way to a value, as far as it is known.
fn steps(path: &serde_path_to_error::Path) -> Vec<Step> {
    let step = |segment: &serde_path_to_error::Segment| match segment {
        serde_path_to_error::Segment::Seq { index } => Some(Step::Index(*index)),
        serde_path_to_error::Segment::Map { key } => Some(Step::Key(key.clone())),
        _ => None,
    };
    path.iter().map_while(step).collect()
}

/// For an unknown key or word: the nearest of those that the message lists.
fn hint(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"].map(|unknown| message.split_once(unknown));
    let Some((_, rest)) = unknown.into_iter().flatten().next() else { return String::new() };
    let Some((found, rest)) = rest.split_once('`') else { return String::new() };
    nearest(found, rest.split('`').skip(1).step_by(2))
}
