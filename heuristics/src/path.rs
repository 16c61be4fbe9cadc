//! How an emitted tree came to its answer: the questions on the way, for people. Choosing follows nothing and costs nothing.

/// Follows the questions of an emitted tree. [`Unfollowed`] only answers them; [`TreePath`] notes them.
pub trait Follow {
    /// Whether `value`, the batch's `feature`, is at most `threshold`.
    fn at_most(&mut self, feature: &'static str, value: u32, threshold: u32) -> bool;

    /// The ranking of the leaf that was reached, which `batches` fitted batches ended in, with `regret` percent more than the best set of
    /// each on average.
    fn leaf(&mut self, ranked: &'static [u8], batches: u32, regret: f64) -> &'static [u8];
}

/// Asks a question of an emitted tree: `ask!(path, batch.requests <= 88)`.
#[macro_export]
macro_rules! ask {
    ($path:ident, $batch:ident.$feature:ident <= $threshold:literal) => {
        $path.at_most(stringify!($feature), $batch.$feature, $threshold)
    };
}

/// Ignores the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unfollowed;

impl Follow for Unfollowed {
    #[inline(always)]
    fn at_most(&mut self, _: &'static str, value: u32, threshold: u32) -> bool {
        value <= threshold
    }

    #[inline(always)]
    fn leaf(&mut self, ranked: &'static [u8], _: u32, _: f64) -> &'static [u8] {
        ranked
    }
}

/// A question of a tree, and the batch's number that answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The feature, one of [`BatchShape::NAMES`](crate::BatchShape::NAMES).
    pub feature: &'static str,
    /// The batch's.
    pub value: u32,
    /// The largest value that goes to the low side.
    pub threshold: u32,
}

impl Question {
    /// Whether the batch went to the low side.
    pub const fn at_most(&self) -> bool {
        self.value <= self.threshold
    }
}

impl core::fmt::Display for Question {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { feature, value, threshold } = self;
        let relation = if self.at_most() { "<=" } else { ">" };
        write!(f, "{feature} {value} {relation} {threshold}")
    }
}

/// The path of one batch through an emitted tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreePath {
    /// The questions, from the root.
    pub questions: Vec<Question>,
    /// The ranking of the leaf: indices into the selector's sets, the preferred one first.
    pub ranked: &'static [u8],
    /// Fitted batches that ended in the leaf.
    pub batches: u32,
    /// What they take beyond the best set of each, in percent of it, on average.
    pub regret: f64,
}

impl Follow for TreePath {
    fn at_most(&mut self, feature: &'static str, value: u32, threshold: u32) -> bool {
        let question = Question { feature, value, threshold };
        self.questions.push(question);
        question.at_most()
    }

    fn leaf(&mut self, ranked: &'static [u8], batches: u32, regret: f64) -> &'static [u8] {
        (self.ranked, self.batches, self.regret) = (ranked, batches, regret);
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchShape;

    fn ranked(batch: &BatchShape, path: &mut impl Follow) -> &'static [u8] {
        if ask!(path, batch.requests <= 8) {
            path.leaf(&[1], 3, 0.5)
        } else if ask!(path, batch.longest <= 0) {
            path.leaf(&[2, 0], 4, 0.0)
        } else {
            path.leaf(&[0], 5, 1.25)
        }
    }

    #[test]
    fn a_path_has_the_questions_that_were_asked() {
        let batch = BatchShape { requests: 9, longest: 16, ..BatchShape::UNKNOWN };
        let mut path = TreePath::default();
        assert_eq!(ranked(&batch, &mut path), ranked(&batch, &mut Unfollowed));
        let texts: Vec<String> = path.questions.iter().map(Question::to_string).collect();
        assert_eq!(texts, ["requests 9 > 8", "longest 16 > 0"]);
        assert_eq!((path.ranked, path.batches, path.regret), (&[0][..], 5, 1.25));
    }
}
