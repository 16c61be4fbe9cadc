//! Prefix trees in PAT's notation: nodes per level, then tokens per node of each level.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A regular prefix tree; the nodes of the last level are the requests. Written `1,4,256_32,256,32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tree {
    pub(crate) nodes: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
}

impl Tree {
    /// Nodes of each level, the roots first.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Tokens of a node of each level.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Why a text is no tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a tree: {reason}; write nodes per level _ tokens per node, like `1,4,256_32,256,32`"
)]
pub struct ParseTreeError {
    text: String,
    reason: String,
}

impl FromStr for Tree {
    type Err = ParseTreeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseTreeError { text: text.to_owned(), reason };
        let (nodes, tokens) = text.split_once('_').ok_or_else(|| error("there is no `_`".to_owned()))?;
        let numbers = |list: &str| {
            list.split(',')
                .map(|number| match number.trim().parse::<u32>() {
                    Ok(0) => Err(error("counts must be at least 1".to_owned())),
                    Ok(number) => Ok(number),
                    Err(_) => Err(error(format!("`{}` is no count", number.trim()))),
                })
                .collect::<Result<Vec<u32>, _>>()
        };
        let (nodes, tokens) = (numbers(nodes)?, numbers(tokens)?);
        if nodes.len() != tokens.len() {
            return Err(error(format!("{} levels of nodes, {} of tokens", nodes.len(), tokens.len())));
        }
        if let Some(pair) = nodes.windows(2).find(|pair| !pair[1].is_multiple_of(pair[0])) {
            return Err(error(format!("{} nodes cannot share {} parents evenly", pair[1], pair[0])));
        }
        Ok(Self { nodes, tokens })
    }
}

impl TryFrom<String> for Tree {
    type Error = ParseTreeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Tree> for String {
    fn from(tree: Tree) -> Self {
        tree.to_string()
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        write!(f, "{}_{}", list(&self.nodes), list(&self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_survive_the_round_trip_through_text() {
        for text in ["1,10_4096,416", "256_1024", "8,16,32,256_512,512,256,32"] {
            assert_eq!(text.parse::<Tree>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn texts_that_are_no_trees_say_why() {
        for (text, reason) in [
            ("1,4", "no `_`"),
            ("1,4_32", "2 levels of nodes, 1 of tokens"),
            ("1,x_32,32", "`x` is no count"),
            ("2,5_32,32", "5 nodes cannot share 2 parents evenly"),
            ("1,0_32,32", "at least 1"),
            ("1_-3", "`-3` is no count"),
            ("_", "`` is no count"),
            ("99999999999_1", "is no count"),
        ] {
            let error = text.parse::<Tree>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
