//! The built-in scenarios.

use crate::Scenario;
use tilewright_heuristics::Backend;

/// Packs for the caches and the rates of a processor.
const CPU_PACKS: &[(&str, &str)] = &[
    ("cpu/packs-dtypes.yaml", include_str!("../catalogue/cpu/packs-dtypes.yaml")),
    ("cpu/packs-gqa4.yaml", include_str!("../catalogue/cpu/packs-gqa4.yaml")),
    ("cpu/packs-gqa8.yaml", include_str!("../catalogue/cpu/packs-gqa8.yaml")),
    ("cpu/packs-head-dims.yaml", include_str!("../catalogue/cpu/packs-head-dims.yaml")),
    ("cpu/packs-many-heads.yaml", include_str!("../catalogue/cpu/packs-many-heads.yaml")),
    ("cpu/packs-mha.yaml", include_str!("../catalogue/cpu/packs-mha.yaml")),
    ("cpu/packs-one-head.yaml", include_str!("../catalogue/cpu/packs-one-head.yaml")),
    ("cpu/packs-page-sizes.yaml", include_str!("../catalogue/cpu/packs-page-sizes.yaml")),
];

/// Packs that fill a GPU.
const CUDA_PACKS: &[(&str, &str)] = &[
    ("cuda/packs-bf16.yaml", include_str!("../catalogue/cuda/packs-bf16.yaml")),
    ("cuda/packs-few-heads.yaml", include_str!("../catalogue/cuda/packs-few-heads.yaml")),
    ("cuda/packs-gqa2.yaml", include_str!("../catalogue/cuda/packs-gqa2.yaml")),
    ("cuda/packs-gqa4.yaml", include_str!("../catalogue/cuda/packs-gqa4.yaml")),
    ("cuda/packs-gqa8.yaml", include_str!("../catalogue/cuda/packs-gqa8.yaml")),
    ("cuda/packs-head-dims.yaml", include_str!("../catalogue/cuda/packs-head-dims.yaml")),
    ("cuda/packs-mha.yaml", include_str!("../catalogue/cuda/packs-mha.yaml")),
    ("cuda/packs-page-sizes.yaml", include_str!("../catalogue/cuda/packs-page-sizes.yaml")),
    ("cuda/packs-trees.yaml", include_str!("../catalogue/cuda/packs-trees.yaml")),
    ("cuda/packs-trees-gqa4.yaml", include_str!("../catalogue/cuda/packs-trees-gqa4.yaml")),
    ("cuda/packs-trees-long-own.yaml", include_str!("../catalogue/cuda/packs-trees-long-own.yaml")),
    ("cuda/packs-trees-many-rows.yaml", include_str!("../catalogue/cuda/packs-trees-many-rows.yaml")),
    ("cuda/packs-trees-small.yaml", include_str!("../catalogue/cuda/packs-trees-small.yaml")),
];

/// Whole batches for a processor, small enough to be many.
const CPU_BATCHES: &[(&str, &str)] = &[
    ("cpu/tenants-fit.yaml", include_str!("../catalogue/cpu/tenants-fit.yaml")),
    ("cpu/tenants-held-out.yaml", include_str!("../catalogue/cpu/tenants-held-out.yaml")),
];

/// Whole batches for a GPU.
const CUDA_BATCHES: &[(&str, &str)] = &[
    ("cuda/tenants-fit.yaml", include_str!("../catalogue/cuda/tenants-fit.yaml")),
    ("cuda/tenants-many-fit.yaml", include_str!("../catalogue/cuda/tenants-many-fit.yaml")),
    ("cuda/trees-fit.yaml", include_str!("../catalogue/cuda/trees-fit.yaml")),
    ("cuda/tenants-dims-fit.yaml", include_str!("../catalogue/cuda/tenants-dims-fit.yaml")),
    ("cuda/conversation-fit.yaml", include_str!("../catalogue/cuda/conversation-fit.yaml")),
    ("cuda/tenants-held-out.yaml", include_str!("../catalogue/cuda/tenants-held-out.yaml")),
    ("cuda/tenants-dims-held-out.yaml", include_str!("../catalogue/cuda/tenants-dims-held-out.yaml")),
    ("cuda/conversation-held-out.yaml", include_str!("../catalogue/cuda/conversation-held-out.yaml")),
];

/// Whole batches of both backends; a run scales them to its device.
const BATCHES: &[(&str, &str)] = &[
    ("pat-fig9.yaml", include_str!("../catalogue/pat-fig9.yaml")),
    ("mix-roots.yaml", include_str!("../catalogue/mix-roots.yaml")),
    ("mix-deep.yaml", include_str!("../catalogue/mix-deep.yaml")),
    ("mix-lengths.yaml", include_str!("../catalogue/mix-lengths.yaml")),
    ("batch-of-one.yaml", include_str!("../catalogue/batch-of-one.yaml")),
    ("conversation.yaml", include_str!("../catalogue/conversation.yaml")),
];

/// Every built-in scenario for a backend. They are part of the program, so that an installed one has them.
///
/// # Panics
/// Never in a released program: a test reads them all.
pub fn catalogue(backend: Backend) -> Vec<Scenario> {
    let (packs, batches) = match backend {
        Backend::Cpu => (CPU_PACKS, CPU_BATCHES),
        Backend::Cuda => (CUDA_PACKS, CUDA_BATCHES),
    };
    packs
        .iter()
        .chain(BATCHES)
        .chain(batches)
        .map(|(name, text)| {
            let path = format!("catalogue/{name}");
            Scenario::parse(text, path)
                .unwrap_or_else(|error| panic!("the built-in scenario is wrong: {error}"))
        })
        .collect()
}
