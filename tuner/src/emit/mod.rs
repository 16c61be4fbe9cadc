//! From a fitted tree to Rust: the selector as data, its text, and the folder of generated modules.

mod json;
mod model;
mod modules;
mod rust;

pub use json::{selector_file, tree_entry};
pub use model::{ModelError, SelectorModel, TreeModel};
pub use modules::{EmitError, Emitted, Heuristics, module_name};
pub use rust::{Header, render};
