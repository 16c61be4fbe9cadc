//! Parts of a run that are measured apart.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_count_from_one() {
        assert_eq!("2/4".parse(), Ok(Shard { index: 1, count: 4 }));
        for text in ["0/4", "5/4", "2", "a/b", "1/0"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
