//! A selector as one small JSON file: equal to the emitted module on every batch, so that a GPU is tuned and used without compiling an engine
//! again.
//!
//! The file says its schema and a checksum of the rest. What is loaded lives as long as the process: a few KB a device.

use crate::decision_tree::{DecisionTree, Node};
use crate::{
    Backend, BatchShape, Choices, Device, Domain, Dtype, Prices, Question, Selector, Tile, TileSet,
    TileSetBuf, TreePath,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The schema that this version writes and reads.
pub const SCHEMA: u32 = 1;
/// Files are a few KB; longer ones are no selectors.
const MOST_BYTES: u64 = 1 << 20;
/// Nodes of a tree; a fit makes at most 511.
const MOST_NODES: usize = 4096;
/// A set has a bit in a word.
const MOST_SETS: usize = 64;

/// Why a file is no selector.
#[derive(Debug)]
pub enum SelectorError {
    /// It cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is no selector of this schema, or was damaged.
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "{}: cannot read: {source}", path.display()),
            Self::Invalid { path, reason } => {
                write!(f, "{}: no selector: {reason}; `tilewright emit` writes it again", path.display())
            }
        }
    }
}

impl std::error::Error for SelectorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Invalid { .. } => None,
        }
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorFile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The device that it was measured on.
    pub device: DeviceEntry,
    /// Hashes by which it can be told where it comes from: of the kernels' sources, the space and the choices.
    pub hashes: BTreeMap<String, String>,
    /// Every set that the tree may choose.
    pub sets: Vec<String>,
    /// The tile of classes of kernels that were not measured.
    pub safe_default: String,
    /// What a plan's parts cost, in attoseconds.
    pub prices: BTreeMap<String, u64>,
    /// Smallest measured value of each feature.
    pub domain_min: BTreeMap<String, u32>,
    /// Largest measured value of each feature.
    pub domain_max: BTreeMap<String, u32>,
    /// The sets that can run each class of kernels.
    pub feasible: Vec<ClassEntry>,
    /// The tree.
    pub tree: TreeEntry,
    /// Checksum of the file without it.
    pub checksum: String,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceEntry {
    /// `cuda` or `cpu`.
    pub backend: String,
    /// As its driver calls it.
    pub name: String,
    /// What code it can run.
    pub capability: String,
    /// Multiprocessors, or threads.
    pub units: u32,
}

/// A class of kernels and the sets that can run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassEntry {
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Code of the element types: [`Dtype::code`].
    pub dtype: u32,
    /// Indices into the sets.
    pub sets: Vec<u8>,
}

/// A node of the tree with what is below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TreeEntry {
    /// A question.
    Split {
        /// The feature.
        feature: String,
        /// The largest value that goes to `low`.
        at_most: u32,
        /// Where small values go.
        low: Box<TreeEntry>,
        /// Where large values go.
        high: Box<TreeEntry>,
    },
    /// A ranking.
    Leaf {
        /// Indices into the sets, the preferred one first.
        ranked: Vec<u8>,
        /// Fitted batches that ended here.
        batches: u32,
        /// Their mean regret in percent; absent where no set is feasible.
        regret_percent: Option<f64>,
    },
}

impl SelectorFile {
    /// The file's text, with its checksum.
    pub fn to_text(&self) -> String {
        let summed = Self { checksum: self.sum(), ..self.clone() };
        // Strings, numbers and lists of them: writing cannot fail.
        serde_json::to_string_pretty(&summed).map(|text| text + "\n").unwrap_or_default()
    }

    /// FNV-1a of the file as compact JSON with an empty checksum.
    fn sum(&self) -> String {
        let bare = Self { checksum: String::new(), ..self.clone() };
        let bytes = serde_json::to_vec(&bare).unwrap_or_default();
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Schema {
            schema: u32,
        }
        let json = |error: serde_json::Error| error.to_string();
        let Schema { schema } = serde_json::from_slice(text).map_err(json)?;
        if schema != SCHEMA {
            return Err(format!("its schema is {schema}, this version reads {SCHEMA}"));
        }
        let file: Self = serde_json::from_slice(text).map_err(json)?;
        if file.checksum != file.sum() {
            return Err("its checksum is of another content: it was damaged or edited".to_owned());
        }
        Ok(file)
    }

    /// The selector, checked, for the rest of the process.
    fn leak(&self) -> Result<&'static Selector, String> {
        let sets = self.sets()?;
        let safe_default: Tile =
            self.safe_default.parse().map_err(|error| format!("safe_default: {error}"))?;
        let mut nodes = Vec::new();
        add_node(&mut nodes, &self.tree, sets.len())?;
        let feasible =
            self.feasible.iter().map(|class| class.bits(sets.len())).collect::<Result<Vec<_>, _>>()?;
        let DeviceEntry { backend, name, capability, units } = &self.device;
        let backend: Backend = backend.parse().map_err(|error| format!("device: {error}"))?;
        let [min, max] = [(&self.domain_min, "domain_min"), (&self.domain_max, "domain_max")]
            .map(|(values, of)| record(&BatchShape::NAMES, values, of));
        let (min, max) = (BatchShape::from_values(min?), BatchShape::from_values(max?));
        let prices = Prices::from_values(record(&Prices::NAMES, &self.prices, "prices")?);
        // All is known to be right: only now does it stay for good.
        let keep = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let sets: Vec<TileSet<'static>> =
            sets.iter().map(|set| TileSet::new(set.tiles().to_vec().leak())).collect();
        let nodes: Vec<Node> = nodes.into_iter().map(Flat::keep).collect();
        Ok(Box::leak(Box::new(Selector {
            device: Device { backend, name: keep(name), capability: keep(capability), units: *units },
            domain: Domain { min, max },
            sets: sets.leak(),
            safe_default,
            safe_set: TileSet::new(vec![safe_default].leak()),
            prices,
            choices: Choices::Data(DecisionTree { nodes: nodes.leak(), feasible: feasible.leak() }),
        })))
    }

    fn sets(&self) -> Result<Vec<TileSetBuf>, String> {
        if self.sets.is_empty() || self.sets.len() > MOST_SETS {
            return Err(format!("sets: {} of them, where 1 to {MOST_SETS} can be", self.sets.len()));
        }
        self.sets.iter().map(|set| set.parse().map_err(|error| format!("sets: {error}"))).collect()
    }
}

impl ClassEntry {
    fn bits(&self, sets: usize) -> Result<((u32, u32), u64), String> {
        let Self { head_dim, dtype, sets: named } = self;
        if Dtype::from_code(*dtype).is_none() {
            return Err(format!("feasible: {dtype} is no code of element types"));
        }
        let wrong = named.iter().find(|&&set| usize::from(set) >= sets);
        match wrong {
            Some(set) => Err(format!("feasible: there is no set {set}")),
            None => Ok(((*head_dim, *dtype), named.iter().fold(0, |bits, set| bits | 1 << set))),
        }
    }
}

/// A node before it is kept.
enum Flat {
    Split { feature: usize, threshold: u32, low: usize, high: usize },
    Leaf { ranked: Vec<u8>, batches: u32, regret: f64 },
}

impl Flat {
    fn keep(self) -> Node {
        match self {
            Self::Split { feature, threshold, low, high } => Node::Split { feature, threshold, low, high },
            Self::Leaf { ranked, batches, regret } => Node::Leaf { ranked: ranked.leak(), batches, regret },
        }
    }
}

/// Adds a subtree, parents first; the index of its root. The parser bounds how deep it is.
fn add_node(nodes: &mut Vec<Flat>, entry: &TreeEntry, sets: usize) -> Result<usize, String> {
    let at = nodes.len();
    if at >= MOST_NODES {
        return Err(format!("tree: more than {MOST_NODES} nodes"));
    }
    match entry {
        TreeEntry::Leaf { ranked, batches, regret_percent } => {
            if let Some(set) = ranked.iter().find(|&&set| usize::from(set) >= sets) {
                return Err(format!("tree: there is no set {set}"));
            }
            let regret = regret_percent.unwrap_or(f64::INFINITY);
            nodes.push(Flat::Leaf { ranked: ranked.clone(), batches: *batches, regret });
        }
        TreeEntry::Split { feature, at_most, low, high } => {
            let feature = BatchShape::NAMES.iter().position(|name| name == feature);
            let feature = feature.ok_or_else(|| format!("tree: `{}` is no feature", entry.feature()))?;
            nodes.push(Flat::Split { feature, threshold: *at_most, low: 0, high: 0 });
            let (first, second) = (add_node(nodes, low, sets)?, add_node(nodes, high, sets)?);
            if let Flat::Split { low, high, .. } = &mut nodes[at] {
                (*low, *high) = (first, second);
            }
        }
    }
    Ok(at)
}

impl TreeEntry {
    /// The tree of any selector, emitted or loaded, without what its leaves say of fitted batches: found by following one batch to each leaf.
    /// `None` for a tree that asks what its own questions have answered before, as no fit does.
    pub fn of(selector: &Selector) -> Option<Self> {
        Self::above(selector, [0; BatchShape::COUNT], 0)
    }

    /// The subtree behind the first `depth` questions on the path of the batch with these values, the least that lead there.
    fn above(selector: &Selector, least: [u32; BatchShape::COUNT], depth: usize) -> Option<Self> {
        let (_, path) = selector.explain(&BatchShape::from_values(least));
        let Some(question) = path.questions.get(depth) else {
            return Some(Self::Leaf { ranked: path.ranked.to_vec(), batches: 0, regret_percent: None });
        };
        let feature = BatchShape::NAMES.iter().position(|name| *name == question.feature)?;
        let mut more = least;
        more[feature] = question.threshold.checked_add(1)?;
        let (_, beyond) = selector.explain(&BatchShape::from_values(more));
        let answers =
            |path: &TreePath| path.questions.iter().take(depth).map(Question::at_most).collect::<Vec<_>>();
        // These are the least values: if they go high, or greater ones lead elsewhere before, no batch gets to one of the sides.
        let both_sides = question.at_most() && answers(&path) == answers(&beyond);
        both_sides.then_some(())?;
        Some(Self::Split {
            feature: question.feature.to_owned(),
            at_most: question.threshold,
            low: Box::new(Self::above(selector, least, depth + 1)?),
            high: Box::new(Self::above(selector, more, depth + 1)?),
        })
    }

    fn feature(&self) -> &str {
        match self {
            Self::Split { feature, .. } => feature,
            Self::Leaf { .. } => "",
        }
    }
}

/// The values of a record, each once.
fn record<const N: usize, V: Copy + Default>(
    names: &[&str; N],
    values: &BTreeMap<String, V>,
    of: &str,
) -> Result<[V; N], String> {
    if let Some(name) = values.keys().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("{of}: `{name}` is unknown"));
    }
    let mut found = [V::default(); N];
    for (place, name) in found.iter_mut().zip(names) {
        *place = *values.get(*name).ok_or_else(|| format!("{of}: `{name}` is missing"))?;
    }
    Ok(found)
}

impl Selector {
    /// Reads a selector from a file that `tilewright emit` or `tune` wrote. It stays in memory as long as the process lives.
    ///
    /// # Errors
    /// A file that cannot be read, or is no selector of this schema; the error says what is wrong with it.
    pub fn load(path: &Path) -> Result<&'static Self, SelectorError> {
        let read = |source| SelectorError::Read { path: path.to_owned(), source };
        let invalid = |reason| SelectorError::Invalid { path: path.to_owned(), reason };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(read)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(read)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(invalid(format!("it is longer than {} KB", MOST_BYTES >> 10)));
        }
        Self::from_json(&text).map_err(invalid)
    }

    /// The selector of a file's content.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &[u8]) -> Result<&'static Self, String> {
        SelectorFile::parse(text)?.leak()
    }

    /// Every selector of a folder's `*.json`, by name, and why the other files are none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn load_folder(folder: &Path) -> Result<Vec<Result<&'static Self, SelectorError>>, SelectorError> {
        let read = |source| SelectorError::Read { path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths.iter().map(|path| Self::load(path)).collect())
    }
}
