//! A scenario: one YAML file, and the batches that it describes.

use crate::file::{self, File, MixNode, PackPoint, PacksKeys, TraceKeys, Use};
use crate::spec::{MIX, Shape};
use crate::{
    BLOCK_TOKENS, BatchSpec, Layout, LayoutRequest, Provenance, Replay, ScenarioError, Trace, replay,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tilewright_heuristics::{Dtype, Geometry};

/// A scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    path: PathBuf,
    file: File,
    hash: String,
    trace: Option<Trace>,
}

impl Scenario {
    /// Loads a scenario file, and its trace if it names one.
    ///
    /// # Errors
    /// The file cannot be read or is no scenario: which line, which key, and what would be right.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Io { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads a scenario; `path` names it in errors, and a trace is looked for beside it.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let file = file::parse(text, path)?;
        let mut scenario = Self { path: path.to_owned(), file, hash: String::new(), trace: None };
        scenario.check(text)?;
        scenario.trace = scenario.load_trace()?;
        scenario.hash = scenario.content_hash();
        Ok(scenario)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.file.name.0
    }

    /// What it is about.
    pub fn description(&self) -> &str {
        &self.file.description
    }

    /// Hash of its content, the trace included; comments and order of keys do not count.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether its batches are packs of one shape each, for the first level of tuning.
    pub const fn is_pack_level(&self) -> bool {
        self.file.packs.is_some()
    }

    /// Whether a selector is only judged on its batches, never fitted to them.
    pub fn held_out(&self) -> bool {
        self.file.used_for == Use::HeldOut
    }

    /// All its batches, in the order of the file.
    ///
    /// # Errors
    /// A trace in which nobody decodes at a wanted time, or a sweep without a single shape.
    pub fn batches(&self) -> Result<Vec<BatchSpec>, ScenarioError> {
        let mut specs = Vec::new();
        let geometries = self.geometries();
        let mut drawn = Vec::new();
        if let Some(tenants) = &self.file.tenants {
            // Layouts take turns: each drawn batch is made for one of them.
            for (number, geometry) in (0..tenants.batches).zip(geometries.iter().cycle()) {
                let layout = tenants.layout(self.file.seed, number, geometry.page_size);
                drawn.push((*geometry, vec![(format!("t{number:03}"), Shape::Layout(Arc::new(layout)))]));
            }
        } else {
            for geometry in &geometries {
                drawn.push((*geometry, self.shapes(geometry)?));
            }
        }
        for (geometry, shapes) in drawn {
            for (variant, shape) in shapes {
                let name = format!("{}/{variant}/{}", self.name(), self.suffix(&geometry));
                // Every batch scatters its pages in its own way, whatever else the file holds.
                let seed = self.file.seed
                    ^ u64::from_le_bytes(
                        blake3::hash(name.as_bytes()).as_bytes()[..8].try_into().expect("eight bytes"),
                    );
                let provenance = Provenance {
                    file: self.path.clone(),
                    scenario: self.name().to_owned(),
                    hash: self.hash.clone(),
                    seed,
                    scaling: String::new(),
                };
                specs.push(BatchSpec { name, geometry, shape, provenance });
            }
        }
        if specs.is_empty() {
            return Err(self.batch_error(
                "packs",
                "no combination is a pack: rows must be a multiple of the GQA ratio".to_owned(),
            ));
        }
        Ok(specs)
    }

    fn geometries(&self) -> Vec<Geometry> {
        let File { heads, head_dims, dtypes, page_sizes, .. } = &self.file;
        let mut geometries = Vec::new();
        for dtype in dtypes {
            for head_dim in head_dims {
                for page_size in page_sizes {
                    for heads in heads {
                        let (q_heads, kv_heads) = heads.0;
                        geometries.push(Geometry {
                            q_heads,
                            kv_heads,
                            head_dim: head_dim.0,
                            page_size: page_size.0,
                            dtype: dtype.dtype(),
                        });
                    }
                }
            }
        }
        geometries
    }

    /// The geometry in a batch's name: heads always, the rest where the file lists several.
    fn suffix(&self, geometry: &Geometry) -> String {
        let Geometry { q_heads, kv_heads, head_dim, page_size, dtype } = geometry;
        let mut suffix = format!("{q_heads}x{kv_heads}");
        if self.file.head_dims.len() > 1 {
            suffix += &format!("/hd{head_dim}");
        }
        if self.file.page_sizes.len() > 1 {
            suffix += &format!("/p{page_size}");
        }
        if self.file.dtypes.len() > 1 || *dtype != Dtype::F16 {
            suffix += &format!("/{dtype}");
        }
        suffix
    }

    fn shapes(&self, geometry: &Geometry) -> Result<Vec<(String, Shape)>, ScenarioError> {
        let File { trees, mix, trace, packs, .. } = &self.file;
        if let Some(trees) = trees {
            return Ok(trees.iter().map(|tree| (tree.to_string(), Shape::Tree(tree.clone()))).collect());
        }
        if let Some(mix) = mix {
            return Ok(vec![(MIX.to_owned(), Shape::Layout(Arc::new(mix_layout(mix))))]);
        }
        if let (Some(keys), Some(trace)) = (trace, &self.trace) {
            return self.trace_shapes(keys, trace);
        }
        Ok(packs.as_ref().map(|packs| pack_shapes(packs, geometry)).unwrap_or_default())
    }

    fn trace_shapes(&self, keys: &TraceKeys, trace: &Trace) -> Result<Vec<(String, Shape)>, ScenarioError> {
        let replay = Replay {
            max_batch: keys.max_batch.0,
            tokens_per_second: keys.tokens_per_second.0,
            prefill_tokens_per_second: keys.prefill_tokens_per_second.0,
        };
        let error = |source| ScenarioError::Trace { path: self.path.clone(), source };
        keys.at
            .iter()
            .map(|at| {
                let running = replay.running_at(trace, at.0).map_err(error)?;
                Ok((format!("at-{}s", at.0), Shape::Layout(Arc::new(replay::layout(&running)))))
            })
            .collect()
    }

    fn load_trace(&self) -> Result<Option<Trace>, ScenarioError> {
        let Some(keys) = &self.file.trace else { return Ok(None) };
        if let Some(generator) = &keys.generate {
            return Ok(Some(generator.generate(self.file.seed)));
        }
        let file = keys.file.as_deref().unwrap_or_default();
        let path = self.path.parent().unwrap_or(Path::new("")).join(file);
        Trace::read(&path)
            .map(Some)
            .map_err(|source| ScenarioError::Trace { path: self.path.clone(), source })
    }

    /// What no single key can tell.
    fn check(&self, text: &str) -> Result<(), ScenarioError> {
        let File { heads, head_dims, dtypes, page_sizes, trees, mix, tenants, trace, packs, .. } = &self.file;
        let invalid = |key: &str, message: String| ScenarioError::Invalid {
            path: self.path.clone(),
            line: line_of(text, key),
            message,
            hint: String::new(),
        };
        let kinds = [trees.is_some(), mix.is_some(), tenants.is_some(), trace.is_some(), packs.is_some()];
        match kinds.into_iter().filter(|given| *given).count() {
            1 => {}
            0 => {
                return Err(invalid(
                    "name",
                    "one of `trees`, `mix`, `tenants`, `trace`, `packs` is missing".to_owned(),
                ));
            }
            _ => {
                return Err(invalid(
                    "name",
                    "only one of `trees`, `mix`, `tenants`, `trace`, `packs` may be given".to_owned(),
                ));
            }
        }
        let lists = [
            ("heads", heads.len()),
            ("head_dims", head_dims.len()),
            ("dtypes", dtypes.len()),
            ("page_sizes", page_sizes.len()),
            ("trees", trees.as_ref().map_or(1, Vec::len)),
            ("mix", mix.as_ref().map_or(1, Vec::len)),
            ("at", trace.as_ref().map_or(1, |trace| trace.at.len())),
        ];
        if let Some((key, _)) = lists.iter().find(|(_, len)| *len == 0) {
            return Err(invalid(key, format!("`{key}` must not be empty")));
        }
        if let Some(mix) = mix {
            check_mix(mix, "mix").map_err(|message| invalid("mix", message))?;
        }
        if let Some(tenants) = tenants {
            tenants.check().map_err(|(key, message)| invalid(key, message))?;
        }
        if let Some(trace) = trace {
            if trace.file.is_some() == trace.generate.is_some() {
                return Err(invalid("trace", "`trace` needs either `file` or `generate`".to_owned()));
            }
            if let Some(generator) = &trace.generate {
                generator.check().map_err(|message| invalid("generate", message))?;
            }
            if let Some(size) = page_sizes.iter().find(|size| !BLOCK_TOKENS.is_multiple_of(size.0)) {
                let message =
                    format!("page_size {} does not divide a trace's blocks of {BLOCK_TOKENS} tokens", size.0);
                return Err(invalid("page_sizes", message));
            }
        }
        if let Some(PacksKeys { rows, kv_len, packs, points, .. }) = packs {
            let lists = [rows.is_empty(), kv_len.is_empty(), packs.is_empty()];
            if lists.contains(&true) && lists.contains(&false) || lists[0] && points.is_empty() {
                let message = "`packs` needs `rows`, `kv_len` and `packs` together, or `points`".to_owned();
                return Err(invalid("packs", message));
            }
        }
        Ok(())
    }

    fn content_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let file = serde_json::to_vec(&self.file).expect("a scenario holds only text and numbers");
        hasher.update(&file);
        if let Some(trace) = &self.trace {
            hasher.update(&serde_json::to_vec(trace.requests()).expect("a trace holds only numbers"));
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    fn batch_error(&self, batch: &str, message: String) -> ScenarioError {
        ScenarioError::Batch { path: self.path.clone(), batch: batch.to_owned(), message }
    }
}

/// The line of a key, from 1: the first line that begins with it.
fn line_of(text: &str, key: &str) -> usize {
    let is_key = |line: &str| {
        line.trim_start_matches([' ', '-']).strip_prefix(key).is_some_and(|rest| rest.starts_with(':'))
    };
    text.lines().position(is_key).map_or(1, |line| line + 1)
}

/// Most nodes and requests of a mix, and its deepest level.
const MAX_MIX: u64 = 1 << 18;
const MAX_DEPTH: usize = 64;

fn check_mix(nodes: &[MixNode], at: &str) -> Result<(), String> {
    fn count(nodes: &[MixNode], at: &str, depth: usize) -> Result<u64, String> {
        if depth > MAX_DEPTH {
            return Err(format!("{at}: more than {MAX_DEPTH} levels"));
        }
        let mut total = 0u64;
        for (index, node) in nodes.iter().enumerate() {
            let at = format!("{at}[{index}]");
            if let Some(inside) = node.ends_inside.iter().find(|inside| inside.0 > node.tokens.0) {
                return Err(format!(
                    "{at}: a request cannot end after {} of {} tokens",
                    inside.0, node.tokens.0
                ));
            }
            if node.requests == Some(0) && node.ends_inside.is_empty() && node.children.is_empty() {
                return Err(format!("{at}: no request has this node"));
            }
            let below = count(&node.children, &format!("{at}.children"), depth + 1)?;
            let own = 1 + u64::from(node.requests.unwrap_or(1)) + node.ends_inside.len() as u64;
            total = total.saturating_add(own.saturating_add(below).saturating_mul(u64::from(node.repeat.0)));
            if total > MAX_MIX {
                return Err(format!("{at}: more than {MAX_MIX} nodes and requests"));
            }
        }
        Ok(total)
    }
    count(nodes, at, 1).map(|_| ())
}

fn mix_layout(roots: &[MixNode]) -> Layout {
    fn add(layout: &mut Layout, parent: Option<u32>, nodes: &[MixNode]) {
        for node in nodes {
            for _ in 0..node.repeat.0 {
                let index = layout.push(parent, node.tokens.0);
                let default = u32::from(node.children.is_empty() && node.ends_inside.is_empty());
                for tokens in std::iter::repeat_n(node.tokens.0, node.requests.unwrap_or(default) as usize)
                    .chain(node.ends_inside.iter().map(|inside| inside.0))
                {
                    layout.requests.push(LayoutRequest { node: index, tokens });
                }
                add(layout, Some(index), &node.children);
            }
        }
    }
    let mut layout = Layout::default();
    add(&mut layout, None, roots);
    layout
}

/// The shapes of a sweep that are packs under this geometry: rows that are whole requests, within the token limit.
fn pack_shapes(keys: &PacksKeys, geometry: &Geometry) -> Vec<(String, Shape)> {
    let ratio = geometry.gqa_ratio();
    let most = keys.max_tokens.map_or(u64::MAX, |most| u64::from(most.0));
    let most_computed = keys.max_row_tokens.map_or(u64::MAX, |most| u64::from(most.0));
    let own = if keys.own.is_empty() { &[0][..] } else { &keys.own };
    let mut points = Vec::new();
    for &rows in &keys.rows {
        for &kv_len in &keys.kv_len {
            for &packs in &keys.packs {
                points.extend(own.iter().map(|&own| PackPoint { rows, kv_len, packs, own }));
            }
        }
    }
    points.retain(|&PackPoint { rows, kv_len, packs, own }| {
        let (requests, packs) = (u64::from(rows.0 / ratio), u64::from(packs.0));
        let tokens = packs.saturating_mul(u64::from(kv_len.0) + requests * u64::from(own));
        let seen = packs.saturating_mul(u64::from(kv_len.0) + u64::from(own));
        tokens <= most && seen.saturating_mul(u64::from(rows.0)) <= most_computed
    });
    points.extend(&keys.points);
    points
        .into_iter()
        // One request alone shares nothing: all of its tokens are its own.
        .filter(|point| point.rows.0.is_multiple_of(ratio) && (point.own == 0 || point.rows.0 > ratio))
        .map(|PackPoint { rows, kv_len, packs, own }| {
            let mut name = format!("rows-{}-kv-{}-packs-{}", rows.0, kv_len.0, packs.0);
            if own > 0 {
                name += &format!("-own-{own}");
            }
            (name, Shape::Packs { packs: packs.0, requests: rows.0 / ratio, kv_len: kv_len.0, own })
        })
        .collect()
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
