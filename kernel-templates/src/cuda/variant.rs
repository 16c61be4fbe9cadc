//! Variants of the kernels: what is compiled in, and the few lines that instantiate the templates in `cuda/`.

use super::Arch;
use super::abi::{GRANULE, max_segments};
use super::producers::{
    has_tma_producers, launch_bounds, mix_producer_warps, mix_shared_bytes, mix_threads, producer_warps,
    threads,
};
use crate::Class;
use tilewright_heuristics::{Dtype, Tile};

/// Options of the attention itself, and of the kernels. Tokens of a window, bound of the logits and sinks are given at each launch; whether
/// they exist is compiled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionOptions {
    /// A row sees its last tokens only.
    pub window: bool,
    /// Logits are bounded by a scaled tanh.
    pub softcap: bool,
    /// Every row has a logit beside its tokens.
    pub sinks: bool,
    /// CTAs note when they did what ([`super::TimelineEntry`]), for those who look into a launch. No option of the attention: it changes
    /// nothing of what is computed.
    pub timeline: bool,
    /// K and V are copied by `cp.async`, token by token. TMA needs pages of a multiple of [`GRANULE`]
    /// tokens, at distances that are multiples of that of KV heads. No option of the attention either. It makes a difference only where
    /// kernels use TMA otherwise: see [`AttentionOptions::on`].
    pub gathers: bool,
}

impl AttentionOptions {
    /// Plain attention to pages of so many tokens, as long as their distance is a multiple of that of KV heads. Other options go beside it:
    /// `AttentionOptions { window: true, ..AttentionOptions::for_pages(page_size) }`.
    pub const fn for_pages(page_size: u32) -> Self {
        Self {
            window: false,
            softcap: false,
            sinks: false,
            timeline: false,
            gathers: !page_size.is_multiple_of(GRANULE),
        }
    }

    /// The options that make a difference to the kernels of a class on an architecture: where none uses TMA, all use `cp.async` anyway.
    pub const fn on(self, class: &Class, arch: Arch) -> Self {
        Self { gathers: self.gathers && has_tma_producers(class, arch), ..self }
    }

    /// Every combination, without timelines, for pages that TMA can load.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8u8).map(|bits| Self {
            window: bits & 1 != 0,
            softcap: bits & 2 != 0,
            sinks: bits & 4 != 0,
            ..Self::default()
        })
    }

    /// A suffix for names; empty without options.
    fn suffix(self) -> String {
        let names = [
            (self.window, "_window"),
            (self.softcap, "_softcap"),
            (self.sinks, "_sinks"),
            (self.timeline, "_timeline"),
            (self.gathers, "_gathers"),
        ];
        names.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }
}

const SOURCES: [(&str, &str); 28] = [
    ("types.cuh", include_str!("../../cuda/types.cuh")),
    ("prelude.cuh", include_str!("../../cuda/prelude.cuh")),
    ("ptx.cuh", include_str!("../../cuda/ptx.cuh")),
    ("tma.cuh", include_str!("../../cuda/tma.cuh")),
    ("wgmma.cuh", include_str!("../../cuda/wgmma.cuh")),
    ("fastdiv.cuh", include_str!("../../cuda/fastdiv.cuh")),
    ("fp8.cuh", include_str!("../../cuda/fp8.cuh")),
    ("softmax.cuh", include_str!("../../cuda/softmax.cuh")),
    ("abi.cuh", include_str!("../../cuda/abi.cuh")),
    ("tile_scheduler.cuh", include_str!("../../cuda/tile_scheduler.cuh")),
    ("timeline.cuh", include_str!("../../cuda/timeline.cuh")),
    ("merge.cuh", include_str!("../../cuda/merge.cuh")),
    ("kernel_traits.cuh", include_str!("../../cuda/kernel_traits.cuh")),
    ("cta.cuh", include_str!("../../cuda/cta.cuh")),
    ("kv_range.cuh", include_str!("../../cuda/kv_range.cuh")),
    ("paged_kv.cuh", include_str!("../../cuda/paged_kv.cuh")),
    ("producer_cp_async.cuh", include_str!("../../cuda/producer_cp_async.cuh")),
    ("pipeline.cuh", include_str!("../../cuda/pipeline.cuh")),
    ("producer_tma.cuh", include_str!("../../cuda/producer_tma.cuh")),
    ("mask.cuh", include_str!("../../cuda/mask.cuh")),
    ("mma.cuh", include_str!("../../cuda/mma.cuh")),
    ("softmax_step.cuh", include_str!("../../cuda/softmax_step.cuh")),
    ("mainloop.cuh", include_str!("../../cuda/mainloop.cuh")),
    ("epilogue.cuh", include_str!("../../cuda/epilogue.cuh")),
    ("decode.cuh", include_str!("../../cuda/decode.cuh")),
    ("mix.cuh", include_str!("../../cuda/mix.cuh")),
    ("probe.cuh", include_str!("../../cuda/probe.cuh")),
    ("merge_states.cuh", include_str!("../../cuda/merge_states.cuh")),
];

/// The sources that a kernel may include, by name. They need no header of the toolkit.
pub const fn sources() -> &'static [(&'static str, &'static str)] {
    &SOURCES
}

/// Hash of all sources.
pub fn source_hash() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in sources() {
        hasher.update(name.as_bytes()).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// A kernel that can be compiled and launched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The name of its entry point.
    pub name: String,
    /// What instantiates it.
    pub text: String,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA in bytes.
    pub shared_bytes: u32,
    /// The C++ type whose `run` it calls, for other instantiations of the same template.
    pub template: String,
}

/// Floating-point operations of a CTA of [`Kernel::flop_probe`] in a round: eight warps, eight products of 16 x 8 x 16 each.
pub const FLOP_PROBE_FLOPS: u64 = 8 * 8 * 2 * 16 * 8 * 16;

/// Bytes that a CTA of [`Kernel::cta_probe`] reads, and what lies between those of two CTAs.
pub const CTA_PROBE_BYTES: u64 = 64 << 10;
/// See [`CTA_PROBE_BYTES`].
pub const CTA_PROBE_REGION: u64 = 72 << 10;

/// Warps that share a row in a merge: one for the usual few partials, four for rows with many.
pub const MERGE_WARPS: [u32; 2] = [1, 4];

impl Kernel {
    /// Forward of one tile on an architecture.
    pub fn decode(tile: &Tile, class: &Class, options: AttentionOptions, arch: Arch) -> Self {
        let options = options.on(class, arch);
        let loaders = producer_warps(tile, class, options, arch);
        let template = decode_template(tile, class, options, loaders, false);
        let name =
            format!("decode_{tile}_d{}_{}{}", class.head_dim, identifier(class.dtype), options.suffix());
        let (threads, bounds) = (threads(tile, class, options, arch), launch_bounds(&[*tile], loaders));
        let shared_bytes = shared_bytes(tile, class, loaders);
        let text = format!(
            "#include \"decode.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::SHARED_BYTES == {shared_bytes}, \"the host reserves this much\");\n\
             extern \"C\" __global__ void {bounds}\n\
             {name}(const __grid_constant__ tilewright::Arguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads, shared_bytes, template }
    }

    /// Forward of several tiles in one launch: [`super::WorkItem::tile`] is an index into them. A CTA has the threads and the shared memory
    /// of the largest. There is at least one tile, or it does not compile; one tile alone has the kernel of [`Kernel::decode`].
    ///
    /// With TMA the tiles have the same warps ([`crate::check_mix`]), beside as many producer warps as the greediest has alone; a CTA has the
    /// registers that the greediest has alone, too. Where all warps copy, it has more: with head dimension 128, NVRTC 13.0 makes 204 of
    /// 169 for two tiles of four warps, and up to the limit of 255 for four tiles.
    pub fn decode_mix(tiles: &[Tile], class: &Class, options: AttentionOptions, arch: Arch) -> Self {
        if let [tile] = tiles {
            return Self::decode(tile, class, options, arch);
        }
        let options = options.on(class, arch);
        let loaders = mix_producer_warps(tiles, class, options, arch);
        let variants: Vec<String> =
            tiles.iter().map(|tile| decode_template(tile, class, options, loaders, true)).collect();
        let template = format!("DecodeMix<{}>", variants.join(", "));
        let names: String = tiles.iter().map(|tile| format!("_{tile}")).collect();
        let name =
            format!("decode_mix{names}_d{}_{}{}", class.head_dim, identifier(class.dtype), options.suffix());
        let (threads, bounds) = (mix_threads(tiles, loaders), launch_bounds(tiles, loaders));
        let shared_bytes = mix_shared_bytes(tiles, class, loaders);
        let text = format!(
            "#include \"mix.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::SHARED_BYTES == {shared_bytes}, \"the host reserves this much\");\n\
             extern \"C\" __global__ void {bounds}\n\
             {name}(const __grid_constant__ tilewright::Arguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads, shared_bytes, template }
    }

    /// Merge of partials. Each CTA of four warps serves `4 / warps_a_row` rows (request, query head). What K and V are makes no difference.
    pub fn merge(warps_a_row: u32, class: &Class, options: AttentionOptions) -> Self {
        let only_sinks = AttentionOptions { sinks: options.sinks, ..AttentionOptions::default() };
        let template =
            format!("Merge<{warps_a_row}, {}, {}, {}>", class.head_dim, element(class.dtype), options.sinks);
        let dtype = identifier(class.dtype.query());
        let name = format!("merge_w{warps_a_row}_d{}_{dtype}{}", class.head_dim, only_sinks.suffix());
        let shared_bytes = 4 * class.head_dim * 4;
        let text = format!(
            "#include \"merge.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::SHARED_BYTES == {shared_bytes}, \"the host reserves this much\");\n\
             extern \"C\" __global__ void __launch_bounds__(128)\n\
             {name}(const __grid_constant__ tilewright::Arguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads: 128, shared_bytes, template }
    }
}

/// Kernels beside a plan's.
impl Kernel {
    /// Merge of states: attention over several parts of the KV into attention over all of it (Hydragen, section 3.1). Takes a
    /// [`super::StatesArguments`]; each CTA serves [`Kernel::rows_of_states`] rows (request, query head).
    pub fn merge_states(class: &Class) -> Self {
        let template = format!("MergeStates<{}, {}>", class.head_dim, element(class.dtype));
        let name = format!("merge_states_d{}_{}", class.head_dim, identifier(class.dtype.query()));
        let rows = Self::rows_of_states(class);
        let text = format!(
            "#include \"merge_states.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::ROWS == {rows}, \"the host launches as many CTAs as that takes\");\n\
             extern \"C\" __global__ void __launch_bounds__(128)\n\
             {name}(const __grid_constant__ tilewright::StatesArguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads: 128, shared_bytes: 0, template }
    }

    /// Rows that a CTA of [`Kernel::merge_states`] serves: 16 bytes of a row are one thread's.
    pub const fn rows_of_states(class: &Class) -> u32 {
        match (128 * 8u32).checked_div(class.head_dim) {
            Some(rows) => rows,
            None => 0,
        }
    }
}

/// Kernels that measure a device.
impl Kernel {
    /// Reads memory once. With `keep` the lines stay in L2, in place of what was there; without, they leave it first.
    pub fn read_probe(keep: bool) -> Self {
        let name = if keep { "read_and_keep" } else { "read_once" };
        let template = format!("ReadProbe<{keep}>");
        Self::probe(
            name,
            &template,
            "const uint4 *data, tilewright::u64 count, tilewright::u32 *sink",
            "data, count, sink",
            256,
        )
    }

    /// Follows a chain of indices with one thread.
    pub fn latency_probe() -> Self {
        let parameters = "const tilewright::u32 *chain, tilewright::u32 steps, tilewright::u64 *cycles";
        Self::probe("latency", "LatencyProbe", parameters, "chain, steps, cycles", 1)
    }

    /// Reads memory in rounds, from L2 after the first.
    pub fn again_probe() -> Self {
        let parameters =
            "const uint4 *data, tilewright::u64 count, tilewright::u32 rounds, tilewright::u32 *sink";
        Self::probe("read_again", "AgainProbe", parameters, "data, count, rounds, sink", 256)
    }

    /// Writes memory in rounds, and reads it back in each.
    pub fn write_probe() -> Self {
        let parameters = "uint4 *data, tilewright::u64 count, tilewright::u32 rounds, tilewright::u32 *sink";
        Self::probe("write_and_read", "WriteProbe", parameters, "data, count, rounds, sink", 256)
    }

    /// Multiplies matrices from registers: [`FLOP_PROBE_FLOPS`] operations a CTA and round.
    pub fn flop_probe() -> Self {
        Self::probe("multiply", "FlopProbe", "tilewright::u32 rounds, float *sink", "rounds, sink", 256)
    }

    /// CTAs of so much shared memory that find their work and wait for its first [`CTA_PROBE_BYTES`].
    pub fn cta_probe(shared_bytes: u32) -> Self {
        let parameters = "const tilewright::u8 *data, tilewright::u32 regions, tilewright::u32 *sink";
        let template = format!("CtaProbe<{CTA_PROBE_BYTES}, {CTA_PROBE_REGION}>");
        Self { shared_bytes, ..Self::probe("cta", &template, parameters, "data, regions, sink", 128) }
    }

    fn probe(name: &str, template: &str, parameters: &str, names: &str, threads: u32) -> Self {
        let text = format!(
            "#include \"probe.cuh\"\n\
             extern \"C\" __global__ void __launch_bounds__({threads})\n\
             {name}({parameters}) {{ tilewright::{template}::run({names}); }}\n"
        );
        Self { name: name.to_owned(), text, threads, shared_bytes: 0, template: template.to_owned() }
    }
}

/// The C++ type of the forward of one tile: the whole of a kernel, or `mixed` with others.
fn decode_template(
    tile: &Tile,
    class: &Class,
    options: AttentionOptions,
    loaders: u32,
    mixed: bool,
) -> String {
    let Tile { m, n, warps, stages } = *tile;
    // `cp.async` has no producer warps.
    let AttentionOptions { window, softcap, sinks, timeline, gathers: _ } = options;
    let (head_dim, element, kv) = (class.head_dim, element(class.dtype), kv_element(class.dtype));
    let mixed = if mixed { ", true" } else { "" };
    format!(
        "Decode<{m}, {n}, {warps}, {stages}, {head_dim}, {element}, {kv}, {window}, {softcap}, {sinks}, {loaders}, {timeline}{mixed}>"
    )
}

/// The C++ name of the element type of Q and the output.
fn element(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 | Dtype::Fp8F16 => "F16",
        Dtype::Bf16 | Dtype::Fp8Bf16 => "Bf16",
        // No tile of the space is feasible for it: tensor cores have no full-precision product.
        Dtype::F32 | Dtype::Fp8F32 => "F32",
    }
}

/// The C++ name of the element type of K and V.
fn kv_element(dtype: Dtype) -> &'static str {
    if dtype.has_fp8_kv() { "E4m3" } else { element(dtype) }
}

/// The name of element types as a part of other names.
fn identifier(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Fp8F16 => "fp8_f16",
        Dtype::Fp8Bf16 => "fp8_bf16",
        Dtype::Fp8F32 => "fp8_f32",
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => dtype.name(),
    }
}

/// Dynamic shared memory of a tile in bytes: the buffers of K and V (or, at the end, the outputs of warps that share rows), the query, and
/// what is known of rows and tokens. `cuda/kernel_traits.cuh` computes the same, and asserts it.
pub const fn shared_bytes(tile: &Tile, class: &Class, loaders: u32) -> u32 {
    let Tile { m, n, warps, stages } = *tile;
    let (m, n, warps, stages) = (m as u32, n as u32, warps as u32, stages as u32);
    // Two bytes an element of Q: no tile is feasible for f32.
    let (query_row_bytes, kv_bytes) = (class.head_dim * 2, if class.dtype.has_fp8_kv() { 1 } else { 2 });
    let buffers = stages * 2 * n * class.head_dim * kv_bytes;
    let outputs = if warps * 16 > m { warps * 16 * (class.head_dim + 8) * 4 } else { 0 };
    // It passes through a buffer on its way to registers, where it fits.
    let fits = class.head_dim <= 128 && m * query_row_bytes <= 2 * n * class.head_dim * kv_bytes;
    let query = if fits { 0 } else { m * query_row_bytes };
    // What is noted of later steps: offsets of tokens, or only granules, and what has arrived of each buffer and of the query.
    let notes = if loaders > 0 {
        (stages + 1) * n / GRANULE * 8 + (stages * 4 + 2) * 8
    } else {
        (stages + 2) * (n + n / GRANULE) * 8
    };
    ((if buffers > outputs { buffers } else { outputs })
        + query
        + notes
        + warps * 16 * 8
        + m * 20
        + max_segments(m) * 28)
        .next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch() -> Arch {
        "sm_80".parse().unwrap()
    }

    const TILE: Tile = Tile::of("m16n64w4s2");
    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

    #[test]
    fn names_tell_variants_apart() {
        let mut names: Vec<String> = AttentionOptions::all()
            .map(|options| Kernel::decode(&TILE, &CLASS, options, arch()).name)
            .collect();
        assert_eq!(names[0], "decode_m16n64w4s2_d128_f16");
        assert_eq!(names[7], "decode_m16n64w4s2_d128_f16_window_softcap_sinks");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
    }

    #[test]
    fn fp8_has_another_forward_and_the_same_merge() {
        let (options, fp8) = (AttentionOptions::default(), Class { dtype: Dtype::Fp8F16, ..CLASS });
        let tile = Tile { stages: 4, ..TILE };
        let kernel = Kernel::decode(&tile, &fp8, options, arch());
        assert_eq!(kernel.name, "decode_m16n64w4s4_d128_fp8_f16");
        assert!(kernel.template.contains("128, F16, E4m3,"), "{}", kernel.template);
        assert_eq!(kernel.shared_bytes + 4 * 2 * 64 * 128, shared_bytes(&tile, &CLASS, 0));
        assert_eq!(Kernel::merge(4, &fp8, options), Kernel::merge(4, &CLASS, options));
        assert_eq!(Kernel::merge_states(&fp8), Kernel::merge_states(&CLASS));
    }

    #[test]
    fn a_kernel_is_a_few_lines_around_the_template() {
        let kernel =
            Kernel::decode(&TILE, &CLASS, AttentionOptions { window: true, ..Default::default() }, arch());
        assert!(
            kernel.text.contains("Decode<16, 64, 4, 2, 128, F16, F16, true, false, false, 0, false>"),
            "{}",
            kernel.text
        );
        assert!(kernel.text.lines().count() < 8);
        assert_eq!(source_hash().len(), 16);
    }

    #[test]
    fn a_mix_has_the_threads_and_the_memory_of_its_largest_tiles() {
        let wide = Tile::of("m64n32w8s1");
        let tiles = [TILE, wide];
        let mix = Kernel::decode_mix(&tiles, &CLASS, AttentionOptions::default(), arch());
        let [one, two] = tiles.map(|tile| Kernel::decode(&tile, &CLASS, AttentionOptions::default(), arch()));
        assert_eq!(mix.name, "decode_mix_m16n64w4s2_m64n32w8s1_d128_f16");
        assert_eq!(mix.threads, 256);
        assert_eq!(mix.shared_bytes, one.shared_bytes.max(two.shared_bytes));
        let [one, two] = [one, two].map(|alone| alone.template.replace('>', ", true>"));
        assert_eq!(mix.template, format!("DecodeMix<{one}, {two}>"));
    }

    #[test]
    fn a_mix_with_tma_has_the_bounds_of_its_greediest_tile() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let some = Tile { m: 64, ..TILE };
        let mixed = |options| Kernel::decode_mix(&[TILE, some], &CLASS, options, hopper);
        let mix = mixed(AttentionOptions::for_pages(16));
        let alone = Kernel::decode(&some, &CLASS, AttentionOptions::default(), hopper);
        assert_eq!((mix.threads, mix.shared_bytes), (alone.threads, alone.shared_bytes));
        assert!(mix.text.contains("__launch_bounds__(256, 2)"), "{}", mix.text);
        assert_eq!(mix.template.matches("4, false, true>").count(), 2, "{}", mix.template);
        let gathers = mixed(AttentionOptions::for_pages(1));
        assert_eq!(gathers.name, format!("{}_gathers", mix.name));
        assert_eq!(gathers.threads, 128);
        assert_eq!(Kernel::decode_mix(&[some], &CLASS, AttentionOptions::default(), hopper), alone);
    }

    #[test]
    fn who_gathers_has_a_kernel_of_its_own_where_kernels_copy_boxes() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let [boxes, gathers] = [48, 8].map(AttentionOptions::for_pages);
        assert_eq!(boxes, AttentionOptions::default());
        let [copies, each] = [boxes, gathers].map(|options| Kernel::decode(&TILE, &CLASS, options, hopper));
        assert_eq!(copies.name, "decode_m16n64w4s2_d128_f16");
        assert_eq!(each.name, "decode_m16n64w4s2_d128_f16_gathers");
        assert!(copies.template.ends_with("false, 1, false>"), "{}", copies.template);
        assert!(each.template.ends_with("false, 0, false>"), "{}", each.template);
        assert_eq!((copies.threads, each.threads), (160, 128));
        // The same as on an architecture without such copies, but for its name.
        let elsewhere = Kernel::decode(&TILE, &CLASS, boxes, arch());
        assert_eq!(Kernel { name: elsewhere.name.clone(), text: elsewhere.text.clone(), ..each }, elsewhere);
        let all = AttentionOptions { window: true, softcap: true, sinks: true, timeline: true, ..gathers };
        let name = Kernel::decode(&TILE, &CLASS, all, hopper).name;
        assert_eq!(name, "decode_m16n64w4s2_d128_f16_window_softcap_sinks_timeline_gathers");
    }

    #[test]
    fn one_kernel_serves_both_where_none_copies_boxes() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let [boxes, gathers] = [16, 1].map(AttentionOptions::for_pages);
        let fp8 = Class { dtype: Dtype::Fp8Bf16, head_dim: 64 };
        let wide = Class { head_dim: 256, ..CLASS };
        for (class, arch) in [(CLASS, arch()), (fp8, arch()), (fp8, hopper), (wide, hopper)] {
            assert_eq!(gathers.on(&class, arch), boxes, "{class} {arch}");
            let [one, other] = [boxes, gathers].map(|options| Kernel::decode(&TILE, &class, options, arch));
            assert_eq!(one, other, "{class} {arch}");
            let tiles = [TILE, Tile { m: 32, ..TILE }];
            let mix = |options| Kernel::decode_mix(&tiles, &class, options, arch);
            assert_eq!(mix(boxes), mix(gathers), "{class} {arch}");
        }
        assert_eq!(gathers.on(&CLASS, hopper), gathers);
        assert_eq!(Kernel::merge(4, &CLASS, gathers), Kernel::merge(4, &CLASS, boxes));
    }
}
