//! The built-in scenarios.

use crate::Scenario;

const FILES: &[(&str, &str)] = &[
    ("packs-gqa4.yaml", include_str!("../catalogue/packs-gqa4.yaml")),
    ("packs-one-head.yaml", include_str!("../catalogue/packs-one-head.yaml")),
    ("packs-mha.yaml", include_str!("../catalogue/packs-mha.yaml")),
    ("packs-many-heads.yaml", include_str!("../catalogue/packs-many-heads.yaml")),
    ("packs-gqa8.yaml", include_str!("../catalogue/packs-gqa8.yaml")),
    ("packs-head-dims.yaml", include_str!("../catalogue/packs-head-dims.yaml")),
    ("packs-dtypes.yaml", include_str!("../catalogue/packs-dtypes.yaml")),
    ("packs-page-sizes.yaml", include_str!("../catalogue/packs-page-sizes.yaml")),
    ("pat-fig9.yaml", include_str!("../catalogue/pat-fig9.yaml")),
    ("mix-roots.yaml", include_str!("../catalogue/mix-roots.yaml")),
    ("mix-deep.yaml", include_str!("../catalogue/mix-deep.yaml")),
    ("mix-lengths.yaml", include_str!("../catalogue/mix-lengths.yaml")),
    ("batch-of-one.yaml", include_str!("../catalogue/batch-of-one.yaml")),
    ("conversation.yaml", include_str!("../catalogue/conversation.yaml")),
];

/// Every built-in scenario. They are part of the program, so that an installed one has them.
///
/// # Panics
/// Never in a released program: a test reads them all.
pub fn catalogue() -> Vec<Scenario> {
    FILES
        .iter()
        .map(|(name, text)| {
            let path = format!("catalogue/{name}");
            Scenario::parse(text, path)
                .unwrap_or_else(|error| panic!("the built-in scenario is wrong: {error}"))
        })
        .collect()
}
