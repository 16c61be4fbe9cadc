//! The CUDA sources, as text.

const SOURCES: [(&str, &str); 38] = [
    ("options.cuh", include_str!("options.cuh")),
    ("types.cuh", include_str!("types.cuh")),
    ("prelude.cuh", include_str!("prelude.cuh")),
    ("ptx.cuh", include_str!("ptx.cuh")),
    ("tma.cuh", include_str!("tma.cuh")),
    ("wgmma.cuh", include_str!("wgmma.cuh")),
    ("fastdiv.cuh", include_str!("fastdiv.cuh")),
    ("fp8.cuh", include_str!("fp8.cuh")),
    ("fp8_narrow.cuh", include_str!("fp8_narrow.cuh")),
    ("softmax.cuh", include_str!("softmax.cuh")),
    ("chunk.cuh", include_str!("chunk.cuh")),
    ("totals.cuh", include_str!("totals.cuh")),
    ("abi.cuh", include_str!("abi.cuh")),
    ("tile_scheduler.cuh", include_str!("tile_scheduler.cuh")),
    ("timeline.cuh", include_str!("timeline.cuh")),
    ("merge.cuh", include_str!("merge.cuh")),
    ("kernel_traits.cuh", include_str!("kernel_traits.cuh")),
    ("cta.cuh", include_str!("cta.cuh")),
    ("kv_range.cuh", include_str!("kv_range.cuh")),
    ("paged_kv.cuh", include_str!("paged_kv.cuh")),
    ("producer_cp_async.cuh", include_str!("producer_cp_async.cuh")),
    ("pipeline.cuh", include_str!("pipeline.cuh")),
    ("producer_tma.cuh", include_str!("producer_tma.cuh")),
    ("widener.cuh", include_str!("widener.cuh")),
    ("mask.cuh", include_str!("mask.cuh")),
    ("split_dim.cuh", include_str!("split_dim.cuh")),
    ("split_step.cuh", include_str!("split_step.cuh")),
    ("query.cuh", include_str!("query.cuh")),
    ("mma.cuh", include_str!("mma.cuh")),
    ("softmax_step.cuh", include_str!("softmax_step.cuh")),
    ("transposed.cuh", include_str!("transposed.cuh")),
    ("mainloop.cuh", include_str!("mainloop.cuh")),
    ("epilogue.cuh", include_str!("epilogue.cuh")),
    ("decode.cuh", include_str!("decode.cuh")),
    ("mix.cuh", include_str!("mix.cuh")),
    ("probe.cuh", include_str!("probe.cuh")),
    ("merge_states.cuh", include_str!("merge_states.cuh")),
    ("append.cuh", include_str!("append.cuh")),
];

/// What no kernel of a plan includes.
const NOT_MEASURED: [&str; 1] = ["append.cuh"];

/// The sources that a kernel may include, by name. They need no header of the toolkit.
pub const fn sources() -> &'static [(&'static str, &'static str)] {
    &SOURCES
}

/// Hash of the sources that measurements depend on: of their code, without comments and how it is set in lines.
pub fn source_hash() -> String {
    let measured = sources().iter().filter(|(name, _)| !NOT_MEASURED.contains(name));
    hash_of_code(measured.map(|(name, text)| (*name, *text)))
}

fn hash_of_code<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in sources {
        hasher.update(name.as_bytes());
        for line in text.lines() {
            // No string of the sources holds one.
            let code = line.split("//").next().unwrap_or_default();
            for token in code.split_whitespace() {
                hasher.update(b" ").update(token.as_bytes());
            }
        }
        hasher.update(b"\0");
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_lines_do_not_change_the_hash_and_code_does() {
        let hash = |text: &str| hash_of_code([("a.cuh", text)].into_iter());
        let code = hash("// One.\nint f() { return 1; } // and so on\n");
        assert_eq!(code, hash("int f() {\n  return 1;\n}\n"));
        assert_ne!(code, hash("int f() { return 2; }"));
        assert_ne!(code, hash("intf() { return 1; }"));
        for (name, text) in sources() {
            let in_a_string = |line: &str| line.split("//").next().unwrap().matches('"').count() % 2 == 1;
            assert!(!text.lines().any(|line| line.contains("//") && in_a_string(line)), "{name}");
        }
    }

    #[test]
    fn what_is_measured_includes_nothing_that_is_not() {
        for name in NOT_MEASURED {
            let include = format!("#include \"{name}\"");
            let includes = |(_, text): &&(&str, &str)| text.contains(&include);
            let by: Vec<&str> = sources().iter().filter(includes).map(|(name, _)| *name).collect();
            assert!(by.iter().all(|by| NOT_MEASURED.contains(by)), "{by:?} include {name}");
        }
    }
}
