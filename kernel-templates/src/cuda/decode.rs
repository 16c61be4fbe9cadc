//! Host side of `decode.cuh` and `mix.cuh`.

use super::kernel::{element, identifier, kv_element};
use super::kernel_traits::{launch_bounds, mix_producer_warps, mix_shared_bytes, mix_threads};
use super::{Kernel, KernelOptions};
use crate::{Arch, Class};
use tilewright_heuristics::Tile;

impl Kernel {
    /// Forward of one tile on an architecture.
    pub fn decode(tile: &Tile, class: &Class, options: KernelOptions, arch: Arch) -> Self {
        Self::decode_mix(&[*tile], class, options, arch)
    }

    /// Forward of several tiles in one launch: [`super::WorkItem::tile`] is an index into them. A CTA has the threads and the shared memory
    /// of the largest. There is at least one tile, or it does not compile.
    ///
    /// With TMA the tiles have the same warps ([`crate::check_mix`]), beside as many producer warps as the greediest has alone; a CTA has the
    /// registers that the greediest has alone, too. Where all warps copy, it has more: with head dimension 128, NVRTC 13.0 makes 204 of
    /// 169 for two tiles of four warps, and up to the limit of 255 for four tiles.
    pub fn decode_mix(tiles: &[Tile], class: &Class, options: KernelOptions, arch: Arch) -> Self {
        let options = options.on(class, arch);
        let producers = mix_producer_warps(tiles, class, options, arch);
        let variant = |mixed: &str| {
            let template = |tile| decode_template(tile, class, options, producers, mixed);
            tiles.iter().map(template).collect::<Vec<_>>().join(", ")
        };
        let (header, prefix, template) = match tiles {
            [_] => ("decode.cuh", "decode", variant("")),
            _ => ("mix.cuh", "decode_mix", format!("DecodeMix<{}>", variant(", true"))),
        };
        let tile_names: String = tiles.iter().map(|tile| format!("_{tile}")).collect();
        Self {
            name: format!(
                "{prefix}{tile_names}_d{}_{}{}",
                class.head_dim,
                identifier(class.dtype),
                options.suffix()
            ),
            threads: mix_threads(tiles, producers),
            shared_bytes: mix_shared_bytes(tiles, class, producers, options),
            template,
            ..Self::default()
        }
        .of_plan(header, &launch_bounds(tiles, class, producers, options))
    }
}

/// The C++ type of the forward of one tile: the whole of a kernel, or with `mixed` one of several.
fn decode_template(
    tile: &Tile,
    class: &Class,
    options: KernelOptions,
    producers: u32,
    mixed: &str,
) -> String {
    let Tile { m, n, warps, stages } = *tile;
    let (head_dim, element, kv) = (class.head_dim, element(class.dtype), kv_element(class.dtype));
    let options = options.template();
    format!("Decode<{m}, {n}, {warps}, {stages}, {head_dim}, {element}, {kv}, {options}, {producers}{mixed}>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{KvLoad, shared_bytes, source_hash};
    use tilewright_heuristics::{Dtype, Mask, MaskOptions};

    fn arch() -> Arch {
        "sm_80".parse().unwrap()
    }

    const TILE: Tile = Tile::of("m16n64w4s2");
    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

    #[test]
    fn names_tell_variants_apart() {
        let mut names: Vec<String> =
            KernelOptions::all().map(|options| Kernel::decode(&TILE, &CLASS, options, arch()).name).collect();
        assert_eq!(names[0], "decode_m16n64w4s2_d128_f16");
        assert_eq!(names[7], "decode_m16n64w4s2_d128_f16_window_softcap_sinks");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
    }

    #[test]
    fn each_parameter_alone_makes_another_kernel() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let plain = KernelOptions::default();
        let window = KernelOptions { mask: Mask::window(1).options(), ..plain };
        let softcap = KernelOptions { mask: Mask::softcap(1.0).options(), ..plain };
        let tiles = ["m32n64w4s2", "m16n32w4s2", "m16n64w2s2", "m16n64w4s3"].map(Tile::of);
        let mut kernels = vec![
            Kernel::decode(&TILE, &CLASS, plain, hopper),
            Kernel::decode(&TILE, &Class { head_dim: 64, ..CLASS }, plain, hopper),
            Kernel::decode(&TILE, &Class { dtype: Dtype::Bf16, ..CLASS }, plain, hopper),
            Kernel::decode(&TILE, &Class { dtype: Dtype::Fp8F16, ..CLASS }, plain, hopper),
            Kernel::decode(&TILE, &CLASS, plain, arch()),
        ];
        kernels.extend(tiles.iter().map(|tile| Kernel::decode(tile, &CLASS, plain, hopper)));
        let sinks = KernelOptions { sinks: true, ..plain };
        let timeline = KernelOptions { timeline: true, ..plain };
        let cp_async = KernelOptions { kv_load: KvLoad::CpAsync, ..plain };
        let last_cta = KernelOptions { merge_by_last_cta: true, ..plain };
        let invariant = KernelOptions { invariant: true, ..plain };
        let both = KernelOptions { merge_by_last_cta: true, ..invariant };
        let options = [window, softcap, sinks, timeline, cp_async, last_cta, invariant, both];
        kernels.extend(options.map(|options| Kernel::decode(&TILE, &CLASS, options, hopper)));
        for (index, kernel) in kernels.iter().enumerate() {
            assert!(kernels[..index].iter().all(|other| other.text != kernel.text), "{}", kernel.name);
        }
    }

    #[test]
    fn fp8_has_another_forward_and_the_same_merge() {
        let (options, fp8) = (KernelOptions::default(), Class { dtype: Dtype::Fp8F16, ..CLASS });
        let tile = Tile { stages: 4, ..TILE };
        let kernel = Kernel::decode(&tile, &fp8, options, arch());
        assert_eq!(kernel.name, "decode_m16n64w4s4_d128_fp8_f16");
        assert!(kernel.template.contains("128, F16, E4m3,"), "{}", kernel.template);
        assert_eq!(kernel.shared_bytes + 4 * 2 * 64 * 128, shared_bytes(&tile, &CLASS, 0, options));
        assert_eq!(Kernel::merge(4, &fp8, options), Kernel::merge(4, &CLASS, options));
        assert_eq!(Kernel::merge_states(&fp8), Kernel::merge_states(&CLASS));
    }

    #[test]
    fn a_kernel_is_a_few_lines_around_the_template() {
        let kernel = Kernel::decode(
            &TILE,
            &CLASS,
            KernelOptions { mask: Mask::window(9).options(), ..Default::default() },
            arch(),
        );
        assert!(
            kernel
                .text
                .contains("Decode<16, 64, 4, 2, 128, F16, F16, KernelOptions<true, false, false, false>, 0>"),
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
        let mix = Kernel::decode_mix(&tiles, &CLASS, KernelOptions::default(), arch());
        let [one, two] = tiles.map(|tile| Kernel::decode(&tile, &CLASS, KernelOptions::default(), arch()));
        assert_eq!(mix.name, "decode_mix_m16n64w4s2_m64n32w8s1_d128_f16");
        assert_eq!(mix.threads, 256);
        assert_eq!(mix.shared_bytes, one.shared_bytes.max(two.shared_bytes));
        let [one, two] = [one, two].map(|alone| alone.template.replace(", 0>", ", 0, true>"));
        assert_eq!(mix.template, format!("DecodeMix<{one}, {two}>"));
    }

    #[test]
    fn a_mix_with_tma_has_the_bounds_of_its_greediest_tile() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let some = Tile { m: 64, ..TILE };
        let mixed = |options| Kernel::decode_mix(&[TILE, some], &CLASS, options, hopper);
        let mix = mixed(KernelOptions::for_pages(16));
        let alone = Kernel::decode(&some, &CLASS, KernelOptions::default(), hopper);
        assert_eq!((mix.threads, mix.shared_bytes), (alone.threads, alone.shared_bytes));
        assert!(mix.text.contains("__launch_bounds__(256, 2)"), "{}", mix.text);
        assert_eq!(mix.template.matches("4, true>").count(), 2, "{}", mix.template);
        let cp_async = mixed(KernelOptions::for_pages(1));
        assert_eq!(cp_async.name, format!("{}_cp_async", mix.name));
        assert_eq!(cp_async.threads, 128);
        assert_eq!(Kernel::decode_mix(&[some], &CLASS, KernelOptions::default(), hopper), alone);
    }

    #[test]
    fn who_gathers_has_a_kernel_of_its_own_where_kernels_copy_boxes() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let [tma, cp_async] = [48, 8].map(KernelOptions::for_pages);
        assert_eq!(tma, KernelOptions::default());
        let [by_tma, by_cp_async] =
            [tma, cp_async].map(|options| Kernel::decode(&TILE, &CLASS, options, hopper));
        assert_eq!(by_tma.name, "decode_m16n64w4s2_d128_f16");
        assert_eq!(by_cp_async.name, "decode_m16n64w4s2_d128_f16_cp_async");
        assert!(by_tma.template.ends_with("false>, 1>"), "{}", by_tma.template);
        assert!(by_cp_async.template.ends_with("false>, 0>"), "{}", by_cp_async.template);
        assert_eq!((by_tma.threads, by_cp_async.threads), (160, 128));
        // The same as on an architecture without such copies, but for its name.
        let elsewhere = Kernel::decode(&TILE, &CLASS, tma, arch());
        assert_eq!(
            Kernel { name: elsewhere.name.clone(), text: elsewhere.text.clone(), ..by_cp_async },
            elsewhere
        );
        let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, timeline: true, ..cp_async };
        let name = Kernel::decode(&TILE, &CLASS, all, hopper).name;
        assert_eq!(name, "decode_m16n64w4s2_d128_f16_window_softcap_sinks_timeline_cp_async");
    }

    #[test]
    fn one_kernel_serves_both_where_none_copies_boxes() {
        let hopper: Arch = "sm_90a".parse().unwrap();
        let [tma, cp_async] = [16, 1].map(KernelOptions::for_pages);
        let fp8 = Class { dtype: Dtype::Fp8Bf16, head_dim: 96 };
        let e5m2 = Class { dtype: Dtype::E5m2F16, ..fp8 };
        for (class, arch) in [(CLASS, arch()), (fp8, arch()), (fp8, hopper), (e5m2, hopper)] {
            assert_eq!(cp_async.on(&class, arch), tma, "{class} {arch}");
            let [one, other] = [tma, cp_async].map(|options| Kernel::decode(&TILE, &class, options, arch));
            assert_eq!(one, other, "{class} {arch}");
            let tiles = [TILE, Tile { m: 32, ..TILE }];
            let mix = |options| Kernel::decode_mix(&tiles, &class, options, arch);
            assert_eq!(mix(tma), mix(cp_async), "{class} {arch}");
        }
        assert_eq!(cp_async.on(&CLASS, hopper), cp_async);
        assert_eq!(Kernel::merge(4, &CLASS, cp_async), Kernel::merge(4, &CLASS, tma));
    }
}
