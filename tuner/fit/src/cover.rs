//! Whether a few candidates can serve every row between them.

use std::collections::BTreeSet;

/// Sets of candidates that are tried before the question is left open.
const TRIED: usize = 200_000;

/// What is known about covering every row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// These candidates do.
    By(Vec<usize>),
    /// None of this size.
    Impossible,
    /// Neither was found in the time that this is worth.
    Unknown,
}

/// At most `size` candidates of `count`, of which every row has a valid one; `valid` says which are valid on a row. Candidates of little
/// `price` come first.
pub(super) fn cover(
    rows: usize,
    count: usize,
    size: usize,
    valid: impl Fn(usize, usize) -> bool,
    price: &[f64],
) -> Cover {
    // Rows with the same candidates are one; a row that has all those of another and more is covered with it.
    let mut patterns: Vec<Vec<usize>> = (0..rows)
        .map(|row| (0..count).filter(|&candidate| valid(row, candidate)).collect::<Vec<_>>())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    patterns.sort_by_key(Vec::len);
    let mut needed: Vec<Vec<usize>> = Vec::new();
    for pattern in patterns {
        // A long list of lists is only a slower search.
        let implied =
            |known: &Vec<usize>| known.iter().all(|candidate| pattern.binary_search(candidate).is_ok());
        if needed.len() > 2000 || !needed.iter().any(implied) {
            needed.push(pattern);
        }
    }
    let mut search = Search { needed: &needed, price, tried: 0, chosen: Vec::new() };
    let open: Vec<usize> = (0..needed.len()).collect();
    match search.descend(&open, size) {
        true => Cover::By(search.chosen),
        false if search.tried > TRIED => Cover::Unknown,
        false => Cover::Impossible,
    }
}

struct Search<'a> {
    needed: &'a [Vec<usize>],
    price: &'a [f64],
    tried: usize,
    chosen: Vec<usize>,
}

impl Search<'_> {
    /// Whether `left` further candidates can cover the open rows.
    fn descend(&mut self, open: &[usize], left: usize) -> bool {
        if open.is_empty() {
            return true;
        }
        self.tried += 1;
        if left == 0 || self.tried > TRIED {
            return false;
        }
        let mut covers = vec![0usize; self.price.len()];
        for &row in open {
            self.needed[row].iter().for_each(|&candidate| covers[candidate] += 1);
        }
        // The rows that the best candidates can cover between them at most.
        let mut most = covers.clone();
        most.sort_unstable_by(|a, b| b.cmp(a));
        if most.iter().take(left).sum::<usize>() < open.len() {
            return false;
        }
        // One of the candidates of a row must be taken; the row with fewest leaves least to try.
        let Some(&row) = open.iter().min_by_key(|&&row| self.needed[row].len()) else { return false };
        let mut next = self.needed[row].clone();
        next.sort_by(|&a, &b| covers[b].cmp(&covers[a]).then(self.price[a].total_cmp(&self.price[b])));
        for candidate in next {
            let rest: Vec<usize> = open
                .iter()
                .copied()
                .filter(|&row| self.needed[row].binary_search(&candidate).is_err())
                .collect();
            self.chosen.push(candidate);
            if self.descend(&rest, left - 1) {
                return true;
            }
            self.chosen.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cover_is_found_where_taking_the_widest_first_fails() {
        // Candidate 0 serves four of six rows, but only 1 and 2 together serve all.
        let valid = [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1]];
        let found = cover(6, 3, 2, |row, candidate| valid[candidate][row] == 1, &[0.0; 3]);
        let Cover::By(mut found) = found else { panic!("{found:?}") };
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
        assert_eq!(cover(6, 3, 1, |row, candidate| valid[candidate][row] == 1, &[0.0; 3]), Cover::Impossible);
    }

    proptest! {
        #[test]
        fn a_cover_is_found_if_there_is_one(
            rows in prop::collection::vec(1u32..256, 1..20),
            size in 1usize..5,
        ) {
            let valid = |row: usize, candidate: usize| rows[row] >> candidate & 1 != 0;
            let covers = |set: u32| rows.iter().all(|row| row & set != 0);
            let possible = (0u32..256).any(|set| set.count_ones() as usize <= size && covers(set));
            match cover(rows.len(), 8, size, valid, &[0.0; 8]) {
                Cover::By(chosen) => {
                    prop_assert!(chosen.len() <= size);
                    prop_assert!(covers(chosen.iter().map(|candidate| 1 << candidate).sum()));
                }
                Cover::Impossible => prop_assert!(!possible),
                Cover::Unknown => prop_assert!(false, "so small a question is answered"),
            }
        }
    }
}
