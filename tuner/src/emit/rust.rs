//! The selector as Rust: deterministic to the byte, clean under `rustfmt`, no dependencies beyond the vocabulary.

use super::{SelectorModel, TreeModel};
use std::fmt::Write as _;
use tilewright_heuristics::{Backend, BatchShape, Dtype, Prices, Tile, TileSetBuf};

/// What the module's header says, one line an entry; empty entries are left out.
pub type Header = Vec<String>;

/// The module's text.
pub fn render(model: &SelectorModel, header: &Header) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    write_module(&mut text, model, header).expect("writing to a String");
    text
}

fn write_module(text: &mut String, model: &SelectorModel, header: &Header) -> std::fmt::Result {
    let device = &model.device;
    writeln!(text, "//! Tile selector of {device}. Written by `tilewright emit`; do not edit.")?;
    writeln!(text, "//!")?;
    for line in header.iter().filter(|line| !line.is_empty()) {
        writeln!(text, "//! - {}", line.replace(['\n', '\r'], " "))?;
    }
    let backend = match device.backend.as_str() {
        "cuda" => "Cuda",
        _ => "Cpu",
    };
    debug_assert!(device.backend.parse::<Backend>().is_ok());
    writeln!(text)?;
    let ask = if matches!(model.tree, TreeModel::Split { .. }) { ", ask" } else { "" };
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(
        text,
        "use crate::{{Backend, BatchShape, Choices, Device, Domain, Follow, Prices, Selector, Tile, TileSet, Unfollowed{ask}, first_feasible}};"
    )?;
    writeln!(text)?;
    writeln!(text, "/// The selector.")?;
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(text, "pub(super) static SELECTOR: Selector = Selector {{")?;
    writeln!(
        text,
        "    device: Device {{ backend: Backend::{backend}, name: {:?}, capability: {:?}, units: {} }},",
        device.name, device.capability, device.units
    )?;
    writeln!(text, "    domain: DOMAIN,")?;
    writeln!(text, "    sets: &SETS,")?;
    writeln!(text, "    safe_default: SAFE_DEFAULT,")?;
    writeln!(text, "    safe_set: SAFE_SET,")?;
    writeln!(text, "    prices: PRICES,")?;
    writeln!(text, "    choices: Choices::Code {{")?;
    writeln!(text, "        choose: |batch| choose(batch, &mut Unfollowed),")?;
    writeln!(text, "        follow: choose,")?;
    writeln!(text, "        ranked: |batch| (ranked(batch, &mut Unfollowed), feasible(batch)),")?;
    writeln!(text, "    }},")?;
    writeln!(text, "}};")?;
    writeln!(text)?;
    writeln!(text, "/// The sets that the tree chooses from.")?;
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(text, "static SETS: [TileSet<'static>; {}] = [", model.sets.len())?;
    for set in &model.sets {
        let tiles: Vec<String> = set.tiles().iter().map(tile_literal).collect();
        writeln!(text, "    TileSet::new(&[{}]),", tiles.join(", "))?;
    }
    writeln!(text, "];")?;
    writeln!(text)?;
    writeln!(
        text,
        "/// Runs every supported class of kernels; the choice for those that were not measured."
    )?;
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(text, "const SAFE_DEFAULT: Tile = {};", tile_literal(&model.safe_default))?;
    writeln!(text, "static SAFE_SET: TileSet<'static> = TileSet::new(&[SAFE_DEFAULT]);")?;
    writeln!(text)?;
    writeln!(text, "/// What a plan's parts cost, in attoseconds.")?;
    writeln!(text, "#[rustfmt::skip]")?;
    let literal = record_literal("Prices", &Prices::NAMES, &model.prices.values());
    writeln!(text, "const PRICES: Prices = {literal};")?;
    writeln!(text)?;
    writeln!(text, "/// The batches that were measured.")?;
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(text, "const DOMAIN: Domain = Domain {{")?;
    for (side, shape) in [("min", &model.domain.min), ("max", &model.domain.max)] {
        writeln!(text, "    {side}: {},", record_literal("BatchShape", &BatchShape::NAMES, &shape.values()))?;
    }
    writeln!(text, "}};")?;
    writeln!(text)?;
    writeln!(text, "#[inline]")?;
    writeln!(text, "fn choose(batch: &BatchShape, path: &mut impl Follow) -> TileSet<'static> {{")?;
    writeln!(text, "    match first_feasible(ranked(batch, path), feasible(batch)) {{")?;
    writeln!(text, "        Some(choice) => SETS[choice as usize],")?;
    writeln!(text, "        None => SAFE_SET,")?;
    writeln!(text, "    }}")?;
    writeln!(text, "}}")?;
    writeln!(text)?;
    writeln!(text, "/// The sets whose tiles can all run the batch's kernels, one bit each.")?;
    writeln!(text, "#[rustfmt::skip]")?;
    writeln!(text, "const fn feasible(batch: &BatchShape) -> u64 {{")?;
    writeln!(text, "    match (batch.head_dim, batch.dtype) {{")?;
    for ((head_dim, dtype), mask) in &model.feasible {
        let width = model.sets.len();
        let name = Dtype::from_code(*dtype).map_or("?", Dtype::name);
        writeln!(text, "        ({head_dim}, {dtype}) => 0b{mask:0width$b}, // {name}")?;
    }
    writeln!(text, "        _ => 0,")?;
    writeln!(text, "    }}")?;
    writeln!(text, "}}")?;
    writeln!(text)?;
    writeln!(text, "/// The tree: indices into the sets, the preferred one first.")?;
    writeln!(text, "#[inline]")?;
    let batch = if ask.is_empty() { "_" } else { "batch" };
    writeln!(text, "fn ranked({batch}: &BatchShape, path: &mut impl Follow) -> &'static [u8] {{")?;
    write_tree(text, &model.tree, &model.sets, 1)?;
    writeln!(text, "}}")
}

fn write_tree(text: &mut String, tree: &TreeModel, sets: &[TileSetBuf], depth: usize) -> std::fmt::Result {
    let indent = "    ".repeat(depth);
    match tree {
        TreeModel::Leaf { ranked, support, regret } => {
            let first =
                ranked.first().map_or("the safe default".to_owned(), |&i| sets[usize::from(i)].to_string());
            let noun = if *support == 1 { "batch" } else { "batches" };
            writeln!(text, "{indent}// {first}: {support} {noun}, mean regret {:.2} %", regret * 100.0)?;
            let list = ranked.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            writeln!(text, "{indent}path.leaf(&[{list}], {support}, {})", float_literal(regret * 100.0))
        }
        TreeModel::Split { feature, threshold, low, high } => {
            writeln!(text, "{indent}if ask!(path, batch.{} <= {threshold}) {{", BatchShape::NAMES[*feature])?;
            write_tree(text, low, sets, depth + 1)?;
            // A chain of questions reads as `else if`, as a person would write it.
            if let TreeModel::Split { .. } = **high {
                write!(text, "{indent}}} else ")?;
                let mut rest = String::new();
                write_tree(&mut rest, high, sets, depth)?;
                text.push_str(rest.trim_start());
                Ok(())
            } else {
                writeln!(text, "{indent}}} else {{")?;
                write_tree(text, high, sets, depth + 1)?;
                writeln!(text, "{indent}}}")
            }
        }
    }
}

fn tile_literal(tile: &Tile) -> String {
    format!("Tile::of(\"{tile}\")")
}

fn record_literal<T: std::fmt::Display>(name: &str, fields: &[&str], values: &[T]) -> String {
    let fields: Vec<String> =
        fields.iter().zip(values).map(|(field, value)| format!("{field}: {value}")).collect();
    format!("{name} {{ {} }}", fields.join(", "))
}

/// A number as Rust writes it: a leaf without any feasible set has no finite regret.
fn float_literal(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "f64::INFINITY".to_owned() }
}
