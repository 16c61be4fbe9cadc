//! A value as the text that it is shown as, for serde: `#[serde(with = "crate::serde_text")]`.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// A path, of which JSON can hold only text: what is none is replaced, as where it is printed.
pub(crate) fn path<S: Serializer>(value: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&value.display())
}

/// [`path`] of one that there may be.
pub(crate) fn optional_path<S: Serializer>(value: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => path(value, to),
        None => to.serialize_none(),
    }
}
