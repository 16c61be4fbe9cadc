//! Which batches a command is about: scenarios, filtered and laid out as the user says.

use anyhow::Context as _;
use std::path::{Path, PathBuf};
use tilewright_heuristics::{Backend, Dtype};
use tilewright_scenarios::{BatchSpec, Scenario, Tree, catalogue};

/// The scenario of the catalogue that is compared by default: PAT's batches.
const DEFAULT_SCENARIO: &str = "pat-fig9";

/// Which batches are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Scenario files, or names of scenarios of the catalogue; PAT's batches if there are none.
    pub scenarios: Vec<PathBuf>,
    /// Only these trees, if there are any.
    pub trees: Vec<Tree>,
    /// Only these query heads and KV heads, if there are any.
    pub heads: Vec<Heads>,
    /// Pages of this size instead of the scenario's.
    pub page_size: Option<u32>,
    /// Elements of this type instead of the scenario's.
    pub dtype: Option<Dtype>,
}

/// Query heads and KV heads, written `32/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: u32,
    /// KV heads.
    pub kv: u32,
}

impl std::str::FromStr for Heads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('/').and_then(|(q, kv)| Some((q.parse().ok()?, kv.parse().ok()?)));
        match parts {
            Some((query, kv)) if kv > 0 && query > 0 && query % kv == 0 => Ok(Self { query, kv }),
            _ => Err(format!("`{text}` are no heads; write query heads / KV heads, like 32/8")),
        }
    }
}

impl Wanted {
    /// The batches, by head configuration as their scenarios list them, not yet scaled to a device.
    ///
    /// # Errors
    /// A file that is no scenario, or no batch at all.
    pub fn specs(&self, backend: Backend) -> anyhow::Result<Vec<BatchSpec>> {
        let scenarios = if self.scenarios.is_empty() {
            catalogue(backend).into_iter().filter(|scenario| scenario.name() == DEFAULT_SCENARIO).collect()
        } else {
            let loaded: Result<Vec<_>, _> =
                self.scenarios.iter().map(|path| scenario(path, backend)).collect();
            loaded.context("cannot load the scenarios")?
        };
        let mut all = Vec::new();
        for scenario in &scenarios {
            all.extend(scenario.batches()?);
        }
        let wanted: Vec<&BatchSpec> = all.iter().filter(|spec| self.wants(spec)).collect();
        if wanted.is_empty() {
            let (mut trees, mut heads): (Vec<String>, Vec<String>) = all
                .iter()
                .map(|spec| {
                    let geometry = spec.geometry();
                    (spec.variant().to_owned(), format!("{}/{}", geometry.q_heads, geometry.kv_heads))
                })
                .unzip();
            for list in [&mut trees, &mut heads] {
                let mut seen = std::collections::BTreeSet::new();
                list.retain(|text| seen.insert(text.clone()));
            }
            anyhow::bail!(
                "no batch has such a tree and heads; there are the trees {} and the heads {}",
                trees.join(" "),
                heads.join(" ")
            );
        }
        Ok(wanted.into_iter().map(|spec| spec.with_layout(self.page_size, self.dtype)).collect())
    }

    fn wants(&self, spec: &BatchSpec) -> bool {
        let geometry = spec.geometry();
        let heads = Heads { query: geometry.q_heads, kv: geometry.kv_heads };
        let tree = |tree: &Tree| tree.to_string() == spec.variant();
        (self.trees.is_empty() || self.trees.iter().any(tree))
            && (self.heads.is_empty() || self.heads.contains(&heads))
    }
}

/// The scenario of a file, or the catalogue's of that name.
fn scenario(path: &Path, backend: Backend) -> anyhow::Result<Scenario> {
    let name = path.to_str().filter(|_| !path.exists());
    let Some(name) = name.filter(|name| !name.contains(['/', '\\', '.'])) else {
        return Ok(Scenario::load(path)?);
    };
    let builtin = catalogue(backend);
    let names = builtin.iter().map(Scenario::name).collect::<Vec<_>>().join(", ");
    builtin
        .into_iter()
        .find(|scenario| scenario.name() == name)
        .with_context(|| format!("`{name}` is no file and no scenario of the catalogue, which has {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(wanted: &Wanted) -> anyhow::Result<Vec<BatchSpec>> {
        wanted.specs(Backend::Cuda)
    }

    #[test]
    fn by_default_they_are_pats_trees_under_four_layouts() {
        let all = specs(&Wanted::default()).unwrap();
        assert_eq!(all.len(), 80);
        assert!(all.windows(2).filter(|pair| pair[0].geometry() != pair[1].geometry()).count() == 3);
        assert!(
            all.iter().all(|spec| spec.geometry().page_size == 32 && spec.geometry().dtype == Dtype::F16)
        );
    }

    #[test]
    fn filters_leave_what_they_name_and_say_what_there_is() {
        let mut wanted = Wanted {
            trees: vec!["256_1024".parse().unwrap(), "1,10_4096,416".parse().unwrap()],
            heads: vec!["64/8".parse().unwrap()],
            page_size: Some(16),
            dtype: Some(Dtype::Bf16),
            ..Wanted::default()
        };
        let names: Vec<String> = specs(&wanted).unwrap().iter().map(|spec| spec.name().to_owned()).collect();
        assert_eq!(names, ["pat-fig9/1,10_4096,416/64x8/p16/bf16", "pat-fig9/256_1024/64x8/p16/bf16"]);
        wanted.heads = vec![Heads { query: 8, kv: 8 }];
        let error = specs(&wanted).unwrap_err().to_string();
        assert!(error.contains("1,10_4096,416") && error.contains("32/32 16/8 32/8 64/8"), "{error}");
    }

    #[test]
    fn a_scenario_of_the_catalogue_is_known_by_its_name() {
        let named = |name: &str| Wanted { scenarios: vec![name.into()], ..Wanted::default() };
        let found = specs(&named("mix-roots")).unwrap();
        assert!(!found.is_empty() && found.iter().all(|spec| spec.name().starts_with("mix-roots")));
        let error = format!("{:#}", specs(&named("mix-rots")).unwrap_err());
        assert!(error.contains("`mix-rots`") && error.contains("mix-roots, mix-deep"), "{error}");
        let error = format!("{:#}", specs(&named("missing.yaml")).unwrap_err());
        assert!(error.contains("missing.yaml") && !error.contains("catalogue"), "{error}");
    }

    #[test]
    fn heads_are_two_numbers_of_which_one_divides_the_other() {
        assert_eq!("32/8".parse(), Ok(Heads { query: 32, kv: 8 }));
        for text in ["", "32", "32/0", "8/32", "a/b", "-8/8", "0/8", "32/8/1"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
    }
}
