//! Tables of made-up results.

use super::*;
use crate::store::DeviceRecord;

fn timed(us: f64, error: f64) -> Outcome {
    Outcome::Timed { us, error, how: "graph".to_owned() }
}

fn left(reason: &str) -> Outcome {
    Outcome::LeftOut { reason: reason.to_owned() }
}

fn contenders(outcomes: &[(&str, Outcome)]) -> Vec<Contender> {
    outcomes
        .iter()
        .map(|(name, outcome)| Contender { name: (*name).to_owned(), outcome: outcome.clone() })
        .collect()
}

fn batch(variant: &str, kv_heads: u32, ours: Outcome, peers: &[(&str, Outcome)]) -> BatchResult {
    let tiles =
        [("m16n64w4s3", timed(31.0, 1e-3)), ("m32n64w4s2", timed(26.5, 1e-3)), ("m64n64w4s3", left("wrong"))];
    let invariant = match &ours {
        Outcome::Timed { us, .. } => timed(us * 1.04, 1e-3),
        Outcome::LeftOut { .. } => ours.clone(),
    };
    BatchResult {
        name: format!("t/{variant}/32x{kv_heads}"),
        variant: variant.to_owned(),
        q_heads: 32,
        kv_heads,
        head_dim: 128,
        page_size: 16,
        dtype: "bf16".to_owned(),
        scaled: String::new(),
        requests: 10,
        unique_bytes: 1 << 20,
        unshared_bytes: 1 << 22,
        limit_us: 20.0,
        ours,
        invariant,
        tiles: contenders(&tiles),
        peers: contenders(peers),
        references_apart: Some(0.0),
    }
}

fn comparison(batches: Vec<BatchResult>, absent: &[(&str, &str)]) -> Comparison {
    Comparison {
        device: DeviceRecord {
            backend: "cuda".to_owned(),
            name: "NVIDIA H200".to_owned(),
            capability: "sm_90a".to_owned(),
            units: 132,
        },
        selector: "measured on this device".to_owned(),
        method: vec!["Caches are cold.".to_owned()],
        versions: vec![
            ("tilewright".to_owned(), "0.1.0".to_owned()),
            ("torch".to_owned(), "2.11".to_owned()),
        ],
        absent: absent.iter().map(|(peer, why)| ((*peer).to_owned(), (*why).to_owned())).collect(),
        batches,
    }
}

#[test]
fn the_table_reads_well() {
    let peers = |decode: f64, cascade: Outcome| {
        [
            ("flashinfer decode", timed(decode, 2e-3)),
            ("flashinfer cascade", cascade),
            ("torch flex", left("knows no pages")),
        ]
    };
    let alone = left("one level: there is nothing to cascade");
    let batches = vec![
        batch("1,10_4096,416", 8, timed(25.0, 1.2e-3), &peers(50.0, timed(110.0, 3e-3))),
        batch("256_1024", 8, timed(40.0, 1.3e-3), &peers(32.0, alone.clone())),
        batch("1,10_4096,416", 32, left("failed: no room"), &peers(1250.0, alone)),
    ];
    let mut scaled = comparison(
        batches,
        &[("vllm triton", "No module named 'vllm'"), ("flash-attention 3", "No module named 'vllm'")],
    );
    scaled.batches[2].scaled = "heads / 2".to_owned();
    insta::assert_snapshot!(lines(&scaled).join("\n"));
}

#[test]
fn without_peers_the_table_is_ours_alone() {
    let text = lines(&comparison(
        vec![batch("256_1024", 8, timed(40.0, 1e-3), &[])],
        &[("all of them", "python3: cannot start")],
    ))
    .join("\n");
    assert!(text.contains("ours takes 2.00 of the limit, the best tile of each batch 1.32."), "{text}");
    assert!(!text.contains("peer was faster") && !text.contains("largest error"), "{text}");
    assert!(text.ends_with("Left out:\n  all of them: python3: cannot start"), "{text}");
    assert!(!lines(&comparison(Vec::new(), &[])).join("\n").contains("batches"));
}

#[test]
fn batches_that_differ_are_said_before_anything_is_believed() {
    let mut differing = batch("256_1024", 8, timed(40.0, 1e-3), &[("torch sdpa", timed(80.0, 1e-3))]);
    for (apart, differs) in [(Some(1e-12), false), (Some(1e-3), true), (Some(f64::NAN), true), (None, false)]
    {
        differing.references_apart = apart;
        assert_eq!(differing.differs(), differs);
        let text = lines(&comparison(vec![differing.clone()], &[])).join("\n");
        assert_eq!(text.contains("did not compute the same batch: t/256_1024/32x8."), differs, "{text}");
        assert_eq!(text.contains("references agree on 1 of 1"), apart.is_some() && !differs, "{text}");
    }
}
