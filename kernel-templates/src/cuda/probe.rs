//! Host side of `probe.cuh`: kernels that measure a device.

use super::Kernel;

/// Floating-point operations of a CTA of [`Kernel::flop_probe`] in a round: eight warps, eight products of 16 x 8 x 16 each.
pub const FLOP_PROBE_FLOPS: u64 = 8 * 8 * 2 * 16 * 8 * 16;

/// Bytes that a CTA of [`Kernel::cta_probe`] reads, and what lies between those of two CTAs.
pub const CTA_PROBE_BYTES: u64 = 64 << 10;
/// See [`CTA_PROBE_BYTES`].
pub const CTA_PROBE_REGION: u64 = 72 << 10;

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

    /// CTAs of `shared_bytes` shared memory that find their work and wait for its first [`CTA_PROBE_BYTES`].
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
