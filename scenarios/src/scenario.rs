//! A scenario: one YAML file, and the batches that it describes.

use crate::file::{self, File, MixNode, PackPoint, PacksKeys, TraceKeys};
use crate::geometries::{self, Geometries};
use crate::input;
use crate::locate::{self, Step, keys};
use crate::spec::Shape;
use crate::times::Times;
use crate::{
    BLOCK_TOKENS, BatchSpec, Layout, LayoutRequest, Provenance, Replay, ScenarioError, Trace, TraceError,
    replay,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tilewright_heuristics::Geometry;

/// What a scenario's batches are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Selectors are fitted to them.
    #[default]
    Fit,
    /// Selectors are judged on them and never fitted to them.
    HeldOut,
}

/// What a batch is made of, under which layout, and what it is called beside its scenario and its layout.
struct Draft {
    geometry: Geometry,
    variant: String,
    shape: Shape,
    line: usize,
}

/// Where a scenario describes its batches, in lines from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    /// `trees`, `mix`, `tenants`, `trace` or `packs`.
    kind: usize,
    /// Each tree.
    trees: Vec<usize>,
    /// What a trace is read from or made of.
    trace: usize,
    /// The times that are wanted of a trace.
    at: usize,
}

impl Lines {
    fn of(text: &str, file: &File) -> Self {
        let line = |path: &[&str]| locate::line_of(text, &keys(path), 0);
        let kinds = [
            ("trees", file.trees.is_some()),
            ("mix", file.mix.is_some()),
            ("tenants", file.tenants.is_some()),
            ("trace", file.trace.is_some()),
            ("packs", file.packs.is_some()),
        ];
        let kind = kinds.into_iter().find(|(_, given)| *given).map_or("name", |(key, _)| key);
        let tree = |index| {
            let path = [Step::Key("trees".to_owned()), Step::Index(index)];
            locate::line_of(text, &path, 0)
        };
        let of_trace =
            if file.trace.as_ref().is_some_and(|trace| trace.file.is_some()) { "file" } else { "generate" };
        Self {
            kind: line(&[kind]),
            trees: (0..file.trees.as_ref().map_or(0, Vec::len)).map(tree).collect(),
            trace: line(&["trace", of_trace]),
            at: line(&["trace", "at"]),
        }
    }
}

/// A scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    path: PathBuf,
    file: File,
    hash: String,
    trace: Option<Trace>,
    lines: Lines,
}

impl Scenario {
    /// Loads a scenario file, and its trace if it names one.
    ///
    /// # Errors
    /// The file cannot be read or is no scenario: which line, which key, and what would be right.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let text =
            input::read_scenario(path).map_err(|cause| ScenarioError::Io { path: path.to_owned(), cause })?;
        Self::parse(&text, path)
    }

    /// Reads a scenario; `path` names it in errors, and a trace is looked for beside it.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let (path, text) = (path.as_ref(), input::without_mark(text));
        if let Some((line, message)) = input::too_deep(text) {
            return Err(ScenarioError::Invalid { path: path.to_owned(), line, message, hint: String::new() });
        }
        let file = file::parse(text, path)?;
        let lines = Lines::of(text, &file);
        let mut scenario = Self { path: path.to_owned(), file, hash: String::new(), trace: None, lines };
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

    /// What its batches are for.
    pub const fn purpose(&self) -> Use {
        self.file.purpose
    }

    /// Whether selectors are judged on its batches and never fitted to them.
    pub const fn held_out(&self) -> bool {
        matches!(self.file.purpose, Use::HeldOut)
    }

    /// Whether its batches are also measured with batch-invariant plans, which no selector is fitted to.
    pub const fn invariant(&self) -> bool {
        self.file.invariant
    }

    /// Hash of its content, the trace included; comments, order of keys, what the batches are for and what they are measured under do not count.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether its batches are packs of one shape each.
    pub const fn is_pack_sweep(&self) -> bool {
        self.file.packs.is_some()
    }

    /// All its batches, in the order of the file.
    ///
    /// # Errors
    /// A trace in which no request decodes at the wanted times, or a sweep without a single shape.
    pub fn batches(&self) -> Result<Vec<BatchSpec>, ScenarioError> {
        let drafts = self.drafts()?;
        if drafts.is_empty() {
            return Err(self.batch_error(
                "packs",
                "no combination is a pack: rows must be a multiple of the GQA ratio".to_owned(),
            ));
        }
        Ok(drafts.into_iter().map(|draft| self.spec(draft)).collect())
    }

    fn spec(&self, Draft { geometry, variant, shape, line }: Draft) -> BatchSpec {
        let name = format!("{}/{variant}/{}", self.name(), geometries::suffix(&self.file, &geometry));
        // Every batch scatters its pages in its own way, whatever else the file holds.
        let hash = blake3::hash(name.as_bytes());
        let seed = self.file.seed ^ u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"));
        let provenance = Provenance {
            file: self.path.clone(),
            scenario: self.name().to_owned(),
            hash: self.hash.clone(),
            seed,
            scaling: String::new(),
        };
        // A mix is the only one of its scenario, and numbers of tenants begin anew in every scenario.
        let variant = if self.file.mix.is_some() {
            self.name().to_owned()
        } else if self.file.tenants.is_some() {
            format!("{} {variant}", self.name())
        } else {
            variant
        };
        BatchSpec { name, variant, geometry, shape, provenance, line }
    }

    fn drafts(&self) -> Result<Vec<Draft>, ScenarioError> {
        let File { trees, mix, tenants, trace, packs, .. } = &self.file;
        let geometries = Geometries::of(&self.file);
        let line = self.lines.kind;
        let under_all = |shapes: &[(String, Shape)]| -> Vec<Draft> {
            let draft = |geometry: Geometry| {
                shapes.iter().map(move |(variant, shape)| Draft {
                    geometry,
                    variant: variant.clone(),
                    shape: shape.clone(),
                    line,
                })
            };
            geometries.all().flat_map(draft).collect()
        };
        if let Some(trees) = trees {
            let shapes: Vec<_> =
                trees.iter().map(|tree| (tree.to_string(), Shape::Tree(tree.clone()))).collect();
            let mut drafts = under_all(&shapes);
            for (draft, &line) in drafts.iter_mut().zip(self.lines.trees.iter().cycle()) {
                draft.line = line;
            }
            return Ok(drafts);
        }
        if let Some(mix) = mix {
            return Ok(under_all(&[("mix".to_owned(), Shape::Layout(Arc::new(mix_layout(mix))))]));
        }
        if let Some(tenants) = tenants {
            let whole_pages = geometries::whole_pages(&self.file).expect("checked when it was read");
            let draft = |number: u32| {
                let geometry = geometries.in_turn(number as usize);
                let layout = tenants.draw(self.file.seed, number, geometry.page_size, whole_pages);
                let shape = Shape::Layout(Arc::new(layout));
                Draft { geometry, variant: format!("t{number:03}"), shape, line }
            };
            return Ok((0..tenants.batches.0).map(draft).collect());
        }
        if let (Some(keys), Some(trace)) = (trace, &self.trace) {
            let shapes = trace_shapes(keys, trace).map_err(|cause| self.trace_error(self.lines.at, cause))?;
            return Ok(match keys.at {
                Times::List(_) => under_all(&shapes),
                Times::Range(_) => {
                    let draft = |(number, (variant, shape))| Draft {
                        geometry: geometries.in_turn(number),
                        variant,
                        shape,
                        line,
                    };
                    shapes.into_iter().enumerate().map(draft).collect()
                }
            });
        }
        let Some(packs) = packs else { return Ok(Vec::new()) };
        let draft = |geometry: Geometry| {
            pack_shapes(packs, &geometry).into_iter().map(move |(variant, shape)| Draft {
                geometry,
                variant,
                shape,
                line,
            })
        };
        Ok(geometries.all().flat_map(draft).collect())
    }

    fn load_trace(&self) -> Result<Option<Trace>, ScenarioError> {
        let Some(keys) = &self.file.trace else { return Ok(None) };
        if let Some(generator) = &keys.generate {
            return Ok(Some(generator.generate(self.file.seed)));
        }
        let file = keys.file.as_deref().unwrap_or_default();
        let path = self.path.parent().unwrap_or(Path::new("")).join(file);
        Trace::read(&path).map(Some).map_err(|cause| self.trace_error(self.lines.trace, cause))
    }

    /// What no single key can tell.
    fn check(&self, text: &str) -> Result<(), ScenarioError> {
        let File { heads, head_dims, dtypes, page_sizes, trees, mix, tenants, trace, packs, .. } = &self.file;
        let invalid_at = |path: &[Step], message: &str| ScenarioError::Invalid {
            path: self.path.clone(),
            line: locate::line_of(text, path, 0),
            message: locate::behind(path, message),
            hint: String::new(),
        };
        let invalid = |path: &[&str], message: &str| invalid_at(&keys(path), message);
        let kinds = [trees.is_some(), mix.is_some(), tenants.is_some(), trace.is_some(), packs.is_some()];
        match kinds.into_iter().filter(|given| *given).count() {
            1 => {}
            0 => {
                let message = "one of `trees`, `mix`, `tenants`, `trace`, `packs` is missing";
                return Err(invalid(&[], message));
            }
            _ => {
                let message = "only one of `trees`, `mix`, `tenants`, `trace`, `packs` may be given";
                return Err(invalid(&[], message));
            }
        }
        let lists: [(&[&str], usize); 7] = [
            (&["heads"], heads.len()),
            (&["head_dims"], head_dims.len()),
            (&["dtypes"], dtypes.len()),
            (&["page_sizes"], page_sizes.len()),
            (&["trees"], trees.as_ref().map_or(1, Vec::len)),
            (&["mix"], mix.as_ref().map_or(1, Vec::len)),
            (&["trace", "at"], trace.as_ref().map_or(1, |trace| trace.at.count())),
        ];
        if let Some((path, _)) = lists.iter().find(|(_, len)| *len == 0) {
            return Err(invalid(path, "the list must not be empty"));
        }
        if let Some(mix) = mix {
            check_mix(mix, &mut keys(&["mix"])).map_err(|(at, message)| invalid_at(&at, &message))?;
        }
        if let Some(tenants) = tenants {
            tenants.check().map_err(|(key, message)| invalid(&["tenants", key], &message))?;
            if geometries::whole_pages(&self.file).is_none() {
                let message = "no prefix of up to 4096 tokens fills whole pages of all `page_sizes`; use multiples of each other";
                return Err(invalid(&["page_sizes"], message));
            }
        }
        if let Some(trace) = trace {
            if trace.file.is_some() == trace.generate.is_some() {
                return Err(invalid(&["trace"], "either `file` or `generate` is needed"));
            }
            if let Some(generator) = &trace.generate {
                generator.check().map_err(|(key, message)| invalid(&["trace", "generate", key], &message))?;
            }
            if let Some(size) = page_sizes.iter().find(|size| !BLOCK_TOKENS.is_multiple_of(size.0)) {
                let message = format!("{} does not divide a trace's blocks of {BLOCK_TOKENS} tokens", size.0);
                return Err(invalid(&["page_sizes"], &message));
            }
        }
        if self.file.invariant
            && let Some(size) = page_sizes.iter().find(|size| !size.0.is_multiple_of(INVARIANT_PAGES))
        {
            let message = format!(
                "batch-invariant plans need pages of a multiple of {INVARIANT_PAGES} tokens, not of {}; use such `page_sizes`, or leave it out",
                size.0
            );
            return Err(invalid(&["invariant"], &message));
        }
        let product = |lens: &[usize]| lens.iter().fold(1u64, |all, &len| all.saturating_mul(len as u64));
        let few_enough = |key: &str, shapes: u64| {
            let layouts = [heads.len(), head_dims.len(), dtypes.len(), page_sizes.len()];
            let all = shapes.saturating_mul(product(&layouts));
            let message = || {
                format!(
                    "{all} combinations under all layouts, at most {MAX_COMBINATIONS} are allowed; shorten the lists"
                )
            };
            if all > MAX_COMBINATIONS { Err(invalid(&[key], &message())) } else { Ok(()) }
        };
        few_enough("trees", trees.as_ref().map_or(0, |trees| trees.len() as u64))?;
        few_enough("mix", u64::from(mix.is_some()))?;
        if let Some(Times::List(times)) = trace.as_ref().map(|trace| &trace.at) {
            few_enough("trace", times.len() as u64)?;
        }
        if let Some(PacksKeys { rows, kv_len, packs, own, points, .. }) = packs {
            let lists = [rows.is_empty(), kv_len.is_empty(), packs.is_empty()];
            if lists.contains(&true) && lists.contains(&false) || lists[0] && points.is_empty() {
                return Err(invalid(
                    &["packs"],
                    "`rows`, `kv_len` and `packs` are needed together, or `points`",
                ));
            }
            let swept = product(&[rows.len(), kv_len.len(), packs.len(), own.len().max(1)]);
            few_enough("packs", swept.saturating_add(points.len() as u64))?;
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
        let (path, line) = (self.path.clone(), self.lines.kind);
        ScenarioError::Batch { path, line, batch: batch.to_owned(), message }
    }

    fn trace_error(&self, line: usize, cause: TraceError) -> ScenarioError {
        ScenarioError::Trace { path: self.path.clone(), line, cause }
    }
}

/// Most combinations of a sweep, counted before any is made: 2^20 take some hundred MB.
const MAX_COMBINATIONS: u64 = 1 << 20;

/// Tokens of which the pages of batch-invariant plans have a multiple (`AttentionOptions::invariant` in the runtime).
const INVARIANT_PAGES: u32 = 16;

/// Most nodes and requests of a mix, and its deepest level.
const MAX_MIX: u64 = 1 << 18;
const MAX_DEPTH: usize = 64;

/// Says which node is wrong and why.
fn check_mix(nodes: &[MixNode], at: &mut Vec<Step>) -> Result<(), (Vec<Step>, String)> {
    fn count(nodes: &[MixNode], at: &mut Vec<Step>, depth: usize) -> Result<u64, (Vec<Step>, String)> {
        if depth > MAX_DEPTH {
            return Err((at.clone(), format!("more than {MAX_DEPTH} levels")));
        }
        let mut total = 0u64;
        for (index, node) in nodes.iter().enumerate() {
            at.push(Step::Index(index));
            if let Some(inside) = node.ends_inside.iter().find(|inside| inside.0 > node.tokens.0) {
                let message = format!("a request cannot end after {} of {} tokens", inside.0, node.tokens.0);
                return Err((at.clone(), message));
            }
            if node.requests == Some(0) && node.ends_inside.is_empty() && node.children.is_empty() {
                return Err((at.clone(), "no request has this node".to_owned()));
            }
            at.push(Step::Key("children".to_owned()));
            let below = count(&node.children, at, depth + 1)?;
            at.pop();
            let own = 1 + u64::from(node.requests.unwrap_or(1)) + node.ends_inside.len() as u64;
            total = total.saturating_add(own.saturating_add(below).saturating_mul(u64::from(node.repeat.0)));
            if total > MAX_MIX {
                return Err((at.clone(), format!("more than {MAX_MIX} nodes and requests")));
            }
            at.pop();
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

/// The batches of a trace at the wanted times. Of a list, all must be; of a range, times without a decoding request are left out, but some must
/// be left.
fn trace_shapes(keys: &TraceKeys, trace: &Trace) -> Result<Vec<(String, Shape)>, TraceError> {
    let replay = Replay {
        max_batch: keys.max_batch.0,
        tokens_per_second: keys.tokens_per_second.0,
        prefill_tokens_per_second: keys.prefill_tokens_per_second.0,
    };
    let seconds = keys.at.seconds();
    let mut shapes = Vec::new();
    let mut idle = None;
    for (second, running) in seconds.iter().zip(replay.running_at_all(trace, &seconds)) {
        match (running, &keys.at) {
            (Ok(running), _) => {
                shapes.push((format!("at-{second}s"), Shape::Layout(Arc::new(replay::layout(&running)))));
            }
            (Err(error), Times::List(_)) => return Err(error),
            (Err(error), Times::Range(_)) => idle = idle.or(Some(error)),
        }
    }
    match idle {
        Some(error) if shapes.is_empty() => Err(error),
        _ => Ok(shapes),
    }
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
