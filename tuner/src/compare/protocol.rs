//! What is said to the script that asks the peers, and what it answers: a line of JSON each.

use super::reference::scale;
use crate::measure::numbers::BLOCK;
use serde::{Deserialize, Serialize};
use tilewright_scenarios::Batch;

/// A batch as the peers' script is told of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request<'a> {
    /// Its number, which answers repeat.
    pub id: usize,
    /// Element type of Q and the output: `f16` or `bf16`.
    pub dtype: &'static str,
    /// That of K and V: the same, or `fp8`, which is e4m3 with scales of 1.
    pub kv_dtype: &'static str,
    /// Query heads.
    pub q_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Elements of a head's vector.
    pub head_dim: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// Physical pages.
    pub pages: u32,
    /// Columns of the page table.
    pub max_pages: usize,
    /// `[requests, max_pages]` page ids, row after row.
    pub page_table: &'a [i32],
    /// KV tokens of each request.
    pub seq_lens: &'a [u32],
    /// Factor of the logits.
    pub scale: f64,
    /// Elements after which K, V and Q repeat ([`crate::measure::numbers`]).
    pub block: usize,
    /// Requests whose outputs are checked.
    pub sampled: &'a [usize],
    /// A row's error up to which a result is right, relative to its norm.
    pub tolerance: f64,
    /// Peers that are not to be asked about this batch.
    pub skip: Vec<String>,
}

impl<'a> Request<'a> {
    /// A batch of which these requests are checked.
    pub fn of(id: usize, batch: &'a Batch, sampled: &'a [usize], tolerance: f64) -> Self {
        let geometry = &batch.geometry;
        Self {
            id,
            dtype: geometry.dtype.query().name(),
            kv_dtype: if geometry.dtype.has_fp8_kv() { "fp8" } else { geometry.dtype.name() },
            q_heads: geometry.q_heads,
            kv_heads: geometry.kv_heads,
            head_dim: geometry.head_dim,
            page_size: geometry.page_size,
            pages: batch.pages,
            max_pages: batch.max_pages,
            page_table: &batch.page_table,
            seq_lens: &batch.seq_lens,
            scale: f64::from(scale(geometry)),
            block: BLOCK,
            sampled,
            tolerance,
            skip: Vec::new(),
        }
    }
}

/// What the script says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// It has started.
    Hello {
        /// Its software, by name.
        versions: Vec<(String, String)>,
        /// Peers that it can ask.
        peers: Vec<String>,
        /// Peers that it cannot ask, and why.
        absent: Vec<(String, String)>,
    },
    /// The batch is made; what the sampled requests should be, in f64.
    Reference {
        /// The batch.
        id: usize,
        /// `[sampled, q_heads, head_dim]`.
        numbers: Vec<f64>,
    },
    /// A peer is being asked.
    Begin {
        /// The peer.
        peer: String,
    },
    /// A peer has computed the batch.
    Timed {
        /// The peer.
        peer: String,
        /// Median time in µs.
        us: f64,
        /// The largest error of a row of a head; nothing if a number was none.
        error: Option<f64>,
        /// How it was called.
        how: String,
    },
    /// A peer has not.
    LeftOut {
        /// The peer.
        peer: String,
        /// Why.
        reason: String,
    },
    /// The process is of no more use and ends; another may go on with the other peers.
    Restart {
        /// Why.
        reason: String,
    },
    /// The batch cannot be made.
    Refused {
        /// The batch.
        id: usize,
        /// Why.
        reason: String,
    },
    /// All peers were asked.
    Done {
        /// The batch.
        id: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_scenarios::Scenario;

    #[test]
    fn a_batch_is_one_line_that_says_all_of_it() {
        let text = "name: t\nheads: [[4, 1]]\nhead_dims: [64]\ntrees: ['1,2_32,33']\n";
        let batch = Scenario::parse(text, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap();
        let mut request = Request::of(3, &batch, &[0, 1], 1e-2);
        request.skip.push("torch sdpa".to_owned());
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(said["page_table"].as_array().unwrap().len(), 2 * 3);
        assert_eq!((&said["seq_lens"][1], &said["scale"]), (&65.into(), &0.125.into()));
        assert_eq!((&said["dtype"], &said["kv_dtype"]), (&"f16".into(), &"f16".into()));
        assert_eq!(said["skip"][0], "torch sdpa");
        let text = format!("{text}dtypes: [fp8-bf16]\n");
        let batch = Scenario::parse(&text, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap();
        let request = Request::of(3, &batch, &[0, 1], 1e-2);
        assert_eq!((request.dtype, request.kv_dtype), ("bf16", "fp8"));
    }

    #[test]
    fn answers_are_read_strictly() {
        let read = |line: &str| serde_json::from_str::<Answer>(line);
        let timed = r#"{"kind": "timed", "peer": "p", "us": 12.5, "error": null, "how": "graph"}"#;
        let expected = Answer::Timed { peer: "p".into(), us: 12.5, error: None, how: "graph".into() };
        assert_eq!(read(timed).unwrap(), expected);
        assert_eq!(read(r#"{"kind": "done", "id": 3}"#).unwrap(), Answer::Done { id: 3 });
        for bad in [
            "",
            "INFO 12:00 hello",
            r#"{"kind": "timed", "peer": "p"}"#,
            r#"{"kind": "done", "id": 3, "more": 1}"#,
            r#"{"kind": "unknown"}"#,
            r#"{"kind": "done", "id": -1}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
