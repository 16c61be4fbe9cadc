//! What is proved about a fitted tree.

use super::Fit;
use serde::Serialize;

/// What is proved about a fitted tree, as it is: after splits that gain nothing beyond noise were taken out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Proof {
    /// No tree of `depth` questions over the portfolio and the searched thresholds has less mean regret.
    pub lower_bound: f64,
    /// Whether the fitted tree has no more than that.
    pub optimal: bool,
    /// Mean regret of the best tree that was found, before it was shaped: before splits were taken out that are not worth a leaf.
    pub unshaped: f64,
    /// Questions on the longest path of the trees that this is about.
    pub depth: usize,
    /// Most thresholds of a feature that these trees may ask for, where that is not every one that tells rows apart. The fitted tree may
    /// ask for others, which cost less.
    pub thresholds: Option<usize>,
    /// What ended the search.
    pub ended: Ended,
    /// Parts of the table that were fitted alone; what is proved are means over them.
    pub parts: usize,
}

/// What ended a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The best tree was found, and that it is the best was proved.
    Complete,
    /// The work that it may do: the same table gives the same tree everywhere.
    Work,
    /// Time: a faster machine may find a better tree.
    Clock,
}

impl Fit {
    /// What is proved about the tree, in a sentence.
    pub fn proved(&self) -> String {
        let Proof { lower_bound, optimal, unshaped, depth, thresholds, ended, parts } = self.proof;
        let asked = thresholds.map_or(String::new(), |most| format!(" and {most} thresholds a feature"));
        let apart = if parts > 1 { format!("in each of {parts} parts, ") } else { String::new() };
        let trees =
            format!("{apart}no tree of depth {depth} over this portfolio{asked} has less mean regret");
        if optimal {
            return format!("{trees} (proven)");
        }
        let mut text = format!(
            "{trees} than {:.2} % (proven), this one is {} above that",
            lower_bound * 100.0,
            points(self.regret - lower_bound)
        );
        if self.regret > unshaped {
            let left_out = points(self.regret - unshaped);
            text += &format!(", {left_out} of it for questions left out that are not worth their leaves");
        }
        text += match ended {
            Ended::Complete => "",
            Ended::Work => "; the search ended after the work that its seconds are for",
            Ended::Clock => "; the clock ended the search, a faster machine may find a better tree",
        };
        text
    }
}

/// A difference of mean regrets.
fn points(difference: f64) -> String {
    let points = difference.max(0.0) * 100.0;
    if points < 0.005 { "less than 0.01 points".to_owned() } else { format!("{points:.2} points") }
}
