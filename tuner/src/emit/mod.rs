//! From a fitted tree to Rust: the selector as data, its text, and the folder of generated modules.

mod model;
mod modules;
mod rust;

pub use model::{ModelError, SelectorModel, TreeModel};
pub use modules::{EmitError, Heuristics, module_name};
pub use rust::{Header, render};
