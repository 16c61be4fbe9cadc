//! Parts of a run that are measured apart: divided by work, alike on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One of several parts of a run, written `2/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 0.
    pub index: usize,
    /// How many parts.
    pub count: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text
            .split_once('/')
            .and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
        match numbers {
            Some((k, n)) if (1..=n).contains(&k) => Ok(Self { index: k - 1, count: n }),
            _ => Err("write K/N with K from 1 to N, like 2/4".to_owned()),
        }
    }
}

impl Shard {
    /// The file of its measurements.
    pub fn file_name(&self) -> String {
        format!("shard-{}-of-{}.parquet", self.index + 1, self.count)
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.count)
    }
}

/// The shard of each piece of work: the largest pieces first, each to the shard that has least to do so far, of equal ones the first.
///
/// No shard has more than the mean and the largest piece. Only the numbers decide, so that shards that never meet divide a run alike.
///
/// # Panics
/// `count` is 0.
pub fn assign(work: &[u64], count: usize) -> Vec<usize> {
    assert!(count > 0, "work is divided by at least one");
    let mut order: Vec<usize> = (0..work.len()).collect();
    // Stable: of equal ones the first.
    order.sort_by_key(|&i| Reverse(work[i]));
    let mut least: BinaryHeap<Reverse<(u128, usize)>> = (0..count).map(|shard| Reverse((0, shard))).collect();
    let mut shards = vec![0; work.len()];
    for i in order {
        let Some(Reverse((load, shard))) = least.pop() else { break };
        shards[i] = shard;
        least.push(Reverse((load + u128::from(work[i]), shard)));
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shards_have_all_work_once_and_none_has_much_more_than_the_mean(
            work in proptest::collection::vec(prop_oneof![0_u64..1000, any::<u64>()], 0..200),
            count in 1_usize..40,
        ) {
            let shards = assign(&work, count);
            prop_assert_eq!(shards.len(), work.len());
            prop_assert!(shards.iter().all(|&shard| shard < count));
            let mut loads = vec![0_u128; count];
            for (&shard, &work) in shards.iter().zip(&work) {
                loads[shard] += u128::from(work);
            }
            let (sum, heaviest) = (loads.iter().sum::<u128>(), loads.into_iter().max().unwrap_or(0));
            let largest = u128::from(work.iter().copied().max().unwrap_or(0));
            // `heaviest <= sum / count + largest`, in whole numbers.
            prop_assert!(heaviest * count as u128 <= sum + largest * count as u128);
            prop_assert_eq!(assign(&work, count), shards, "whoever asks");
        }
    }

    #[test]
    fn shards_count_from_one() {
        assert_eq!("2/4".parse(), Ok(Shard { index: 1, count: 4 }));
        for text in ["0/4", "5/4", "2", "a/b", "1/0"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        assert_eq!(Shard { index: 1, count: 4 }.to_string(), "2/4");
    }
}
