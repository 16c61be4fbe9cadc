//! The selector as Rust (`templates/selector.rs.txt`): deterministic to the byte, clean under `rustfmt`, no dependencies beyond the vocabulary.

use super::{SelectorModel, TreeModel};
use askama::Template;
use std::fmt::Write as _;
use tilewright_heuristics::{Backend, BatchShape, Dtype, Prices, Tile, TileSetBuf};

/// What the module's header says, one line an entry; empty entries are left out.
pub type Header = Vec<String>;

/// `templates/selector.rs.txt`, which is the module but for these.
#[derive(Template)]
#[template(path = "selector.rs.txt")]
struct Module<'a> {
    model: &'a SelectorModel,
    header: Vec<String>,
    /// The variant of [`Backend`].
    backend: &'static str,
    /// Whether the tree has a question.
    asks: bool,
    classes: Vec<Class>,
    /// The body of `ranked`, lines and all.
    tree: String,
}

/// A class of kernels, and a bit for each set that can run it.
struct Class {
    head_dim: u32,
    dtype: u32,
    sets: String,
    name: &'static str,
}

/// The module's text.
///
/// # Panics
/// Never: writing to a string cannot fail.
pub fn render(model: &SelectorModel, header: &Header) -> String {
    debug_assert!(model.device.backend.parse::<Backend>().is_ok());
    let width = model.sets.len();
    let classes = model.feasible.iter().map(|(&(head_dim, dtype), sets)| Class {
        head_dim,
        dtype,
        sets: format!("{sets:0width$b}"),
        name: Dtype::from_code(dtype).map_or("?", Dtype::name),
    });
    let mut tree = String::new();
    write_tree(&mut tree, &model.tree, &model.sets, 1).expect("writing to a String");
    let module = Module {
        model,
        header: header
            .iter()
            .filter(|line| !line.is_empty())
            .map(|line| line.replace(['\n', '\r'], " "))
            .collect(),
        backend: if model.device.backend == "cuda" { "Cuda" } else { "Cpu" },
        asks: matches!(model.tree, TreeModel::Split { .. }),
        classes: classes.collect(),
        tree,
    };
    module.render().expect("writing to a String") + "\n"
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

fn literals_of_tiles(tiles: &[Tile]) -> String {
    tiles.iter().map(|tile| format!("Tile::of(\"{tile}\")")).collect::<Vec<_>>().join(", ")
}

fn literal_of_shape(shape: &BatchShape) -> String {
    record_literal("BatchShape", &BatchShape::NAMES, &shape.values())
}

fn literal_of_prices(prices: &Prices) -> String {
    record_literal("Prices", &Prices::NAMES, &prices.values())
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
