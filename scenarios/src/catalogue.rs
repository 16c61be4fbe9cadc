//! The built-in scenarios.

use crate::Scenario;
use tilewright_heuristics::Backend;

/// Regular prefix trees.
const TREES_FIT: (&str, &str) = ("trees-fit.yaml", include_str!("../catalogue/trees-fit.yaml"));

/// Whole batches for a processor, small enough to be many.
const CPU_BATCHES: &[(&str, &str)] = &[
    ("cpu/tenants-fit.yaml", include_str!("../catalogue/cpu/tenants-fit.yaml")),
    TREES_FIT,
    ("cpu/conversation-fit.yaml", include_str!("../catalogue/cpu/conversation-fit.yaml")),
    ("cpu/tenants-held-out.yaml", include_str!("../catalogue/cpu/tenants-held-out.yaml")),
    ("cpu/conversation-held-out.yaml", include_str!("../catalogue/cpu/conversation-held-out.yaml")),
];

/// Whole batches for a GPU.
const CUDA_BATCHES: &[(&str, &str)] = &[
    ("cuda/tenants-fit.yaml", include_str!("../catalogue/cuda/tenants-fit.yaml")),
    ("cuda/tenants-many-fit.yaml", include_str!("../catalogue/cuda/tenants-many-fit.yaml")),
    TREES_FIT,
    ("cuda/trees-many-fit.yaml", include_str!("../catalogue/cuda/trees-many-fit.yaml")),
    ("cuda/tenants-dims-fit.yaml", include_str!("../catalogue/cuda/tenants-dims-fit.yaml")),
    ("cuda/tenants-512-fit.yaml", include_str!("../catalogue/cuda/tenants-512-fit.yaml")),
    ("cuda/conversation-fit.yaml", include_str!("../catalogue/cuda/conversation-fit.yaml")),
    ("cuda/fp8-fit.yaml", include_str!("../catalogue/cuda/fp8-fit.yaml")),
    ("cuda/fp8-dims-fit.yaml", include_str!("../catalogue/cuda/fp8-dims-fit.yaml")),
    ("cuda/fp8-trees-fit.yaml", include_str!("../catalogue/cuda/fp8-trees-fit.yaml")),
    ("cuda/fp8-trees-many-fit.yaml", include_str!("../catalogue/cuda/fp8-trees-many-fit.yaml")),
    ("cuda/tenants-held-out.yaml", include_str!("../catalogue/cuda/tenants-held-out.yaml")),
    ("cuda/tenants-dims-held-out.yaml", include_str!("../catalogue/cuda/tenants-dims-held-out.yaml")),
    ("cuda/tenants-512-held-out.yaml", include_str!("../catalogue/cuda/tenants-512-held-out.yaml")),
    ("cuda/conversation-held-out.yaml", include_str!("../catalogue/cuda/conversation-held-out.yaml")),
    ("cuda/fp8-held-out.yaml", include_str!("../catalogue/cuda/fp8-held-out.yaml")),
    ("cuda/fp8-dims-held-out.yaml", include_str!("../catalogue/cuda/fp8-dims-held-out.yaml")),
    ("cuda/fp8-trees-held-out.yaml", include_str!("../catalogue/cuda/fp8-trees-held-out.yaml")),
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
    let of_backend = match backend {
        Backend::Cpu => CPU_BATCHES,
        Backend::Cuda => CUDA_BATCHES,
    };
    BATCHES
        .iter()
        .chain(of_backend)
        .map(|(name, text)| {
            let path = format!("catalogue/{name}");
            Scenario::parse(text, path)
                .unwrap_or_else(|error| panic!("the built-in scenario is wrong: {error}"))
        })
        .collect()
}
