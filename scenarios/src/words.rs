//! Messages of serde in words: what a value must be and what it is, without the names of Rust's types.

/// The message of a deserializer in words.
pub(crate) fn in_words(message: &str) -> String {
    let wrong_kind =
        ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    if let Some((found, expected)) = wrong_kind.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("expected {}, found {}", wanted(expected), found_value(found));
    }
    let wrong_length =
        message.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected "));
    if let Some((found, expected)) = wrong_length {
        return format!("expected {}, found {found}", wanted(expected));
    }
    message.to_owned()
}

/// What a value must be.
fn wanted(expected: &str) -> String {
    let number = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number of at least 0".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "keys and values".to_owned(),
        _ if expected.starts_with("struct ") => "keys and values".to_owned(),
        _ if expected.contains("tuple") || expected.starts_with("sequence of") => {
            format!("a list of {}", number(expected))
        }
        _ => expected.to_owned(),
    }
}

/// What a value is.
fn found_value(found: &str) -> String {
    if let Some(number) =
        ["integer `", "floating point `", "boolean `"].iter().find_map(|start| found.strip_prefix(start))
    {
        // Behind large numbers stands the type that could hold them.
        return number.split('`').next().unwrap_or(number).to_owned();
    }
    match found {
        "unit value" | "null" | "Option value" => "nothing".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "keys and values".to_owned(),
        _ => found.replacen("string \"", "the text \"", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn no_name_of_a_type_is_left() {
        for (message, expected) in [
            ("invalid type: unit value, expected struct File", "expected keys and values, found nothing"),
            ("invalid type: integer `-1`, expected u64", "expected a whole number of at least 0, found -1"),
            (
                "invalid type: integer `99999999999999999999999` as u128, expected u64",
                "expected a whole number of at least 0, found 99999999999999999999999",
            ),
            (
                "invalid type: string \"a, expected u32\", expected f64",
                "expected a number, found the text \"a, expected u32\"",
            ),
            ("invalid length 3, expected sequence of 2 elements", "expected a list of 2, found 3"),
            ("invalid type: integer `32`, expected a tuple of size 2", "expected a list of 2, found 32"),
            ("invalid type: sequence, expected a map", "expected keys and values, found a list"),
            ("unknown field `a`", "unknown field `a`"),
        ] {
            assert_eq!(in_words(message), expected);
        }
    }
}
