//! Which columns of anybody's table are features, and which are candidates.

use super::columns::{Cells, RawColumn, RawTable};
use super::csv_text;
use super::from_table::{TableColumns, TableError};
use std::collections::BTreeMap;
use std::path::Path;
use tilewright_heuristics::TileSetBuf;

/// The columns by what they are.
#[derive(Debug)]
pub(super) struct Roles<'a> {
    pub(super) features: Vec<&'a RawColumn>,
    pub(super) candidates: Vec<&'a RawColumn>,
    pub(super) weight: Option<&'a RawColumn>,
    pub(super) group: Option<&'a RawColumn>,
}

/// Tells the columns apart: as they are named, else by their values.
///
/// Whole numbers without a gap are features, all others candidates, as are columns named like tiles. That is asked about where it is
/// in doubt: where there is no feature or fewer than two candidates, where a feature stands behind a candidate, and where a feature is
/// called like a candidate but for a number.
pub(super) fn roles<'a>(
    path: &Path,
    table: &'a RawTable,
    named: &TableColumns,
) -> Result<Roles<'a>, TableError> {
    let list = |lists: &[String]| -> Result<Vec<String>, TableError> {
        let names = lists.iter().map(|list| {
            csv_text::names(list)
                .map_err(|error| TableError::BadList { list: list.clone(), detail: error.detail })
        });
        Ok(names.collect::<Result<Vec<_>, _>>()?.concat())
    };
    let (features, candidates) = (list(&named.features)?, list(&named.candidates)?);
    let mut known: BTreeMap<String, &'static str> = BTreeMap::new();
    let groups = [
        (features.clone(), "a feature"),
        (candidates.clone(), "a candidate"),
        (named.weight.iter().cloned().collect(), "the weight"),
        (named.group.iter().cloned().collect(), "the group"),
        (list(&named.ignore)?, "left out"),
    ];
    for (names, role) in groups {
        for name in names {
            find(path, table, &name)?;
            if let Some(first) = known.insert(name.clone(), role)
                && first != role
            {
                return Err(TableError::TwoRoles {
                    path: path.to_owned(),
                    column: name,
                    first,
                    second: role,
                });
            }
        }
    }
    let open: Vec<&RawColumn> =
        table.columns.iter().filter(|column| !known.contains_key(&column.name)).collect();
    let of_role = |role: &str| -> Vec<&RawColumn> {
        table
            .columns
            .iter()
            .filter(|column| known.get(&column.name).is_some_and(|known| *known == role))
            .collect()
    };
    let (mut features, mut candidates) = (of_role("a feature"), of_role("a candidate"));
    match (features.is_empty(), candidates.is_empty()) {
        (true, true) => (features, candidates) = guessed(path, &open)?,
        (false, true) => candidates = open,
        (true, false) => features = open,
        (false, false) if open.is_empty() => {}
        (false, false) => {
            return Err(TableError::Ambiguous {
                path: path.to_owned(),
                doubt: format!(
                    "{} neither a feature nor a candidate; leave out with `--ignore`",
                    names(&open)
                ),
                features: names(&features),
                candidates: names(&candidates),
            });
        }
    }
    if candidates.is_empty() {
        return Err(doubt(path, "no column is left for the candidates", &features, &candidates));
    }
    let one = |name: &Option<String>| name.as_ref().map(|name| find(path, table, name)).transpose();
    Ok(Roles { features, candidates, weight: one(&named.weight)?, group: one(&named.group)? })
}

fn find<'a>(path: &Path, table: &'a RawTable, name: &str) -> Result<&'a RawColumn, TableError> {
    let all: Vec<&RawColumn> = table.columns.iter().collect();
    let found = all.iter().find(|column| column.name == name).copied();
    found.ok_or_else(|| TableError::NoColumn {
        path: path.to_owned(),
        column: name.to_owned(),
        present: names(&all),
    })
}

type Sides<'a> = (Vec<&'a RawColumn>, Vec<&'a RawColumn>);

fn guessed<'a>(path: &Path, open: &[&'a RawColumn]) -> Result<Sides<'a>, TableError> {
    let like_a_tile = |column: &RawColumn| column.name.parse::<TileSetBuf>().is_ok();
    let whole = |column: &RawColumn| matches!(&column.cells, Cells::Whole(values) if values.iter().all(Option::is_some));
    let is_feature = |column: &&&RawColumn| whole(column) && !like_a_tile(column);
    let (features, candidates): Sides<'a> = open.iter().partition(is_feature);
    // Names say what the candidates are.
    if candidates.iter().all(|column| like_a_tile(column)) && !candidates.is_empty() {
        return Ok((features, candidates));
    }
    let doubtful = |text: String| Err(doubt(path, &text, &features, &candidates));
    if features.is_empty() {
        return doubtful("no column is of whole numbers without a gap, as features are".to_owned());
    }
    let first = open.iter().position(|column| !is_feature(&column)).unwrap_or(open.len());
    if let Some(late) = open[first..].iter().find(is_feature) {
        return doubtful(format!(
            "`{}` has whole numbers only, as a feature, but stands behind `{}`, which is like a candidate",
            late.name, open[first].name
        ));
    }
    match &candidates[..] {
        [] => return doubtful("all columns are of whole numbers, so any may be a feature".to_owned()),
        [only] => return doubtful(format!("`{}` would be the only candidate", only.name)),
        _ => {}
    }
    let alike = |feature: &RawColumn| {
        candidates.iter().find(|candidate| called_alike(&feature.name, &candidate.name))
    };
    if let Some((feature, candidate)) = features.iter().find_map(|feature| Some((feature, alike(feature)?))) {
        return doubtful(format!(
            "`{}` has whole numbers only, as a feature, but is called like `{}`, which is like a candidate",
            feature.name, candidate.name
        ));
    }
    Ok((features, candidates))
}

/// Whether two names differ in their numbers only.
fn called_alike(a: &str, b: &str) -> bool {
    let stem = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let numbered = |name: &str| name.contains(|c: char| c.is_ascii_digit());
    numbered(a) && numbered(b) && stem(a) == stem(b)
}

fn names(columns: &[&RawColumn]) -> String {
    columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn doubt(path: &Path, doubt: &str, features: &[&RawColumn], candidates: &[&RawColumn]) -> TableError {
    TableError::Ambiguous {
        path: path.to_owned(),
        doubt: doubt.to_owned(),
        features: names(features),
        candidates: names(candidates),
    }
}
