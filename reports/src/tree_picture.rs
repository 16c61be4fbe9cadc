//! The fitted tree as a picture: questions, and at each leaf its tile, support and regret.

use crate::data::TreeNode;
use crate::format::percent;
use std::fmt::Write as _;

const LEAF_WIDTH: f64 = 196.0;
const LEVEL_HEIGHT: f64 = 92.0;
const BOX_WIDTH: f64 = 184.0;
const LEAF_HEIGHT: f64 = 58.0;
const SPLIT_HEIGHT: f64 = 30.0;

/// The picture as SVG with the page's classes.
pub(crate) fn tree_picture(tree: &TreeNode) -> String {
    let (width, height) =
        (leaves(tree) as f64 * LEAF_WIDTH, depth(tree) as f64 * LEVEL_HEIGHT + LEAF_HEIGHT + 16.0);
    let mut svg = format!(
        r#"<svg class="tree" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="tree-title"><title id="tree-title">Decision tree with {} leaves</title>"#,
        leaves(tree)
    );
    let mut next_leaf = 0;
    draw(&mut svg, tree, 0, &mut next_leaf);
    svg + "</svg>"
}

fn leaves(tree: &TreeNode) -> usize {
    match tree {
        TreeNode::Leaf { .. } => 1,
        TreeNode::Split { low, high, .. } => leaves(low) + leaves(high),
    }
}

fn depth(tree: &TreeNode) -> usize {
    match tree {
        TreeNode::Leaf { .. } => 0,
        TreeNode::Split { low, high, .. } => 1 + depth(low).max(depth(high)),
    }
}

/// Draws a subtree and says where its root stands.
fn draw(svg: &mut String, tree: &TreeNode, level: usize, next_leaf: &mut usize) -> f64 {
    let top = 8.0 + level as f64 * LEVEL_HEIGHT;
    match tree {
        TreeNode::Leaf { ranked, support, regret } => {
            let x = (*next_leaf as f64 + 0.5) * LEAF_WIDTH;
            *next_leaf += 1;
            let name = ranked.first().map_or("safe default", String::as_str);
            let more = if ranked.len() > 1 { format!(" (else {})", ranked.len() - 1) } else { String::new() };
            rectangle(svg, "leaf", x, top, LEAF_HEIGHT);
            text(svg, "strong", x, top + 22.0, &format!("{name}{more}"));
            let noun = if *support == 1 { "workload" } else { "workloads" };
            text(svg, "small", x, top + 42.0, &format!("{support} {noun}, regret {}", percent(*regret)));
            x
        }
        TreeNode::Split { feature, threshold, low, high } => {
            let left = draw(svg, low, level + 1, next_leaf);
            let right = draw(svg, high, level + 1, next_leaf);
            let x = (left + right) / 2.0;
            for (child, label) in [(left, "yes"), (right, "no")] {
                let (from, to) = (top + SPLIT_HEIGHT, 8.0 + (level + 1) as f64 * LEVEL_HEIGHT);
                let _ = write!(
                    svg,
                    r#"<path class="edge" d="M{x} {from} C{x} {0} {child} {0} {child} {to}"/>"#,
                    (from + to) / 2.0
                );
                text(svg, "small", (x + child) / 2.0, from + 24.0, label);
            }
            rectangle(svg, "split", x, top, SPLIT_HEIGHT);
            text(svg, "strong", x, top + 20.0, &format!("{feature} ≤ {threshold}"));
            x
        }
    }
}

fn rectangle(svg: &mut String, class: &str, x: f64, top: f64, height: f64) {
    // Writing to a String cannot fail.
    let _ = write!(
        svg,
        r#"<rect class="{class}" x="{}" y="{top}" width="{BOX_WIDTH}" height="{height}" rx="6"/>"#,
        x - BOX_WIDTH / 2.0
    );
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, content: &str) {
    let escaped = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = write!(svg, r#"<text class="{class}" x="{x}" y="{y}" text-anchor="middle">{escaped}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_shows_its_questions_and_leaves() {
        let leaf = |name: &str| {
            Box::new(TreeNode::Leaf { ranked: vec![name.to_owned()], support: 1, regret: 0.015 })
        };
        let tree = TreeNode::Split {
            feature: "rows".to_owned(),
            threshold: 8,
            low: leaf("m4<script>"),
            high: leaf("m16"),
        };
        let svg = tree_picture(&tree);
        assert!(svg.contains("rows ≤ 8") && svg.contains("1 workload, regret 1.5 %"), "{svg}");
        assert!(svg.contains("m4&lt;script&gt;") && !svg.contains("<script>"), "{svg}");
    }
}
